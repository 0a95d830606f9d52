"""Launches: a program's calls of machine code, either kernels compiled for the program or routines of a library."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.graph.joining import NestCall, joined
from flnb.graph.pooling import pooling_of
from flnb.graph.reporting import kernel_event
from flnb.graph.values import MOVE, PUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from flnb.graph.joining import Span
    from flnb.graph.layouts import Layouts
    from flnb.graph.sites import Site
    from flnb.graph.values import Value


class Launch(NamedTuple):
    """A call of machine code, one of several that a program runs in a single call from Python.

    Attributes:
        kernel: the kernel that the site's compiler made, or the routine that the site's backend made.
        site: the backend that runs it.
        places: for each of its arrays, the value in whose memory the array is, and the offset (bytes) of the array's
            first element in that memory.
        event: the code of its event, and five more numbers of the event.
        scratch: where its scratch memory begins in the site's block, in bytes; -1 for the part that all calls share.
    """

    kernel: Any
    site: Site
    places: Sequence[tuple[Value, int]]
    event: tuple[int, tuple[int, ...]]
    scratch: int = -1


def routine_of(value: Value, site: Site, layouts: Layouts, kept_apart: Collection[str]) -> Any:
    """Return the library routine that computes an op in place of the backend's method; None if there is no routine.

    Args:
        value: the op's value.
        site: the backend that computes it.
        layouts: the memory locations of values.
        kept_apart: names of ops that methods of the user's class compute.
    """
    op = value.op
    if op is None or op.body is not None or op in (PUT, MOVE) or op.name in kept_apart or pooling_of(value) is not None:
        return None
    operands = [(x.spec.shape, layouts[x].strides, x.spec.dtype) for x in (*value.inputs, value)]
    return site.here.backend.routine(op.name, operands, value.attributes)


def launches(
    calls: Sequence[NestCall | Launch], span: Callable[[Value], Span], site: Site, contexts: dict[Value, int]
) -> list[Launch]:
    """Compile consecutive nests to kernels; returns the launches of kernels and of the routines in ``calls``, in order.

    Args:
        calls: nests, and launches of routines.
        span: returns the memory range of a value.
        site: the backend that runs them.
        contexts: each value's telemetry context.
    """
    made: list[Launch] = []
    for is_nest, run in groupby(calls, lambda call: isinstance(call, NestCall)):
        if not is_nest:
            made += run  # type: ignore[arg-type]
            continue
        nests: list[Any] = list(run)
        spans = [[span(value) for value, _ in call.places] for call in nests]
        for each in joined(nests, spans, site.kernels.most_joined):
            places = [place for call in each for place in call.places]
            members = [value for call in each for value in call.members]
            code, parts, context = kernel_event(each[-1].nest, members, contexts)
            kernel = site.kernels.kernel(*[call.nest for call in each])
            made.append(Launch(kernel, site, places, (code, (parts, 0, 0, 0, context))))
    return made
