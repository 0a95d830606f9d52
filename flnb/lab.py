"""`flnb lab`: open a notebook in JupyterLab, and end everything that was started when the user says so.

JupyterLab runs as a child in a session of its own, so a Ctrl-C reaches this process alone. It then asks the server to
stop (SIGTERM: the server ends its kernels first), waits, and ends by force only what did not listen.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

GRACE = 15.0  # seconds that a server gets to end its kernels
QUICKSTART = "quickstart.ipynb"


def free_name(folder: Path, name: str) -> Path:
    """A path in `folder` that does not exist yet: `name`, else `name-1`, `name-2`, ..."""
    stem, suffix = Path(name).stem, Path(name).suffix
    candidate, number = folder / name, 0
    while candidate.exists():
        number += 1
        candidate = folder / f"{stem}-{number}{suffix}"
    return candidate


def quickstart(folder: Path | None = None) -> Path:
    """The quickstart notebook: in a checkout the file itself; from a wheel a copy in `folder` (default: here)."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "notebooks" / QUICKSTART
    if checkout.exists() and (package.parent / "pyproject.toml").exists():
        return checkout
    packaged = package / "notebooks" / QUICKSTART
    if not packaged.exists():
        raise FileNotFoundError(f"flnb lab: this installation lacks {packaged}; reinstall flnb or name a notebook")
    copy = free_name(folder or Path.cwd(), QUICKSTART)
    shutil.copyfile(packaged, copy)
    return copy


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take PATH out of `[PATH] [jupyter flags]`.

    PATH comes first, or last when it ends in .ipynb (a bare word after a flag may be that flag's value).
    """
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        return rest.pop(0), rest
    if rest and rest[-1].endswith(".ipynb") and not rest[-1].startswith("-"):
        return rest.pop(), rest
    return None, rest


def command(target: Path, flags: Sequence[str]) -> list[str]:
    """The command line that serves `target`; the user's flags come last, so they win."""
    line = [sys.executable, "-m", "jupyterlab", str(target)]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in flags:
        line.append("--allow-root")  # the usual case in a container, where JupyterLab would refuse to start
    return [*line, *flags]


def server_of(process_id: int) -> dict[str, Any] | None:
    """What a running Jupyter server with this process id says about itself (url, token, root_dir), if it is up."""
    from jupyter_server.serverapp import list_running_servers

    with contextlib.suppress(OSError, ValueError):
        for server in list_running_servers():
            if server.get("pid") == process_id:
                return dict(server)
    return None


def address(server: dict[str, Any], target: Path) -> str:
    """The URL that opens `target` on `server`, its token included."""
    url = f"{server['url']}lab"
    with contextlib.suppress(ValueError):
        relative = target.resolve().relative_to(Path(server["root_dir"]).resolve()).as_posix()
        url += f"/tree/{quote(relative)}" if relative != "." else ""
    return url + (f"?token={server['token']}" if server.get("token") else "")


def end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """Stop a server and everything in its session: ask, wait, then insist."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the session's leader: nothing of its group may stay behind


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn SIGTERM and a closed terminal into the KeyboardInterrupt that Ctrl-C raises anyway."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: a shell starts background jobs with it ignored, and then Python leaves it so
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def run(arguments: Sequence[str]) -> int:
    """Serve the notebook that `arguments` name (default: the quickstart) until Ctrl-C; the exit status."""
    if importlib.util.find_spec("jupyterlab") is None:
        require("jupyterlab", extra="lab")
    named, flags = split(arguments)
    target = Path(named) if named is not None else quickstart()
    if not target.exists():
        raise FileNotFoundError(
            f"flnb lab: no file or folder {str(target)!r}; expected a notebook (.ipynb) or a folder"
        )
    # Half the processors for matrix products: server and browser need theirs, and OpenBLAS threads that wait for one
    # make small products several times slower. What the user has set stays.
    environment = {"FLNB_TUNE_GC": "1", "OPENBLAS_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2)), **os.environ}
    process: subprocess.Popen[bytes] | None = None
    with _stop_on_signals():
        try:
            process = subprocess.Popen(
                command(target, flags), env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
            announced = False
            while process.poll() is None:
                if not announced and (server := server_of(process.pid)) is not None:
                    print(
                        f"\nflnb lab: {address(server, target)}\n(Ctrl-C ends JupyterLab and its kernels)\n", flush=True
                    )
                    announced = True
                time.sleep(0.2)
            return process.returncode
        except KeyboardInterrupt:
            print("\nflnb lab: stopping JupyterLab and its kernels", flush=True)
            return 0
        finally:
            if process is not None:
                with contextlib.suppress(KeyboardInterrupt):
                    end(process)
                if process.poll() is None:  # a second Ctrl-C: no more waiting
                    end(process, grace=0.1)
