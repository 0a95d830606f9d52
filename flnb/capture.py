"""Capturing: `jit` records what a function does with tensors, and repeats it as a program without Python."""

from __future__ import annotations

import functools
from threading import RLock
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from flnb_backends.tensor.captured import CapturedBackend
from flnb_telemetry import bus, schema

from flnb.autograd.tree import leaves, rebuild
from flnb.dispatch import state
from flnb.dispatch.effects import Effects, effects
from flnb.dispatch.plan import spec_of
from flnb.graph.calls import KernelCalls
from flnb.graph.program import Program, Recorded
from flnb.tensor import Tensor, detached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.dispatch.state import State

__all__ = ["Captured", "Jitted", "jit"]

P = ParamSpec("P")
R = TypeVar("R")
MOST_VARIANTS = 8
"""So often a function is captured for arguments of certain specs; if it never fits again, it runs as always."""


class Captured:
    """One recorded call of a function, as a program with what else the function did.

    Args:
        function, arguments, keywords: the call to record; nothing is computed.
        here: the state in which to compute.
        fuse: whether to compile loop nests.
        donate: positions of tensors, among those in the arguments, whose memory may be written to.

    Attributes:
        program: computes what the function computes.
        effects: what else the function does.
        fresh: leaves to which it gives a gradient.
        grown: leaves whose gradient, which is there before, it adds to or reads.
        result: for each leaf of the result the type of the tensor and None, or the type and the object itself.

    Raises:
        RuntimeError: the function asks for elements, or stores a tensor where no later run would put a new one.
    """

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
        inputs = [backend.adopt(x._data, x._spec.kind).read() for x in tensors]
        self.effects = Effects()
        token = effects.set(self.effects)
        try:
            with state.use(backend=backend):
                result = function(*arguments, **keywords)
                made = leaves(result)
                given = [backend.buffer_of(x) if isinstance(x, Tensor) else None for x in made]
            outputs = [buffer.read() for buffer in given if buffer is not None]
            self.result = [
                (type(x), x) if b is None else (x._lift or Tensor, None) for x, b in zip(made, given, strict=True)
            ]
            self.tree = rebuild(result, range(len(made)))
            self.fresh = [x for x in self.effects.used.values() if _is_recorded(x.grad, backend)]
            outputs += [x.grad._data.read() for x in self.fresh]
        finally:
            effects.reset(token)
            for x in self.effects.used.values():
                if _is_recorded(x.grad, backend):
                    x.grad = None
            for x, gradient in self.effects.grown:
                x.grad = gradient
        del result, made, given
        backend.refuse_kept()
        self.grown = [x for x, _ in self.effects.grown]
        inputs += [backend.leaf(gradient._data) for _, gradient in self.effects.grown]
        updates = backend.written()
        self._ungiven = [x for x in self.fresh if all(x is not other for other in self.grown)]
        self._cleared = list(self.effects.cleared.values())
        self._held = [(x, x._data) for x in self.effects.used.values()]
        donated = [inputs[i] for i in donate if i < len(tensors)]
        recorded = Recorded(inputs, outputs, updates, backend.random, donated, self.effects.generators)
        self.program = Program(recorded, here, fuse)
        calls = sum(len(step.events) if isinstance(step, KernelCalls) else 1 for step in self.program.steps)
        values = sum(len(group.members) for group in self.program.groups)
        bus.emit(schema.COMPILE, t0, clock(), values, calls, 0, 0, bus.threads.here.context())

    def fits(self) -> bool:
        """Whether parameters are in the memory in which they were, and gradients present or not as they were."""
        for x in self._cleared:
            x.grad = None  # as the function itself does
        return (
            all(x._data is data for x, data in self._held)
            and all(x.grad is not None and x.grad._spec is x._spec for x in self.grown)
            and all(x.grad is None for x in self._ungiven)
        )

    def run(self, tensors: Sequence[Tensor], repeat: bool = True) -> Any:
        """Compute; returns what the function would return.

        Args:
            tensors: the tensors among the arguments.
            repeat: whether to repeat the function's effects; not in the first run, as the capture had them.
        """
        for call in self.effects.calls if repeat else ():
            call()
        arrays = [x._data for x in tensors] + [x.grad._data for x in self.grown]
        made = self.program.run(arrays)
        gradients = made[len(made) - len(self.fresh) :]
        for x, array in zip(self.fresh, gradients, strict=True):
            x.grad = detached(array, spec_of(array.shape, array.dtype, "ndarray"))
        results = iter(made)
        values = [x if x is not None else _tensor(kind, next(results)) for kind, x in self.result]
        for call in self.effects.last if repeat else ():
            call()
        return rebuild(self.tree, values)


def _is_recorded(gradient: Tensor | None, backend: CapturedBackend) -> bool:
    """Whether a gradient was recorded on a backend, and has no elements."""
    return gradient is not None and gradient._spec.kind == backend.buffer


def _tensor(kind: type[Tensor], array: Any) -> Tensor:
    """Make a tensor, or a Variable without a place on the tape, of an array."""
    made: Tensor = object.__new__(kind)
    made._data, made._spec = array, spec_of(array.shape, array.dtype, "ndarray")
    if kind is not Tensor:
        made._node = None
    return made


class Jitted(Generic[P, R]):
    """A function that `jit` captures; see there.

    Attributes:
        captured: what was captured, by what it depends on; an empty list where the function has run once.
    """

    def __init__(self, function: Callable[P, R], fuse: bool, donate: Sequence[int]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.fuse, self.donate = function, fuse, tuple(donate)
        self.captured: dict[Any, list[Captured]] = {}
        self._modules = _modules(function)
        self._lock = RLock()

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        here = state.current()
        if effects.get() is not None or here.interpreters or here.backend.buffer != "ndarray":
            return self.function(*arguments, **keywords)
        given = leaves((arguments, keywords))
        tensors = [x for x in given if isinstance(x, Tensor)]
        key = self._key(given, keywords, here)
        with self._lock:  # a program has memory for one run at a time
            known = self.captured.get(key)
            if known is None or len(known) == MOST_VARIANTS:
                self.captured.setdefault(key, [])
                return self.function(*arguments, **keywords)
            for each in known:
                if each.fits():
                    return cast("R", each.run(tensors))
            made = Captured(self.function, arguments, keywords, here, self.fuse, self.donate)
            known.append(made)
            return cast("R", made.run(tensors, repeat=False))

    @property
    def programs(self) -> list[Program]:
        """The programs that were captured so far; ``print`` one to see its calls."""
        return [captured.program for known in self.captured.values() for captured in known]

    def _key(self, given: Sequence[Any], keywords: dict[str, Any], here: State) -> Any:
        """What a capture depends on."""
        tensors = [x for x in given if isinstance(x, Tensor)]
        places = [x._data.__array_interface__["data"][0] for x in tensors]
        same = [places.index(place) for place in places]  # two may be one and the same
        described = [
            (x._spec, type(x), x._data.strides, x._node is None) if isinstance(x, Tensor) else x for x in given
        ]
        flags = _flags(self._modules)
        return (*described, *same, *keywords, None, here.backend, type(here.backend), here.manager, here.grad, *flags)


def _flags(modules: list[Any]) -> list[Any]:
    """List all modules in modules, each followed by whether it is in training mode."""
    flags: list[Any] = []
    waiting = [*modules]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (list, tuple)):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif _is_module(type(each)):
            flags += (id(each), each.training)
            waiting += vars(each).values()
    return flags


def _is_module(kind: type) -> bool:
    """Whether objects of a class are modules (`flnb.nn`, which this does not import)."""
    return hasattr(kind, "named_modules")


def _modules(function: Any) -> list[Any]:
    """List the modules that a function refers to: itself, its object, in its closure, defaults and globals."""
    inner = functools.reduce(lambda f, name: getattr(f, name, f), ("__wrapped__", "__func__"), function)
    code = getattr(inner, "__code__", None)
    seen = [function, getattr(function, "__self__", None)]
    seen += [cell.cell_contents for cell in getattr(inner, "__closure__", None) or () if _filled(cell)]
    seen += getattr(inner, "__defaults__", None) or ()
    seen += [inner.__globals__.get(name) for name in code.co_names] if code is not None else []
    seen += [x for each in seen[:2] for x in getattr(each, "__dict__", {}).values()]
    return [x for x in seen if _is_module(type(x))]


def _filled(cell: Any) -> bool:
    """Whether a variable of a closure has been assigned."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def jit(function: Callable[P, R] | None = None, *, fuse: bool = True, donate: Sequence[int] = ()) -> Any:
    """Make a function that runs as one program from its third call on.

    The first call with arguments of certain shapes and dtypes runs as always; the second one records what is done to
    tensors: the forward pass, ``backward`` and the optimizer's step; that and later ones compute it as a program, on
    memory planned once. What the function does besides is done while it is recorded, and not again, except for
    optimizers' counters and learning rates, random numbers, and `zero_grad`. On backends whose buffers are no NumPy
    arrays, and inside of `vmap` or `autocast`, it runs as always.

    Args:
        function: takes and returns tensors, in nested containers, and other values. It must not read elements
            (``.item()``, ``if x > 0``), and what it makes of NumPy arrays stays as it is: pass batches as tensors.
        fuse: whether elementwise ops and reductions may be computed together, by kernels that are compiled.
        donate: positions, among the tensors in the arguments, of those that the caller does not need any more: a result
            may be in their memory, and other tensors there then have its elements.

    Raises:
        RuntimeError: in the second call, the function asks for elements of a tensor, or stores a tensor elsewhere
            than in its result, a parameter's ``grad``, or memory that was there before; it calls other ranks, or draws
            random numbers that Python reads.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> model = nn.Linear(3, 1)
    >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
    >>> @flnb.jit
    ... def step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = ((model(x) - y) ** 2).mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> losses = [step(flnb.ones((4, 3)), flnb.zeros((4, 1))).item() for _ in range(4)]
    >>> losses[3] < losses[0]
    True
    >>> f = flnb.jit(lambda x: flnb.sum(flnb.exp(x) * 2.0), fuse=False)
    >>> _, _ = f(flnb.ones(3)), f(flnb.ones(3))
    >>> print(f.programs[0])
    exp(float32[3]) -> %1 float32[3] at 0
    multiply(%1, float32[]) -> %2 float32[3] at 0
    sum(%2) -> %3 float32[] new
    """
    if function is None:
        return functools.partial(jit, fuse=fuse, donate=donate)
    return Jitted(function, fuse, donate)
