"""Print how many tests ran, failed and were skipped, from JUnit files of pytest and GoogleTest.

Usage: test_counts.py FILE...  Exits 1 when a test failed or none ran.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def count(path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def line(name: str, counts: Counter[str]) -> str:
    parts = [f"{counts[key]} {key}" for key in ("passed", "failed", "skipped")]
    return f"{name}: {', '.join(parts)}"


def main() -> int:
    total: Counter[str] = Counter()
    for path in map(Path, sys.argv[1:]):
        counts = count(path)
        print(line(path.stem, counts))
        total += counts
    print(line("total", total))
    return 0 if total["passed"] and not total["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
