"""The contract of tensor backends: about eighty methods that compute ops on raw buffers, and facts about buffers."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TensorBackend(Part, kind="backend"):
    """Base of all tensor backends: computes ops on raw buffers, without checks, timing or gradients.

    Every primitive op is one method with the op's array-API name. Its arguments are the buffers of the tensors, then
    the op's attributes (such as axes), in the form of the NumPy backend's method of that name, and ``out``: the buffer
    to write to, or None. Methods of views have no ``out``. Before a method is called, flnb checks shapes and dtypes,
    converts scalars to buffers, and casts operands to one dtype. Methods of composite ops such as ``softmax`` are
    optional.

    Most backends derive from `flnb.backends.NumpyBackend` and override some methods. A backend with its own kind of
    buffers derives from this class. A call of a primitive that the backend lacks raises an error with the primitive's
    name:

    >>> import flnb, numpy as np
    >>> class Lists(flnb.interface.TensorBackend):
    ...     buffer = "list"  # not NumPy arrays: flat lists of numbers
    ...     def empty(self, spec, manager, min_block, code, category):
    ...         return [0.0] * spec.size, 0
    ...     def from_numpy(self, array, out=None):
    ...         return array.ravel().tolist()
    ...     def to_numpy(self, buffer):
    ...         return np.array(buffer)
    ...     def add(self, a, b, out=None):
    ...         return [x + y for x, y in zip(a, b)]
    >>> with flnb.use_backend(Lists):
    ...     x = flnb.asarray([1.0, 2.0])
    ...     (x + x).tolist()
    [2.0, 4.0]

    `flnb.testing.check_backend` compares a backend's methods with the NumPy backend's.

    Attributes:
        name: the name in tensors' repr, errors and the dashboard.
        buffer: the name of the kind of buffers that the methods take. Backends with the same kind of buffers share
            tensors (for subclasses of the NumPy backend it is ``"ndarray"``); `Tensor.to` converts to another kind.
        has_values: whether buffers hold the elements of tensors; if not, checks of values are skipped.
        reads_host: whether buffers are NumPy arrays in this machine's memory, which can be read without the backend.
        shares_memory: whether a NumPy array can be used as a buffer without a copy.
        defers: whether methods may return results without values, which `eval` computes later.
        plain_buffers: whether backward passes may call the methods with buffers alone, without making Tensors.
        scalar_results: whether methods return NumPy scalars for 0-d results unless they get ``out``.
        whole_dtypes: the characters of the NumPy dtypes for which methods of composite ops may be called: ``"fd"`` for
            float32 and float64.
        own_numbers: whether random numbers of this backend differ from NumPy's for the same generator state.
        aliases: whether a buffer returned by `adopt` shares memory with the original buffer, so that a write to one
            changes both, and a Variable may be adopted, too.
        programs: whether `flnb.jit` makes programs of functions on these buffers, which must have shapes, dtypes,
            strides and addresses like the arrays of NumPy or CuPy.
        location: the place of the buffers, such as "cuda:0", as in `MemoryDevice.location`; empty for any place.
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
    own_numbers: ClassVar[bool] = False
    aliases: ClassVar[bool] = False
    programs: ClassVar[bool] = False
    location: str = ""
    required = "empty", "from_numpy", "to_numpy"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "buffer" in cls.__dict__:  # another family than its base's: facts about that are not inherited
            for fact in {"reads_host", "shares_memory", "programs"} - cls.__dict__.keys():
                setattr(cls, fact, False)

    def attach(self, state: Any) -> None:
        """Adapt ``state`` to this backend, which was just activated in it; called by flnb.

        A state holds the active backend, memory manager and modes of a thread or a ``with`` block. The state's table
        gets this backend's method for each op. The state's memory manager is replaced if it is for another device.
        """
        state.bind()
        state.locate()

    def method(self, name: str) -> Any:
        """Return the method for the op of this name; None if there is none."""
        return getattr(self, name, None)

    def own_manager(self) -> Any:
        """Return the memory manager to use if the active manager's memory is at another location than this backend."""
        raise self.lacks("own_manager")

    def overridden(self) -> frozenset[str]:
        """Return the names of the methods that classes of the user override.

        A composite op that uses one of these methods runs op by op, not by the inherited method for the composite.
        """
        users = takewhile(lambda c: not c.__module__.startswith("flnb_backends."), type(self).__mro__)
        own = [(c, name) for c in users if c is not TensorBackend for name in vars(c) if not name.startswith("__")]
        return frozenset([name for c, name in own if callable(getattr(c, name))])

    def recorder(self, plan: Any, index: int) -> Any:
        """Return the function that records a composite op or its gradient instead of computing it.

        Called if the backend `defers`, with the plan of a call and the op's index among all ops.
        """
        raise self.lacks("recorder")

    def kernels(self) -> Any:
        """Return a compiler of loop nests for this backend's buffers, used by programs; None if there is none."""
        return None

    def pooling(self, shape: tuple[int, ...], dtype: Any, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        """Return an object for max pooling that stores the positions of the maxima; None if the backend has none.

        Programs use it: ``find(x, y, places)`` writes the maxima to ``y`` and their positions to ``places``, an array
        of ``nbytes`` bytes, and ``spread(g, places, out)`` writes the gradient with respect to x to ``out``.
        """
        return None

    def routine(self, name: str, operands: Sequence[tuple[Any, ...]], attributes: tuple[Any, ...]) -> Any:
        """Return an object that computes an op among a program's compiled kernels, with the same result as the method.

        Args:
            name: the name of the op, which no class of the user overrides.
            operands: for each operand and the result the shape, the strides in bytes, and the dtype.
            attributes: the op's attributes.

        Returns:
            An object that the ``Segment`` of `kernels` takes in place of a kernel; None if the method is to be called.
        """
        return None

    def queue(self) -> Any:
        """Return the current queue of this thread's work, such as a stream; None if the backend has no queues."""
        return None

    def uses(self, buffers: Any) -> None:
        """Store that the next work in the queue uses these buffers; called for work that gets only their addresses."""

    def counterpart(self, other: TensorBackend) -> TensorBackend:
        """Return the backend to use if ``other`` is activated while this one is active; by default ``other``."""
        return other

    def viewer(self, name: str) -> Any:
        """Return a function that applies the view op ``name`` to a NumPy array.

        Programs (`flnb.jit`) call the function to find the strides of the view.
        """
        return self.method(name)

    def eval(self, *buffers: Any) -> None:
        """Compute the values of these buffers, or of all pending ones, if the backend `defers`.

        Called before values are read, and without arguments by optimizers at the end of a step.
        """

    def repeated(self, key: Any, function: Callable[[], object], tensors: Sequence[Any], written: int) -> bool:
        """Run a function, or repeat the ops recorded for an equal earlier call.

        The function uses only the given tensors, and writes only the first ``written`` of them.

        Args:
            key: a value that is equal whenever the function runs the same ops on tensors of equal specs.
            function: the function.
            tensors: the tensors that the function reads or writes.
            written: the number of tensors that the function writes; they are the first ones.

        Returns:
            True if the function ran; False if a backend that `defers` repeated the ops recorded for this key.
        """
        function()
        return True

    def libraries(self) -> str:
        """Return a description of the libraries that compute: versions, instruction set, threads.

        The dashboard and ``flnb doctor`` show it.
        """
        return ""

    def sync(self) -> None:
        """Wait until all computations that were started have finished. Called by `flnb.sync`."""

    def adopt(self, buffer: Any, family: str) -> Any:
        """Return a buffer of this backend made from a buffer of another one, or None if that is not supported.

        Called if an operand is a tensor of another backend, whose attribute ``buffer`` is ``family``. If this method
        returns None, the op raises an error.
        """
        return None

    def supports(self, dtype: Any) -> bool:
        """Return whether tensors can have this NumPy dtype."""
        return True

    def from_numpy(self, array: Any, out: Any = None) -> Any:
        """Return a buffer with the values of a NumPy array; write them into the buffer ``out`` if it is given."""
        raise self.lacks("from_numpy")

    def settled(self, buffer: Any) -> Any:
        """Wait until every stream can read a buffer, then return the buffer; called for buffers that later ops use."""
        return buffer

    def to_numpy(self, buffer: Any) -> Any:
        """Return the values of a buffer as a NumPy array, without a copy if `shares_memory`."""
        raise self.lacks("to_numpy")

    def allocator(self) -> Any:
        """Return the method `empty`, or a function that does the same in less time."""
        return self.empty

    def empty(self, spec: Any, manager: Any, min_block: int, code: int, category: int) -> tuple[Any, int]:
        """Allocate an uninitialised buffer for the result of an op.

        Args:
            spec: the ``shape``, ``dtype``, ``size`` and ``nbytes`` of the result.
            manager: the active memory manager, from which `flnb.dispatch.memory.allocate` gets a block.
            min_block: buffers of fewer bytes need no block.
            code, category: numbers for the op and for the purpose of the memory, which are passed on to ``allocate``.

        Returns:
            The buffer and the id of its block, 0 for a buffer without a block.
        """
        raise self.lacks("empty")

    def base_of(self, buffer: Any) -> Any:
        """Return the buffer of which this buffer is a view; None if it is not a view."""
        return None

    def is_contiguous(self, buffer: Any) -> bool:
        """Return whether a buffer is C-contiguous, so that a reshape is a view."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} backend {self.name!r}>"
