"""Buckets: gradients of several parameters joined in one buffer, which ranks exchange in a single call."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from flnb.distributed.staging import compute, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.dispatch.communication import Pending
    from flnb.nn.module import Parameter


class Bucket:
    """Joins the gradients of some parameters in one buffer, which ranks sum in a single collective call.

    Every gradient is divided into ``parts`` parts, and row i of the buffer has part i of each gradient. So the rank
    that sums an element depends only on the element's position in its own parameter. With one part, the only row has
    all gradients, one behind the other.

    Args:
        parameters: parameters of one dtype, in the order of their gradients in a row.
        parts: the number of parts; the last parts of a small parameter may be smaller or empty.
        index: the number of the bucket, which recordings show.
        holds: a short description of the parameters, which recordings show.

    Attributes:
        numbers: the sequence numbers of the parameters' leaf nodes on the tape.
        places: for each parameter, the first column of its gradient and the column after the last.
        missing: the numbers of leaves whose gradients have not been written yet in this backward pass.
        used: the numbers of the leaves that have a gradient on this rank, from this pass or an earlier one.
        half: whether each rank divides its gradients before they are summed, because a sum in half precision could
            overflow.
        pending: the collective call that is running, or None.
        mine: the row of sums that this rank received, if there are several parts.
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
        """Write a parameter's gradient to the buffer.

        Args:
            number: the number of the parameter's leaf.
            gradient: the gradient of this backward pass, or None for zeros.
            old: a gradient accumulated before, which is added, or None.
            divisor: the number by which the result is divided, in half precision only.
        """
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
        """Return a new, uninitialised tensor of the size of one row."""
        return local((self.places[-1][1],), self.dtype)


def write_rows(rows: Any, values: Any) -> None:
    """Copy the elements of ``values`` into the matrix ``rows``, row by row, and fill the rest with zeros.

    If ``values`` is None, all elements are set to zero.
    """
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
    """Copy elements of the matrix ``rows``, row by row, until the contiguous array ``out`` is full.

    This is the inverse of `write_rows`.
    """
    width = rows.shape[1]
    out = out.reshape(-1)
    if not width:
        return
    whole = out.size // width
    compute("copy", rows[:whole], out=out[: whole * width].reshape(whole, width))
    if whole * width < out.size:
        compute("copy", rows[whole, : out.size - whole * width], out=out[whole * width :])


def joined(named: Iterable[tuple[str, Parameter]], most: int, parts: int) -> list[Bucket]:
    """Group parameters, the last one first, into buckets.

    Args:
        named: the names and the parameters.
        most: the largest size of a bucket in bytes; a bucket with a single parameter may be larger.
        parts: the number of parts into which each gradient is divided.
    """
    groups: list[dict[str, Parameter]] = []
    for name, parameter in reversed([(name, p) for name, p in named if p.requires_grad]):
        group = [*groups[-1].values()] if groups else []
        full = sum(p.nbytes for p in group) + parameter.nbytes > most
        if not group or full or group[0].dtype != parameter.dtype:
            groups.append({})
        groups[-1][name] = parameter
    return [Bucket([*group.values()], parts, index, _held([*group][::-1])) for index, group in enumerate(groups)]


def _held(names: list[str]) -> str:
    """Describe parameters by their first and last module and by their number, as text: "fc1, fc2 · 4 params"."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    ends = (", " if len(modules) == 2 else " … ").join(dict.fromkeys((modules[0], modules[-1])))
    return f"{ends} · {len(names)} params" if len(names) > 1 else names[0]
