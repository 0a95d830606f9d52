"""The base class of optimizers, which checks arguments, allocates state, and loops over the parameters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flnb_telemetry import bus

from flnb import ops
from flnb.autograd import Variable
from flnb.autograd.variable import PARAMETER, plain
from flnb.dispatch.autocast import without_casts
from flnb.dispatch.crossing import update
from flnb.dispatch.effects import effects, repeated
from flnb.dispatch.plan import spec_of
from flnb.dispatch.source_lines import common_line
from flnb.dispatch.state import category, current, use
from flnb.nn.mismatches import mismatches, refuse
from flnb.optim.gathered import gathered
from flnb.optim.repeated import step_repeated
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.state import State
    from flnb.dispatch.table import Update
    from flnb.optim.gathered import Gathered

SINGLE, MASTER = np.dtype(np.float32), "master"


def updating() -> AbstractContextManager[State]:
    """Return a context manager in which gradients and parameters are written: it turns off the tape and autocast."""
    return use(grad=False, interpreters=without_casts())


def end_step() -> None:
    """Report the end of a training step to telemetry; if the backend `defers`, first compute all recorded ops."""
    current().backend.eval()
    repeated(bus.mark_step, last=True)


def _dtype(item: Variable) -> np.dtype[Any]:
    """Return the dtype in which a parameter is updated: float32 for half precision, else its own."""
    return SINGLE if item.dtype.itemsize == 2 else item.dtype


class _Rate:
    """The attribute ``lr`` of optimizers: if a step that `flnb.jit` captures sets it, each run sets it again."""

    def __get__(self, optimizer: Optimizer, owner: type) -> float:
        return cast("float", vars(optimizer)["lr"])

    def __set__(self, optimizer: Optimizer, value: float) -> None:
        repeated(partial(vars(optimizer).__setitem__, "lr", value))


class Optimizer:
    """Base class of optimizers, which update parameters from their gradients.

    A subclass defines `update` and these class attributes: ``slots``, the names of the tensors that are stored for each
    parameter and have the parameter's shape and dtype; ``numbers``, the names of the 0-d tensors that are stored for
    each parameter; and ``scratch``, the number of work tensors, which parameters of the same shape share. The first
    step allocates all these tensors, filled with zeros, with the telemetry category "optimizer_state"; later steps
    allocate nothing. Settings such as ``lr`` are plain attributes: assign to them, or use a `Schedule`. To train
    parameters with different settings, make several optimizers and combine them by `Together`.

    A parameter in half precision has a master weight, a copy in float32 that is part of the state. `update` is called
    with the master weight in place of the parameter. Then the parameter is set to the rounded master weight.

    Raises:
        TypeError: ``parameters`` is not a list of leaves: Variables that require grad and are not results of ops.
        ValueError: no parameter, one parameter twice, or a negative setting.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> class SignDescent(optim.Optimizer):
    ...     scratch = 1
    ...     def update(self, data, gradient, state, scratch):
    ...         flnb.sign(gradient, out=scratch[0])
    ...         flnb.multiply(scratch[0], self.lr, out=scratch[0])
    ...         flnb.subtract(data, scratch[0], out=data)
    >>> weight = nn.Parameter(flnb.asarray([1.0, -2.0]))
    >>> flnb.sum(weight * weight).backward()
    >>> SignDescent([weight], lr=0.5).step()
    >>> weight.data.numpy().tolist()
    [0.5, -1.5]
    """

    slots: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    scratch: int = 0
    gathers: bool = False
    """Update small parameters together, as one vector: quicker if `update` consists of many elementwise ops.

    Not inherited, because the `update` of a subclass may depend on which parameter it is called with."""

    repeats: bool = False
    """Whether `update` depends only on its arguments, `current`, and settings other than ``lr``. If so, a backend that
    defers repeats the ops of an earlier step without calling `update`. Not inherited."""

    lr = _Rate()
    whole: Update | None = None
    """An op with the result of `update`, which a backend may compute in one call; see `coefficients`. Not inherited."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.gathers, cls.whole = vars(cls).get("gathers", False), vars(cls).get("whole")
        cls.repeats = vars(cls).get("repeats", False)

    def __init__(self, parameters: Iterable[Variable], lr: float, **settings: float) -> None:
        name = type(self).__name__
        if hasattr(parameters, "parameters") or isinstance(parameters, Tensor):
            one = type(parameters).__name__
            raise TypeError(f"flnb: {name} takes a list of parameters, got one {one}; pass model.parameters() or [x]")
        self.parameters = list(parameters)
        for index, item in enumerate(self.parameters):
            if not isinstance(item, Variable) or not item.requires_grad or not item.is_leaf:
                kind = "the result of an op" if isinstance(item, Variable) and not item.is_leaf else type(item).__name__
                raise TypeError(
                    f"flnb: {name}: item {index} is {kind}; expected an nn.Parameter or another Variable that requires "
                    "grad and was not computed by an op"
                )
            item._node[PARAMETER] = True
        if not self.parameters:
            raise ValueError(f"flnb: {name} got no parameters; pass model.parameters() of a model that has some")
        if len({id(item) for item in self.parameters}) != len(self.parameters):
            raise ValueError(
                f"flnb: {name}: a parameter is in the list twice, and would be updated twice a step; remove one of them"
            )
        self.lr, self.steps, self.count = lr, 0, 0
        vars(self).update(settings)
        self._settings = ("lr", *settings)
        for key in self._settings:
            if not getattr(self, key) >= 0.0:
                raise ValueError(f"flnb: {name}: {key} must be at least 0, got {getattr(self, key)}")
        self._state: list[dict[str, Tensor]] = []
        self._counts = [0] * len(self.parameters)
        self._scratch: dict[Spec, list[Tensor]] = {}
        self._gathered: list[Gathered] = []
        self._given: dict[Any, tuple[Tensor, ...]] = {}  # what `current` returns, by count and dtype

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float:
            """Declare to type checkers that settings, such as ``momentum``, are attributes; never called."""

    def coefficients(self) -> tuple[float, ...]:
        """Return the numbers for `update` that may change from step to step, such as the learning rate.

        If the backend has a method for the whole update, the method is called with these numbers.
        """
        return (self.lr,)

    def current(self, data: Tensor) -> tuple[Any, ...]:
        """Return the `coefficients` for ops on a parameter's data; use them in `update` in place of ``self.lr``.

        Usually the coefficients are numbers. In a step that `flnb.jit` captures, the coefficients are tensors, so
        that each run of the captured step uses the values of that time.
        """
        if self._given:
            return self._given[self.count, data.dtype]
        captured = effects.get()
        return self.coefficients() if captured is None else captured.numbers(self, self.count, data.dtype)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        """Write the new value of one parameter into ``data``; called by `step` for each parameter with a gradient.

        ``self.count`` is the number of updates of this parameter, including this one; in steps without a gradient the
        parameter is not updated.

        Args:
            data: the parameter's values, or those of its master weight.
            gradient: a tensor of the same shape and dtype, which must not be written to.
            state: this parameter's stored tensors, by the names in ``slots`` and ``numbers``.
            scratch: work tensors like ``data``, as many as the class attribute ``scratch``, with arbitrary contents.
        """
        raise NotImplementedError(f"flnb: {type(self).__name__} defines no update(data, gradient, state, scratch)")

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_gathered": []}  # a copy's tensors are no views of one another

    def step(self) -> None:
        """Update every parameter that has a gradient, and report to telemetry that a training step is over.

        Raises:
            RuntimeError: no parameter has a gradient.
        """
        self.update_all()
        end_step()

    def parts(self) -> list[Optimizer]:
        """Return the optimizers of which this one consists: only itself (a `Together` consists of several)."""
        return [self]

    def update_all(self) -> None:
        """Update every parameter that has a gradient, like `step`, but do not report the end of a training step."""
        if all(item.grad is None for item in self.parameters):
            raise RuntimeError(
                f"flnb: {type(self).__name__}.step(): no parameter has a gradient; call loss.backward() first, on a "
                "loss computed from these parameters"
            )
        if not self._state:
            self._allocate()
        repeated(self._begin)
        captured = effects.get()
        if captured is not None:
            for item in self.parameters:
                captured.uses(item)
        with bus.phase("optimizer"), updating(), common_line(self.update):
            done: set[int] = set()
            for vector in self._gathered if captured is None else ():
                done |= vector.update(self)
            if captured is None and current().backend.defers and step_repeated(self):
                return
            for index, (item, state) in enumerate(zip(self.parameters, self._state, strict=True)):
                if item.grad is not None and index not in done:
                    gradient = plain(item.grad)
                    repeated(partial(self._advance, index))
                    if MASTER in state:
                        self._step_master(item, gradient, state)
                    elif item._spec in self._scratch:
                        self._update(item.data, gradient, state)
                    else:
                        raise self._recast(index, item)
        if captured is not None:
            updated = [i for i, item in enumerate(self.parameters) if item.grad is not None]
            captured.watch(_Counts(self, updated), ["behind"])
            captured.watch(vars(self), self._settings[captured.asked(self) :])  # else `update` reads ``lr`` itself

    def _begin(self) -> None:
        """Add 1 to the number of steps."""
        self.steps += 1

    def _advance(self, index: int) -> None:
        """Add 1 to the number of updates of parameter ``index``, and set ``count`` to that number."""
        self._counts[index] = self.count = self._counts[index] + 1

    def _update(
        self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Sequence[Tensor] | None = None
    ) -> None:
        """Update one parameter by the backend's method for the whole update if there is one, else by `update`.

        ``work`` are the work tensors for `update`; None stands for those that all parameters of this shape share.
        """
        tensors = gradient, data, *[state[slot] for slot in self.slots]
        if self.whole is None or not update(self.whole, tensors, self.coefficients()):
            self.update(data, gradient, state, self._work(data) if work is None else work)

    def _work(self, data: Tensor) -> list[Tensor]:
        """Return work tensors of the shape of ``data``: shared ones, or new ones if ops are recorded, not computed."""
        recorded = effects.get() is not None or current().backend.defers
        found = self._scratch[data._spec]
        if recorded or len(found) < self.scratch:
            with category("optimizer_state"):
                found = [ops.zeros_like(data) for _ in range(self.scratch)]
            self._scratch[data._spec] = [] if recorded else found
        return found

    def _step_master(self, item: Variable, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Update a parameter in half precision through its master weight."""
        master = state[MASTER]
        repeated(partial(_follow, master, item))
        self._update(master, ops.astype(gradient, master.dtype, copy=False), state)
        ops.assign(item.data, master)
        repeated(partial(_note_equal, master, item), last=True)

    def _recast(self, index: int, item: Variable) -> RuntimeError:
        """Return the error for a parameter whose shape, dtype or backend has changed since the first step."""
        known = ", ".join(sorted({spec.dtype.name for spec in self._scratch}))
        return RuntimeError(
            f"flnb: {type(self).__name__}: parameter {index} is {item._spec!r} now, its state was made for {known}; "
            "cast the model (model.astype) before the optimizer is made"
        )

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for item in self.parameters:
            item.zero_grad()

    def _named_state(self) -> dict[str, Tensor]:
        """Return a dict of all stored tensors, with the parameter's position and the tensor's name as key: "0.mean"."""
        return {f"{index}.{slot}": item for index, own in enumerate(self._state) for slot, item in own.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs, as a dict.

        Its keys are "kind" (the class's name), "steps", "counts" (the number of updates of each parameter), "settings",
        and "state": a dict of copies of the stored tensors, whose keys consist of the parameter's position and the
        tensor's name, such as "0.mean".
        """
        return {
            "kind": type(self).__name__,
            "steps": self.steps,
            "counts": list(self._counts),
            "settings": {key: getattr(self, key) for key in self._settings},
            "state": {name: ops.asarray(item, copy=True) for name, item in self._named_state().items()},
        }

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        if problems := mismatches(dict.fromkeys(("kind", "steps", "counts", "settings", "state")), state):
            return problems
        slots: dict[str, Any] = {}
        if state["steps"]:  # before the first step there are none
            for index, item in enumerate(self.parameters):
                spec = spec_of(item.shape, _dtype(item), item._spec.kind)
                slots.update({f"{index}.{MASTER}": spec} if spec is not item._spec else {})
                slots.update({f"{index}.{slot}": spec for slot in self.slots})
                slots.update({f"{index}.{number}": spec_of((), spec.dtype, spec.kind) for number in self.numbers})
        name = type(self).__name__
        other = [] if state["kind"] == name else [f"kind: got {state['kind']}, expected {name}"]
        if len(state["counts"]) != len(self.parameters):
            other.append(f"parameters: got {len(state['counts'])}, expected {len(self.parameters)}")
        return other + mismatches(dict.fromkeys(self._settings), state["settings"]) + mismatches(slots, state["state"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved `state_dict`: the stored tensors, the number of steps, and the settings with the learning rate.

        Raises:
            ValueError: the state does not fit. The message lists every name that is missing, unexpected, or has another
                shape; nothing is changed.

        >>> import flnb, flnb.nn as nn
        >>> weight = nn.Parameter(flnb.asarray([3.0]))
        >>> weight.grad = flnb.asarray([1.0])
        >>> first, second = (flnb.optim.SGD([weight], lr=lr, momentum=0.9) for lr in (0.1, 0.2))
        >>> first.step()
        >>> second.load_state_dict(first.state_dict())
        >>> second
        SGD(1 parameters, lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False, steps=1)
        """
        refuse(self.mismatches(state), f"{type(self).__name__} of {len(self.parameters)} parameters")
        if not self._state or not state["steps"]:
            self._allocate()
        for name, item in self._named_state().items() if state["steps"] else ():
            ops.assign(item, ops.asarray(state["state"][name]))
        self.steps, self._counts = state["steps"], list(state["counts"])
        vars(self).update(state["settings"])

    def _allocate(self) -> None:
        """Allocate the stored tensors and work tensors of all parameters; called by the first step."""
        with category("optimizer_state"), updating():
            like = [ops.astype(item.data, _dtype(item), copy=False) for item in self.parameters]
            for data in like:
                self._scratch.setdefault(data._spec, [])
            self._gathered = gathered(self, like)
            known = {i: state for one in self._gathered for i, state in zip(one.members, one.states, strict=True)}
            # Set last, so that an allocation that Ctrl-C interrupted is begun anew.
            self._state = [
                known.get(index)
                or {slot: ops.zeros_like(data) for slot in self.slots}
                | {number: ops.zeros((), dtype=data.dtype) for number in self.numbers}
                | ({MASTER: data} if data.dtype != item.dtype else {})
                for index, (item, data) in enumerate(zip(self.parameters, like, strict=True))
            ]

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={getattr(self, key)}" for key in self._settings)
        return f"{type(self).__name__}({len(self.parameters)} parameters, {settings}, steps={self.steps})"


class _Counts:
    """The counts of updates of some parameters, on whose differences a captured step depends."""

    def __init__(self, optimizer: Optimizer, indices: list[int]) -> None:
        self.optimizer, self.indices = optimizer, indices

    @property
    def behind(self) -> str:
        """Return by how many updates each parameter is behind the one with the most, as text; "" if none is."""
        counts = [self.optimizer._counts[i] for i in self.indices]
        most = max(counts)
        return str([most - count for count in counts]) if most != min(counts) else ""


def _follow(master: Tensor, item: Variable) -> None:
    """Copy a parameter to its master weight if anything but the optimizer wrote to it, as loading weights does."""
    if item._last_write > master._last_write and not bool(ops.all(master.astype(item.dtype) == item.data)):
        ops.assign(master, item.data)


def _note_equal(master: Tensor, item: Variable) -> None:
    """Store that a parameter has the values of its master weight, until one of them is written again."""
    master._write_note[0] = item._last_write
