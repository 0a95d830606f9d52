"""A run as one self-contained HTML file: no scripts, nothing fetched."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from flnb_telemetry.formats import aside

if TYPE_CHECKING:
    import os

    from flnb_telemetry.recording import Recording

_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:1px 8px}h2{font-size:1.1rem;margin-top:2rem}pre{overflow-x:auto}"
)


def write_report(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write the report, aside first and then renamed."""
    sections = {
        "Run": run._repr_html_(),
        "Ops": run.ops._repr_html_(),
        "Ops by scope and phase": run.ops.by("scope", "phase")._repr_html_(),
        "Memory at its peak": run.memory.peak._repr_html_() + f"<pre>{escape(repr(run.memory))}</pre>",
        "Tape": run.tape._repr_html_(),
    }
    body = "".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections.items())
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(run.name)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(run.name)}</h1>{body}</body></html>"
    )
    with aside(path) as part:
        part.write_text(page, encoding="utf-8")
