"""``solve_stages``: literature vectors, an exhaustive search of its own, and malformed tables."""

import math
from itertools import pairwise

import numpy as np
import pytest

import shardwright as sw

# tables of the literature's vectors: w / d * (1 + 0.1 log2 d), 1.5 times that over several hosts


def tables(
    weights: list[float], hosts: int, per_host: int
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    shapes = [(1, 2**k) for k in range(int(math.log2(per_host)) + 1)]
    shapes += [(n, per_host) for n in range(2, hosts + 1)]
    layers = len(weights)
    times = np.full((layers, layers + 1, len(shapes)), np.inf)
    for i in range(layers):
        for j in range(i + 1, layers + 1):
            for s, (n, m) in enumerate(shapes):
                d = n * m
                spans = 1.5 if n > 1 else 1
                times[i, j, s] = sum(weights[i:j]) / d * (1 + 0.1 * math.log2(d)) * spans
    return times, shapes


VECTOR_D = [1.0, 1, 1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("weights", "hosts", "num_microbatches", "time"),
    [
        ([4.0, 2, 1, 1], 1, 8, 19.2),
        ([1.0] * 8, 2, 16, 20.4),
        (VECTOR_D, 2, 32, 77.0),
    ],
)
def test_vectors(weights: list[float], hosts: int, num_microbatches: int, time: float) -> None:
    times, shapes = tables(weights, hosts, 4)
    solution = sw.solve_stages(
        times, shapes, num_devices=4 * hosts, num_microbatches=num_microbatches
    )
    assert solution.time == pytest.approx(time, rel=1e-12)
    assert solution.lower_bound == solution.time
    assert solution.status == "optimal"
    assert [i for i, _, _ in solution.stages] == [0, *(j for _, j, _ in solution.stages)][:-1]


def test_vector_d_has_the_known_stages() -> None:
    times, shapes = tables(VECTOR_D, 2, 4)
    solution = sw.solve_stages(times, shapes, num_devices=8, num_microbatches=32)
    assert solution.stages == ((0, 4, 1), (4, 6, 1), (6, 7, 1), (7, 8, 1))


@pytest.mark.parametrize(
    ("x", "time"),
    [(0, 77.0), (0.02, 80.52), (0.05, 82.5), (0.1, 85.8), (0.2, 92.4), (0.4, 105.6), (0.8, 124.8)],
)
def test_boundaries_are_charged_to_both_neighbours(x: float, time: float) -> None:
    times, shapes = tables(VECTOR_D, 2, 4)
    solution = sw.solve_stages(
        times,
        shapes,
        num_devices=8,
        num_microbatches=32,
        boundary_time=[x * size for size in (8, 8, 8, 4, 4, 2, 2)],
    )
    assert solution.time == pytest.approx(time, rel=1e-12)


def exhaustive(
    times: np.ndarray,
    shapes: list[tuple[int, int]],
    num_devices: int,
    num_microbatches: int,
    boundary: np.ndarray,
    held: tuple[np.ndarray, np.ndarray, int],
) -> float:
    layers = times.shape[0]
    fixed, moving, limit = held
    best = math.inf
    plans: list[list[tuple[int, int, int]]] = [[]]
    while plans:
        plan = plans.pop()
        begin = plan[-1][1] if plan else 0
        left = num_devices - sum(math.prod(shapes[s]) for _, _, s in plan)
        if begin < layers:
            plans += [
                [*plan, (begin, end, s)]
                for end in range(begin + 1, layers + 1)
                for s, shape in enumerate(shapes)
                if math.prod(shape) <= left
            ]
            continue
        if left:
            continue
        steps = [times[stage] for stage in plan]
        for k, ((_, cut, s), (_, _, t)) in enumerate(pairwise(plan)):
            steps[k] += boundary[cut - 1, s, t]
            steps[k + 1] += boundary[cut - 1, s, t]
        in_flight = [min(num_microbatches, len(plan) - k) for k in range(len(plan))]
        if any(
            fixed[stage] + n * moving[stage] > limit
            for stage, n in zip(plan, in_flight, strict=True)
        ):
            continue
        best = min(best, sum(steps) + (num_microbatches - 1) * max(steps))
    return best


def test_random_tables_with_boundaries_and_memory() -> None:
    random = np.random.default_rng(3)
    feasible = 0
    for _ in range(60):
        layers = int(random.integers(1, 6))
        times, shapes = tables(list(random.integers(1, 9, layers).astype(float)), 2, 2)
        times = times * random.uniform(0.8, 1.2, times.shape)
        boundary = random.uniform(0, 2, (layers - 1, 3, 3))
        fixed = random.integers(0, 30, times.shape)
        moving = random.integers(0, 30, times.shape)
        limit = int(random.integers(30, 120))
        microbatches = int(random.integers(1, 9))
        best = exhaustive(times, shapes, 4, microbatches, boundary, (fixed, moving, limit))
        arguments = {
            "num_devices": 4,
            "num_microbatches": microbatches,
            "boundary_time": boundary,
            "memory": sw.StageMemory(fixed, moving, limit),
        }
        if math.isinf(best):
            with pytest.raises(sw.InfeasibleError, match="E205"):
                sw.solve_stages(times, shapes, **arguments)
            continue
        feasible += 1
        solution = sw.solve_stages(times, shapes, **arguments)
        assert solution.time == pytest.approx(best, rel=1e-9)
        assert max(solution.stage_memory_bytes) <= limit
    assert feasible >= 30


def test_recomputation_is_chosen_where_memory_asks_for_it() -> None:
    times, shapes = tables([1.0] * 4, 1, 2)
    times[:, :, 1] = math.inf
    both = np.stack([times, times * 4 / 3], axis=-1)
    fixed = np.zeros_like(both)
    moving = np.stack([np.full_like(times, 60.0), np.full_like(times, 20.0)], axis=-1)
    solution = sw.solve_stages(
        both, shapes, num_devices=2, num_microbatches=8, memory=(fixed, moving, 70)
    )
    # Two stages on one device each: the first holds two microbatches, the second one.
    assert solution.stages == ((0, 2, 0), (2, 4, 0))
    assert solution.variants == (1, 0)
    assert solution.stage_memory_bytes == (40, 60)


def test_a_layer_too_large_is_named_with_its_bytes() -> None:
    times, shapes = tables([1.0] * 3, 1, 2)
    fixed = np.zeros(times.shape)
    fixed[:, :, 0], fixed[:, :, 1] = 500, 300
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.solve_stages(
            times, shapes, num_devices=2, num_microbatches=8, memory=(fixed, fixed * 0, 200)
        )
    assert caught.value.code == "E205"
    assert "layer 0 needs 300 bytes" in caught.value.values[0]


def test_the_limit_that_would_do_is_named() -> None:
    times, shapes = tables([1.0] * 2, 1, 2)
    times[:, :, 1] = math.inf  # both devices only as two stages
    times[0, 2, 0] = math.inf
    held = np.full(times.shape, 100)
    with pytest.raises(sw.InfeasibleError, match="200 would do"):
        sw.solve_stages(
            times, shapes, num_devices=2, num_microbatches=8, memory=(held * 0, held, 150)
        )


def test_devices_that_cannot_be_used_are_said() -> None:
    times, shapes = tables([1.0], 1, 2)
    with pytest.raises(sw.InfeasibleError, match="use 4 devices"):
        sw.solve_stages(times, shapes, num_devices=4, num_microbatches=1)
    solution = sw.solve_stages(
        times, shapes, num_devices=4, num_microbatches=1, use_all_devices=False
    )
    assert solution.num_devices == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"submeshes": [(1, 3), (1, 4)]}, "E221"),
        ({"submeshes": [1, 2]}, "E221"),
        ({"submeshes": [(1, 1)]}, "E221"),
        ({"stage_time": np.zeros((2, 4, 2))}, "E221"),
        ({"stage_time": [["a"]]}, "E221"),
        ({"stage_time": np.full((2, 3, 2), -1.0)}, "E221"),
        ({"stage_time": np.full((2, 3, 2), np.nan)}, "E221"),
        ({"boundary_time": [1.0, 2.0]}, "E221"),
        ({"boundary_time": [math.nan]}, "E221"),
        ({"memory": (np.zeros((2, 3, 2)), np.zeros((2, 3, 1)), 5)}, "E221"),
        ({"memory": 14}, "E221"),
        ({"num_microbatches": 0}, "E221"),
        ({"num_devices": 0}, "E221"),
        ({"schedule": "interleaved_1f1b"}, "E221"),
        ({"schedule": "dualpipe"}, "E551"),
        ({"time_limit_s": 0}, "E511"),
    ],
)
def test_bad_arguments_have_codes(change: dict[str, object], code: str) -> None:
    times, shapes = tables([1.0, 1.0], 1, 2)
    arguments = {
        "stage_time": times,
        "submeshes": shapes,
        "num_devices": 2,
        "num_microbatches": 2,
    } | change
    with pytest.raises(sw.ShardwrightError) as caught:
        sw.solve_stages(**arguments)
    assert caught.value.code == code
