"""Shards by index arithmetic on single elements: shares no code with the package."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """A tensor of random atoms, two of them to convert between, over `size` ranks."""

    dims: tuple[tuple[int, ...], ...]  # atom sizes per dim
    src: tuple[int, int]  # (dim, position) of the atom sharded before
    dst: tuple[int, int]  # ... and afterwards
    size: int
    seed: int

    def shape(self) -> tuple[int, ...]:
        return tuple(int(np.prod(dim, dtype=int)) for dim in self.dims)

    def outer(self, atom: tuple[int, int]) -> int:
        """Elements of the dim outside the atom, nothing sharded."""
        return int(np.prod(self.dims[atom[0]][: atom[1]], dtype=int))


def random_case(rng: random.Random, size: int) -> Case:
    while True:
        dims = tuple(
            tuple(rng.choice([1, 2, 3, size, 2 * size]) for _ in range(rng.randint(1, 3)))
            for _ in range(rng.randint(1, 3))
        )
        atoms = [(i, j) for i, dim in enumerate(dims) for j in range(len(dim))]
        usable = [(i, j) for i, j in atoms if dims[i][j] % size == 0]
        if len(usable) >= 2 and np.prod([np.prod(d) for d in dims]) <= 4096:
            src, dst = rng.sample(usable, 2)
            return Case(dims, src, dst, size, rng.randrange(1 << 30))


def shard(whole: np.ndarray, case: Case, atom: tuple[int, int] | None, rank: int) -> np.ndarray:
    """Part of `whole` on `rank` when `atom` is sharded (None: everything)."""
    if atom is None:
        return whole
    dim, position = atom
    sizes = case.dims[dim]
    rows = []
    for digits in itertools.product(*(range(size) for size in sizes)):
        if digits[position] * case.size // sizes[position] == rank:
            flat = 0
            for digit, size in zip(digits, sizes, strict=True):
                flat = flat * size + digit
            rows.append(flat)
    return np.take(whole, rows, axis=dim)


def local_outer(case: Case, atom: tuple[int, int], sharded: Sequence[tuple[int, int]]) -> int:
    """Local elements of the atom's dim outside it while the atoms in `sharded` are divided."""
    outer = 1
    for position in range(atom[1]):
        size = case.dims[atom[0]][position]
        outer *= size // case.size if (atom[0], position) in sharded else size
    return outer
