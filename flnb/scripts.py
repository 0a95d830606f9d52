"""`flnb record`: run a script as `python SCRIPT` does, and save a recording of the run."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from flnb_telemetry.extras import require


def record_script(script: str, arguments: Sequence[str], output: str | None = None, stacks: bool = False) -> int:
    """Run a script with these arguments and record it to a file; returns the script's exit status.

    An existing recording is replaced. Until the script ends the recording is a folder, which remains if the process is
    killed.

    Args:
        script: the path of a Python script.
        arguments: the script's own arguments.
        output: the file to write; by default the script's path with the ending .flnb.
        stacks: whether to record whole call stacks with ops and allocations, see `flnb.record`.

    Raises:
        FileNotFoundError: there is no such script, or no folder for ``output``.
        FileExistsError: there is a file at ``output`` that is no recording.
        ImportError: pyarrow is not installed (extra "lab").
        ValueError: ``output`` is None, and -o or --output is among the arguments.
    """
    import flnb

    path = Path(script)
    if output is None:
        _check_arguments(script, arguments)
    if not path.is_file():
        raise FileNotFoundError(f"flnb record: no file {script!r}; expected a Python script")
    require("pyarrow", extra="lab")  # before the script runs, not after an hour of training
    target = Path(output or path.with_suffix(".flnb"))
    saved_arguments, saved_path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *arguments], str(path.resolve().parent)
    status, begun = 0, False
    try:
        with flnb.record(name=path.stem, path=target, replace=True, stacks=stacks):
            begun = True
            runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        status = 130
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        if not begun:  # the file cannot be written
            raise
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        sys.argv, sys.path[0] = saved_arguments, saved_path
    print(f"flnb record: saved {target}; look at it with: flnb view {target}", file=sys.stderr)
    return status


def _check_arguments(script: str, arguments: Sequence[str]) -> None:
    """Raise ValueError if -o is among a script's arguments, where the caller may have meant the recording's file."""
    at = next((at for at, each in enumerate(arguments) if re.fullmatch(r"-o|--output(=.*)?", each, re.S)), None)
    if at is None:
        return
    option, sign, file = arguments[at].partition("=")
    file = file if sign else "".join(arguments[at + 1 : at + 2])
    rest = [*arguments[:at], *arguments[at + (1 if sign else 2) :]]
    default = str(Path(script).with_suffix(".flnb"))
    raise ValueError(
        f"flnb record: {option} stands after {script}, so it may be the script's own. Options of flnb record come "
        f"before the script; write one of:\n"
        f"  flnb record {shlex.join(['-o', file or 'FILE', script, *rest])}\n"
        f"  flnb record {shlex.join(['-o', default, script, *arguments])}\n"
        f"The first names the recording, the second passes {option} to the script."
    )
