"""The dashboard of recordings as one HTML file that fetches nothing, and the page that `flnb view --browser` serves.

The file contains the dashboard's script, the frames of the recordings, and the answers to requests about the tape.
Everything that comes from a recording is JSON in which no ``<`` occurs, so that no name in it can end a script element.
"""

from __future__ import annotations

import base64
import json
import zlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry.formats import aside
from flnb_telemetry.formats.html import report_sections
from flnb_telemetry.live.tape import LiveTape
from flnb_telemetry.safe_text import html_text

from flnb.widgets.answers import RunAnswers
from flnb.widgets.finished import recording_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from flnb_telemetry.analysis.levels import Group

STATIC = Path(__file__).parent / "static"
MOST_GROUPS = 20_000
"""The largest number of tape groups whose contents a file stores; groups nested deeper cannot be opened in the file."""
MOST_STACKS = 20_000
_POLICY = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = (
    "html{color-scheme:light dark}body{margin:0;font:14px/1.5 system-ui,sans-serif}#at{min-height:100vh}"
    "noscript{display:block;max-width:60rem;margin:2rem auto;padding:0 1rem}td,th{padding:1px 8px}"
)


def save(path: str | os.PathLike[str], *runs: Any) -> None:
    """Write a page with the dashboard of one recording, or of two side by side; it needs no kernel and no network.

    An existing file is replaced only when the new one is complete.

    Args:
        path: the file to write.
        runs: one or two recordings, or paths of saved ones. If a recording is of several ranks, the page shows
            the first rank, with the collective calls of all ranks.
    """
    answers = RunAnswers([recording_of(run) for run in runs], lambda *_: None)
    with aside(path) as part, open(part, "w", encoding="utf-8") as file:
        file.writelines(_head(answers, _POLICY))
        for content, *buffer in answers.opening():
            file.write(_element("flnb-message", encoded(content, *buffer)))
        file.write(_element("flnb-known", _json(_known(answers))))
        file.writelines(_foot(answers))


def served(answers: RunAnswers) -> str:
    """Return a page that requests its data from the server, by posting each message to the address of the page."""
    return "".join(chain(_head(answers, f"{_POLICY}; connect-src 'self'"), _foot(answers)))


def encoded(content: dict[str, Any], buffer: bytes = b"") -> str:
    """Return a message as one line of JSON without ``<``; the buffer is compressed by zlib, in base64."""
    data = base64.b64encode(zlib.compress(buffer, 1)).decode() if buffer else ""
    return _json({"content": content, "data": data})


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _element(kind: str, text: str) -> str:
    return f'<script type="application/json" class="{kind}">{text}</script>\n'


def _head(answers: RunAnswers, policy: str) -> Iterator[str]:
    title = html_text(" and ".join(run.name for run in answers.runs))
    yield (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><style>{_STYLE}</style></head><body>\n'
        f'<main id="at"></main>\n'
    )
    yield "<noscript>"
    for run in answers.runs:
        for name, section in report_sections(run).items():
            yield f"<section><h2>{name}</h2>{section}</section>"
    yield "</noscript>\n"


def _foot(answers: RunAnswers) -> Iterator[str]:
    yield _element("flnb-dashboard", _json((STATIC / answers.bundle).read_text(encoding="utf-8")))
    yield f"<script>{(STATIC / 'page.js').read_text(encoding='utf-8')}</script></body></html>\n"


def _known(answers: RunAnswers) -> dict[str, Any]:
    """Return the data that a page, which has no server to ask, would request later.

    These are "tape", the nodes inside of each module that the tape shows as one box (None if no tape was recorded), and
    "stacks", a dict from the number of a telemetry context to the lines of its call stack.
    """
    run = answers.frames[0]
    contexts = list(run.recording.stacks)[:MOST_STACKS]
    stacks = {context: (run.answer({"type": "stack", "context": context}) or {})["lines"] for context in contexts}
    if not len(run.recording.tape.nodes):
        return {"stacks": stacks, "tape": None}
    tape = LiveTape(run.recording.tape)
    return {"stacks": stacks, "tape": tape.answer({"open": list(_keys(tape))})}


def _keys(tape: LiveTape) -> Iterable[str]:
    """Yield the keys of the groups (modules) of a tape, the outermost first, at most `MOST_GROUPS`."""
    waiting: list[Group] = [tape.levels.root]
    for group in waiting:
        yield group.key
        inside = [item for item in tape.levels.level(group).items if not isinstance(item, int)]
        waiting += inside[: max(0, MOST_GROUPS - len(waiting))]
