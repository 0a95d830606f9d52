"""A progress bar that fits where it is shown: a widget in a notebook, text in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flnb_telemetry.extras import require


def progress(iterable: Iterable[Any] | None, desc: str = "", total: int | None = None, **options: Any) -> Any:
    """Show a progress bar (tqdm.auto's, with its `options`) while iterating; `.set_postfix(loss=...)` writes beside it.

    Without an iterable, `.update(n)` counts n more of the total as done.

    >>> import io
    >>> import flnb
    >>> sum(flnb.data.progress([1, 2, 3], "adding", file=io.StringIO()))
    6
    """
    bars = require("tqdm.auto", extra="lab", purpose="a progress bar")
    return bars.tqdm(iterable, desc=desc or None, total=total, **options)
