"""Wait for what a page shows: after an action it is drawn anew at its own pace, on a busy machine much later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

T = TypeVar("T")

REDRAWN = """async passes => {
    const frame = () => new Promise(requestAnimationFrame);
    const texts = () => window.__flnb?.texts ?? Infinity;
    const [began, before] = [performance.now(), texts()];
    while (texts() < before + passes) {
        if (performance.now() - began > 20_000) throw Error("nothing drawn for 20 s: is the dashboard in sight?");
        await frame();
    }
    await frame();
    await frame();
}"""
"""Texts are written before pictures are drawn: those of the second pass from now know all that was done before."""


def eventually(
    page: Page, read: str | Callable[[], T], expected: T | Callable[[T], object], seconds: float = 10.0
) -> T:
    """Return what is read once it equals `expected` or satisfies it; else fail after some seconds with the last value.

    read : function, or an expression in JavaScript
    expected : value, or a function of the value that returns whether it is right

    """

    def value() -> Any:
        return page.evaluate(read) if isinstance(read, str) else read()

    def right(value: Any) -> bool:
        return bool(expected(value)) if callable(expected) else value == expected

    deadline = time.monotonic() + seconds
    while not right(last := value()) and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    if not callable(expected):
        assert last == expected
    assert right(last), f"not so within {seconds} s; the last value is {last!r}"
    return last  # type: ignore[no-any-return]


def redrawn(page: Page, texts: int = 2) -> None:
    """Wait until the view shown last has written its texts and drawn its pictures; texts=0: its pictures alone."""
    page.evaluate(REDRAWN, texts)
