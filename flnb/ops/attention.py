"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import dropout, softmax
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo
from flnb.ops.linalg import matmul
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike


def scaled_dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, mask: ArrayLike | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, generator: Any = None,
    bias: ArrayLike | None = None,
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention, softmax(scale * query key^T + mask + bias) value (Vaswani et al. 2017).

    Args:
        query: (..., L, E), for L positions that attend.
        key: (..., S, E), for S positions that may be attended to.
        value: (..., S, F).
        mask: broadcast to (..., L, S): bool, true where to attend, or numbers added to the scores.
        dropout_p: the probability with which each attention weight is zeroed; pass 0 outside of training.
        is_causal: whether each position attends only to itself and earlier ones; not together with a mask.
        scale: 1 / sqrt(E) unless given.
        generator: the `flnb.random.Generator` that dropout draws from; None: the session's.
        bias: numbers added to the scores in addition to any mask, broadcast to (..., L, S).

    Returns:
        (..., L, F), in the dtype of query, key and value; zeros for a query whose mask is false, or -inf,
        for every key.

    Raises:
        ValueError: the shapes of query, key and value do not fit together.

    >>> import flnb
    >>> x = flnb.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> flnb.scaled_dot_product_attention(x, x, x, is_causal=True)[0]
    Tensor([1., 0.], float32[2], numpy)
    """
    query, key, value = (x if isinstance(x, Tensor) else asarray(x) for x in (query, key, value))
    fit = min(query.ndim, key.ndim, value.ndim) > 1
    if not fit or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"scaled_dot_product_attention: expected query (..., L, E), key (..., S, E) and value (..., S, F), got "
            f"{query._spec!r}, {key._spec!r} and {value._spec!r}"
        )
    length, features = query.shape[-2:]
    if is_causal and mask is not None:
        raise ValueError("scaled_dot_product_attention: give a mask or is_causal, not both")
    scores = matmul(query * (features**-0.5 if scale is None else scale), key, transpose_b=True)
    computed, sees = scores.dtype, None
    if computed.itemsize == 2:  # the largest float16 would not outweigh every score
        scores = e.astype(scores, np.float32)
    if bias is not None:
        scores = scores + bias
    if is_causal and bias is not None:  # a bias of -inf may hide all earlier positions, but later ones stay hidden
        mask, is_causal = asarray(np.tri(length, key.shape[-2], dtype=bool)), False
    if is_causal:  # add a large negative number: cheaper to differentiate than `where`, and each row sees itself
        hidden = np.full((length, key.shape[-2]), finfo(scores.dtype).min / 2, scores.dtype)
        weights = softmax(scores + asarray(np.triu(hidden, 1)))
    elif mask is None:
        weights = softmax(scores)
    elif asarray(mask).dtype.kind == "b":
        least = finfo(scores.dtype).min  # not -inf, since the softmax of a row of -inf is NaN
        weights = e.where(mask, softmax(e.where(mask, scores, least)), 0.0)
    else:
        added = e.astype(asarray(mask), scores.dtype, copy=False)
        weights = softmax(scores + e.maximum(added, finfo(scores.dtype).min))  # finite: see above
        sees = e.astype(r.any(added > -math.inf, axis=-1, keepdims=True), computed)
    if dropout_p or weights.dtype != computed:
        weights = dropout(e.astype(weights, computed, copy=False), dropout_p, generator=generator)
    y = matmul(weights, value)
    return y if sees is None else y * sees
