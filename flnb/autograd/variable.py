"""The Variable: a Tensor with a place on the tape and a gradient."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
from flnb_telemetry import schema

from flnb.autograd.hooks import LAST, Handle, listen
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import source_lines, state
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.effects import effects
from flnb.interface.tape import GRADIENT, PARENTS
from flnb.ops.creation import asarray
from flnb.tensor import ArrayLike, Tensor

next_leaf = itertools.count(1).__next__

NAME, PARAMETER = 4, 5
"""Indices of the name and ``is_parameter`` in a leaf's node (see `flnb.interface.tape`)."""


class Variable(Tensor):
    """A Tensor through which gradients flow.

    While gradients are recorded, an in-place operator such as ``y *= 2`` computes a new Variable and binds the name
    ``y`` to it. The values of the old Variable do not change, nor do those of a tensor of which it is a view. Writing
    into the result of a recorded op (``y[1:4] = v``, ``out=y``) is an error.

    Args:
        data: a Tensor (shared, not copied), or anything that `flnb.asarray` converts.
        requires_grad: whether ``backward`` stores a gradient in ``.grad``. If so, the dtype must be floating, and
            ``data`` must not require grad itself: no gradient would flow from the new leaf to it.

    Raises:
        RuntimeError: ``data`` requires grad.
        TypeError: the dtype is not floating.

    >>> import flnb
    >>> x = flnb.Variable([1.0, 2.0])
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([2., 4.], float32[2], numpy)
    >>> y = x * 1.0
    >>> z = y[1:]
    >>> z *= 10.0
    >>> y.tolist(), z.tolist()
    ([1.0, 2.0], [20.0])
    """

    __slots__ = ("_aside", "_node", "_retained")
    _is_parameter = False
    walk_back: ClassVar[Callable[..., None]]
    """Runs a backward pass from a Variable; `flnb.autograd.tape` sets it to its function `backward`."""
    _aside: tuple[Any, str]  # the hooks and the name of a leaf that was frozen; unset in most
    _retained: Tensor  # the gradient that `retain_grad` keeps; unset in most

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = asarray(data)
        if requires_grad and source._node is not None:
            raise RuntimeError(
                f"{type(self).__name__}: the data requires grad, and no gradient would flow from the new leaf to it; "
                f"use it as it is, or give its values: {type(self).__name__}(x.detach())"
            )
        self._adopt(source)
        self._node = None
        self.requires_grad = requires_grad

    # Gradient ---------------------------------------------------------------------------------------------------------

    @property
    def is_leaf(self) -> bool:
        """Return whether the user made this Variable, rather than an op on Variables that require grad."""
        return self._node is None or self._node[0] is None

    @property
    def requires_grad(self) -> bool:
        """Return whether a gradient is computed for this Variable; can be set on leaves only.

        A leaf that is frozen loses its gradient; its hooks and its name are there again once it requires grad again.

        Raises (when set):
            RuntimeError: this is not a leaf.
            TypeError: the elements are not floating-point numbers.
        """
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value == (self._node is not None):
            return
        if not self.is_leaf:
            raise RuntimeError(
                f"requires_grad can be changed on leaves only; this Variable is a result of {self._node[0].op.name!r}: "
                f"use .detach() for the same values without gradient"
            )
        if not value:
            self._aside = self._node[PARENTS], self._node[NAME]
            self._node = None
            return
        if not is_float(self._spec.dtype):
            raise TypeError(
                f"only floating-point Variables can require grad, this one is {self._spec!r}; cast it with "
                f".astype(flnb.float32), or give requires_grad=False"
            )
        hooks, name = getattr(self, "_aside", ((), ""))
        self._node = [None, hooks, -next_leaf(), None, name, self._is_parameter]

    @property
    def grad(self) -> Tensor | None:
        """The sum of the gradients that ``backward`` computed for this leaf; None before.

        After `retain_grad`, other Variables have gradients, too.

        Raises (when set):
            RuntimeError: this is not a leaf that requires grad.
            ValueError: the gradient has another shape.
        """
        node = self._node
        if node is not None and node[0] is not None:
            return getattr(self, "_retained", None)
        if (captured := effects.get()) is not None:
            captured.asks(self)
        return cast("Tensor | None", node[GRADIENT]) if node is not None else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        node = self._node
        if node is None or node[0] is not None:
            raise RuntimeError(
                "grad: only a leaf that requires grad can be given a gradient; this Variable "
                + ("does not require grad" if self._node is None else f"is a result of {self._node[0].op.name!r}")
            )
        if value is not None and value.shape != self.shape:
            raise ValueError(f"grad: expected the shape of the Variable, {self.shape}, got {value.shape}")
        node[GRADIENT] = value
        if value is None and (captured := effects.get()) is not None:
            captured.cleared[id(node)] = self

    @property
    def name(self) -> str:
        """The name of this leaf on the tape, in errors and in the dashboard; "" for other Variables."""
        return str(self._node[NAME]) if self._node is not None and self._node[0] is None else ""

    @name.setter
    def name(self, value: str) -> None:
        if self._node is not None and self._node[0] is None:
            self._node[NAME] = value

    def zero_grad(self) -> None:
        """Set ``.grad`` to None."""
        if self._node is not None:
            self.grad = None

    def backward(self, grad: ArrayLike | None = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Compute the gradient of this Variable with respect to all leaves, adding it to their ``.grad``.

        Args:
            grad: the cotangent, of this Variable's shape; may be left out for a scalar, where it is 1.
            retain_graph: keep the graph, so that another ``backward`` can use it.
            create_graph: record the gradient's own graph, so that it can be differentiated.

        Raises:
            RuntimeError: this Variable is not a scalar and ``grad`` is missing; or it does not require grad; or an
                earlier backward freed its graph; or a tensor was written in place after an op had saved it.
            FloatingPointError: ``grad`` is missing and the scalar is NaN, so that every gradient would be NaN, too.
                Values on another device are not checked.
        """
        if grad is None:
            _refuse_nan(self)
        self.walk_back(self, grad, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Handle:
        """Register a function ``hook(gradient)``, which each ``backward`` calls with this Variable's complete gradient.

        If the hook returns a Tensor, the Tensor replaces the gradient; None changes nothing.

        Returns:
            A handle whose ``remove()`` removes the hook.

        >>> import flnb
        >>> x = flnb.Variable([1.0, 2.0])
        >>> y = x * 3.0
        >>> handle = y.register_hook(lambda g: g * 10.0)
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [30.0, 30.0]

        Raises:
            RuntimeError: this Variable does not require grad.
            ValueError: in backward, if the hook returns a Tensor of another shape or dtype, or no Tensor.
        """
        return listen(self._node, hook)

    def retain_grad(self) -> None:
        """Make ``backward`` store the gradient of this Variable in ``.grad``, even if the Variable is not a leaf.

        As for a leaf, it is the gradient after all hooks, and those of several backward passes are added.

        Raises:
            RuntimeError: this Variable does not require grad.
        """
        if self.is_leaf and self._node is not None:
            return
        here = weakref.ref(self)

        def keep(g: Tensor) -> None:
            variable = here()
            if variable is not None:
                old = getattr(variable, "_retained", None)
                variable._retained = g.copy() if old is None else old + g

        listen(self._node, keep, LAST)

    def detach(self) -> Variable:
        """Return the same values, sharing memory, as a Variable through which no gradient flows."""
        if self._node is not None:
            source_lines.note_cut(schema.DETACH, self._node[2])
        return Variable(self.data, requires_grad=False)

    @property
    def data(self) -> Tensor:
        """Return the values as a plain Tensor that shares memory; writes to it change the Variable without a record.

        Raises (when set):
            ValueError: the new values have another shape or dtype.
        """
        if (captured := effects.get()) is not None and (self._node is None or self._node[0] is None):
            captured.uses(self)
        tensor = dispatch.detached(self._data, self._spec)
        tensor._root = getattr(self, "_root", self)
        return tensor

    @data.setter
    def data(self, value: Tensor) -> None:
        if value._spec is not self._spec:
            raise ValueError(
                f"data: expected {self._spec!r} as before, got {value._spec!r}; make a new Variable instead"
            )
        self._adopt(value)
        dispatch.mark_written(self, own=True)  # nodes that saved this Variable saw other values

    # Out to NumPy -----------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array that shares memory.

        Raises:
            RuntimeError: the Variable requires grad, which NumPy cannot record.
        """
        if self._node is not None:
            raise RuntimeError(
                "this Variable requires grad, and a NumPy array has no gradient; use .detach().numpy() for its values"
            )
        return super().numpy()

    # Copies, in-place operators, looking at it ------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        if not self.is_leaf:
            raise RuntimeError("only leaves can be deep-copied; use .detach() first to copy the values of a result")
        twin = _rebuild(type(self), self.data.copy(), self.requires_grad, self.name)
        if self.grad is not None:
            twin.grad = self.grad.copy()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), np.array(self._values()), self.requires_grad, self.name)

    def _facts(self) -> str:
        facts = f"{self._spec!r}, {state.current().backend.name}"
        if self._node is None:
            return facts
        return f"{facts}, requires_grad" if self.is_leaf else f"{facts}, from {self._node[0].op.name}"


def placed(value: Tensor, node: Any, root: Tensor | None = None) -> Variable:
    """Make a Variable of a tensor's values and a node on the tape.

    ``root`` is the tensor that owns the memory, by default the base of ``value``, or ``value`` itself if it is not a
    view.
    """
    variable = object.__new__(Variable)
    variable._data, variable._spec, variable._node = value._data, value._spec, node
    variable._root = getattr(value, "_root", value) if root is None else root
    return variable


def plain(tensor: Any) -> Tensor:
    """Return the values of a Variable as a plain Tensor; a plain Tensor is returned unchanged."""
    return tensor.data if isinstance(tensor, Variable) else tensor


def _rebuild(cls: type[Variable], values: Any, requires_grad: bool, name: str) -> Variable:
    """Restore a Variable of class ``cls`` from its parts, for `pickle` and `copy.deepcopy`."""
    variable = object.__new__(cls)
    Variable.__init__(variable, values, requires_grad)
    variable.name = name
    return variable


Variable._lift = Variable


def _refuse_nan(loss: Variable) -> None:
    """Raise a `FloatingPointError` if a loss is NaN: an optimizer's step would then write NaN to all parameters."""
    values = loss._data
    if type(values) is np.ndarray and values.size == 1 and (value := values.item()) != value:
        raise FloatingPointError(
            "flnb: backward: the loss is NaN, and so would every gradient be; nothing was changed. Compute it again "
            "inside `with flnb.detect_anomaly():`, which names the op and its line, and look at this batch and the "
            "learning rate; loss.backward(flnb.ones_like(loss)) runs backward anyway"
        )
