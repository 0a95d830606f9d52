"""Random tensors from explicit generators; functions called without one use the session's, seeded by `manual_seed`."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flnb_telemetry.withblock import with_block

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Op
from flnb.ops.creation import _no_rule, _spec, asarray
from flnb.ops.documentation import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flnb.tensor import DTypeLike, Tensor

    Shape = int | Sequence[int]

__all__ = [
    "Generator", "bernoulli", "current_generator", "default_generator", "manual_seed", "normal", "permutation", "rand",
    "randn", "uniform", "use_generator",
]  # fmt: skip

_uniform = Op("random_uniform", "memory", _no_rule)
_normal = Op("random_normal", "memory", _no_rule)


class Generator:
    """A stream of random numbers (PCG64) that can be seeded, saved and restored.

    >>> import flnb
    >>> a, b = flnb.random.Generator(7), flnb.random.Generator(7)
    >>> bool((flnb.random.normal((3,), generator=a) == flnb.random.normal((3,), generator=b)).all())
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @cached_property
    def numpy(self) -> np.random.Generator:
        """The NumPy generator that draws, made when the first number is drawn: `numpy.random` takes 20 ms to import."""
        return np.random.default_rng(self.seed)

    @property
    def state(self) -> dict[str, Any]:
        """The position in the stream: set it to an earlier value to draw the same numbers again.

        Raises (when set):
            ValueError: it is no state of PCG64; the generator is as it was.
        """
        return dict(self.numpy.bit_generator.state)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        tried = np.random.PCG64(0)
        try:
            tried.state = cast(Any, value)  # NumPy leaves a generator half set where a part of its state is bad
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            raise ValueError(
                f"flnb: not a state of a random generator ({type(error).__name__}: {error}); "
                f"expected what Generator.state returned"
            ) from error
        self.numpy.bit_generator.state = tried.state


default_generator = Generator()
"""The session's generator, which draws where no other one is chosen."""

_chosen: ContextVar[Generator] = ContextVar("flnb_generator", default=default_generator)


def current_generator() -> Generator:
    """The generator from which this thread and context draws if none is given.

    >>> import flnb
    >>> with flnb.random.use_generator(flnb.random.Generator(7)):
    ...     flnb.random.current_generator().seed
    7
    """
    return _chosen.get()


@with_block
def use_generator(generator: Generator) -> Iterator[Generator]:
    """Draw from another generator until the block ends, in this thread alone: so each rank has numbers of its own.

    >>> import flnb
    >>> with flnb.random.use_generator(flnb.random.Generator(0)):
    ...     x = flnb.random.uniform((2,))
    >>> bool((x == flnb.random.uniform((2,), generator=flnb.random.Generator(0))).all())
    True
    """
    token = _chosen.set(generator)
    try:
        yield generator
    finally:
        _chosen.reset(token)


def manual_seed(seed: int) -> Generator:
    """Seed the generator that draws here, the session's unless `use_generator` chose another, and return it.

    >>> import flnb
    >>> flnb.manual_seed(0).seed
    0

    Raises:
        TypeError: a seed that is no int of 0 or more; the generator stays as it was.
    """
    if not isinstance(seed, Integral) or seed < 0:
        raise TypeError(f"manual_seed: seed must be an int >= 0, got {brief(seed)}")
    generator = current_generator()
    generator.__dict__.pop("numpy", None)
    generator.seed = seed
    return generator


def _drawn(op: Op, shape: Any, dtype: Any, arguments: tuple[Any, ...]) -> Any:
    """Draw a tensor; under `flnb.vmap` draw one for every example, all in one draw, an example after the other."""
    vmaps = state.vmaps.get()
    if not vmaps:
        return dispatch.create(op, _spec(shape, dtype), arguments)
    spec = _spec(shape, dtype)
    tensor: Any = dispatch.create(op, _spec((*[v.size for v in vmaps], *spec.shape), dtype), arguments)
    for v in vmaps:
        tensor = v.batched(tensor)
    return tensor


def uniform(
    shape: Shape, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Uniform random numbers in [low, high), floating point.

    >>> import flnb
    >>> x = flnb.random.uniform((2, 3), low=-1.0, generator=flnb.random.Generator(0))
    >>> x.shape, bool((x >= -1.0).all() and (x < 1.0).all())
    ((2, 3), True)
    """
    return _drawn(_uniform, shape, dtype, (low, high, (generator or current_generator()).numpy))


def normal(
    shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Normally distributed random numbers with the given mean and standard deviation, floating point.

    >>> import flnb
    >>> flnb.random.normal((2, 3), mean=5.0, generator=flnb.random.Generator(0)).shape
    (2, 3)
    """
    return _drawn(_normal, shape, dtype, (mean, std, (generator or current_generator()).numpy))


def rand(*shape: int | Sequence[int], dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Uniform random numbers in [0, 1), with the extents as arguments or as one tuple.

    >>> import flnb
    >>> flnb.rand(2, 3).shape
    (2, 3)
    """
    return uniform(_extents(shape), dtype=dtype, generator=generator)


def randn(*shape: int | Sequence[int], dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Normally distributed random numbers (mean 0, deviation 1), with the extents as arguments or as one tuple.

    >>> import flnb
    >>> flnb.randn(2, 3).shape
    (2, 3)
    """
    return normal(_extents(shape), dtype=dtype, generator=generator)


def _extents(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def bernoulli(shape: Shape, p: float = 0.5, dtype: DTypeLike = None, generator: Generator | None = None) -> Tensor:
    """Ones with probability ``p``, else zeros; of the default dtype unless another is given.

    >>> import flnb
    >>> flnb.random.bernoulli(3, p=1.0)
    Tensor([1., 1., 1.], float32[3], numpy)
    """
    return (uniform(shape, generator=generator) < p).astype(_spec((), dtype).dtype)


def permutation(n: int, generator: Generator | None = None) -> Tensor:
    """The integers 0 to n - 1 in random order, int64; under `flnb.vmap` the same order for every example.

    >>> import flnb
    >>> sorted(flnb.random.permutation(3).tolist())
    [0, 1, 2]
    """
    return asarray((generator or current_generator()).numpy.permutation(n).astype(np.int64))


for _function in (bernoulli, current_generator, manual_seed, normal, permutation, rand, randn, uniform):
    readable(_function)
