"""Files of a recording for the Export menu of the dashboard, which the kernel makes and the browser downloads."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry import quantity
from flnb_telemetry.extras import tool

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording

FORMATS = ("flnb", "html", "json.gz", "svg")
LARGEST = 256 << 20
"""The largest size in bytes of a file that is sent to the browser, which holds all of it in memory."""


def file_of(
    run: Recording | None, request: dict[str, Any], beside: Recording | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    """Return a message with the name of a file, and its content as the message's only buffer.

    If there is no file, the message's ``error`` says why, and there is no buffer.

    Args:
        run: the recording that the dashboard shows, or None.
        request: the browser's message, of which ``format`` is one of `FORMATS`. With the format "svg", ``view`` may be
            the name of a view; then the file is a picture of that view.
        beside: the recording with which `run` is compared, for a page of both; None if there is none.
    """
    ending, content, error = request.get("format"), b"", ""
    if ending not in FORMATS:
        error = f"no format {str(ending)[:20]!r}; expected one of {', '.join(FORMATS)}"
    elif run is None:
        error = "nothing has been recorded: use flnb.record or %%record"
    elif run.state == "recording":
        error = "the recording still runs; export it when it has ended"
    else:
        try:
            view = str(request.get("view") or "")
            if ending == "svg" and (view or beside):
                content = run.to_svg(view or "comparison", beside).encode()
            else:
                content = _written(run, str(ending), beside)
        except Exception as failure:  # a missing package, a full disk: the reader should see it
            error = f"the file could not be made: {failure}"
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.name)[:80] if run is not None else ""
    name = f"{stem or 'run'}.{ending}" if content else ""
    return {"type": "export", "name": name, "error": error}, [content] if content else []


def _written(run: Recording, ending: str, beside: Recording | None) -> bytes:
    """Return the content of a file of a recording, in the format for which the file name's ``ending`` stands.

    ``beside`` is a recording that an HTML page shows beside ``run``; None if the page shows ``run`` alone.

    Raises:
        ValueError: the file is larger than `LARGEST`.
    """
    with tempfile.TemporaryDirectory(prefix="flnb-") as folder:
        path = Path(folder) / f"run.{ending}"
        if beside is not None and ending == "html":
            tool("flnb.widgets.page", "save")(path, run, beside)
        else:
            run.save_as(path)
        if (size := path.stat().st_size) > LARGEST:
            most = quantity.size(LARGEST)
            raise ValueError(
                f"the file has {quantity.size(size)}, more than {most}; write it with run.save_as('run.{ending}')"
            )
        return path.read_bytes()
