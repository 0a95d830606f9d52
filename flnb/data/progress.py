"""A progress bar: a widget in a notebook, text in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flnb_telemetry.extras import require


def progress(iterable: Iterable[Any] | None, desc: str = "", total: int | None = None, **options: Any) -> Any:
    """Show a progress bar of tqdm while iterating: a widget in a notebook, text in a terminal.

    Args:
        iterable: what to iterate over, or None to call the bar's ``update(n)`` for every n steps done.
        desc: the text before the bar.
        total: the number of steps, by default the iterable's length.
        options: further arguments of ``tqdm.auto.tqdm``.

    Returns:
        tqdm's bar, which yields the iterable's items; its ``set_postfix(loss=...)`` shows values behind the bar.

    >>> import io
    >>> import flnb
    >>> sum(flnb.data.progress([1, 2, 3], "adding", file=io.StringIO()))
    6
    """
    bars = require("tqdm.auto", extra="lab", purpose="a progress bar")
    return bars.tqdm(iterable, desc=desc or None, total=total, **options)
