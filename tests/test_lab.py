"""`flnb lab`: which notebook it opens, and that nothing stays behind after Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flnb import cli, lab

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_ctrl_c_while_jupyterlab_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("flnb.lab.run", interrupted)
    assert cli.main(["lab"]) == 130


def test_without_jupyterlab_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    assert cli.main(["lab"]) == 2
    error = capsys.readouterr().err
    assert "jupyterlab" in error
    assert "pip install 'flnb[lab]'" in error


def test_a_free_name_never_overwrites(tmp_path: Path) -> None:
    assert lab.free_name(tmp_path, "a.ipynb").name == "a.ipynb"
    (tmp_path / "a.ipynb").touch()
    (tmp_path / "a-1.ipynb").touch()
    assert lab.free_name(tmp_path, "a.ipynb").name == "a-2.ipynb"


@pytest.mark.parametrize("name", lab.NOTEBOOKS)
def test_notebooks_are_stored_without_outputs_and_their_formulas_can_be_typeset(name: str) -> None:
    source = Path(__file__).resolve().parents[1] / "notebooks" / name
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        assert not cell.get("outputs"), f"{text}: has outputs"
        assert cell["cell_type"] == "code" or "\\\\" not in text, f"{text}: two backslashes are a line break"


@pytest.mark.parametrize("name", lab.NOTEBOOKS)
def test_from_a_wheel_notebooks_are_copied(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "flnb"
    (package / "notebooks").mkdir(parents=True)
    (package / "notebooks" / name).write_text("{}")
    monkeypatch.setattr(lab, "__file__", str(package / "lab.py"))
    working = tmp_path / "work"
    working.mkdir()
    assert lab.shipped(name, working) == working / name
    assert lab.shipped(name, working) == working / name, "a copy that is as it was made is used again"
    (working / name).write_text('{"changed": true}')
    again = lab.shipped(name, working)
    assert again == working / name.replace(".ipynb", "-1.ipynb")
    assert again.read_text() == "{}"
    (package / "notebooks" / name).unlink()
    with pytest.raises(FileNotFoundError, match="reinstall flnb"):
        lab.shipped(name, working)


def test_a_path_is_a_file_a_folder_or_the_name_of_a_notebook_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "clone"
    (root / "flnb").mkdir(parents=True)
    (root / "notebooks").mkdir()
    (root / "pyproject.toml").touch()
    for name in lab.NOTEBOOKS:
        (root / "notebooks" / name).write_text(name)
    monkeypatch.setattr(lab, "__file__", str(root / "flnb" / "lab.py"))
    for asked, name in ((None, "quickstart.ipynb"), ("autograd_graphs.ipynb", "autograd_graphs.ipynb")):
        copy = lab.opened(asked)
        assert copy == root / "output" / "lab" / name, "the tracked notebook stays as it is"
        assert copy.read_text() == name
        assert lab.opened(asked) == copy, "nobody has changed it"
        copy.write_text("changed")
        assert lab.opened(asked).name == name.replace(".ipynb", "-1.ipynb")
    copies = root / "output" / "lab"
    others = {"quickstart-1.ipynb", "autograd_graphs-1.ipynb"}
    assert {path.name for path in copies.iterdir()} == {*lab.NOTEBOOKS, *others}, "all are there to be chosen from"
    assert (copies / "autograd_graphs.ipynb").read_text() == "changed", "no copy is overwritten"
    assert all((root / "notebooks" / name).read_text() == name for name in lab.NOTEBOOKS), "the clone is as it was"
    assert lab.opened(".") == Path()
    Path("autograd_graphs.ipynb").touch()
    assert lab.opened("autograd_graphs.ipynb") == Path("autograd_graphs.ipynb")
    with pytest.raises(FileNotFoundError, match=r"no file or folder 'other.ipynb'; .* one of flnb's notebooks: q"):
        lab.opened("other.ipynb")


@pytest.mark.parametrize(
    ("line", "path", "flags"),
    [
        ([], None, []),
        (["a.ipynb"], "a.ipynb", []),
        (["folder", "--no-browser"], "folder", ["--no-browser"]),
        (["--no-browser", "--port", "8899"], None, ["--no-browser", "--port", "8899"]),
        (["--port=8899", "a.ipynb"], "a.ipynb", ["--port=8899"]),
    ],
)
def test_path_and_flags_are_told_apart(line: list[str], path: str | None, flags: list[str]) -> None:
    assert lab.split(line) == (path, flags)


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`flnb lab` in the background; whatever happens, it does not outlive the test."""
    log = folder / "lab.log"
    environment = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "flnb.cli", "lab", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def status_of(process_id: int) -> tuple[str, int]:
    """A process's state letter and its parent; a zombie counts as gone."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(process_id)
    return fields[0], int(fields[1])


def alive(process_id: int) -> bool:
    """Whether a process still runs."""
    try:
        return bool(status_of(process_id))
    except OSError:
        return False


def descendants(process_id: int) -> set[int]:
    """Every process below this one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = status_of(int(folder.name))[1]
    found: set[int] = set()
    waiting = {process_id}
    while waiting:
        waiting = {pid for pid, parent in parents.items() if parent in waiting} - found
        found |= waiting
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_lab_serves_prints_its_address_and_ends_with_its_kernels(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("jupyterlab")
    notebook = tmp_path / "own.ipynb"
    notebook.write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    flags = ["--no-browser", "--port=0", "--LabApp.extension_manager=readonly"]
    with started(["own.ipynb", *flags], tmp_path) as (process, log):
        deadline = time.monotonic() + 60
        while not (found := re.search(r"flnb lab: (http://(?:localhost|127\.0\.0\.1):\d+/)(\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        address, rest = found.groups()
        assert rest.startswith("lab/tree/own.ipynb?token=")
        with pytest.raises(urllib.error.HTTPError):  # a token is needed
            urllib.request.urlopen(f"{address}api/kernels", timeout=10)
        token = rest.partition("token=")[2]
        with urllib.request.urlopen(f"{address}lab?token={token}", timeout=30) as answer:
            settings = re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', answer.read().decode(), re.S)
        assert settings is not None
        disabled = json.loads(settings[1])["disabledExtensions"]
        assert "@jupyterlab/apputils-extension:announcements" in disabled, "no question about news covers the page"
        request = urllib.request.Request(f"{address}api/kernels?token={token}", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["id"]
        below = descendants(process.pid)
        assert below, "a kernel"
        process.send_signal(number)
        assert process.wait(30) == 0, log.read_text()
        assert "JupyterLab and its kernels have ended" in log.read_text()
        deadline = time.monotonic() + 5
        while any(map(alive, below)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in below if alive(pid)]
