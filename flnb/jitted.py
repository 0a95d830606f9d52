"""`flnb.jit`: records a function's tensor ops, and runs them later as a compiled program instead of the Python code."""

from __future__ import annotations

import functools
import sys
from threading import RLock
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from flnb.autograd.tree import leaves, rebuild
from flnb.capture import NOT_RUN, Captured
from flnb.dispatch import state
from flnb.dispatch.dtypes import default_dtype
from flnb.dispatch.effects import effects
from flnb.dispatch.memory import keepers
from flnb.dispatch.plan import families, residents
from flnb.graph.lending import address_of
from flnb.interface.tape import PLAN
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.dispatch.state import State
    from flnb.graph.program import Program
    from flnb.interface import MemoryManager

__all__ = ["Jitted", "jit"]

P = ParamSpec("P")
R = TypeVar("R")
MOST_VARIANTS = 8
"""The largest number of captures of a function for one signature; if none is valid, the function runs normally."""
MOST_KEYS = 64
"""The largest number of signatures (shapes and dtypes of tensors, other arguments) with captures of a function."""


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
        """Return the programs captured so far; ``print`` one to see its calls.

        >>> import flnb
        >>> f = flnb.jit(lambda x: flnb.sum(flnb.exp(x) * 2.0), fuse=False)
        >>> _, _ = f(flnb.ones(3)), f(flnb.ones(3))
        >>> print(f.programs[0])
        exp(float32[3]) -> %1 float32[3] at 0
        multiply(%1, float32[]) -> %2 float32[3] at 0
        sum(%2) -> %3 float32[] new
        """
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
    """
    if function is None:
        return functools.partial(jit, fuse=fuse, donate=donate)
    return Jitted(function, fuse, donate)
