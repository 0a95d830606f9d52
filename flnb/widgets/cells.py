"""The answer to a click in the dashboard that asks for the code of a recorded op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording

__all__ = ["answer"]


def answer(run: Recording | None, request: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the code of an op's last call, or with empty code and the reason why there is none.

    Args:
        run: the recording that the dashboard shows, or None.
        request: the browser's message: ``op``, the op's name, and perhaps ``scope``, the path of a module, whose calls
            are preferred.
    """
    op, scope, found = str(request.get("op", "")), request.get("scope"), None
    if run is None or run.captured is None:
        text = "the inputs of ops were not kept: record with flnb.record(inputs=True)"
    elif (found := run.calls.last(op, scope) or run.calls.last(op)) is None:
        text = f"no call of {op} with its inputs was kept; {run.calls.summary()}"
    else:
        text = f"op {found.index} of {run.name!r}, {op}"
    return {"type": "code", "code": found.to_code() if found else "", "said": text}
