"""Tracebacks in IPython of errors that flnb raised, for example because of wrong shapes: the user's frames only."""

from __future__ import annotations

import dis
from pathlib import Path
from types import TracebackType
from typing import Any

from flnb.dispatch.source_lines import is_own
from flnb.interface.memory import OutOfMemoryError

RAISE = dis.opmap["RAISE_VARARGS"]


def show_error(shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType) -> list[str]:
    """Show an error that ended a cell: if flnb raised it, with the user's frames only.

    The report of an out-of-memory error is shown, too: in a notebook before the traceback, so that it is seen without
    scrolling, in a terminal after it. Other errors are shown as IPython does, and so are all under ``%xmode Verbose``.
    `%tb` shows all frames of the last error and `%debug` enters them. This is a handler for IPython's `set_custom_exc`.

    Returns:
        The lines of the traceback, [] if IPython has shown it.
    """
    from IPython.display import display

    notebook = hasattr(shell, "kernel")
    report = error.report if isinstance(error, OutOfMemoryError) and error.shortage is not None else None
    if report is not None and notebook:
        display(report)  # type: ignore[no-untyped-call]
    lines = _short_traceback(shell, kind, error, trace)
    if not lines:
        shell.showtraceback((kind, error, trace), running_compiled_code=True)
    else:
        shell._get_exc_info((kind, error, trace))  # keeps them for %tb and %debug
        shell._showtraceback(kind, error, lines)
    if report is not None and not notebook:
        display(report)  # type: ignore[no-untyped-call]
    if lines and shell.call_pdb:
        shell.debugger(force=True)
    return lines


def _short_traceback(shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType) -> list[str]:
    """Return the lines of a traceback with the user's frames only, [] if all frames are to be shown."""
    kept, left_out = users_frames(trace)
    known = isinstance(error, OutOfMemoryError) or _is_raised_by_flnb(trace)
    if not (left_out and known) or shell.InteractiveTB.mode == "Verbose":
        return []
    cause, bare = error.__cause__, error.__suppress_context__
    if isinstance(error, OutOfMemoryError) and isinstance(cause, MemoryError):
        error.__cause__ = None  # of the device, whose text is part of this error's
    try:
        lines: list[str] = shell.InteractiveTB.structured_traceback(kind, error, kept, tb_offset=0)
    finally:
        error.__cause__, error.__suppress_context__ = cause, bare
    return [*lines, f"({left_out} frames of flnb and IPython left out: %tb shows all)"]


def _is_raised_by_flnb(trace: TracebackType) -> bool:
    """Return whether the innermost frame is flnb's, at a ``raise`` statement.

    Other errors are of the user's code, such as a callback or a backend, or of a library, or an error in flnb itself:
    there every frame matters.
    """
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return is_own(code.co_filename) and code.co_code[trace.tb_lasti] == RAISE


def users_frames(trace: TracebackType) -> tuple[TracebackType | None, int]:
    """Return a traceback without frames of flnb and IPython, and how many were removed."""
    import IPython

    ipython = str(Path(IPython.__file__).parent)
    frames = []
    step: TracebackType | None = trace
    while step is not None:
        frames.append(step)
        step = step.tb_next
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    users = [f for f, name in zip(frames, files, strict=True) if not is_own(name) and not name.startswith(ipython)]
    kept = None
    users = users or frames
    for frame in reversed(users):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept, len(frames) - len(users)
