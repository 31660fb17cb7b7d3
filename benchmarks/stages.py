"""Time of the stage search on 1,000 layers and 4,096 devices (512 hosts of 8).

Shapes are (1, 1), (1, 2), (1, 4) and (k, 8) for powers of two k. A stage of weight w on d devices
takes w / d * (1 + 0.1 log2 d), half as much again over several hosts. "even": all layers weigh 1;
"uneven": weights 0.5 to 2, and every table entry is off by up to 5 %.
"""

import json
import math
import platform
import resource
import sys
import time
from pathlib import Path

import numpy as np

import shardwright as sw

RESULTS = Path(__file__).parent / "results" / "stages.json"
LAYERS, HOSTS, PER_HOST = 1000, 512, 8


def tables(uneven: bool) -> tuple[np.ndarray, list[tuple[int, int]]]:
    random = np.random.default_rng(0)
    weights = random.uniform(0.5, 2, LAYERS) if uneven else np.ones(LAYERS)
    shapes = [(1, 1), (1, 2), (1, 4)] + [(2**k, PER_HOST) for k in range(10)]
    before = np.concatenate([[0.0], np.cumsum(weights)])
    work = before[None, :] - before[:-1, None]
    times = np.stack(
        [work / (n * m) * (1 + 0.1 * math.log2(n * m)) * (1.5 if n > 1 else 1) for n, m in shapes],
        axis=-1,
    )
    if uneven:
        times *= random.uniform(0.95, 1.05, times.shape)
    times[work <= 0] = np.inf
    return times, shapes


def measure(uneven: bool, num_microbatches: int, boundaries: bool) -> dict[str, object]:
    times, shapes = tables(uneven)
    boundary = np.random.default_rng(1).uniform(0, 0.2, LAYERS - 1) if boundaries else None
    begin, cpu = time.monotonic(), time.process_time()
    solution = sw.solve_stages(
        times,
        shapes,
        num_devices=HOSTS * PER_HOST,
        num_microbatches=num_microbatches,
        boundary_time=boundary,
        time_limit_s=1200,
    )
    return {
        "layers": "uneven" if uneven else "even",
        "num_microbatches": num_microbatches,
        "boundary_costs": boundaries,
        "status": solution.status,
        "time": round(solution.time, 6),
        "stages": len(solution.stages),
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.monotonic() - begin, 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    rows = []
    for uneven, num_microbatches, boundaries in (
        (False, 1024, False),
        (True, 64, False),
        (True, 1024, False),
        (True, 256, True),
    ):
        rows.append(measure(uneven, num_microbatches, boundaries))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "command": "python benchmarks/stages.py",
        "versions": {"shardwright": sw.__version__, "python": platform.python_version()},
        "machine": "2 shared x86-64 cores under load of other work: CPU seconds count",
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
