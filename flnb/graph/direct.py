"""Direct runs: a program that is machine code alone runs again after only those addresses were set that have changed.

A kernel that moves megabytes replaces Python's objects in the processor's caches: each object that is read between two
runs then comes from slow memory, and the code around a kernel takes five times as long as on small tensors. So a direct
run reads few objects.
"""

from __future__ import annotations

from os import getpid
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from flnb.dispatch.dtypes import default_dtype
from flnb.graph.calls import KernelCalls
from flnb.graph.lending import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.state import State
    from flnb.graph.program import Program
    from flnb.tensor import Tensor


def direct_of(program: Program, tensors: Sequence[Tensor]) -> Direct | None:
    """Return the `Direct` of a program that has just run on ``tensors``; None if the program contains Python calls."""
    simple = (
        program.is_settled
        and program.lends
        and all(isinstance(step, KernelCalls) for step in program.steps)
        and len(program.fresh) == len(program.outputs)
        and len(program.inputs) == len(tensors) == len({*program.inputs})
        and all(type(x._data) is np.ndarray and x._data.size and x._node is None for x in tensors)
    )
    return Direct(program, tensors) if simple else None


class Direct:
    """Runs a program of machine code again, for tensors with the same specs and strides as in an earlier run.

    Args:
        program: the program, which has memory.
        tensors: the input tensors of the earlier run, no two of which share memory.
    """

    __slots__ = ("_arrays", "_kinds", "_outputs", "_process", "_program", "_specs", "_state", "_steps", "_strides")

    def __init__(self, program: Program, tensors: Sequence[Tensor]) -> None:
        self._program, self._steps, self._process = program, program.steps, getpid()
        here = program.here
        self._state: Any = here.backend, type(here.backend), here.manager, here.grad, here.tape, default_dtype()
        self._specs, self._kinds = [x._spec for x in tensors], [type(x) for x in tensors]
        self._strides = [x._data.strides for x in tensors]
        self._arrays: list[Any] = [ref(x._data) for x in tensors]
        self._outputs = [0] * len(program.outputs)

    def run(self, tensors: Sequence[Any], here: State) -> list[Any] | None:
        """Run the program; returns the output arrays, or None if only `Program.run` can serve this call."""
        program, (backend, kind, manager, grad, tape, dtype) = self._program, self._state
        if here.backend is not backend or type(backend) is not kind or here.manager is not manager:
            return None
        if here.grad is not grad or here.tape is not tape or default_dtype() is not dtype:
            return None
        if len(tensors) != len(self._specs):
            return None
        with program.in_use:
            if program.steps is not self._steps or self._process != getpid():
                return None
            same = program.placed_by is self
            for x, kind, spec, known in zip(tensors, self._kinds, self._specs, self._arrays, strict=True):
                if type(x) is not kind or x._spec is not spec or x._node is not None:
                    return None
                if known() is not x._data:
                    same = False
            if not same and not self._place([x._data for x in tensors]):
                return None
            outputs = []
            for i, value in enumerate(program.outputs):
                lent = program.lending.take(value, program.output)
                if lent.address != self._outputs[i]:
                    self._outputs[i] = 0  # until all are set: Ctrl-C may come between
                    program.pointers.set(value, lent.address)
                    self._outputs[i] = lent.address
                outputs.append(lent.array)
            program.run_steps()
            return outputs

    def _place(self, arrays: list[Any]) -> bool:
        """Set the addresses of the input arrays; returns False if the program cannot run on these arrays.

        It cannot if their strides differ from those of the earlier run, or if two arrays begin at the same address.
        """
        if any(type(x) is not np.ndarray or x.strides != s for x, s in zip(arrays, self._strides, strict=True)):
            return False
        addresses = [address_of(x) for x in arrays]
        if len({*addresses}) < len(addresses):
            return False
        program = self._program
        program.placed_by = None  # until all are set: Ctrl-C may come between
        for value, address in zip(program.inputs, addresses, strict=True):
            program.pointers.set(value, address)
        self._arrays = [ref(x) for x in arrays]
        self._outputs = [0] * len(self._outputs)
        program.placed_by = self
        return True
