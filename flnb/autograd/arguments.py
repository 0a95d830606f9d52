"""Checks of the results of differentiated functions, and of the tangents or cotangents passed to transforms."""

from __future__ import annotations

from typing import Any

from flnb.autograd.tree import leaves
from flnb.ops.creation import asarray
from flnb.tensor import Tensor


def pair_of(value: Any) -> Any:
    """Return ``value``, the result of a function with ``has_aux``; raise a ValueError if it is not a pair."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        got = f"a {type(value).__name__}{f' of {len(value)}' if isinstance(value, tuple | list) else ''}"
        raise ValueError(f"grad: with has_aux the function must return a pair (number, aux), it returned {got}")
    return value


def results_of(value: Any, name: str) -> list[Any]:
    """Return the tensors in a function's result; for other objects raise a TypeError with the transform's name."""
    found = leaves(value)
    for y in found:
        if not isinstance(y, Tensor):
            raise TypeError(
                f"{name}: the function must compute tensors from its arguments, it returned {type(y).__name__}"
            )
    if not found:
        raise TypeError(f"{name}: the function returned nothing; end it with `return`")
    return found


def number_of(value: Any, name: str) -> Any:
    """Return ``value`` if it is a tensor of one element; otherwise raise an error that names the transform."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: the function must compute a Variable from its arguments, it returned {type(value).__name__}"
        )
    if value.size != 1:
        raise ValueError(
            f"{name}: the function must return one number, it returned shape {value.shape}; reduce it (.sum(), "
            f".mean()), or use flnb.jacobian or flnb.vjp"
        )
    return value


def vectors_of(what: str, name: str, given: Any, like: Any, tensors: list[Any]) -> list[Any]:
    """Return the tensors in the container ``given``, cast to the dtypes of ``tensors``.

    Args:
        what: "tangents", "vectors" or "cotangent", for error messages.
        name: the name of the transform, for error messages.
        given: a container, which may be nested, of as many tensors as ``tensors``, with the same shapes.
        like: a container as expected, for the error message.
    """
    found = leaves(given)
    if len(found) != len(tensors):
        raise ValueError(f"{name}: {what} must be {_shapes(leaves(like))}, got {_shapes(found)}")
    vectors = [asarray(v, dtype=x.dtype) for v, x in zip(found, tensors, strict=True)]
    for i, (v, x) in enumerate(zip(vectors, tensors, strict=True)):
        if v.shape != x.shape:
            raise ValueError(f"{name}: {what} {i} must have shape {x.shape}, got {v.shape}")
    return vectors


def _shapes(tensors: list[Any]) -> str:
    return f"{len(tensors)} tensors of shapes {', '.join(str(tuple(getattr(x, 'shape', ()))) for x in tensors)}"
