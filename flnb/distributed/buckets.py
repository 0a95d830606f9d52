"""Buckets: gradients of several parameters joined in one buffer, which ranks exchange in a single call."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from flnb.distributed.staging import compute, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.dispatch.communication import Pending
    from flnb.nn.module import Parameter

__all__ = ["Bucket", "joined", "read_rows", "write_rows"]


class Bucket:
    """Gradients exchanged in one call, in a buffer with one row for each part that parameters are divided into.

    With one part the buffer is one gradient behind the other. With several, each row begins with a part of the first
    parameter: which rank has an element depends on its place in its parameter alone, not on the other parameters.

    Args:
        parameters: of one dtype, in the order of their gradients.
        parts: into how many parts each is divided, the last of which may be smaller or empty.
        index: the number of the bucket, and `holds`, a few words on what is in it: recordings show both.

    Attributes:
        numbers: the numbers of the parameters' leaves.
        places: of each parameter, where its columns begin and end.
        missing: the numbers of the leaves whose gradients have not come yet in this pass.
        used: the numbers of those whose gradients have come.
        half: whether gradients are divided before they are summed, since the sum could overflow.
        pending: the exchange under way.
        mine: this rank's part of the sum.
    """

    def __init__(self, parameters: Sequence[Parameter], parts: int, index: int, holds: str = "") -> None:
        self.parameters, self.parts, self.index, self.holds = list(parameters), parts, index, holds
        self.numbers = [p._node[2] for p in parameters]
        self._index = {number: index for index, number in enumerate(self.numbers)}
        ends = [0, *accumulate(-(-p.size // parts) for p in parameters)]
        self.places = list(pairwise(ends))
        self.dtype = self.parameters[0].dtype
        self.half = self.dtype.itemsize == 2
        self.missing: set[int] = set()
        self.used: set[int] = set()
        self.pending: Pending | None = None
        self.flat: Any = None
        self.mine: Any = None

    def begin(self) -> None:
        """Reset the bucket for a new backward pass; buffers are allocated later, when first needed."""
        self.missing, self.used = set(self.numbers), set()
        self.flat = self.mine = self.pending = None

    def write(self, number: int, gradient: Any, old: Any, divisor: int) -> None:
        """Write a parameter's gradient, plus an accumulated ``old`` one, divided by ``divisor``; None counts as 0."""
        if self.flat is None:
            self.flat = local((self.parts, self.places[-1][1]), self.dtype)
        index = self._index[number]
        rows = self.flat._data[:, slice(*self.places[index])]
        if gradient is None or old is None:
            write_rows(rows, old if gradient is None else gradient)
        elif self.parts == 1:
            compute("add", old.reshape(-1), gradient.reshape(-1), out=rows[0])
        else:
            total = local(gradient.shape, self.dtype)._data
            compute("add", old, gradient, out=total)
            write_rows(rows, total)
        if self.half:
            compute("divide", rows, divisor, out=rows)
        self.missing.discard(number)

    def part(self) -> Any:
        """Allocate the buffer of one row, which this rank sends or receives."""
        return local((self.places[-1][1],), self.dtype)


def write_rows(rows: Any, values: Any) -> None:
    """Copy an array's elements into rows of equal length, padded with zeros; None writes zeros everywhere."""
    count, width = rows.shape
    if values is None:
        compute("full", 0, out=rows)
    if values is None or not width:
        return
    values = values.reshape(-1)
    whole = values.size // width
    compute("copy", values[: whole * width].reshape(whole, width), out=rows[:whole])
    if whole < count:
        rest = values.size - whole * width
        compute("copy", values[whole * width :], out=rows[whole, :rest])
        compute("full", 0, out=rows[whole, rest:])
        compute("full", 0, out=rows[whole + 1 :])


def read_rows(rows: Any, out: Any) -> None:
    """Copy the elements of rows into a contiguous array: the inverse of `write_rows`."""
    width = rows.shape[1]
    out = out.reshape(-1)
    if not width:
        return
    whole = out.size // width
    compute("copy", rows[:whole], out=out[: whole * width].reshape(whole, width))
    if whole * width < out.size:
        compute("copy", rows[whole, : out.size - whole * width], out=out[whole * width :])


def joined(named: Iterable[tuple[str, Parameter]], most: int, parts: int) -> list[Bucket]:
    """Group parameters, last ones first, into buckets of at most ``most`` bytes (at least one parameter each)."""
    groups: list[dict[str, Parameter]] = []
    for name, parameter in reversed([(name, p) for name, p in named if p.requires_grad]):
        group = [*groups[-1].values()] if groups else []
        full = sum(p.nbytes for p in group) + parameter.nbytes > most
        if not group or full or group[0].dtype != parameter.dtype:
            groups.append({})
        groups[-1][name] = parameter
    return [Bucket([*group.values()], parts, index, _held([*group][::-1])) for index, group in enumerate(groups)]


def _held(names: list[str]) -> str:
    """Describe parameters by their first and last module and their number, as in "fc1, fc2 · 4 params"."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    ends = (", " if len(modules) == 2 else " … ").join(dict.fromkeys((modules[0], modules[-1])))
    return f"{ends} · {len(names)} params" if len(names) > 1 else names[0]
