"""`flnb.jit`: records a function's tensor ops, and runs them later as a compiled program instead of the Python code."""

from __future__ import annotations

import functools
import sys
import warnings
from threading import RLock
from time import perf_counter_ns as clock
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from flnb_backends.tensor.captured import CapturedBackend, refuse_read_only
from flnb_telemetry import bus, schema

from flnb.autograd.tree import leaves, rebuild
from flnb.autograd.variable import next_leaf
from flnb.dispatch import state
from flnb.dispatch.crossing import mark_written, next_seq
from flnb.dispatch.dtypes import default_dtype
from flnb.dispatch.effects import Effects, effects
from flnb.dispatch.guards import changed, guarded, hold
from flnb.dispatch.memory import keepers
from flnb.dispatch.plan import families, residents, spec_of
from flnb.dispatch.references import items_of, referred
from flnb.graph.calls import KernelCalls
from flnb.graph.direct import Direct, direct_of
from flnb.graph.lending import address_of
from flnb.graph.program import MOST_OPS, Program
from flnb.graph.results import Result
from flnb.graph.values import Recorded, reachable
from flnb.interface.tape import PARENTS, PLAN, SEQ
from flnb.tensor import Tensor, detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flnb.dispatch.state import State
    from flnb.interface import MemoryManager

__all__ = ["Captured", "Jitted", "jit"]

P = ParamSpec("P")
R = TypeVar("R")
MOST_VARIANTS = 8
"""The largest number of captures of a function for one signature; if none is valid, the function runs normally."""
MOST_KEYS = 64
"""The largest number of signatures (shapes and dtypes of tensors, other arguments) with captures of a function."""
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
        calls = sum(len(step.events) if isinstance(step, KernelCalls) else 1 for step in self.program.steps)
        values = sum(len(group.members) for group in self.program.groups)
        bus.emit(schema.COMPILE, t0, clock(), values, calls, 0, 0, bus.threads.here.context())

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        """Store the memory and hooks of tensors that are not arguments, and the strides of gradients it reads."""
        self._strides = [x._data.strides for _, x in self.effects.grown]
        self._held = [(x, x._data, x._node and x._node[PARENTS]) for x in tensors]

    def _settings(self, tensors: Sequence[Tensor]) -> list[tuple[Any, str]]:
        """Return the settings on which the step depends, except those of its arguments, and the hooks of leaves."""
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
        """Return for each argument whether it has the memory of a tensor that the function reaches by a name."""
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


class Jitted(Generic[P, R]):
    """A function wrapped by `jit`, with its captured programs.

    Attributes:
        captured: a dict from a call's signature to the list of its captured programs, which is empty after the first
            call with this signature.
    """

    def __init__(self, function: Callable[P, R], fuse: bool, donate: Sequence[int]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.fuse, self.donate = function, fuse, tuple(donate)
        self.captured: dict[Any, list[Captured]] = {}
        self._latest: Captured | None = None
        self._called: set[Any] = set()  # arguments with which the function has run since it was captured last
        self._lock = RLock()
        keepers.add(self)

    def forget(self, manager: MemoryManager) -> None:
        """Discard the programs captured for a memory manager that is no longer used."""
        if self._lock.acquire(blocking=False):  # a thread that runs it uses the manager still
            try:
                for key in [key for key, known in self.captured.items() if any(x is manager for x in key)]:
                    del self.captured[key]
                    self._called.discard(key)
                self._latest = None
            finally:
                self._lock.release()

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        here = state.current()
        if effects.get() is not None or here.interpreters or not here.backend.programs:
            return self.function(*arguments, **keywords)
        latest = self._latest
        if latest is not None and not keywords:
            result = latest.run_directly(arguments, here)
            if result is not NOT_RUN:
                return cast("R", result)
        flat = not keywords and all(isinstance(x, Tensor) for x in arguments)
        given: Sequence[Any] = arguments if flat else leaves((arguments, keywords))
        tensors = given if flat else [x for x in given if isinstance(x, Tensor)]
        if any(x._spec.kind != here.kind and not families[x._spec.kind].programs for x in tensors):
            return self.function(*arguments, **keywords)
        containers = len(given) if flat else repr(rebuild((arguments, keywords), range(len(given))))
        key = self._key(given, tensors, containers, here)
        with self._lock:  # a program has memory for one run at a time
            known = self.captured.setdefault(key, [])
            if len(self.captured) > MOST_KEYS:
                oldest = next(iter(self.captured))
                del self.captured[oldest]
                self._called.discard(oldest)
            for each in known:
                if each.fits(tensors):
                    self._latest = each
                    return cast("R", each.run(tensors))
            if key in self._called and len(known) < MOST_VARIANTS:
                self._called.discard(key)
                made = Captured(self.function, arguments, keywords, here, self.fuse, self.donate)
                known.append(made)
                return cast("R", made.run(tensors, repeat=False))
            self._called.add(key)
        return self.function(*arguments, **keywords)  # which may allocate what it keeps, such as an optimizer's state

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to an instance, so that `jit` also decorates methods."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Pickle or deep-copy the function without its programs; a function of a module is pickled by its name."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Jitted, (self.function, self.fuse, self.donate))

    @property
    def programs(self) -> list[Program]:
        """Return the programs captured so far; ``print`` one to see its calls."""
        return [captured.program for known in self.captured.values() for captured in known]

    def _key(self, given: Sequence[Any], tensors: Sequence[Tensor], containers: Any, here: State) -> Any:
        """Return the signature of a call: a key that is equal for calls that one captured program can serve.

        The key contains shapes and dtypes of tensors, other arguments, the structure of containers, and the state.

        Args:
            given: the arguments, without the containers around them.
            tensors: the tensors among the arguments.
            containers: a hashable description of the containers.
            here: the active state (`flnb.dispatch.state.State`).

        Raises:
            TypeError: an argument is neither a tensor nor hashable.
        """
        places = [(address_of(x._data), id(x._node)) for x in tensors]
        same = [places.index(place) for place in places]  # two may be one and the same
        described = [_described(x, here.grad) for x in given]
        # a program has memory for one run after another
        queue = [here.backend.queue(), *[each.queue() for each in residents.values()]]
        parts = here.backend, type(here.backend), here.manager, here.tape
        key = (*described, *same, containers, default_dtype(), here.grad, *queue, *parts)
        try:
            hash(key)
        except TypeError:
            wrong = next(type(x).__name__ for x in given if type(x).__hash__ is None)
            raise TypeError(
                f"flnb.jit: expected arguments that are tensors or hashable, got {wrong}: pass arrays as "
                f"tensors (flnb.asarray)"
            ) from None
        return key


def _described(x: Any, grad: bool) -> Any:
    """Return an argument's part of the signature: a tensor's shape and dtype, or the value of anything else.

    Raises:
        RuntimeError: a gradient would have to flow out of the function through the argument.
    """
    if not isinstance(x, Tensor):
        return type(x), repr(x) if isinstance(x, (float, complex)) else x  # 0.0 == -0.0, and nan != nan
    if grad and x._node is not None and x._node[PLAN] is not None:
        raise RuntimeError(
            f"flnb.jit: an argument, {x._spec!r}, is the result of {x._node[PLAN].op.name!r} and requires grad, and "
            f"gradients cannot flow out of a compiled function through it: pass x.detach(), or compute the argument "
            f"inside the function"
        )
    return x._spec, type(x), x._data.strides, x._node is None


def jit(function: Callable[P, R] | None = None, *, fuse: bool = True, donate: Sequence[int] = ()) -> Any:
    """Compile a function of tensors: from its third call on it runs as a program, without Python.

    The first call with arguments of certain shapes and dtypes runs normally. The second call records the function's
    tensor ops (the forward pass, ``backward``, the optimizer's step) as a program. This and later calls run the
    program, on memory that is planned once. Other side effects happen only during the recorded call, except for
    optimizers' counters and learning rates, random numbers, and `zero_grad`, which each run repeats. If the recorded
    call raises an error, no memory has been written, and gradients that it would have set are None; a later run that
    raises one, such as an index out of range, has counted the step. On backends
    without programs (`flnb.interface.TensorBackend.programs`), and inside of `vmap` or `autocast`, the function runs
    normally. Results are not on the tape, so call ``backward`` inside of the function; in a program it does not refuse
    a loss that is NaN.

    The function is recorded again if anything else on which it depends has changed: arguments that are no tensors, the
    backend, a setting of a module or an optimizer, or what the code of the user's functions refers to by name. These
    are the function and those that it reaches by names, attributes or containers; their global names, imports, closures
    and defaults; and of all objects found so, and their classes, the attributes that the code names, and the items of
    lists, dicts, sets and deques of at most 100,000 items, also of those inside of a container of at most 256. NumPy
    arrays of at most 64 KiB and tensors whose elements Python reads are compared by their elements, too. **Not**
    noticed are elements of larger arrays, items of other containers (``os.environ``, ``bytearray``), values of context
    variables, names in strings (``getattr``), the state of iterators and files, and what functions of installed
    libraries read.

    Args:
        function: a function that takes and returns tensors, also in nested containers, and other values. It must not
            read elements of arguments or results of ops (``.item()``, ``if x > 0``, ``x[mask]``). NumPy arrays and
            numbers that it uses or computes are constants of the program: ``optimizer.lr *= 0.5`` sets the same rate
            in each run. Pass values that change from call to call, such as batches, as tensors. An argument that it
            returns, or a view of one, is a copy, and no two results share memory.
        fuse: whether several elementwise ops and reductions may be computed by one compiled kernel.
        donate: positions, among the tensors in the arguments, of tensors that the caller does not need any more. Their
            memory may be overwritten with a result, also for other tensors on the same memory.

    Raises:
        RuntimeError: in the second call, the function reads elements of a tensor; or stores a tensor elsewhere than in
            its result, a parameter's ``grad``, or memory that existed before; or communicates with other ranks; or
            draws random numbers that Python reads; or an argument is the result of an op and requires grad.
        TypeError: an argument is neither a tensor nor hashable, such as a NumPy array.

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
