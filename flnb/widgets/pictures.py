"""Pictures of widgets for pages without a kernel, such as an exported notebook, or a notebook on GitHub.

The picture of a widget is a separate output of the cell, above the widget. If one output had both, nbconvert would show
just an empty widget. Where a widget runs, it hides its picture: it finds the image by the text that the file contains.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import ipywidgets
from flnb_telemetry.formats.png import bundle
from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pictured:
    """Base class of the widgets that have a picture for pages without a kernel.

    Attributes:
        picture: a text that only this widget's picture contains; its length is a multiple of 3, for base64.
    """

    picture: Any

    def _name_picture(self) -> None:
        """Choose unique names for the picture and for the notebook output that contains the picture."""
        self.picture, self._display_id = f"flnb-picture-{uuid.uuid4().hex}", uuid.uuid4().hex

    def _drawing(self) -> str:
        """Return the picture as an SVG document."""
        raise NotImplementedError

    def _picture_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the MIME bundle of the picture, and the bundle's metadata."""
        return bundle(self._drawing(), self.picture)

    def publish_picture(self, update: bool = False) -> None:
        """Send the picture to the cell's output; with ``update``, replace the old one."""
        data, metadata = self._picture_bundle()
        data["text/plain"] = "a picture of the view below"
        place = {"display_id": self._display_id}
        publish_display_data(data, metadata, transient=place, update=update)  # type: ignore[no-untyped-call]


def _bundle(box: Any) -> Any:
    """Send the pictures of the widgets in a box to the cell's output, and then return the box's MIME bundle."""
    for widget in _pictured(box):
        widget.publish_picture()
    return box._repr_mimebundle_()


def _pictured(widget: Any) -> Iterator[Pictured]:
    """Yield the widgets with pictures inside a box, from left to right, or the box itself if it is one of them."""
    if isinstance(widget, Pictured):
        yield widget
    else:
        for child in getattr(widget, "children", ()):
            yield from _pictured(child)


if (_shell := get_ipython()) is not None and _shell.display_formatter is not None:
    _shell.display_formatter.mimebundle_formatter.for_type(ipywidgets.Box, _bundle)
