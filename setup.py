"""Builds the two compiled modules with CMake; everything else is in pyproject.toml.

Needs torch in the building environment: ``pip install --no-build-isolation .``
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE_DIR = Path(__file__).resolve().parent


def cmake_program() -> str:
    """Return the environment's own cmake, else the one on PATH."""
    own = Path(sysconfig.get_path("scripts")) / "cmake"
    return str(own) if own.exists() else "cmake"


class CMakeBuild(build_ext):
    """One CMake build gives both modules."""

    def run(self) -> None:
        """Configure and build into the package folder of the wheel."""
        if importlib.util.find_spec("torch") is None:
            sys.exit(
                "shardwright is built against the torch it will run with, and this environment "
                "has none.\nInstall torch first, then: pip install --no-build-isolation ."
            )
        build_dir = Path(self.build_temp).resolve()
        build_dir.mkdir(parents=True, exist_ok=True)
        module_dir = Path(self.get_ext_fullpath("shardwright._core")).resolve().parent
        configure = [
            cmake_program(),
            "-S",
            str(SOURCE_DIR),
            "-B",
            str(build_dir),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DSHARDWRIGHT_MODULE_DIR={module_dir}",
            "-DSHARDWRIGHT_BUILD_TESTS=OFF",
            "-DSHARDWRIGHT_ASSERTIONS=OFF",
            "-DSHARDWRIGHT_WERROR=OFF",
        ]
        ninja = Path(sysconfig.get_path("scripts")) / "ninja"
        if ninja.exists():
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += os.environ.get("CMAKE_ARGS", "").split()
        subprocess.run(configure, check=True)
        build = [cmake_program(), "--build", str(build_dir)]
        if self.parallel:
            build += ["-j", str(self.parallel)]
        subprocess.run(build, check=True)


setup(
    ext_modules=[Extension("shardwright._core", []), Extension("shardwright._runtime", [])],
    cmdclass={"build_ext": CMakeBuild},
)
