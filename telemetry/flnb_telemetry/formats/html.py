"""HTML without scripts or network access: the report of a run, and pages made of given sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry.formats import aside
from flnb_telemetry.safe_text import html_text

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from flnb_telemetry.recording import Recording

_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:1px 8px}h2{font-size:1.1rem;margin-top:2rem}pre{overflow-x:auto}"
)


def report_sections(run: Recording) -> dict[str, str]:
    """Return the report of a run as HTML without scripts, by heading: ops, memory at its peak, tape."""
    return {
        "Run": run._repr_html_(),
        "Ops": run.ops._repr_html_(),
        "Ops by scope and phase": run.ops.by("scope", "phase")._repr_html_(),
        "Memory at its peak": run.memory.peak._repr_html_() + f"<pre>{html_text(repr(run.memory))}</pre>",
        "Tape": run.tape._repr_html_(),
    }


def write_page(path: str | os.PathLike[str], title: str, sections: Mapping[str, str]) -> None:
    """Write a page with a title and sections: for each heading its content, as HTML."""
    body = "".join(f"<section><h2>{name}</h2>{text}</section>" for name, text in sections.items())
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html_text(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html_text(title)}</h1>{body}</body></html>"
    )
    with aside(path) as part:
        part.write_text(page, encoding="utf-8")
