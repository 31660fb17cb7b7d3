"""The Python blocks of README.md and docs/ run as they stand.

The blocks of one page run in order, in one process, as if they were one file. A block opened with
"```python no-run" is only compiled.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT_S = 300


def script_of(text: str, *, runnable: bool) -> str:
    """Return a page's blocks on the page's own lines, so that tracebacks point into the page."""
    lines, fence = [], ""
    for line in text.splitlines():
        bare = line.strip()
        if fence:
            fence = "" if bare == "```" else fence
            wanted = fence.startswith("```python") and ("no-run" in fence) != runnable
            lines.append(line if wanted else "")
        else:
            fence = bare if bare.startswith("```") else ""
            lines.append("")
    return "\n".join(lines) + "\n"


def has_blocks(page: Path) -> bool:
    text = page.read_text()
    return any(script_of(text, runnable=runnable).strip() for runnable in (True, False))


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if has_blocks(page)], ids=page_name)
def test_blocks_of_the_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    compile(script_of(text, runnable=False), page_name(page), "exec")
    script = tmp_path / f"{page.stem}_blocks.py"
    script.write_text(script_of(text, runnable=True))
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_wanted_blocks_are_kept_on_their_lines() -> None:
    page = "a\n```python\nx = 1\n```\n```sh\nls\n```\n```python no-run\ny = 2\n```\n"
    assert script_of(page, runnable=True) == "\n\nx = 1\n\n\n\n\n\n\n\n"
    assert script_of(page, runnable=False) == "\n\n\n\n\n\n\n\ny = 2\n\n"
