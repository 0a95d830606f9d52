"""Captures: a recorded call of a function, which runs as a compiled program and repeats the call's side effects."""

from __future__ import annotations

import warnings
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from flnb_backends.tensor.captured import CapturedBackend, refuse_read_only

from flnb.autograd.tree import leaves, rebuild
from flnb.autograd.variable import next_leaf
from flnb.dispatch import state
from flnb.dispatch.crossing import mark_written, next_seq
from flnb.dispatch.effects import Effects, effects
from flnb.dispatch.guards import changed, guarded, hold
from flnb.dispatch.plan import spec_of
from flnb.dispatch.references import items_of, referred
from flnb.graph.direct import Direct, direct_of
from flnb.graph.lending import address_of
from flnb.graph.program import MOST_OPS, Program
from flnb.graph.reporting import emit_compile
from flnb.graph.results import Result
from flnb.graph.values import Recorded, reachable
from flnb.interface.tape import PARENTS, SEQ
from flnb.tensor import Tensor, detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flnb.dispatch.state import State

__all__ = ["NOT_RUN", "Captured"]

NOT_RUN = object()
"""The result of `Captured.run_directly` if the program did not run."""


class Captured:
    """A recorded call of a function: its compiled program, and the side effects to repeat at each run.

    Args:
        function, arguments, keywords: the call to record; no tensor is computed.
        here: the state in which to compute.
        fuse: whether to compile loop nests.
        donate: positions, among the tensors in the arguments, of tensors whose memory may be written to.

    Attributes:
        program: the program, which computes what the function computes.
        effects: the function's side effects.
        fresh: leaves of the tape whose gradient the function sets; a leaf that is an argument is represented by its
            position among the tensors in the arguments.
        grown: leaves, as in ``fresh``, that have a gradient before the call and whose gradient the function uses.
        result: the objects in the result's containers, with a `Result` in place of each tensor.
        guards: the objects besides the arguments on which the function depends, with their values.

    Raises:
        RuntimeError: the function reads elements of a tensor, or stores a tensor where no later run would replace it.
    """

    _direct: Direct | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        keywords: Any,
        here: State,
        fuse: bool,
        donate: Sequence[int],
    ) -> None:
        t0 = clock()
        backend = CapturedBackend(here.backend, opens=fuse and here.backend.kernels() is not None)
        tensors = [x for x in leaves((arguments, keywords)) if isinstance(x, Tensor)]
        self._flat = not keywords and all(isinstance(x, Tensor) for x in arguments)
        backend.arguments, inputs = tensors, [backend.buffer_of(x).read() for x in tensors]
        self.effects, first, start = Effects(here.backend), -next_leaf(), next_seq()
        objects = [x for x in leaves((arguments, keywords)) if not isinstance(x, Tensor)]
        outer, before = effects.get(), guarded(referred(function, objects))
        try:
            effects.set(self.effects)
            with state.use(backend=backend):
                result = function(*arguments, **keywords)
                made = leaves(result)
                given = [backend.buffer_of(x) if isinstance(x, Tensor) else None for x in made]
            outputs = [buffer.read() for buffer in given if buffer is not None]
            self.result = [x if b is None else Result.like(x) for x, b in zip(made, given, strict=True)]
            self.tree = rebuild(result, range(len(made)))
            existing = [x for x in self.effects.used.values() if x._node[SEQ] > first]  # others end with the call
            fresh = [x for x in existing if _is_recorded(x.grad, backend)]
            outputs += [x.grad._data.read() for x in fresh]
        finally:
            effects.set(outer)
            self.effects.drawn.clear()
            for x in self.effects.used.values():
                if _is_recorded(x.grad, backend):
                    x.grad = None
            for x, gradient in self.effects.grown:
                x.grad = gradient
        del result, made, given
        backend.refuse_kept()
        grown = [x for x, _ in self.effects.grown]
        inputs += [backend.leaf(x._data) for _, x in self.effects.grown]
        position = {id(x._node): i for i, x in enumerate(tensors) if x._node is not None}
        cleared = [x for x in self.effects.cleared.values() if x._node[SEQ] > first]
        ungiven = [x for x in existing if id(x._node) in self.effects.ungiven]
        self.fresh, self.grown, self._cleared, self._ungiven = (
            [position.get(id(x._node), x) for x in each] for each in (fresh, grown, cleared, ungiven)
        )
        self._hold({*existing, *cleared, *self.effects.others.values()} - {*tensors})
        self.effects.forget_tensors()  # they may be arguments
        self.guards = guarded(referred(function, objects, self._settings(tensors)), changed(before))
        self._note_others(tensors, start)
        updates, donated = backend.written(), [inputs[i] for i in donate if i < len(tensors)]
        recorded = Recorded(inputs, outputs, updates, backend.random, donated, self.effects.generators)
        _warn_if_long(function, len(reachable(recorded.wanted)))
        repeats = self._cleared or self.fresh or self.grown or self.effects.calls or self.effects.last or self._written
        self.program = Program(recorded, here, fuse, lends=not repeats and here.backend.reads_host)
        self._specs = [spec_of(x.spec.shape, x.spec.dtype, x.place.backend.buffer) for x in self.program.outputs]
        emit_compile(self.program, t0)

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        """Store the memory and hooks of the tensors that the function uses and that are not its arguments.

        Also store the strides of the gradients that the leaves in `grown` had.
        """
        self._strides = [x._data.strides for _, x in self.effects.grown]
        self._held = [(x, x._data, x._node and x._node[PARENTS]) for x in tensors]

    def _settings(self, tensors: Sequence[Tensor]) -> list[tuple[Any, str]]:
        """Return pairs (holder, name) for `referred`: settings on which the function depends, and the hooks of leaves.

        Settings of the tensors in ``tensors``, which are arguments of the function, are left out.
        """
        watched = [each for each in self.effects.watched if all(each[0] is not x for x in tensors)]
        return watched + [(parents, "functions") for *_, parents in self._held if hasattr(parents, "functions")]

    def _note_others(self, tensors: Sequence[Tensor], start: int) -> None:
        """Store which of the arguments ``tensors`` share memory with tensors that the function reaches by names.

        Also store which tensors were written since the sequence number ``start``, for backward passes that saved them.
        """
        found = [x for *_, value in self.guards for x in (value, *items_of(value))] + [x for x, *_ in self._held]
        others = {id(x): x for x in found if isinstance(x, Tensor)}
        own = [i for i, x in enumerate(tensors) if x._last_write > start]
        self._written = own + [x for x in others.values() if x._last_write > start]
        kinds = {x._spec.kind for x in tensors}
        self._others = {address_of(x._data) for x in others.values() if x._spec.kind in kinds}
        self._shared = self._sharing(tensors)

    def _sharing(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return for each argument whether it shares memory with a tensor that the function reaches by a name."""
        return [address_of(x._data) in self._others for x in tensors] if self._others else []

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the recorded call is still valid for these argument tensors.

        The call is valid if parameters have the same memory, the same leaves have gradients, names refer to the same
        objects, and the same arguments are also reached by names.
        """
        for x, data, parents in self._held:
            if x._data is not data or (x._node and x._node[PARENTS]) is not parents:
                return False
        if not hold(self.guards) or self._sharing(tensors) != self._shared:
            return False
        grown, ungiven = _now(self.grown, tensors), _now(self._ungiven, tensors)
        if any(x.grad is None or x.grad._spec is not x._spec for x in grown) or any(
            x.grad is not None for x in ungiven
        ):
            return False
        return [x.grad._data.strides for x in grown] == self._strides

    def run(self, tensors: Sequence[Tensor], repeat: bool = True) -> Any:
        """Run the program and repeat the side effects; returns the function's result.

        Args:
            tensors: the tensors among the arguments.
            repeat: whether to repeat the side effects; False in the first run, because they happened during recording.
        """
        for x in _now(self._written, tensors):
            refuse_read_only(x._data)
        given = [x.grad._data for x in _now(self.grown, tensors)]  # which the function may clear after it has read them
        for x in _now(self._cleared, tensors):
            x.grad = None
        for call in self.effects.calls if repeat else ():
            call()
        arrays = [x._data for x in tensors] + given
        made = self.program.run(arrays)
        first = len(made) - len(self.fresh)
        for x, array, spec in zip(_now(self.fresh, tensors), made[first:], self._specs[first:], strict=True):
            x.grad = detached(array, spec)
        result = self._returned(made)
        for x in _now(self._written, tensors):
            mark_written(x)
        for call in self.effects.last if repeat else ():
            call()
        if self.program.lends and self._flat:  # a direct run asks nothing but for tensors
            self._direct = direct_of(self.program, tensors)
        return result

    def run_directly(self, arguments: Sequence[Any], here: State) -> Any:
        """Run the program for arguments like those of the last run, and return the function's result.

        Returns `NOT_RUN` if only a lookup of the arguments' signature can show which program serves this call.
        """
        direct = self._direct
        if direct is None:
            return NOT_RUN
        if (self._held or self.guards) and not (all(isinstance(x, Tensor) for x in arguments) and self.fits(arguments)):
            return NOT_RUN
        made = direct.run(arguments, here)
        return NOT_RUN if made is None else self._returned(made)

    def _returned(self, arrays: Sequence[Any]) -> Any:
        """Return the function's result, made of the program's first output arrays."""
        if self.tree == 0:
            only = self.result[0]
            return only.of(arrays[0], self._specs[0]) if isinstance(only, Result) else only
        results = zip(arrays, self._specs, strict=True)
        values = [x.of(*next(results)) if isinstance(x, Result) else x for x in self.result]
        return rebuild(self.tree, values)


def _warn_if_long(function: Any, count: int) -> None:
    """Issue a warning if a function has so many ops that planning its program takes long."""
    if count > MOST_OPS:
        warnings.warn(
            f"flnb.jit: {getattr(function, '__qualname__', function)} has {count:,} ops, and planning a program of "
            f"more than {MOST_OPS:,} takes long: jit a part of it, such as some of its time steps",
            RuntimeWarning,
            stacklevel=4,
        )


def _now(found: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Return a copy of the list ``found`` in which each int is replaced by the argument tensor at that position."""
    return [tensors[x] if type(x) is int else x for x in found]


def _is_recorded(gradient: Tensor | None, backend: CapturedBackend) -> bool:
    """Return whether a gradient is the result of an op that ``backend`` has recorded but not computed."""
    return gradient is not None and backend.records(gradient._spec.kind)
