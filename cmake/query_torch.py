"""Print what CMake must know of the environment's torch, one `set()` command a line."""

import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension


def cmake_list(paths: list[Path]) -> str:
    """Join paths the way CMake writes lists."""
    return ";".join(path.as_posix() for path in paths)


cuda_version = torch.version.cuda or ""
device_type = "cuda" if cuda_version else "cpu"
includes = [Path(path) for path in cpp_extension.include_paths(device_type)]
libraries = [Path(path) for path in cpp_extension.library_paths("cpu")]
names = ["c10", "torch_cpu", "torch"]
extra_files: list[Path] = []

if cuda_version:
    # A CUDA wheel keeps the toolkit's headers and NCCL in packages beside torch, and its libraries
    # have versioned names only, so they are named as files.
    names += ["c10_cuda", "torch_cuda"]
    nvidia = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    packages = [
        nvidia / f"cu{cuda_version.split('.')[0]}",
        nvidia / "cuda_runtime",
        nvidia / "nccl",
    ]
    includes += [package / "include" for package in packages]
    for package, pattern in [(packages[0], "libcudart.so*"), (packages[1], "libcudart.so*")]:
        extra_files += sorted((package / "lib").glob(pattern))[:1]
    extra_files += sorted((packages[2] / "lib").glob("libnccl.so*"))[:1]

print(f'set(TORCH_VERSION "{torch.__version__}")')
print(f'set(TORCH_CUDA_VERSION "{cuda_version}")')
print(f'set(TORCH_INCLUDE_DIRS "{cmake_list([path for path in includes if path.is_dir()])}")')
print(f'set(TORCH_LIBRARY_DIRS "{cmake_list(libraries)}")')
print(f'set(TORCH_LIBRARY_NAMES "{";".join(names)}")')
print(f'set(TORCH_EXTRA_LIBRARIES "{cmake_list(extra_files)}")')
print(f'set(TORCH_CXX11_ABI "{int(torch.compiled_with_cxx11_abi())}")')
