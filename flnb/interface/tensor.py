"""The contract of tensor backends: about eighty plain methods on raw buffers, and facts about the buffers."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TensorBackend"]


class TensorBackend(Part, kind="backend"):
    """Base of all tensor backends: computes ops on raw buffers, without checks, timing or gradients.

    Every primitive op is one method under the op's array-API name. It takes the buffers of its tensors, then the op's
    attributes (such as axes) as the NumPy backend's method of that name does, and, unless it returns a view, ``out``:
    the buffer to write to, or None. Before a method is called, shapes and dtypes were checked, scalars became buffers
    and operands were cast to one dtype. Methods of composite ops such as ``softmax`` are optional.

    Most backends derive from `flnb.backends.NumpyBackend` and override some methods. One with buffers of its own
    derives from this class; a call of a primitive that it does not define is an error that names what it lacks:

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
        name: shown in tensors' repr, errors and the dashboard.
        buffer: the family of buffers that the methods take. Backends of one family share tensors (every subclass of the
            NumPy backend keeps ``"ndarray"``); `Tensor.to` converts between families.
        has_values: whether buffers hold the elements of tensors; if not, checks of values are skipped.
        reads_host: whether buffers are NumPy arrays in this machine's memory, which can be read without the backend.
        shares_memory: whether a NumPy array can be used as a buffer without a copy.
        defers: whether methods may return before their result has values, which `eval` then computes.
        plain_buffers: whether backward passes may call the methods with buffers alone, without making Tensors.
        scalar_results: whether methods return NumPy scalars for 0-d results unless they get ``out``.
        whole_dtypes: characters of the NumPy dtypes for which its methods for composite ops may be called.
        own_numbers: whether it draws other random numbers than NumPy's from an equal generator.
        aliases: whether an adopted buffer stands for the memory that it was made from: writes to it are writes to that,
            and a Variable's place on the tape is its own.
        programs: whether `flnb.jit` makes programs of functions on its buffers: these have shapes, dtypes, strides and
            addresses as NumPy's or CuPy's arrays do.
        location: where its buffers are, as memory devices name it; empty if they may be anywhere.
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
        """Enter this backend's methods into the table of a state in which it was activated."""
        state.bind()
        state.locate()

    def method(self, name: str) -> Any:
        """Return the method for an op by its name; None without one."""
        return getattr(self, name, None)

    def own_manager(self) -> Any:
        """Return the memory manager for states whose manager is for another location than this backend's."""
        raise self.lacks("own_manager")

    def overridden(self) -> frozenset[str]:
        """Return the names of methods that the user's own classes override.

        A composite op that uses one of these runs op by op, not by the inherited method for the composite.
        """
        users = takewhile(lambda c: not c.__module__.startswith("flnb_backends."), type(self).__mro__)
        return frozenset([name for c in users if c is not TensorBackend for name in vars(c)])

    def recorder(self, plan: Any, index: int) -> Any:
        """Return the function that records a composite op or its gradient instead of computing it.

        Called if the backend `defers`, with the op's index among all ops.
        """
        raise self.lacks("recorder")

    def kernels(self) -> Any:
        """Return a compiler of loop nests for this backend's buffers, used by programs; None if it has none."""
        return None

    def pooling(self, shape: tuple[int, ...], dtype: Any, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        """Return max pooling that stores the places of the maxima, used by programs; None if there is none.

        Its ``nbytes`` is the size of an array of places, ``find(x, y, places)`` writes maxima and places, and
        ``spread(g, places, out)`` the gradient.
        """
        return None

    def queue(self) -> Any:
        """Return the queue (such as a stream) that work goes to now; None if all work runs in order."""
        return None

    def uses(self, buffers: Any) -> None:
        """Note that the next queued work uses buffers that are passed by address only."""

    def counterpart(self, other: TensorBackend) -> TensorBackend:
        """Return the backend to use in place of another one that is activated while this one is active."""
        return other

    def viewer(self, name: str) -> Any:
        """Return the method for a view op, callable on a NumPy array to find the view's strides."""
        return self.method(name)

    def eval(self, *buffers: Any) -> None:
        """Compute the values of these buffers, or of all pending ones, if the backend `defers`.

        Called before values are read, and without arguments by optimizers at the end of a step.
        """

    def repeated(self, key: Any, function: Callable[[], object], tensors: Sequence[Any], written: int) -> bool:
        """Run a function that writes the first ``written`` of some tensors and reads no others.

        Returns:
            Whether it ran: a backend that `defers` may record what it recorded before in place of that.

        Args:
            key: what the ops of the function depend on besides the tensors.
        """
        function()
        return True

    def libraries(self) -> str:
        """Describe the libraries that compute: versions, instruction set, threads; shown by dashboard and doctor."""
        return ""

    def sync(self) -> None:
        """Wait until all computations that were started have finished. Called by `flnb.sync`."""

    def adopt(self, buffer: Any, family: str) -> Any:
        """Convert a buffer of another family that was passed to an op; None refuses it with an error."""
        return None

    def supports(self, dtype: Any) -> bool:
        """Return whether tensors can have this NumPy dtype."""
        return True

    def from_numpy(self, array: Any, out: Any = None) -> Any:
        """Return a buffer with the values of a NumPy array; write them into the buffer ``out`` if it is given."""
        raise self.lacks("from_numpy")

    def settled(self, buffer: Any) -> Any:
        """Make a buffer that ops cache for later calls readable from any stream; returns it."""
        return buffer

    def to_numpy(self, buffer: Any) -> Any:
        """Return the values of a buffer as a NumPy array, without a copy if `shares_memory`."""
        raise self.lacks("to_numpy")

    def empty(self, spec: Any, manager: Any, min_block: int, code: int, category: int) -> tuple[Any, int]:
        """Allocate an uninitialised buffer for the result of an op.

        Args:
            spec: its ``shape``, ``dtype``, ``size`` and ``nbytes``.
            manager: the active memory manager, which `flnb.dispatch.memory.owner_in` asks for a block.
            min_block: buffers of fewer bytes need no block.
            code, category: the op and the purpose in telemetry, to be passed on to ``owner_in``.

        Returns:
            The buffer and the id of its block, 0 for a buffer without a block.
        """
        raise self.lacks("empty")

    def base_of(self, buffer: Any) -> Any:
        """Return the buffer that this one is a view of; None if it has memory of its own."""
        return None

    def is_contiguous(self, buffer: Any) -> bool:
        """Return whether a buffer is C-contiguous, so that a reshape is a view."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} backend {self.name!r}>"
