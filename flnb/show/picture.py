"""Arrays as pictures: PNG images, heat maps and histograms, made without any imaging library."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WIDTH = 160  # CSS pixels of a picture, and pixels of a PNG at most
LEAST = 8  # fewest rows and columns of an array that is shown as a picture
MOST_IMAGES = 8
BROKEN = (214, 39, 151)  # NaN and infinity
BLUE, GREY, RED = np.array([[33, 102, 172], [247, 247, 247], [178, 24, 43]], np.float64)


def png(pixels: Array) -> bytes:
    """Encode uint8 pixels as a PNG file (RFC 2083): grey ones of shape (H, W), or RGB ones of shape (H, W, 3).

    >>> import numpy as np
    >>> from flnb.show.picture import png
    >>> png(np.zeros((2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    rows = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()  # filter 0 before each row
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def tag(pixels: Array, alt: str) -> str:
    """Return an HTML image element that contains the pixels; small images are enlarged without blur.

    ``alt`` is the text for viewers that do not show images.
    """
    height, width = pixels.shape[:2]
    scale = max(1, WIDTH // max(height, width))
    source = base64.b64encode(png(pixels)).decode()
    return (
        f'<img alt="{alt}" width="{width * scale}" height="{height * scale}" src="data:image/png;base64,{source}" '
        f'style="image-rendering:pixelated;margin:2px;outline:1px solid var(--jp-border-color2,#8886)">'
    )


def images_of(values: Array) -> list[Array]:
    """Return the images in an array as uint8 pixels of shape (H, W) or (H, W, 3); [] if the array has another shape.

    Accepted shapes are (H, W, 3), (C, H, W) and (N, C, H, W) with one or three channels, H and W at least 8. Values of
    uint8 stay the same. Other values are scaled from the range 0 to 1 or, if a value is outside of 0 to 1, from the
    range of the values. NaNs and infinities become pink.
    """
    if values.ndim == 3 and values.shape[2] == 3:
        stack = values[None]
    elif values.ndim in (3, 4) and values.shape[-3] in (1, 3):
        stack = np.moveaxis(values.reshape(-1, *values.shape[-3:]), 1, -1)
    else:
        return []
    if min(stack.shape[1:3]) < LEAST or not len(stack):
        return []
    stack = stack[:MOST_IMAGES, :: _step(stack.shape[1]), :: _step(stack.shape[2])]
    if stack.dtype != np.uint8:
        stack = stack.astype(np.float32)
        finite = np.isfinite(stack)
        low, high = _range(stack[finite])
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        stack = np.rint(255 * np.where(finite, (stack - low) / ((high - low) or 1.0), 0.0)).astype(np.uint8)
        if not finite.all():
            stack = np.broadcast_to(stack, (*stack.shape[:3], 3)).copy()
            stack[~finite.all(axis=-1)] = BROKEN
    return [image[..., 0] if image.shape[-1] == 1 else image for image in stack]


def heat_map(values: Array) -> Array | None:
    """Return a matrix as RGB pixels, blue for negative and red for positive values; grey levels if none is negative.

    The result is None for arrays that are not matrices, for complex numbers, and for fewer than 8 rows or columns.
    """
    if values.ndim != 2 or min(values.shape) < LEAST or values.dtype.kind == "c":
        return None
    seen = values[:: _step(values.shape[0]), :: _step(values.shape[1])].astype(np.float64)
    finite = np.isfinite(seen)
    low, high = _range(seen[finite])
    if low >= 0:
        share = np.where(finite, (seen - low) / ((high - low) or 1.0), 0.0)[..., None]
        pixels = 255 * share * np.ones(3)
    else:
        share = np.where(finite, seen, 0.0)[..., None] / max(-low, high, 1e-300)
        pixels = np.where(share < 0, GREY + (BLUE - GREY) * -share, GREY + (RED - GREY) * share)
    pixels[~finite] = BROKEN
    return np.rint(pixels).astype(np.uint8)


def histogram(values: Array, bins: int = 40) -> str:
    """Return a small SVG with the histogram of the finite values, or "" if these are fewer than 16 or all equal."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size < 2 * LEAST or finite.min() == finite.max():
        return ""
    counts, edges = np.histogram(finite, bins)
    heights = 30 * counts / counts.max()
    bars = "".join(
        f'<rect x="{4 * i}" y="{30 - h:.1f}" width="3" height="{h:.1f}"/>' for i, h in enumerate(heights) if h
    )
    said = f"distribution from {edges[0]:.3g} to {edges[-1]:.3g}"
    width = 4 * bins
    return (
        f'<svg role="img" aria-label="{said}" width="{width}" height="32" viewBox="0 0 {width} 32" fill="currentColor" '
        f'opacity="0.65"><title>{said}</title>{bars}<rect y="31" width="{width}" height="1"/></svg>'
    )


def _step(extent: int) -> int:
    """Return the slice step that selects at most `WIDTH` of ``extent`` rows or columns."""
    return -(-extent // WIDTH)


def _range(values: Array) -> tuple[float, float]:
    """Return the smallest and the largest value, 0 and 0 for an empty array."""
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
