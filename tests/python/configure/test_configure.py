"""Configuring says where CBC comes from, and how to get it when it is not there."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def configure(build_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's cmake on the project, without the runtime and the C++ tests."""
    scripts = sysconfig.get_path("scripts")
    return subprocess.run(
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build_dir),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DSHARDWRIGHT_MODULE_DIR={build_dir}",
            "-DSHARDWRIGHT_BUILD_RUNTIME=OFF",
            "-DSHARDWRIGHT_BUILD_TESTS=OFF",
            *arguments,
        ],
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_absent_cbc_fails_and_names_both_ways_to_get_it(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DSHARDWRIGHT_CBC=none")
    assert done.returncode != 0
    assert "pip install cbcbox" in done.stderr
    assert "apt-get install coinor-libcbc-dev" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("cbcbox") is None, reason="cbcbox is not installed")
def test_cbc_is_found_in_the_pip_package(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DSHARDWRIGHT_CBC=cbcbox")
    assert done.returncode == 0, done.stderr
    assert "CBC: pip package cbcbox" in done.stdout


def test_unknown_sanitizer_is_refused(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DSHARDWRIGHT_SANITIZE=adress")
    assert done.returncode != 0
    assert "SHARDWRIGHT_SANITIZE is 'adress'" in done.stderr
