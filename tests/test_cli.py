"""The command line: what it says, what it writes, and that nothing stays behind after Ctrl-C."""

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
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb import cli, doctor, lab

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """
import sys
import flnb
v = flnb.Variable(flnb.ones((32, 32)))
for i in range(5):
    with flnb.step():
        (v @ v).sum().backward()
        flnb.log(loss=1.0 / (i + 1))
print("arguments", sys.argv[1:], __name__)
if "fail" in sys.argv:
    raise RuntimeError("the script's own fault")
if "leave" in sys.argv:
    sys.exit(3)
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `flnb` as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "flnb.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_doctor_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("flnb", flnb.__version__, "numpy", "backend", "caching", "native", "extra lab", "dot"):
        assert word in text
    assert "pyarrow" in text


def test_doctor_names_what_an_extra_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "installed", lambda extra: [("plotly", None), ("pyarrow", "1.0")] if extra == "lab" else []
    )
    assert "missing plotly: pip install 'flnb[lab]'" in doctor.doctor()


def test_installed_reads_an_extra_from_the_metadata() -> None:
    names = [name for name, _ in doctor.installed("lab")]
    assert {"jupyterlab", "anywidget", "plotly", "pyarrow", "scikit-learn"} <= set(names)
    assert doctor.installed("no such extra") == []


def test_export_then_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with flnb.record("exported") as run_:
        y = flnb.ones((64, 64)) + 1.0
    del y
    run_.save(tmp_path / "a.flnb")
    assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", "torch-snapshot"]) == 0
    target = tmp_path / "a.pickle"
    assert f"wrote {target}; see it with: python -m torch.cuda._memory_viz trace_plot" in capsys.readouterr().err
    assert cli.main(["view", str(target)]) == 0
    assert "run 'exported' finished" in capsys.readouterr().out
    assert cli.main(["export", str(target), "--to", "torch-snapshot"]) == 2
    assert "is the recording itself; name another file with -o FILE" in capsys.readouterr().err
    for name, head in (("html", "<!doctype html>"), ("csv", "op,count,total"), ("svg", "<svg ")):
        assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", name]) == 0
        assert f"export: wrote {tmp_path / 'a'}.{name}\n" in capsys.readouterr().err
        assert (tmp_path / f"a.{name}").read_text(encoding="utf-8").startswith(head)
    assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", "chrome"]) == 0
    assert "a.json.gz; see it on ui.perfetto.dev" in capsys.readouterr().err
    assert cli.main(["view", str(tmp_path / "a.json.gz")]) == 0
    assert "run 'exported' finished" in capsys.readouterr().out
    assert cli.main(["diff", str(tmp_path / "a.flnb"), str(tmp_path / "a.json.gz")]) == 0
    assert "exported" in capsys.readouterr().out


def test_view_serves_the_page_until_ctrl_c(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with flnb.record("served") as run_:
        y = flnb.ones((64, 64)) + 1.0
    del y
    run_.save(tmp_path / "a.flnb")
    command = [sys.executable, "-m", "flnb.cli", "view", "a.flnb", "--browser"]
    environment = {**os.environ, "BROWSER": "true"}  # a command that opens nothing
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split()[2]
        assert "until Ctrl-C" in line
        with urllib.request.urlopen(url, timeout=20) as page:
            assert "<title>served (a.flnb)</title>" in page.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_jupyterlab_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("flnb.lab.run", interrupted)
    assert cli.main(["lab"]) == 130


def test_what_a_broken_installation_left_behind_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "numpy" in doctor.doctor()


def test_record_then_view(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = run("record", "train.py", "-o", "a.flnb", "one", "-x", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "arguments ['one', '-x'] __main__" in done.stdout
    assert "saved a.flnb" in done.stderr
    assert len(flnb.load_run(tmp_path / "a.flnb").steps) > 0
    shown = run("view", "a.flnb", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "matmul" in shown.stdout


def test_replay_compares_managers_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    with flnb.use_memory_manager("caching"), flnb.record("small") as recorded:
        (flnb.ones((512, 512)) + 1.0).sum()
    recorded.save("small.flnb")
    managers = "native,caching:split_limit=64MiB,recycling_limit=32MiB,buddy"
    assert cli.main(["replay", "small.flnb", "--managers", managers, "--capacity", "1GiB", "--html", "o.html"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("small: ")
    for said in ("caching(split_limit=64MiB, recycling_limit=32MiB)", "\nbuddy ", "\npacked offline", "\nlive "):
        assert said in shown.out
    assert "flnb replay: wrote o.html" in shown.err
    html = (tmp_path / "o.html").read_text()
    assert "caching(split_limit=64MiB, recycling_limit=32MiB)" in html
    assert "plotly-graph-div" in html
    assert "<script src" not in html
    assert cli.main(["replay", "small.flnb", "--managers", "nosuch"]) == 2
    assert "unknown memory manager 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "status", "said"), [("fail", 1, "the script's own fault"), ("leave", 3, "saved")])
def test_a_script_that_fails_is_saved_all_the_same(
    script: Path, tmp_path: Path, word: str, status: int, said: str
) -> None:
    pytest.importorskip("pyarrow")
    done = run("record", "-o", "a.flnb", "train.py", word, folder=tmp_path)
    assert done.returncode == status
    assert said in done.stderr
    assert (tmp_path / "a.flnb").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["record", "nothing.py"], ["flnb record", "'nothing.py'", "expected a Python script"]),
        (["view", "nothing.flnb"], ["nothing.flnb"]),
        (["lab", "nothing.ipynb"], ["flnb lab", "'nothing.ipynb'", "expected a notebook"]),
    ],
)
def test_what_is_not_there_is_named(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["dance"])
    error = capsys.readouterr().err
    assert "'dance'" in error
    for known in ("lab", "record", "view", "doctor"):
        assert known in error


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
    for name in ("quickstart.ipynb", "autograd_graphs.ipynb"):
        (root / "notebooks" / name).write_text(name)
    monkeypatch.setattr(lab, "__file__", str(root / "flnb" / "lab.py"))
    for asked, name in ((None, "quickstart.ipynb"), ("autograd_graphs.ipynb", "autograd_graphs.ipynb")):
        copy = lab.opened(asked)
        assert copy == root / "output" / "lab" / name, "the tracked notebook stays as it is"
        assert copy.read_text() == name
        assert lab.opened(asked) == copy, "nobody has changed it"
        copy.write_text("changed")
        assert lab.opened(asked).name == name.replace(".ipynb", "-1.ipynb")
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


@pytest.mark.parametrize("command", ["lab", "doctor", "record", "view", "export", "diff", "bench", "dry-run", "replay"])
def test_help_describes_a_command_its_arguments_and_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out
    assert f"\n    {command} " in lines
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert f"Example:  flnb {command}" in text
    described = text.split("\n\n")[1]
    assert described[0].isupper()
    assert described.split("\n")[0].endswith(".")
    chosen = next(action for action in cli.parser()._actions if action.choices)
    assert chosen.choices is not None
    assert [action.dest for action in dict(chosen.choices)[command]._actions if not action.help] == []


def test_the_cache_of_kernels_is_counted_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLNB_CACHE", str(tmp_path))
    folder = tmp_path / "native"
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"0 compiled kernels, 0 B, in {folder}\n"
    folder.mkdir()
    (folder / "a.o").write_bytes(bytes(1000))
    (folder / "b.o").write_bytes(bytes(1048))
    (folder / "notes.txt").write_text("not ours")
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"2 compiled kernels, 2.00 KiB, in {folder}\n"
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"deleted 2 compiled kernels, 2.00 KiB, in {folder}\n"
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    with pytest.raises(SystemExit):
        cli.main(["cache", "shrink"])


def test_what_the_cache_counts_is_what_compiling_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llvmlite")
    from flnb_backends.native.llvm import Compiler

    monkeypatch.setenv("FLNB_CACHE", str(tmp_path))
    Compiler().address("f", "key", lambda: "define void @f() {\n ret void\n}")
    cli.main(["cache", "info"])
    assert capsys.readouterr().out.startswith("1 compiled kernel, ")
