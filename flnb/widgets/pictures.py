"""Pictures of widgets for pages without a kernel, such as an exported notebook.

The picture of a widget is a separate output of the cell, above the widget. If one output had both, nbconvert would show
just an empty widget. Where a widget runs, it hides its picture.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pictured:
    """Base class of the widgets that have a picture for pages without a kernel.

    Attributes:
        picture: the class of the HTML element with the picture.
    """

    picture: Any

    def _name_picture(self) -> None:
        """Choose unique names for the picture's HTML element and for the notebook output that contains the picture."""
        self.picture, self._display_id = f"flnb-picture-{uuid.uuid4().hex}", uuid.uuid4().hex

    def _static(self) -> str:
        """Return HTML without scripts that is shown on pages without a kernel; empty if there is nothing to show."""
        return ""

    def publish_picture(self, update: bool = False) -> None:
        """Send the picture to the cell's output; with ``update``, replace the old one."""
        if html := self._static():
            data = {
                "text/html": f'<div class="{self.picture}">{html}</div>',
                "text/plain": "a picture of the view below",
            }
            publish_display_data(data, transient={"display_id": self._display_id}, update=update)  # type: ignore[no-untyped-call]


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
