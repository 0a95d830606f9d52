"""The Tensor: a backend's buffer, and its spec (shape, dtype and kind of buffer). Only Variables have gradients.

Operators and most methods are the functions of `flnb.ops` themselves, attached to the class when `flnb.ops` is
imported: ``a + b`` and ``flnb.add(a, b)`` are one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np

from flnb.dispatch import registry, state
from flnb.dispatch.arguments import check_device
from flnb.dispatch.dtypes import are_positions
from flnb.dispatch.plan import families, residents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from flnb.dispatch.plan import Spec
    from flnb.interface import TensorBackend

__all__ = ["ArrayLike", "DTypeLike", "Tensor"]

ArrayLike: TypeAlias = Any
"""An operand of an op: a Tensor, a Variable, or values for `flnb.asarray`: numbers, nested lists, NumPy arrays."""
DTypeLike: TypeAlias = Any
"""A NumPy dtype such as `flnb.float32`, or a type or name that NumPy converts to one; None stands for the default."""


class Tensor:
    """An n-dimensional array on the active backend. Make one with `flnb.asarray` or a creation function.

    >>> import flnb
    >>> flnb.asarray([[1.0, 2.0], [3.0, 4.0]]) @ flnb.ones((2, 1))
    Tensor([[3.],
            [7.]], float32[2,1], numpy)
    """

    __slots__ = ("__weakref__", "_data", "_limits", "_root", "_spec", "_written")

    _data: Any
    _spec: Spec
    _root: Tensor  # the tensor whose memory this one shares, where writes are noted; unset in tensors that own theirs
    _limits: tuple[int, int]  # the smallest and largest of integers that came from the host, where reading takes long
    _written: list[int]  # sequence number of the last in-place write; unset until someone asks for it (`_write_note`)
    _node: Any = None
    _lift: ClassVar[Any] = None
    _of: ClassVar[Callable[..., Tensor]]  # `flnb.asarray`, attached by `flnb.ops`
    _of_buffer: ClassVar[Callable[..., Tensor]]  # the same of another backend's buffer
    _level: ClassVar[Any] = None  # in a subclass for tensors inside of vmap: their vmap (flnb.autograd.batched)

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(f"{type(self).__name__} is not built directly; use flnb.asarray(values)")

    # Shape, dtype and buffer ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions, a tuple of ints."""
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, a NumPy dtype."""
        return self._spec.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._spec.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._spec.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._spec.nbytes

    @property
    def _last_write(self) -> int:
        """Sequence number of the last in-place write to this tensor's memory known to flnb; 0 if there was none."""
        (own,), (roots,) = getattr(self, "_written", (0,)), getattr(getattr(self, "_root", self), "_written", (0,))
        return max(own, roots)

    @property
    def _write_note(self) -> list[int]:
        """A list with one item: the sequence number of the last in-place write noted at this tensor; 0 if none was.

        A write is noted at the tensor that owns the memory, also if a view of this tensor was written to.
        """
        if not hasattr(self, "_written"):
            self._written = [0]
        return self._written

    def _adopt(self, other: Tensor) -> None:
        """Make this tensor use the memory of another tensor, which may be a view of this one.

        Later writes to the new memory count as writes to this tensor (see `_last_write`), and so do writes by views of
        the memory that this tensor had before.
        """
        root = getattr(other, "_root", other)
        self._data, self._spec = other._data, other._spec
        if hasattr(self, "_limits"):
            del self._limits
        if root is not self:
            self._root = root
        elif hasattr(self, "_root"):
            del self._root

    @property
    def device(self) -> str:
        """The name of the device that holds a tensor's buffer; always "cpu" for this class."""
        return "cpu"

    def data_of(self, backend: TensorBackend) -> Any:
        """Return the tensor's buffer, after a check that ``backend`` works on this kind of buffer.

        Raises:
            TypeError: the backend works on another kind of buffer.
        """
        if self._spec.kind != backend.buffer:
            raise TypeError(
                f"this tensor has a {self._spec.kind!r} buffer, backend {backend.name!r} works on "
                f"{backend.buffer!r}; convert it with .to({backend.name!r})"
            )
        return self._data

    def to(self, backend: str | type[TensorBackend] | TensorBackend) -> Tensor:
        """Copy the values to another backend, given by name, class or instance.

        The tensor itself is returned if that backend works on the same kind of buffer. From one CUDA device to another
        (``x.to("cuda:1")``) the values are copied without passing through the host.

        Raises:
            RuntimeError: this is a Variable that requires grad: the copy would not be on the tape.

        >>> import flnb
        >>> flnb.ones(2).to("numpy")
        Tensor([1., 1.], float32[2], numpy)
        """
        target: Any = state.current().backend.counterpart(registry.make("backend", backend))
        if target.buffer == self._spec.kind:
            return self
        if self._node is not None:
            raise RuntimeError("to: this Variable requires grad, and the copy has no gradient; use .detach().to(...)")
        if target.aliases:
            return cast("Tensor", target.moved(self))
        family = families[self._spec.kind]
        sibling = family in type(target).__mro__  # another device of its kind copies from buffer to buffer
        values = self._data if sibling or family.reads_host else self.numpy()
        with state.use(backend=target):
            return Tensor._of_buffer(values, self.dtype) if sibling else Tensor._of(values)

    # Conversion to Python and NumPy ---------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array; the array shares the tensor's memory if the tensor is in host memory."""
        return self._values()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.numpy()
        if dtype is not None and values.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"cannot convert {self.dtype.name} values to {np.dtype(dtype).name} without a copy, got copy=False"
                )
            return values.astype(dtype)
        return values.copy() if copy else values

    __array_namespace__: ClassVar[Callable[..., Any]]  # attached by flnb, which is that namespace

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Return a DLPack capsule for another library's ``from_dlpack``; it shares the buffer unless ``copy`` is True.

        Raises:
            RuntimeError: this is a Variable that requires grad.
        """
        asked = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.numpy().__dlpack__(**{k: v for k, v in asked.items() if v is not None})

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and device number: (1, 0) for the CPU."""
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), int(number)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """Return this tensor; the only accepted device is ``"cpu"``. To change the backend, use `to`.

        Raises:
            ValueError: the device is another one, or ``stream`` is not None.
        """
        check_device(device)
        if stream is not None:
            raise ValueError(f"to_device: device 'cpu' has no streams, got {stream!r}")
        return self

    def tolist(self) -> Any:
        """Return the values as nested Python lists, or as one number for a 0-d tensor."""
        return self._values().tolist()

    def item(self) -> Any:
        """Return the only element of the tensor as a Python number.

        Raises:
            ValueError: the tensor does not have exactly one element.
        """
        if self.size != 1:
            raise ValueError(
                f"item: only a tensor with one element is one Python number, this one has shape {self.shape}; "
                f"reduce it first, for example with .sum() or .mean()"
            )
        return self._values().reshape(()).item()

    def _values(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array for display or checks, also those of a Variable that requires grad."""
        kind = self._spec.kind
        here = state.current().backend
        if here.buffer != kind:
            if here.aliases:  # a program is captured, in which these values would be constants
                cast("Any", here).elements_read(self)
            here = residents.get(kind) or here
        if here.defers and here.buffer != kind and families[kind].reads_host:
            return cast("np.ndarray[Any, Any]", self._data)
        data = self.data_of(here)
        here.eval(data)
        return cast("np.ndarray[Any, Any]", here.to_numpy(data))

    def _can_be_read(self) -> bool:
        """Whether the values exist, and may be read without making them constants of a program that is captured."""
        here = state.current()
        if self._spec.kind == here.kind:
            return here.backend.has_values
        return self._spec.kind in residents and not here.backend.aliases

    def _bounds(self) -> tuple[Any, Any]:
        """Return the smallest and the largest element, for error messages; (0, 0) if the backend has no values."""
        if not state.current().backend.has_values:
            return 0, 0
        values = self._values()
        return values.min(), values.max()

    def _are_positions(self, n: int) -> bool:
        """Return whether all elements of this integer tensor are in range(n); True if the backend has no values."""
        if not state.current().backend.has_values:
            return True
        least, most = getattr(getattr(self, "_root", self), "_limits", (-1, 0))
        if least >= 0 and most < n and not self._last_write:
            return True  # and a device need not be waited for
        return are_positions(self._values(), n)

    def _is_contiguous(self) -> bool:
        """Return whether the elements are stored in row-major order without gaps."""
        return state.current().backend.is_contiguous(self._data)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"only an integer tensor can be an index, this one is {self._spec!r}")
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth value of a tensor of shape {self.shape} is ambiguous; use .any() or .all()")
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d tensor has no length; use .item() for its value")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TypeError("a 0-d tensor cannot be iterated; use .item() for its value")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool((self._values() == np.asarray(value)).any())

    __hash__ = object.__hash__  # by identity, as == is elementwise

    # Copies ---------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Tensor:
        return cast("Tensor", self.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return cast("Tensor", self.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (np.array(self._values()),)

    # Text -----------------------------------------------------------------------------------------------------------

    def _facts(self) -> str:
        """Return the dtype, shape and backend for `repr`, as ``float32[2,3], numpy``."""
        return f"{self._spec!r}, {state.current().backend.name}"

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._spec.kind != state.current().kind:
            return f"{name}({self._spec!r}, in a {self._spec.kind!r} buffer)"
        if not self._can_be_read():
            return f"{name}({self._facts()})"
        with np.printoptions(threshold=200, edgeitems=3, linewidth=100, precision=4, suppress=False):
            values = np.array2string(self._values(), separator=", ", prefix=name + "(")
        return f"{name}({values}, {self._facts()})"

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if self.size == 1 and format_spec else repr(self)

    # Operators: the functions of flnb.ops, attached by its __init__ ---------------------------------------------------

    @property
    def T(self) -> Any:
        """View with the order of all axes reversed: the transpose of a matrix."""
        return self.permute_dims(range(self.ndim)[::-1])

    @property
    def mT(self) -> Any:
        """View with the last two axes exchanged: the transposes of matrices (..., M, N).

        Raises:
            ValueError: there are fewer than two axes.
        """
        if self.ndim < 2:
            raise ValueError(f"mT: expected two dimensions or more, got shape {self.shape}")
        return self.permute_dims((*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def _unary(self) -> Self: ...
        def _binary(self, other: Any) -> Self: ...
        def __eq__(self, other: object) -> Self: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Self: ...  # type: ignore[override]

        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = __rmul__ = __imul__ = _binary
        __truediv__ = __rtruediv__ = __itruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = _binary
        __rfloordiv__ = __ifloordiv__ = __rmod__ = __imod__ = __ipow__ = __imatmul__ = __lshift__ = __rshift__ = _binary
        __matmul__ = __rmatmul__ = __and__ = __or__ = __xor__ = __lt__ = __le__ = __gt__ = __ge__ = _binary


def detached(data: Any, spec: Spec) -> Tensor:
    """Make a Tensor of a backend's buffer and its spec (shape, dtype and kind of buffer)."""
    tensor: Tensor = object.__new__(Tensor)
    tensor._data = data
    tensor._spec = spec
    return tensor


def alias(x: Tensor, data: Any, spec: Spec) -> Tensor:
    """Make a tensor on another backend from ``data``, a buffer of that backend that shares the memory of x.

    The new tensor has x's node on the tape.
    """
    made: Tensor = object.__new__(x._lift or Tensor)
    made._data, made._spec, made._root = data, spec, getattr(x, "_root", x)
    if x._lift is not None:
        made._node = x._node
    return made


def _rebuild(values: np.ndarray[Any, Any]) -> Tensor:
    """Make a tensor from the NumPy array that `Tensor.__reduce__` pickled."""
    return Tensor._of(values)
