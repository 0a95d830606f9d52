"""Random tensors, drawn from a given `Generator` or from the session's, which `manual_seed` seeds."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flnb_telemetry.withblock import holding

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.brief import brief
from flnb.dispatch.effects import effects
from flnb.dispatch.table import Combined, Op
from flnb.ops import elementwise as e
from flnb.ops.creation import _no_rule, _spec, asarray
from flnb.ops.documentation import public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.tensor import DTypeLike, Tensor

    Shape = int | Sequence[int]

__all__ = [
    "Generator", "bernoulli", "current_generator", "default_generator", "manual_seed", "normal", "permutation", "rand",
    "randn", "uniform", "use_generator",
]  # fmt: skip

_uniform, _normal = (Op(name, "memory", _no_rule) for name in ("random_uniform", "random_normal"))


class Generator:
    """A generator of random numbers (PCG64) that can be seeded, and whose state can be saved and restored.

    >>> import flnb
    >>> a, b = flnb.random.Generator(7), flnb.random.Generator(7)
    >>> bool((flnb.random.normal((3,), generator=a) == flnb.random.normal((3,), generator=b)).all())
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @cached_property
    def numpy(self) -> np.random.Generator:
        """Return NumPy's generator; it is created when it is first needed (importing `numpy.random` takes 20 ms)."""
        return np.random.default_rng(self.seed)

    @property
    def state(self) -> dict[str, Any]:
        """Position in the stream of random numbers: set it to an earlier value to draw the same numbers again.

        Raises (when set):
            ValueError: the value is not a state of PCG64; the generator stays unchanged.
        """
        return dict(self.numpy.bit_generator.state)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        tried = np.random.PCG64(0)
        try:
            tried.state = cast(Any, value)  # NumPy leaves a generator half set where a part of its state is bad
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            raise ValueError(
                f"Generator.state: not a state of a random generator ({type(error).__name__}: {error}); "
                f"expected a value that Generator.state returned, got {brief(value)}"
            ) from error
        self.numpy.bit_generator.state = tried.state


default_generator = Generator()
"""The session's generator, from which functions draw unless another is given or chosen by `use_generator`."""

_chosen: ContextVar[Generator] = ContextVar("flnb_generator", default=default_generator)


def current_generator() -> Generator:
    """Return the generator of this thread and context: random functions draw from it unless they are given another.

    >>> import flnb
    >>> with flnb.random.use_generator(flnb.random.Generator(7)):
    ...     flnb.random.current_generator().seed
    7
    """
    return _chosen.get()


def host_generator(generator: Generator | None = None) -> np.random.Generator:
    """Return the NumPy generator inside a `Generator` (by default the current one), for random numbers used in Python.

    Raises:
        RuntimeError: `flnb.jit` is capturing a function, so that all later calls would repeat the same numbers.
    """
    if effects.get() is not None:
        raise RuntimeError(
            "flnb.jit: the captured function draws random numbers that Python reads (a permutation, LayerDrop, "
            "SpecAugment), which would be the same in all later calls: draw them outside and pass them as tensors"
        )
    return (generator or current_generator()).numpy


def use_generator(generator: Generator) -> holding[Generator]:
    """Make all random functions in this thread draw from another generator until the ``with`` block ends.

    >>> import flnb
    >>> with flnb.random.use_generator(flnb.random.Generator(0)):
    ...     x = flnb.random.uniform((2,))
    >>> bool((x == flnb.random.uniform((2,), generator=flnb.random.Generator(0))).all())
    True
    """
    return holding(_chosen, generator)


def manual_seed(seed: int) -> Generator:
    """Seed and return the current generator, which is the session's unless `use_generator` chose another.

    The same seed yields the same random numbers in every process. Results computed from them are equal to the last bit
    on the backend "numpy" with one thread. On "cpu", which times several algorithms for convolutions and matrix
    products and uses the fastest, the last bits of results may differ between processes.

    >>> import flnb
    >>> flnb.manual_seed(0).seed
    0

    Raises:
        TypeError: the seed is not an int >= 0; the generator stays unchanged.
    """
    if not isinstance(seed, Integral) or seed < 0:
        raise TypeError(f"manual_seed: seed must be an int >= 0, got {brief(seed)}")
    generator = current_generator()
    generator.__dict__.pop("numpy", None)
    generator.seed = seed
    return generator


def _drawn(op: Op, shape: Any, dtype: Any, generator: Generator | None, *arguments: Any) -> Any:
    """Draw a random tensor by an op with these arguments; inside of `flnb.vmap`, draw one for every example at once."""
    vmaps, spec = state.vmaps.get(), _spec(shape, dtype)
    whole = _spec((*[v.size for v in vmaps], *spec.shape), dtype) if vmaps else spec
    source = generator or current_generator()
    make: Any = partial(dispatch.create, op, whole, (*arguments, source.numpy))
    if (captured := effects.get()) is not None:
        captured.generators[id(source.numpy)] = source
    tensor: Any = make() if captured is None else captured.draw(make)
    for v in vmaps:
        tensor = v.batched(tensor)
    return tensor


def _separate_mask(spec: Any, p: float, source: np.random.Generator) -> Tensor:
    """Draw uniform numbers, compare them with ``p``, and scale the result, each by an op."""
    drawn = dispatch.create(_uniform, spec, (0.0, 1.0, source))
    return e.astype(e.greater_equal(drawn, p), spec.dtype) * (1.0 / (1.0 - p))


_mask = Combined(
    "random_mask", "memory", _no_rule, separately=_separate_mask,
    primitives=frozenset({"random_uniform", "greater_equal", "astype", "multiply"}),
)  # fmt: skip


def dropout_mask(x: Tensor, p: float, generator: Generator | None) -> Tensor:
    """Draw for each element of x the factor of dropout: 0 with probability ``p``, else 1 / (1 - p)."""
    return _drawn(_mask, x.shape, x.dtype, generator, p)


def uniform(
    shape: Shape, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Draw a tensor of uniform random numbers in [low, high), of a floating-point dtype.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> x = flnb.random.uniform((2, 3), low=-1.0, generator=flnb.random.Generator(0))
    >>> x.shape, bool((x >= -1.0).all() and (x < 1.0).all())
    ((2, 3), True)
    """
    return _drawn(_uniform, shape, dtype, generator, low, high)


def normal(
    shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Draw a tensor of normal random numbers with a mean and a standard deviation, of a floating-point dtype.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.random.normal((2, 3), mean=5.0, generator=flnb.random.Generator(0)).shape
    (2, 3)
    """
    return _drawn(_normal, shape, dtype, generator, mean, std)


def rand(*shape: int | Sequence[int], dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Draw a tensor of uniform random numbers in [0, 1); the shape is given as several ints or as one tuple.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.rand(2, 3).shape
    (2, 3)
    """
    return uniform(_extents(shape), dtype=dtype, generator=generator)


def randn(*shape: int | Sequence[int], dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Draw a tensor of normal random numbers with mean 0 and standard deviation 1.

    The shape is given as several ints or as one tuple.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.randn(2, 3).shape
    (2, 3)
    """
    return normal(_extents(shape), dtype=dtype, generator=generator)


def _extents(shape: tuple[Any, ...]) -> Any:
    """Return the shape from the arguments of `rand`: several ints, or one tuple or list."""
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def bernoulli(shape: Shape, p: float = 0.5, dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Draw a tensor whose elements are 1 with probability ``p``, otherwise 0.

    The dtype is `flnb.default_dtype()` unless another one is given.

    Raises:
        ValueError: ``p`` is not in [0, 1].

    >>> import flnb
    >>> flnb.random.bernoulli(3, p=1.0)
    Tensor([1., 1., 1.], float32[3], numpy)
    """
    if isinstance(p, (int, float)) and not 0.0 <= p <= 1.0:
        raise ValueError(f"bernoulli: p must be in [0, 1], got {brief(p)}")
    return (uniform(shape, generator=generator) < p).astype(_spec((), dtype).dtype)


def permutation(n: int, generator: Generator | None = None) -> Tensor:
    """Return the int64 numbers 0 to n - 1 in random order; inside of `flnb.vmap` all examples get the same order.

    Raises:
        ValueError: ``n`` is negative.

    >>> import flnb
    >>> sorted(flnb.random.permutation(3).tolist())
    [0, 1, 2]
    """
    if n < 0:
        raise ValueError(f"permutation: n must be 0 or more, got {brief(n)}")
    return asarray(host_generator(generator).permutation(n).astype(np.int64))


for _function in (bernoulli, current_generator, manual_seed, normal, permutation, rand, randn, uniform):
    globals()[_function.__name__] = public(_function)
