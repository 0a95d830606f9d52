"""Output arrays of a program, which are used again in later runs once the caller no longer refers to them.

In each training step, every parameter gets another array. The array from two steps before is unused by then, so two
arrays for each parameter are used alternately. So no memory is allocated, and a run that is interrupted has no visible
effect.
"""

from __future__ import annotations

import ctypes
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from flnb.tensor import detached

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.plan import Spec
    from flnb.graph.values import Value
    from flnb.tensor import Tensor

_byte = ctypes.c_char
MOST = 2
"""The largest number of arrays in the pool for one output."""


def address_of(array: Any) -> int:
    """Return the memory address of the first element of a NumPy array, or of a device array (``data.ptr``)."""
    try:
        return ctypes.addressof(_byte.from_buffer(array))  # takes a quarter of the time of the array interface
    except (TypeError, ValueError):  # it is read-only, not contiguous, empty, or a device's
        interface = getattr(array, "__array_interface__", None)
    return int(interface["data"][0] if interface is not None else array.data.ptr)


class Lent:
    """An output array that a program returned to its caller and may reuse later.

    Attributes:
        array: the array.
        address: the address of its first element.
        views: a dict from a value to the view of the array that contains the value's elements.
        tensor: the tensor of the array; None before the first request.
        alone: the number of references that the program itself has to the array, its memory and its tensor.
    """

    __slots__ = ("address", "alone", "array", "tensor", "views")

    def __init__(self, array: Any) -> None:
        self.array, self.address = array, address_of(array)
        self.views: dict[Value, Any] = {}
        self.tensor: Tensor | None = None
        self.alone = 0

    def others(self) -> int:
        """Return the number of references to the array, its views, memory and tensor from outside of the program."""
        array, tensor = self.array, self.tensor
        base = array.base
        count = getrefcount(array) + (getrefcount(base) if base is not None else 0)
        return count - self.alone if tensor is None else count + getrefcount(tensor) - self.alone

    def view(self, value: Value, make: Callable[[Value], Any]) -> Any:
        """Return the array of a value that is a view of this output; ``make`` is called at the first request."""
        found = self.views.get(value)
        if found is None:
            found = make(value)
            if found is self.array or found.base is self.array or found.base is self.array.base:
                self.views[value] = found
                self.alone += 1
        return found


class Lending:
    """The pool of output arrays of one program: at most two for each output, used in turn.

    Attributes:
        known: a dict from the ``id`` of a pooled array to its `Lent`.
    """

    def __init__(self) -> None:
        self.known: dict[int, Lent] = {}
        self._held: dict[Value, list[Lent]] = {}

    def take(self, value: Value, new: Callable[[Value], Any]) -> Lent:
        """Return the array for an output: from the pool if nothing else refers to the array, else made by ``new``."""
        held = self._held.get(value)
        if held is None:
            held = self._held[value] = []
        for lent in held:
            if not lent.others():
                if lent is held[0]:  # it is in use at the next request, so that another one is tried first
                    held.append(held.pop(0))
                return lent
        lent = Lent(new(value))
        lent.alone = lent.others()
        held.append(lent)
        self.known[id(lent.array)] = lent
        if len(held) > MOST:
            self.known.pop(id(held.pop(0).array), None)  # it may be missing, if Ctrl-C came before it was added
        return lent

    def tensor(self, array: Any, spec: Spec) -> Tensor:
        """Return the tensor of an output array; for an array in the pool, each call returns the same tensor."""
        lent = self.known.get(id(array))
        if lent is None:
            return detached(array, spec)
        if lent.tensor is None:
            before = lent.others()
            lent.tensor = detached(array, spec)
            lent.alone += lent.others() - before
        return lent.tensor

    def clear(self) -> None:
        """Release all pooled arrays."""
        self._held, self.known = {}, {}
