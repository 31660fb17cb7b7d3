"""Which global indices of a dim a rank holds, in the order in which it holds them.

Every shard that plain and strided sharding can make is an affine lattice: nested counters, the
outermost first, each with an extent and a stride. Used by the static checker alone; it shares
nothing with the planner's atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class IrregularError(Exception):
    """The operation would leave something that is no lattice, or does not divide."""


@dataclass(frozen=True)
class Lattice:
    """Indices offset + sum of counter_k * stride_k, last counter fastest.

    Attributes:
        offset: first index.
        digits: (extent, stride) per counter; neighbours that continue each other are merged and
            extents of 1 are left out, so that equal sequences have equal lattices.
    """

    offset: int
    digits: tuple[tuple[int, int], ...]

    @staticmethod
    def whole(size: int) -> Lattice:
        """0, 1, ..., size - 1."""
        return _merged(0, ((size, 1),))

    @property
    def size(self) -> int:
        """How many indices."""
        count = 1
        for extent, _ in self.digits:
            count *= extent
        return count

    def is_whole(self, size: int) -> bool:
        """Whether these are 0 to size - 1 in order."""
        return self == Lattice.whole(size)

    def indices(self) -> list[int]:
        """All of them, for tests and small dims."""
        found = [self.offset]
        for extent, stride in self.digits:
            found = [base + i * stride for base in found for i in range(extent)]
        return found

    def scaled(self, factor: int, shift: int = 0) -> Lattice:
        """Every index times `factor`, plus `shift`."""
        digits = tuple((extent, stride * factor) for extent, stride in self.digits)
        return _merged(self.offset * factor + shift, digits)

    def cut(self, outer: int, parts: int, index: int) -> Lattice:
        """Seen as [outer, parts, rest]: part `index` of the middle."""
        head, tail = _split(self.digits, outer)
        middle, rest = _split(tail, parts)
        return _merged(self.offset + _element(middle, index), (*head, *rest))

    @staticmethod
    def joined(members: Sequence[Lattice], outer: int) -> Lattice:
        """Concatenation of equal pieces, each seen as [outer, rest], between outer and rest."""
        first = members[0]
        if any(member.digits != first.digits for member in members):
            raise IrregularError("joins pieces of different shapes")
        step = members[1].offset - first.offset if len(members) > 1 else 1
        if any(m.offset != first.offset + i * step for i, m in enumerate(members)):
            raise IrregularError("joins pieces that do not follow each other")
        head, rest = _split(first.digits, outer)
        return _merged(first.offset, (*head, (len(members), step), *rest))

    @staticmethod
    def product(dims: Sequence[Lattice], sizes: Sequence[int]) -> Lattice:
        """Row-major index of a merged dim from those of its parts of the given global sizes."""
        digits: list[tuple[int, int]] = []
        offset, stride = 0, 1
        for lattice, size in zip(reversed(dims), reversed(sizes), strict=True):
            moved = lattice.scaled(stride)
            offset += moved.offset
            digits[:0] = list(moved.digits)
            stride *= size
        return _merged(offset, tuple(digits))

    def factors(self, sizes: Sequence[int]) -> list[Lattice]:
        """The inverse of `product`: indices within each of the global sizes."""
        stride = 1
        for size in sizes:
            stride *= size
        digits = list(self.digits)
        rest = self.offset
        result = []
        for size in sizes:
            stride //= size
            taken: list[tuple[int, int]] = []
            while digits and digits[0][1] >= stride:
                taken.append(digits.pop(0))
            if digits and digits[0][0] * digits[0][1] > stride:
                extent, step = digits[0]
                if stride % step or extent % (stride // step):
                    raise IrregularError("splits a dim across a shard")
                inner = stride // step
                taken.append((extent // inner, stride))
                digits[0] = (inner, step)
            position, rest = divmod(rest, stride)
            if any(step % stride for _, step in taken):
                raise IrregularError("splits a dim across a shard")
            part = _merged(position, tuple((e, step // stride) for e, step in taken))
            if part.offset + sum((e - 1) * s for e, s in part.digits) >= size:
                raise IrregularError("splits a dim across a shard")
            result.append(part)
        if digits or rest:
            raise IrregularError("splits a dim across a shard")
        return result

    def window(self, start: int, length: int) -> Lattice:
        """Elements `start` to `start + length - 1` of the sequence, where they are a lattice."""
        if length == self.size:
            return self
        inner = 1
        for position in range(len(self.digits) - 1, -1, -1):
            extent, step = self.digits[position]
            fits = length % inner == 0 and start % inner == 0
            first, count = (start // inner) % extent, length // inner
            if fits and count >= 1 and first + count <= extent:
                before = start // inner // extent
                base = _element(self.digits[:position], before)
                rest = ((count, step), *self.digits[position + 1 :])
                return _merged(self.offset + base + first * step, rest)
            inner *= extent
        raise IrregularError("takes a window across a shard")


def _merged(offset: int, digits: Sequence[tuple[int, int]]) -> Lattice:
    result: list[tuple[int, int]] = []
    for extent, stride in digits:
        if extent == 1:
            continue
        if result and result[-1][1] == extent * stride:
            result[-1] = (result[-1][0] * extent, stride)
        else:
            result.append((extent, stride))
    return Lattice(offset, tuple(result))


def _split(
    digits: Sequence[tuple[int, int]], outer: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Counters that count to `outer`, and the rest."""
    head: list[tuple[int, int]] = []
    tail = list(digits)
    while outer > 1:
        if not tail:
            raise IrregularError("does not divide")
        extent, stride = tail.pop(0)
        if outer % extent == 0:
            head.append((extent, stride))
            outer //= extent
        elif extent % outer == 0:
            inner = extent // outer
            head.append((outer, inner * stride))
            tail.insert(0, (inner, stride))
            outer = 1
        else:
            raise IrregularError("does not divide")
    return tuple(head), tuple(tail)


def _element(digits: Sequence[tuple[int, int]], index: int) -> int:
    """Value of the counters after `index` counts."""
    value = 0
    for extent, stride in reversed(digits):
        index, position = divmod(index, extent)
        value += position * stride
    if index:
        raise IrregularError("index outside")
    return value
