"""PNG pictures of SVG documents, made by resvg of the extra "lab", and MIME bundles of pictures for notebooks.

GitHub shows an output of the type image/png. It removes scripts and SVG elements from HTML, and damages SVG.
"""

from __future__ import annotations

import base64
import re
import zlib
from functools import cache
from typing import Any

from flnb_telemetry.extras import require

ZOOM = 2.0
"""Pixels of a PNG picture for each pixel of the SVG document, for screens with high resolution."""
FAMILIES = (
    "DejaVu Sans", "Arial", "Helvetica", "Liberation Sans", "Noto Sans", "Segoe UI", "Verdana", "Inter", "Roboto",
    "Open Sans", "Ubuntu", "FreeSans",
)  # fmt: skip
"""Families of fonts without serifs; the first one that is installed is used."""
EQUAL = ("DejaVu Sans Mono", "Menlo", "Consolas", "Liberation Mono", "Courier New", "JetBrains Mono", "FreeMono")
"""Families of fonts with letters of equal width, for tables."""
LETTERS = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><text y="16" font-family="{}">Ag</text></svg>'
HEAD = 33
"""The length in bytes of a PNG file's signature and first chunk."""


def png(document: str, mark: str = "") -> bytes:
    """Return the picture of an SVG document as a PNG file, on white.

    Args:
        document: the SVG document.
        mark: a text to store in the file, as its "Source".

    Raises:
        ImportError: resvg is not installed.
        RuntimeError: there is no font for the texts.
    """
    resvg, family = require("resvg_py", "lab", "a PNG picture"), _family(FAMILIES)
    if not family:
        raise RuntimeError(
            f"a PNG picture needs one of the fonts {', '.join(FAMILIES)}, and none is installed; install one (on "
            f"Debian: apt-get install fonts-dejavu-core), or write SVG"
        )
    fonts = {"sans_serif_family": family, "monospace_family": _family(EQUAL) or family, "font_family": family}
    content = bytes(resvg.svg_to_bytes(svg_string=document, background="#ffffff", zoom=ZOOM, **fonts))
    text = b"tEXtSource\0" + mark.encode("latin-1")
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    return content[:HEAD] + (chunk if mark else b"") + content[HEAD:]


@cache
def _family(families: tuple[str, ...]) -> str:
    """Return the first of some families of fonts that is installed; "" if none is."""
    resvg = require("resvg_py", "lab", "a PNG picture")
    blank = resvg.svg_to_bytes(svg_string=LETTERS.replace("Ag", ""))
    drawn = (each for each in families if resvg.svg_to_bytes(svg_string=LETTERS.format(each)) != blank)
    return next(drawn, "")


def bundle(document: str, mark: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an SVG document as the MIME bundle of a picture, and the bundle's metadata, with the size and a text.

    The bundle has a PNG or, where none can be made, the SVG document. The description for screen readers is the
    document's "aria-label".

    Args:
        document: the SVG document.
        mark: a text by which a browser finds the picture: `base64` of the PNG and the source of the SVG contain it.
    """
    (head,) = re.findall(r"^<svg [^>]*>", document)
    size = {key: round(float(re.findall(rf' {key}="([\d.]+)"', head)[0])) for key in ("width", "height")}
    label = "".join(re.findall(r' aria-label="([^"]*)"', head))
    try:
        kind, content = "image/png", base64.b64encode(png(document, mark)).decode()
    except (ImportError, RuntimeError):
        kind, content = "image/svg+xml", document.replace("<svg ", f'<svg class="{mark}" ', 1) if mark else document
    return {kind: content}, {kind: {**size, "alt": label}}


def as_images(html: str) -> str:
    """Return HTML with its pictures as PNG images, which also pages show from which SVG elements are removed.

    SVG elements without a namespace, ornaments of a text such as a histogram, remain. HTML is returned as it is where
    no PNG can be made.
    """
    return re.sub(r"<svg xmlns=.*?</svg>", lambda found: as_image(found.group()), html, flags=re.DOTALL)


def as_image(element: str) -> str:
    """Return the HTML element that shows an SVG element as a PNG image of the same size; see `as_images`."""
    head = element[: element.index(">")]
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)[0]
    label = "".join(re.findall(r' aria-label="([^"]*)"', head))
    sized = re.sub(r' (width|height|style)="[^"]*"', "", head, count=3)
    try:
        content = png(f'{sized} width="{width}" height="{height}" color="#222"{element[element.index(">") :]}')
    except (ImportError, RuntimeError):
        return element
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return f'<img alt="{label}" width="{width}" height="{height}" src="{source}" style="display:block;margin:6px 0">'
