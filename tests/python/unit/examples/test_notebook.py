"""The notebook's code runs on a small model, and its stored outputs are fit to be read.

The cells are executed as one script, so that no notebook software is needed.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
NOTEBOOK = ROOT / "examples/notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text())["cells"]  # type: ignore[no-any-return]


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in cells() if cell["cell_type"] == "code"]


def stored_outputs() -> list[dict[str, Any]]:
    return [output for cell in code_cells() for output in cell["outputs"]]


def script() -> str:
    """The code of all cells; the value of a cell's last line is asked for as a notebook would."""
    lines = ["def _show(value):", "    assert value._repr_html_() and str(value)"]
    for cell in code_cells():
        *body, last = text_of(cell["source"]).rstrip().splitlines()
        shown = re.fullmatch(r"plan(\.explain\(.*\))?", last)
        lines += [*body, f"_show({last})" if shown else last]
    return "\n".join(lines) + "\n"


def test_code_runs_on_a_small_model(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "notebook.py").write_text(script())
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "SHARDWRIGHT_NOTEBOOK": "small"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same plan: True" in done.stdout


def test_every_code_cell_was_run_in_order_without_errors() -> None:
    assert [cell["execution_count"] for cell in code_cells()] == list(
        range(1, len(code_cells()) + 1)
    )
    kinds = {output["output_type"] for output in stored_outputs()}
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert not [o for o in stored_outputs() if o.get("name") == "stderr"]


def test_stored_outputs_show_the_large_plan_and_its_picture() -> None:
    pages = [
        text_of(o["data"]["text/html"])
        for o in stored_outputs()
        if "text/html" in o.get("data", {})
    ]
    assert '<div class="swp">' in pages[0]
    assert "mesh 8 x 8" in pages[0]
    printed = "".join(text_of(o["text"]) for o in stored_outputs() if "text" in o)
    assert re.search(r"\b39,\d{3},\d{3},\d{3} parameters", printed)


def test_stored_outputs_hold_no_paths_of_a_machine() -> None:
    stored = json.dumps(stored_outputs())
    assert not re.search(r"/(home|root|tmp|work|usr|Users)/|\.py:\d+.*Traceback", stored)
