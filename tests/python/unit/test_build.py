"""The compiled modules load and tell what they were built with."""

import torch

from shardwright import _core, _runtime


def test_core_names_its_solver() -> None:
    info = _core.build_info()
    assert info["cbc_source"] in {"system", "cbcbox"}
    assert info["cbc_version"]


def test_runtime_was_built_against_the_running_torch() -> None:
    # The header's version has no local part such as "+cpu".
    assert torch.__version__.split("+")[0] == _runtime.build_info()["torch_version"]
