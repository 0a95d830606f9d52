"""The tensor backend: about eighty plain methods on raw buffers, and the state that belongs to them.

A backend computes; it checks nothing, times nothing and records nothing. Shapes and dtypes were checked, scalars
were converted and mixed dtypes cast before a method is called; timing and events are the dispatcher's.

Every primitive of the op table (`flnb.ops`) is one method under its array-API name. It takes the buffers of its
tensors, then the op's attributes, and, where it makes new memory, ``out``: the buffer to write, or None:

    >>> import flnb, numpy as np
    >>> class Loud(flnb.backends.NumpyBackend):
    ...     calls = 0
    ...     def add(self, a, b, out=None):
    ...         Loud.calls += 1
    ...         return super().add(a, b, out)
    >>> with flnb.use_backend(Loud):
    ...     total = flnb.ones((2,)) + flnb.ones((2,))
    >>> total.tolist(), Loud.calls
    ([2.0, 2.0], 1)
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any, ClassVar

from flnb.interface.part import Part

__all__ = ["TensorBackend"]


class TensorBackend(Part, kind="backend"):
    """Base of all backends: subclass it, name it, and override the primitives.

    Attributes:
        name: shown in tensors' repr, errors and the dashboard.
        buffer: the family of buffers the methods take. Tensors move freely between backends of one family (every
            subclass of the numpy backend keeps ``"ndarray"``); between families `Tensor.to` converts.
        has_values: whether buffers hold the elements of tensors; where not, checks of values are passed over.
        reads_host: whether buffers are NumPy arrays in this machine's memory, which can be read without the backend.
        shares_memory: whether a NumPy array may be a buffer as it is, so that writing to one writes to the other.
        defers: whether methods may return before their result has values, which `eval` then makes.
        plain_buffers: whether gradients may hand buffers from method to method without Tensors around them.
        scalar_results: whether methods return scalars for 0-d results unless they are given a buffer, as NumPy does.
        whole_dtypes: the dtypes, as characters of NumPy's, that its methods for composites (softmax ...) take.
    """

    name: ClassVar[str] = "abstract"
    buffer: ClassVar[str] = "abstract"
    has_values: ClassVar[bool] = True
    reads_host: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False
    defers: ClassVar[bool] = False
    plain_buffers: ClassVar[bool] = False
    scalar_results: ClassVar[bool] = False
    whole_dtypes: ClassVar[str] = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "buffer" in cls.__dict__:  # a family of its own: what held for NumPy's arrays need not hold for it
            for fact in {"reads_host", "shares_memory"} - cls.__dict__.keys():
                setattr(cls, fact, False)

    def attach(self, state: Any) -> None:
        """Bind this backend's methods to the ops of a state."""
        state.bind()

    def overridden(self) -> frozenset[str]:
        """The primitives that classes of the user have overridden.

        A composite that consists of one of these runs as the ops of its body, not by a method it inherits.
        """
        users = takewhile(lambda c: not c.__module__.startswith("flnb_backends."), type(self).__mro__)
        return frozenset([name for c in users if c is not TensorBackend for name in vars(c)])

    def eval(self, *buffers: Any) -> None:
        """Make sure that these buffers hold values. Called before values are read, where the backend `defers`."""

    def sync(self) -> None:
        """Wait until everything that was launched has finished. Called by `flnb.sync`."""

    def adopt(self, buffer: Any, family: str) -> Any:
        """A buffer of this backend for one of another family that entered an op; None: it is refused with an error."""
        return None

    def supports(self, dtype: Any) -> bool:
        """Whether tensors of this dtype can be stored."""
        return True

    def from_numpy(self, array: Any, out: Any = None) -> Any:
        """A buffer of this backend with the values of a NumPy array, written into ``out`` if it is given."""
        raise NotImplementedError(f"backend {self.name!r} does not implement 'from_numpy'")

    def to_numpy(self, buffer: Any) -> Any:
        """The values of a buffer as a NumPy array, without a copy where memory is shared."""
        raise NotImplementedError(f"backend {self.name!r} does not implement 'to_numpy'")

    def empty(self, spec: Any, manager: Any, min_block: int, code: int, category: int) -> tuple[Any, int]:
        """An uninitialised buffer and the id of its block (0: none). Called by the dispatcher for each result."""
        raise NotImplementedError(f"backend {self.name!r} does not implement 'empty'")

    def base_of(self, buffer: Any) -> Any:
        """The buffer of which this one is a view, None if it has memory of its own."""
        return None

    def is_contiguous(self, buffer: Any) -> bool:
        """Whether the elements are in row-major order without gaps, so that a reshape is a view."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} backend {self.name!r}>"
