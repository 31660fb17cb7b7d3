"""Rules on the tree that no linter knows: torch stays in the runtime, error codes have entries.

Run by ``make lint``; exits 1 and prints one line per finding.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME_FOLDERS = ("csrc/runtime/", "csrc/bindings/runtime/")
TORCH_INCLUDE = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|caffe2)/")
ERROR_CODE = re.compile(r"\"(E\d{3})\"")
DOCUMENTED_CODE = re.compile(r"^#+ (E\d{3})\b", re.MULTILINE)


def sources(folder: str, *suffixes: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)


def torch_includes_outside_runtime() -> list[str]:
    findings = []
    for path in sources("csrc", ".h", ".cpp", ".cu"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(RUNTIME_FOLDERS):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if TORCH_INCLUDE.search(line):
                findings.append(
                    f"{name}:{number}: torch header outside the runtime: {line.strip()}"
                )
    return findings


def undocumented_error_codes() -> list[str]:
    documented = DOCUMENTED_CODE.findall((ROOT / "docs/errors.md").read_text())
    findings = [
        f"docs/errors.md: {code} has two entries"
        for code in sorted(set(documented))
        if documented.count(code) > 1
    ]
    for path in sources("csrc", ".h", ".cpp", ".cu") + sources("python", ".py"):
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith(("//", "#")):
                continue
            findings += [
                f"{name}:{number}: {code} has no entry in docs/errors.md"
                for code in ERROR_CODE.findall(line)
                if code not in documented
            ]
    return findings


def main() -> int:
    findings = torch_includes_outside_runtime() + undocumented_error_codes()
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
