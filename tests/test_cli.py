"""The command line: what each command prints, and the files that it writes."""

from __future__ import annotations

import csv
import linecache
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import flnb
from flnb import cli, doctor, scripts

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
        cwd=folder, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


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
    for other in (os.path.relpath(tmp_path / "a.flnb"), tmp_path / ".." / tmp_path.name / "a.flnb"):
        assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", "csv", "-o", str(other)]) == 2
        assert "is the recording itself; name another file with -o FILE" in capsys.readouterr().err
    for name, head in (("html", "<!doctype html>"), ("csv", "op,count,total"), ("svg", "<svg ")):
        assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", name]) == 0
        assert f"export: wrote {tmp_path / 'a'}.{name}\n" in capsys.readouterr().err
        assert (tmp_path / f"a.{name}").read_text(encoding="utf-8").startswith(head)
    assert cli.main(["export", str(tmp_path / "a.flnb"), "--to", "chrome"]) == 0
    assert "a.json.gz; see it on ui.perfetto.dev" in capsys.readouterr().err
    assert cli.main(["view", str(tmp_path / "a.json.gz")]) == 0
    assert "run 'exported' finished" in capsys.readouterr().out
    assert cli.main(["diff", "--all", str(tmp_path / "a.flnb"), str(tmp_path / "a.json.gz")]) == 0
    assert "exported" in capsys.readouterr().out


def test_tables_are_grouped_by_line_on_request(script: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["record", "-o", "a.flnb", "train.py"]) == 0
    script.write_text("# moved by one line\n" + SCRIPT)
    linecache.checkcache()
    assert cli.main(["record", "--stacks", "-o", "b.flnb", "train.py"]) == 0
    assert [flnb.load_run(f"{name}.flnb").meta["stacks"] for name in "ab"] == [False, True]
    capsys.readouterr()
    step = "(v @ v).sum().backward()"
    assert cli.main(["view", "--by", "line,op", "a.flnb"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^line +op +count", table, re.MULTILINE)
    assert re.search(rf"^train\.py:7: {re.escape(step)} +sum +5 ", table, re.MULTILINE)
    assert cli.main(["export", "a.flnb", "--to", "csv", "--by", "op, scope, line"]) == 0
    with open("a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["op", "scope", "line", "count"]
    assert {row["line"] for row in rows if row["op"] == "sum"} == {f"train.py:7: {step}"}
    capsys.readouterr()
    assert cli.main(["diff", "--all", "--by", "line", "a.flnb", "b.flnb"]) == 0
    compared = capsys.readouterr().out
    assert re.search(rf"^sum +train\.py: {re.escape(step)} +1 +1 ", compared, re.MULTILINE)
    assert "only in" not in compared
    wrong = {
        "view --by colour a.flnb": "run.ops: cannot group by colour; expected one or more of op, family, scope",
        "view --by line --browser a.flnb": "flnb view: --by is for the text, not for --browser",
        "export a.flnb --to html --by line": "flnb export: --by is for tables of ops, --to csv, not --to html",
    }
    for line, message in wrong.items():
        assert cli.main(line.split()) == 2
        assert message in capsys.readouterr().err


def test_the_browser_shows_at_most_two_recordings(capsys: Any) -> None:
    assert cli.main(["view", "a", "b", "c", "--browser"]) == 2
    assert capsys.readouterr().err == "flnb view: got 3 recordings, expected one or two with --browser\n"


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


def test_what_a_broken_installation_left_behind_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "numpy" in doctor.doctor()


def test_record_then_view(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = run("record", "-o", "a.flnb", "train.py", "one", "-x", "-o", "its own", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "arguments ['one', '-x', '-o', 'its own'] __main__" in done.stdout
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


@pytest.mark.parametrize(
    ("arguments", "option", "first", "second"),
    [
        (["200", "-o", "b.flnb"], "-o", "-o b.flnb train.py 200", "-o train.flnb train.py 200 -o b.flnb"),
        (["--output=b c"], "--output", "-o 'b c' train.py", "-o train.flnb train.py '--output=b c'"),
        (["-o"], "-o", "-o FILE train.py", "-o train.flnb train.py -o"),
    ],
)
def test_an_output_after_the_script_is_refused_before_it_runs(
    arguments: list[str],
    option: str,
    first: str,
    second: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("open('has run', 'w').close()")
    assert cli.main(["record", "train.py", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown == (
        f"flnb record: {option} stands after train.py, so it may be the script's own. Options of flnb record come "
        f"before the script; write one of:\n  flnb record {first}\n  flnb record {second}\n"
        f"The first names the recording, the second passes {option} to the script.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_may_have_its_own_output_if_the_recording_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys; print(sys.argv)")
    assert scripts.record_script("train.py", ["-o", "b"], "a.flnb") == 0
    assert capsys.readouterr().out == "['train.py', '-o', 'b']\n"
    assert Path("a.flnb").exists()


def test_a_file_that_cannot_be_written_is_named_before_the_script_runs(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for output, said in (("nowhere/a.flnb", "there is no folder"), ("train.py", "is a file, but no recording")):
        assert cli.main(["record", "-o", output, "train.py"]) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert shown.out == ""
    assert script.read_text() == SCRIPT


def test_a_script_that_is_killed_leaves_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, flnb\ny = flnb.ones(3) * 2.0\nrun = flnb.load_run('train.flnb')\n"
        "assert run.state == 'recording', run\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run("record", "train.py", folder=tmp_path).returncode == -signal.SIGKILL
    found = flnb.load_run(tmp_path / "train.flnb")
    assert (found.name, found.state) == ("train", "failed")
    assert found.error is not None
    assert found.error.startswith("interrupted: the process ended without closing the recording")


def test_runs_lists_the_recordings_of_a_folder(tmp_path: Path, capsys: Any) -> None:
    with flnb.record("first", path=tmp_path / "a.flnb") as run:
        flnb.ones(3) + 1.0
    assert cli.main(["runs", str(tmp_path)]) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert title.split() == ["name", "began", "duration", "steps", "events", "backend", "state", "file"]
    assert (row.split()[0], *row.split()[-2:]) == ("first", "complete", "a.flnb")
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.strptime(run.meta["began"][:19], "%Y-%m-%dT%H:%M:%S")) in row
    assert cli.main(["runs", str(tmp_path / "none")]) == 2
    assert "none'; name another one" in capsys.readouterr().err


@pytest.mark.parametrize("line", [["doctor"], ["--help"], ["record", "loud.py"]])
def test_a_closed_pipe_ends_a_command_quietly(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("import sys\nprint('x')")
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has seen enough
    command = [sys.executable, "-m", "flnb.cli", *line]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    saved = "flnb record: saved loud.flnb; look at it with: flnb view loud.flnb\n"
    assert (done.returncode, done.stderr) == (141, saved if "record" in line else "")


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


@pytest.mark.parametrize(
    "command", ["lab", "doctor", "record", "runs", "view", "export", "diff", "bench", "dry-run", "replay"]
)
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


def test_the_caches_of_kernels_are_counted_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLNB_CACHE", str(tmp_path))
    native, cuda = tmp_path / "native", tmp_path / "cuda"
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"0 compiled kernels, 0 B, in {native}\n0 compiled kernels, 0 B, in {cuda}\n"
    native.mkdir()
    cuda.mkdir()
    (native / "a.o").write_bytes(bytes(1000))
    (native / "b.o").write_bytes(bytes(1048))
    (native / "notes.txt").write_text("not ours")
    (cuda / "a.cubin").write_bytes(bytes(1000))
    (cuda / "a.log").write_bytes(bytes(24))
    found = f"2 compiled kernels, 2.00 KiB, in {native}\n", f"1 compiled kernel, 1.00 KiB, in {cuda}\n"
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out == "".join(found)
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == "deleted " + "deleted ".join(found)
    assert [path.name for path in (*native.iterdir(), *cuda.iterdir())] == ["notes.txt"]
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
