"""Lattices against plain lists of indices."""

import random

import pytest

from shardwright.lowering.lattice import IrregularError, Lattice


def cut_list(values, outer, parts, index):
    inner = len(values) // outer // parts
    return [values[(o * parts + index) * inner + i] for o in range(outer) for i in range(inner)]


@pytest.mark.parametrize("seed", range(50))
def test_cuts_products_and_factors_are_those_of_lists(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(3)]
    parts = []
    for size in sizes:
        lattice, values = Lattice.whole(size), list(range(size))
        for _ in range(2):
            outer = rng.choice([d for d in range(1, len(values) + 1) if len(values) % d == 0])
            rest = len(values) // outer
            n = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
            index = rng.randrange(n)
            lattice, values = lattice.cut(outer, n, index), cut_list(values, outer, n, index)
            assert lattice.indices() == values
        parts.append((lattice, values))
    merged = Lattice.product([lattice for lattice, _ in parts], sizes)
    a, b, c = (values for _, values in parts)
    assert merged.indices() == [(x * sizes[1] + y) * sizes[2] + z for x in a for y in b for z in c]
    factors = merged.factors(sizes)
    assert [f.indices() for f in factors] == [a, b, c]


@pytest.mark.parametrize("seed", range(50))
def test_joining_the_cuts_gives_the_whole_again(seed):
    rng = random.Random(seed)
    outer, n, inner = rng.randint(1, 4), rng.randint(2, 4), rng.randint(1, 4)
    whole = Lattice.whole(outer * n * inner)
    members = [whole.cut(outer, n, i) for i in range(n)]
    assert Lattice.joined(members, outer) == whole


def test_windows_are_slices_where_they_are_lattices():
    # a fused dim (3, 4) with the 4 cut in two: rank 1 holds 2, 3, 6, 7, 10, 11
    held = Lattice.whole(12).cut(3, 2, 1)
    assert held.window(2, 2).indices() == [6, 7]
    assert held.window(2, 4).indices() == [6, 7, 10, 11]
    with pytest.raises(IrregularError):
        held.window(1, 2)


def test_what_is_no_lattice_is_refused():
    with pytest.raises(IrregularError):  # 0, 1 and 4, 5 and 2, 3
        Lattice.joined([Lattice(0, ((2, 1),)), Lattice(4, ((2, 1),)), Lattice(2, ((2, 1),))], 1)
    with pytest.raises(IrregularError):  # 6 as 2 x 3, but the first 4 of it
        Lattice(0, ((4, 1),)).factors([2, 3])
