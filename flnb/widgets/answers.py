"""Replies to the browser's messages about recordings that have ended, for a widget, a server or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.live.recording import LiveRecording

from flnb.explore.runs import compare_runs
from flnb.widgets.exports import file_of
from flnb.widgets.hub import send_answer
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb_telemetry.recording import Recording

    Send = Callable[..., None]

MOST_ROWS = 2000
"""The largest number of rows in a comparison; those with the largest differences in time are kept."""


class RunAnswers:
    """Replies to the messages of one view of a recording, or of two side by side.

    Args:
        runs: the recordings.
        send: a function that is called with the content of each answer and, if there are any, a list of binary buffers.
        model: the module that was recorded, or several in a list; None if the step cannot be run again.
        step: a function without arguments that runs the recorded step again.
    """

    def __init__(
        self, runs: list[Recording], send: Send, model: Any = None, step: Callable[[], object] | None = None
    ) -> None:
        self.runs, self.send, self.frames = runs, send, [LiveRecording(run) for run in runs]
        self.proposals = Proposals(lambda: runs[0], send, model, step)

    @property
    def bundle(self) -> str:
        """Return the name of the file with the code of the view: a comparison of two recordings, or a dashboard."""
        return "comparison.js" if len(self.runs) > 1 else "dashboard.js"

    def opening(self) -> Iterator[tuple[dict[str, Any], *tuple[bytes, ...]]]:
        """Yield the first messages to a view: frames with their buffers and, for two recordings, their comparison."""
        for side, run in enumerate(self.frames):
            for content, buffer in run.frames():
                yield content | {"side": side}, buffer
        if len(self.runs) > 1:
            yield (comparison_of(*self.runs),)

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a message about recording number ``message["side"]``: 0 (the default) or 1."""
        side = 1 if message.get("side") == 1 and len(self.frames) > 1 else 0
        found = self.frames[side].answer(message)
        return None if found is None else found | {"side": side}

    def receive(self, message: dict[str, Any]) -> None:
        """Reply to a message of the browser; ignore unknown types."""
        kind = message.get("type")
        if kind in ("hello", "resync"):
            for content, *buffer in self.opening():
                self.send(content, *([buffer] if buffer else []))
        elif kind in ("tape", "stack", "timeline"):
            send_answer(self.answer(message), self.send)
        elif kind in ("fit", "apply"):
            self.proposals.receive(message)
        elif kind == "export":
            self.send(*file_of(self.runs[0], message, *self.runs[1:]))
        elif kind == "code":
            self.send(code_of(self.runs[0], message))


def comparison_of(a: Recording, b: Recording) -> dict[str, Any]:
    """Return a message with the table of `flnb.compare_runs`: numbers per step, times in ns.

    The last row is for all ops outside steps, if there are any, with numbers of the whole run. The browser calls the
    message `ComparedRuns`.
    """
    found = compare_runs(a, b)
    rows = [
        [row.op, row.scope, *row.a[:3], *row.b[:3], row.b.flops, row.b.traffic, row.share, ", ".join(row.changes)]
        for row in [*found.rows[:MOST_ROWS], *([found.outside] if found.outside else [])]
    ]
    peaks = [found.peaks.flops, found.peaks.memory]
    return {"type": "comparison", "summary": found.summary(), "peaks": peaks, "rows": rows}


def code_of(run: Recording | None, request: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the code of an op's last call, or with empty code and the reason why there is none.

    Args:
        run: the recording that the dashboard shows, or None.
        request: the browser's message. Its ``op`` is the op's name; if it has a ``scope``, the path of a module, the
            last call by that module is preferred.
    """
    op, scope, found = str(request.get("op", "")), request.get("scope"), None
    if run is None or run.captured is None:
        text = "the inputs of ops were not kept: record with flnb.record(inputs=True)"
    elif (found := run.calls.last(op, scope) or run.calls.last(op)) is None:
        text = f"no call of {op} with its inputs was kept; {run.calls.summary()}"
    else:
        text = f"op {found.index} of {run.name!r}, {op}"
    return {"type": "code", "code": found.to_code() if found else "", "said": text}
