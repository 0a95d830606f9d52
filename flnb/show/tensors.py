"""A Tensor or Variable as HTML: dtype and shape, where it is stored, statistics, a picture, and the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import quantity
from flnb_telemetry.safe_text import html_text

from flnb.dispatch import state
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.memory import block_of
from flnb.show.picture import heat_map, histogram, images_of, tag

if TYPE_CHECKING:
    from flnb.tensor import Tensor

Array = np.ndarray[Any, Any]
CODE = "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"
DIM = "color:var(--jp-ui-font-color2,#777)"
WARN = "color:var(--jp-error-color1,#d32f2f);font-weight:600"
BOX = (
    "display:inline-block;max-width:100%;padding:6px 10px;line-height:1.5;border-radius:3px;"
    "border:1px solid var(--jp-border-color2,#8886);color:var(--jp-ui-font-color1,inherit)"
)


def tensor_html(tensor: Tensor) -> str:
    """Return HTML without scripts that shows a tensor, and its gradient if it has one."""
    head = f"<b>{type(tensor).__name__}</b> <span style='{CODE}'>{tensor._spec!r}</span>"
    about = [html_text(fact) for fact in facts(tensor)]
    rows = [f"<div>{head} <span style='{DIM}'>{' · '.join(about)}</span></div>"]
    if tensor._can_be_read():
        values = np.asarray(tensor._values())
        rows += _values_html(values, "values")
        gradient = getattr(tensor, "grad", None)
        if gradient is not None:
            rows.append(
                f"<div style='margin-top:6px'><b>gradient</b> <span style='{DIM}'>{norm(gradient)}</span></div>"
            )
            rows += _values_html(np.asarray(gradient._values()), "gradient")
    return f"<div style='{BOX}'>{''.join(rows)}</div>"


def facts(tensor: Tensor) -> list[str]:
    """Return short texts about a tensor: backend, memory block and size, whether it is a view, which op made it."""
    here = state.current()
    if tensor._spec.kind != here.kind:
        return [f"in a {tensor._spec.kind!r} buffer; .to({here.backend.name!r}) converts it"]
    block = block_of(tensor._data)
    size = quantity.size(tensor.nbytes)
    info = [here.backend.name, f"block {block.id}, {size}" if block else f"{size}, no block of its own"]
    if here.backend.base_of(tensor._data) is not None:
        info.append("a view")
    if not here.backend.is_contiguous(tensor._data):
        info.append("not contiguous")
    node = tensor._node
    if node is not None:
        name = getattr(tensor, "name", "")
        info.append(f"from {node[0].op.name}" if node[0] is not None else f"requires grad{f', {name}' if name else ''}")
    return info


def statistics(values: Array) -> str:
    """Return HTML with range, mean and standard deviation, and the numbers of NaNs, infinities and zeros if any."""
    if not values.size or values.dtype.kind == "c":
        return "no elements" if not values.size else ""
    if values.dtype.kind == "b":
        return f"{int(values.sum())} of {values.size} true"
    wide = values.astype(np.float64) if is_float(values.dtype) else values
    finite = np.isfinite(wide)
    parts = []
    if finite.any():
        good = wide[finite]
        with np.errstate(over="ignore", invalid="ignore"):  # the squares of large numbers
            low, high, mean, std = (_number(v.item()) for v in (good.min(), good.max(), good.mean(), good.std()))
        if low == high:
            parts.append(f"all {low}" if values.size > 1 else low)
        else:
            parts.append(f"{low} … {high}, mean {mean} ± {std}")
    for what, count in (("NaN", int(np.isnan(wide).sum())), ("infinite", int(np.isinf(wide).sum()))):
        if count:
            parts.append(f"<span style='{WARN}'>{count} {what}</span>")
    zeros = int((wide == 0).sum())
    if zeros and values.size > 1:
        parts.append(f"{quantity.percent(zeros / values.size)} zero")
    return " · ".join(parts)


def _number(value: float) -> str:
    """Format a number with three significant digits and a typographic minus sign; integers in full."""
    size = abs(value)
    if isinstance(value, int):
        text = str(size)
    else:
        text = f"{size:.2e}" if 0 < size < 1e-4 or size >= 1e7 else quantity.significant(size)
    return f"−{text}" if value < 0 else text


def norm(gradient: Tensor) -> str:
    """Return the Euclidean norm of a gradient as text."""
    values = np.asarray(gradient._values(), np.float64)
    return f"norm {quantity.norm(float(np.sqrt((values * values).sum())))}"


def _values_html(values: Array, what: str) -> list[str]:
    """Return HTML elements with statistics, a picture if possible, and the numbers, folded if there is a picture.

    ``what`` says what the values are, such as a gradient.
    """
    rows = [f"<div style='{DIM}'>{statistics(values)}</div>"]
    pictures = [tag(image, f"image {i} of {what}") for i, image in enumerate(images_of(values))]
    if not pictures and (mapped := heat_map(values)) is not None:
        pictures = [tag(mapped, f"heat map of {what}")]
    if not pictures and values.dtype.kind in "fiu" and values.size:
        pictures = [histogram(values)]
    shown = "".join(pictures)
    if shown:
        rows.append(f"<div>{shown}</div>")
    with np.printoptions(threshold=200, edgeitems=3, linewidth=100, precision=4):
        numbers = html_text(np.array2string(values, separator=", "))
    pre = f"<pre style='margin:2px 0;overflow:auto;max-height:20em;background:none;{CODE}'>{numbers}</pre>"
    rows.append(f"<details{'' if shown else ' open'}><summary style='cursor:pointer'>values</summary>{pre}</details>")
    return rows
