"""`flnb lab`: open a notebook in JupyterLab, whose server runs in this process.

The server ends its kernels on SIGTERM. Ctrl-C and closing the terminal also send SIGTERM, so that the user is not asked
whether to stop.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside

NAMES = "quickstart", "models", "backends", "autograd_graphs", "memory_managers", "telemetry", "distributed", "cuda"
NOTEBOOKS = tuple(f"{name}.ipynb" for name in NAMES)
"""The names of the notebooks that come with flnb; the first is opened by default."""


def free_name(folder: Path, name: str, content: bytes | None = None) -> Path:
    """Return a path in `folder` that does not exist yet: `name`, or `name` with a number before its suffix.

    If a file of that name exists and has this ``content``, its path is returned.
    """
    stem, suffix = Path(name).stem, Path(name).suffix
    candidate, number = folder / name, 0
    while candidate.exists() and (content is None or candidate.read_bytes() != content):
        number += 1
        candidate = folder / f"{stem}-{number}{suffix}"
    return candidate


def shipped(name: str, folder: Path | None = None) -> Path:
    """Copy a notebook that comes with flnb, so that running it does not change the original; return the copy's path.

    The copy is made in `folder`. By default that is the working directory or, if flnb runs from a git checkout, the
    checkout's folder output/lab, which git ignores. If the folder has an unchanged copy already, that copy is returned.
    """
    package = Path(__file__).resolve().parent
    original, place = package / "notebooks" / name, Path.cwd()
    checkout = package.parent / "notebooks" / name
    if checkout.exists() and (package.parent / "pyproject.toml").exists():
        original, place = checkout, package.parent / "output" / "lab"
    if not original.exists():
        raise FileNotFoundError(f"flnb lab: {original} is missing; reinstall flnb, or open your own: flnb lab PATH")
    place = folder or place
    place.mkdir(parents=True, exist_ok=True)
    copy = free_name(place, name, original.read_bytes())
    if copy.exists():
        return copy
    with aside(copy) as part:
        shutil.copyfile(original, part)
    return copy


def opened(named: str | None) -> Path:
    """Return the path to open: the file or folder ``named``, or a copy if ``named`` is one of flnb's own notebooks.

    If ``named`` is None, copy all of flnb's notebooks into one folder, without overwriting files, and return the path
    of the copy of the first notebook.
    """
    if named is None:
        first = shipped(NOTEBOOKS[0])
        for other in NOTEBOOKS[1:]:
            if not (first.parent / other).exists():
                shipped(other, first.parent)
        return first
    target = Path(named)
    if target.exists():
        return target
    if named in NOTEBOOKS:
        return shipped(named)
    raise FileNotFoundError(
        f"flnb lab: no file or folder {named!r}; expected a notebook (.ipynb) or a folder, or one of flnb's notebooks: "
        f"{', '.join(NOTEBOOKS)}"
    )


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate the path from JupyterLab's options in the arguments of `flnb lab`; the path is None if missing.

    The path is the first argument, or the last if it ends in .ipynb: any other word may be the value of a flag.
    """
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        return rest.pop(0), rest
    if rest and rest[-1].endswith(".ipynb") and not rest[-1].startswith("-"):
        return rest.pop(), rest
    return None, rest


def address(server: Any, target: Path) -> str:
    """Return the URL that opens a file or folder on a Jupyter server, with the server's token."""
    relative = Path(os.path.relpath(target.resolve(), Path(server.root_dir).resolve())).as_posix()
    page = "lab" if relative == "." else f"lab/tree/{quote(relative)}"
    return f"{server.connection_url}{page}?token={server.identity_provider.token}"


def without_news() -> None:
    """Disable JupyterLab's question about news, which would cover the notebook.

    Adds the folder of a page_config.json that disables this extension to JUPYTER_CONFIG_PATH; in JupyterLab 4.6 the
    option `--LabApp.news_url` does not prevent the question.
    """
    ours = str(Path(__file__).resolve().parent / "widgets" / "static")
    given = os.environ.get("JUPYTER_CONFIG_PATH", "")
    if ours not in given.split(os.pathsep):
        os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [ours, given]))


def run(arguments: Sequence[str]) -> int:
    """Open the notebook or folder in the arguments (default: the quickstart) until Ctrl-C; returns the exit status."""
    require("jupyterlab", "lab")
    named, flags = split(arguments)
    target = opened(named)
    from jupyterlab.labapp import LabApp

    # Half the processors for matrix products: server and browser need theirs, and OpenBLAS threads that wait for one
    # make small products several times slower. What the user has set stays.
    without_news()
    os.environ.setdefault("FLNB_TUNE_GC", "1")
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["FLNB_LAB_THREADS"] = str(max(1, (os.cpu_count() or 2) // 2))
    # As root, the usual case in a container, JupyterLab would refuse to start. The user's flags come last: they win.
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    ours = ["--LabApp.expose_app_in_browser=True"]  # so that the dashboard can open an op in a new cell
    with contextlib.suppress(KeyboardInterrupt):
        server = LabApp.initialize_server([str(target), *root, *ours, *flags])
        for name in ("SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: signal.raise_signal(signal.SIGTERM))
        greeting = f"\nflnb lab: {address(server, target)}\n(Ctrl-C ends JupyterLab and its kernels)\n"
        server.io_loop.add_callback(print, greeting, flush=True)  # once it listens
        server.start()
    print("\nflnb lab: JupyterLab and its kernels have ended", flush=True)
    return 0
