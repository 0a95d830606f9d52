"""The state: the active backend with its methods, memory manager, and whether gradients are recorded.

One `State`, found through one ContextVar, has everything that an op needs to know. ``set_*`` functions change the
session's state; ``use_*`` blocks make a changed copy the current one until they end. Nothing else changes a state.
"""

from __future__ import annotations

import os
from contextlib import suppress
from contextvars import ContextVar, copy_context
from inspect import CO_VARARGS, unwrap
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flnb_telemetry.schema import CATEGORIES
from flnb_telemetry.withblock import holding

from flnb.dispatch import registry
from flnb.dispatch.brief import brief
from flnb.dispatch.plan import families, spec_of
from flnb.dispatch.quiet import unnamed
from flnb.dispatch.spelling import warn_of_misspelt
from flnb.interface.device import choose_device
from flnb.interface.living import Living
from flnb.interface.part import Part
from flnb.interface.tensor import TensorBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from flnb.interface import MemoryDevice, MemoryManager, Tape


__all__ = ["CATEGORIES", "State", "category", "current", "entered", "recording", "use"]

PARAMETER, GRADIENT, ACTIVATION, OPTIMIZER_STATE, INPUT, TEMPORARY = range(1, len(CATEGORIES))


class State:
    """The active backend, manager and modes. ``table[op.index]`` is the backend's bound method for an op."""

    __slots__ = (
        "__weakref__", "backend", "category", "device", "direct", "empty", "grad", "interpreters", "keep", "kind",
        "manager", "mark", "min_block", "overridden", "parts", "scoped", "table", "tape", "variants",
    )  # fmt: skip

    backend: TensorBackend
    manager: MemoryManager
    min_block: int
    interpreters: tuple[Any, ...]
    """The interpreters, which receive every call of an op (`flnb.dispatch.interpreter`); the innermost is the last."""
    empty: Any
    """The backend's function that makes a buffer (`TensorBackend.allocator`)."""
    direct: Any
    """The backend's buffer family, on which ops run directly; None if there are interpreters."""
    overridden: frozenset[str]
    """The primitives that a user's subclass overrides, if the backend has methods for composites."""
    device: MemoryDevice
    """The default device of managers that are created while this state is current."""
    tape: Tape
    mark: Any
    """The object by which nodes refer to the active tape; None for the default tape."""
    keep: Any
    """The function that adds a node to the tape's list, for a tape that does nothing else with new nodes; else None."""
    variants: dict[str, State]
    """Changed copies of this state that `variant` has made since the state's last change, by name."""

    def __init__(self, **parts: Part) -> None:
        self.scoped: frozenset[str] = frozenset()
        self.interpreters = ()
        self.grad, self.category = True, 0
        self.parts: dict[str, Part] = {}
        self.change(**parts)
        live.add(self)

    def change(self, **changes: Any) -> None:
        """Set fields of this state (parts and modes, by name), and update everything that depends on them."""
        for name, value in changes.items():
            if name == "backend" and self.parts:
                value = self.backend.counterpart(value)
            if name in State.__slots__:
                setattr(self, name, value)
            if isinstance(value, Part):
                self.parts = {**self.parts, name: value}
                value.attach(self)
        self.direct = None if self.interpreters else self.kind
        self.variants = {}

    def bind(self) -> None:
        """Cache the active backend's methods and facts, so that ops need no lookup."""
        warn_of_misspelt(type(self.backend), operators)
        self.kind = self.backend.buffer
        self.overridden, self.empty = self.backend.overridden(), self.backend.allocator()
        families.setdefault(self.kind, type(self.backend))
        self.table = [self.bound(op) for op in operators]

    def locate(self) -> None:
        """Choose the memory manager: the one that was set; if it is for another device, the backend's own manager."""
        if "manager" not in self.parts or "backend" not in self.parts:
            return
        manager: Any = self.parts["manager"]
        here, there = self.backend.location, manager.device.location
        if here and there and here != there:
            manager = self.backend.own_manager()
        makes_buffers = self.backend.has_values and not self.backend.defers
        self.manager, self.min_block = manager, max(manager.min_block, 0) if makes_buffers else 0

    def bound(self, op: Any) -> Callable[..., Any] | None:
        """Return the backend's method for an op; None for a composite or combined op for which the backend has none."""
        if op.body is not None or op.separately is not None:
            return self.backend.method(op.name)
        method = bind(self.backend, op, planned=True)
        if type(self.backend).supports is not TensorBackend.supports:
            method = _supported(self.backend, op, method)
        return method

    def offers(self, plan: Any, index: int) -> bool:
        """Return whether the backend has a method for a composite, or for a gradient of one, in the dtype of ``plan``.

        ``index`` is the number of the composite or the gradient in the op table, ``plan`` is that of the call.
        """
        return self.table[index] is not None and plan.spec.dtype.char in self.backend.whole_dtypes

    def whole(self, plan: Any, index: int) -> Callable[..., Any] | None:
        """Return the backend's method for a composite, its gradient, or a combined op; None if it must run op by op.

        That is so if the backend has no such method for the plan's dtype, or if the user's class overrides one of the
        primitives that the method replaces. ``index`` is the number of the op in the table.
        """
        kernel = self.table[index]
        if kernel is None or plan.spec.dtype.char not in self.backend.whole_dtypes:  # as `offers`
            return None
        if plan.primitives is None:  # the plan was made where no backend took it whole
            plan.op.complete(plan)
        if self.overridden and plan.op.name not in self.overridden and not self.overridden.isdisjoint(plan.primitives):
            return None
        return self.backend.recorder(plan, index) if self.backend.defers else kernel

    def variant(self, name: str, **changes: Any) -> State:
        """Return a copy of this state with changes, cached under ``name``."""
        made = self.variants.get(name)
        if made is None:
            made = self.copy()
            made.scoped |= changes.keys()
            made.change(**changes)
            self.variants[name] = made
        return made

    def without_innermost(self) -> State:
        """Return this state without the innermost interpreter, for ops that the interpreter itself runs."""
        return self.variants.get("without_innermost") or self.variant(
            "without_innermost", interpreters=self.interpreters[:-1]
        )

    def keeping(self) -> State:
        """Return this state with the category "activation", for the ops inside a composite that is on the tape."""
        return self.variant("keeping", category=ACTIVATION)

    def recording(self, grad: bool) -> State:
        """Return this state with gradient recording switched on or off."""
        return self.variant("grad" if grad else "no_grad", grad=grad)

    def copy(self) -> State:
        """Return a copy of this state that a block may change."""
        new = object.__new__(State)
        for name in State.__slots__[1:]:  # all but __weakref__; `copy.copy` takes five times as long
            setattr(new, name, getattr(self, name))
        new.variants = {}
        new.table = self.table.copy()  # an op that is declared meanwhile is appended to each state's own
        live.add(new)
        return new

    def lasting(self) -> State:
        """Return a copy of this state for ops that run later; calls of ``set_*`` functions do not change the copy."""
        new = self.copy()
        new.scoped |= new.parts.keys()
        return new


operators: list[Any] = []
"""All ops, by index. `add_operator` appends an op to this list and to the table of every state."""


def add_operator(op: Any) -> int:
    """Add an op to the table of every state; returns its index there."""
    operators.append(op)
    for state in list(live):
        state.table.append(state.bound(op))
    return len(operators) - 1


live: Living[State] = Living()


def bind(backend: TensorBackend, op: Any, planned: bool = False) -> Callable[..., Any]:
    """Return the method that computes an op on a backend, for the table of a state.

    A user's method is wrapped. The wrapper checks that the result is a buffer (with ``planned``, of the shape and dtype
    of the call's plan). If the method has no parameter ``out``, the wrapper copies the result to ``out``. For a missing
    method, the result of this function is a function that raises an error.
    """
    method = backend.method(op.name)
    if method is None:

        def missing(*_: Any) -> Any:
            primitives = [other.name for other in operators if other.body is None]
            raise backend.lacks(op.name, [*backend.required, *primitives])

        return missing
    kinds = type(backend).__mro__
    owner = next((c for name in (op.name, "__getattr__") for c in kinds if name in c.__dict__), object)
    if owner.__module__.startswith("flnb_backends."):  # flnb's own methods are tested
        return method
    copies = op.writes_out and not _accepts_out(method)

    @unnamed
    def checked(*arguments: Any) -> Any:
        out = None
        if copies and len(arguments) != (op.arity or -1):
            *arguments, out = arguments  # type: ignore[assignment]
        result = method(*arguments)
        if backend.reads_host:
            if not hasattr(result, "dtype"):
                raise TypeError(
                    f"{op.name} of backend {backend.name!r} returned {result!r:.40}, expected an array; "
                    f"end the method with `return`"
                )
            result = np.asarray(result)  # NumPy's reductions give scalars, which are no buffers
            if planned:
                check_result(backend, op, arguments if copies or not op.writes_out else arguments[:-1], result)
        if out is None:
            return result
        out[...] = result
        return out

    return checked


def check_result(backend: TensorBackend, op: Any, arguments: Sequence[Any], result: Any) -> None:
    """Raise a `TypeError` if a user's method returned another shape or dtype than planned.

    Calls with a Python number among the operands are not checked, since the buffers do not determine their plan.
    """
    tensors = [x for x in arguments[: op.arity or None] if isinstance(x, np.ndarray)]
    attributes = () if op.arity else tuple(arguments[len(tensors) :])  # ``out``, which comes last, is not among them
    try:
        plan = op.plans.get(op.key(tuple(spec_of(x.shape, x.dtype, backend.buffer) for x in tensors), attributes))
    except TypeError:  # attributes that cannot be looked up
        return
    if plan is not None and (result.shape, result.dtype) != (plan.spec.shape, plan.spec.dtype):
        raise TypeError(
            f"{op.name} of backend {backend.name!r} returned {result.dtype.name}[{','.join(map(str, result.shape))}], "
            f"expected {plan.spec!r}"
        )


def _supported(backend: TensorBackend, op: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a backend's method so that it raises an error for dtypes that the backend does not support."""

    @unnamed
    def run(*arguments: Any) -> Any:
        result = method(*arguments)
        if not backend.supports(result.dtype):
            raise TypeError(f"{op.name}: backend {backend.name!r} does not support {result.dtype.name}")
        return result

    return run


def _accepts_out(method: Any) -> bool:
    """Return whether a method has a parameter ``out``."""
    if isinstance(method, np.ufunc):
        return True
    method = unwrap(method)
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return code is None or "out" in code.co_varnames[: code.co_argcount] or bool(code.co_flags & CO_VARARGS)


T = TypeVar("T")
session: State = None  # type: ignore[assignment]  # made by flnb/__init__ once every op is declared
_scoped: ContextVar[State | None] = ContextVar("flnb_state", default=None)
_get = _scoped.get


vmaps: ContextVar[tuple[Any, ...]] = ContextVar("flnb_vmaps", default=())
"""The vmaps that run in this thread and context (`flnb.autograd.batched.Vmap`), the outermost first."""


def current() -> State:
    """Return the `State` of this thread and context: the active backend, memory manager and modes."""
    return _get() or session


def start(backends: Sequence[str], manager: str) -> None:
    """Make the session's state; called when flnb is imported.

    The environment variables ``FLNB_BACKEND`` and ``FLNB_MEM_MANAGER`` name the backend and the memory manager. If they
    are not set, the backend is the first of ``backends`` whose libraries are installed, and the manager is ``manager``.
    """
    global session
    device: MemoryDevice = registry.make("memory device", "host")
    named = os.environ.get("FLNB_BACKEND")
    choose_device.append(lambda: current().device if session else device)
    session = State(
        backend=registry.make("backend", named) if named else first_installed(backends),
        device=device,
        manager=registry.make("memory manager", os.environ.get("FLNB_MEM_MANAGER") or manager),
        tape=registry.make("tape", "linked"),
        communicator=registry.make("communicator", "single"),
    )


def first_installed(backends: Sequence[str]) -> TensorBackend:
    """Return an instance of the first of these backends that can be made on this machine."""
    for name in backends[:-1]:
        with suppress(ImportError):  # `flnb doctor` says what is missing
            return registry.make("backend", name)
    return registry.make("backend", backends[-1])


def run_in(state: State, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a given state; returns its result.

    The function runs in a copied context (`contextvars`), so that no state must be restored, even after Ctrl-C.
    """
    context = copy_context()
    context.run(_scoped.set, state)
    return context.run(function, *arguments)


class entered(holding[State]):
    """Context manager that makes a state the current state.

    One object may be entered several times, also inside its own block.
    """

    def __init__(self, state: State | None = None) -> None:
        super().__init__(_scoped, state)

    def begin(self) -> State:
        self._value = self.chosen()
        return super().begin()

    def chosen(self) -> State:
        """Return the state to enter when the block begins; subclasses override this method."""
        return self._value


class use(entered):
    """Context manager and decorator that changes fields of the current state."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def chosen(self) -> State:
        state = current().copy()
        state.scoped |= self._changes.keys()
        state.change(**self._changes)
        return state


class recording(entered):
    """Context manager that switches gradient recording on or off, as `use(grad=...)` does, but faster."""

    def __init__(self, grad: bool) -> None:
        super().__init__()
        self._grad = grad

    def chosen(self) -> State:
        return current().recording(self._grad)


def category(name: str) -> AbstractContextManager[State]:
    """Label the memory that is allocated inside the block with a category of `flnb_telemetry.schema.CATEGORIES`.

    Raises:
        ValueError: the category is unknown.

    >>> import flnb
    >>> with flnb.category("input"):
    ...     batch = flnb.ones((1000, 1000))
    """
    if name not in CATEGORIES:
        raise ValueError(f"category: got {brief(name)}, expected one of {', '.join(CATEGORIES)}")
    return use(category=CATEGORIES.index(name))
