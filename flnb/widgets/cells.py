"""What the dashboard answers when a reader wants to open a recorded op in a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording

__all__ = ["answer"]


def answer(run: Recording | None, request: dict[str, Any]) -> dict[str, Any]:
    """The code of the last call of an op that ``run`` kept the inputs of, or in words why there is none.

    Args:
        request: ``op`` its name, and perhaps ``scope``, which is preferred where the op ran there.
    """
    op, scope = str(request.get("op", "")), request.get("scope")
    if run is None or run.captured is None:
        return _said("the inputs of ops were not kept: record with flnb.record(inputs=True)")
    found = run.calls.last(op, scope) or run.calls.last(op)
    if found is None:
        return _said(f"no call of {op} with its inputs was kept; {run.calls.summary()}")
    return {"type": "code", "code": found.to_code(), "said": f"op {found.index} of {run.name!r}, {op}"}


def _said(text: str) -> dict[str, Any]:
    return {"type": "code", "code": "", "said": text}
