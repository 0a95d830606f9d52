"""The pixels of what a page shows: how many are drawn on."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PIXELS = """async data => {
    const image = new Image();
    image.src = data;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const counts = new Map();
    for (let at = 0; at < bytes.length; at += 4) {
        const colour = (bytes[at] << 16) | (bytes[at + 1] << 8) | bytes[at + 2];
        counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
    return {colours: counts.size, ink: canvas.width * canvas.height - Math.max(...counts.values())};
}"""
"""Counts in a picture, a data URL, the colours, and the pixels unlike the most frequent."""


def pixels_of(page: Page, shown: Locator) -> dict[str, Any]:
    """Return the counts of the pixels of an element, and the beginning of its text."""
    picture = "data:image/png;base64," + base64.b64encode(shown.screenshot()).decode()
    counts: dict[str, Any] = page.evaluate(PIXELS, picture)
    return counts | {"text": shown.inner_text()[:80]}
