"""The magics in an IPython shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import flnb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("IPython")


@pytest.fixture(scope="module")
def started() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    return InteractiveShell.instance()


@pytest.fixture
def shell(started: Any) -> Iterator[Any]:
    started.run_line_magic("load_ext", "flnb")
    yield started
    started.reset(new_session=False)
    started.extension_manager.loaded.discard("flnb")


def test_a_cluster_brings_the_magics(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from flnb.distributed import Cluster

    magics = started.magics_manager.magics["cell"]
    magics.pop("ranks", None)
    started.extension_manager.loaded.discard("flnb")
    try:
        with Cluster(2, kind="threads") as cluster:
            started.run_cell_magic("ranks", "", "import flnb\nx = 2 * flnb.distributed.rank()")
            assert cluster["x"] == [0, 2]
        with Cluster(2, kind="threads"):  # the extension is there already
            assert capsys.readouterr().out == "2 ranks, threads of this process\n" * 2
    finally:
        started.extension_manager.loaded.discard("flnb")


def test_record_keeps_the_run_and_shows_it(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = shell.run_cell_magic("record", "two additions", "import flnb\nx = flnb.add(1.0, 2.0)\nflnb.add(x, x)")
    assert run.name == "two additions"
    assert run.ops["add"].count == 2
    assert shell.user_ns["run"] is run
    assert float(shell.user_ns["x"]) == 3.0
    assert "Tensor(6." in capsys.readouterr().out, "the cell's last line is shown as usual"


def test_record_without_a_name(shell: Any) -> None:
    assert shell.run_cell_magic("record", "", "1 + 1;").name == "cell"


def test_stacks_are_recorded_on_request(shell: Any) -> None:
    cell = "import flnb\ndef f():\n    return flnb.exp(1.0)\nf();"
    run = shell.run_cell_magic("record", "--stacks my cell", cell)
    assert (run.name, run.meta["stacks"]) == ("my cell", True)
    (stack,) = run.ops.by("stack")[0].key
    assert [line.partition(": ")[2] for line in stack.split("\n")][:2] == ["return flnb.exp(1.0)", "f();"]


def test_inputs_are_kept_when_asked_for(shell: Any) -> None:
    run = shell.run_cell_magic("record", "two words --inputs", "import flnb\nflnb.add(1.0, 2.0);")
    assert run.name == "two words"
    assert run.calls[-1].op == "add"
    assert run.calls[-1].again().item() == 3.0
    with pytest.raises(
        ValueError, match=r"%%record: unknown option --input; the options are: --inputs, --stacks, --to FILE"
    ):
        shell.run_cell_magic("record", "--input", "1")


def test_a_failing_cell_fails_and_its_recording_is_complete(shell: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("record", "bad", "import flnb\nflnb.add(1.0, 2.0)\n1 / 0\nnever = 1")
    run = shell.user_ns["run"]
    assert run.state == "failed"
    assert run.ops["add"].count == 1
    assert "never" not in shell.user_ns


def test_a_recording_goes_to_a_file_also_if_the_cell_fails(shell: Any, tmp_path: Path) -> None:
    for name in ("run.html", "run.json.gz", "run.svg"):
        shell.run_cell_magic("record", f"kept --to {tmp_path / name}", "import flnb\nflnb.add(1.0, 2.0);")
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("record", f"--to {tmp_path / 'bad.json'} bad", "flnb.add(1.0, 2.0)\n1 / 0")
    assert flnb.load_run(tmp_path / "run.json.gz").name == "kept"
    assert flnb.load_run(tmp_path / "bad.json").error == "ZeroDivisionError: division by zero"
    assert len(list(tmp_path.iterdir())) == 4
    shell.user_ns.pop("run")
    with pytest.raises(ValueError, match=r"save_as: got 'run.txt'; expected a name that ends in .flnb, .html"):
        shell.run_cell_magic("record", "--to run.txt", "1")
    with pytest.raises(ValueError, match="%%record: got --to without a file; expected a file name after it"):
        shell.run_cell_magic("record", "--to", "1")
    assert "run" not in shell.user_ns


def test_magics_work_inside_a_recorded_cell(shell: Any) -> None:
    shell.run_cell_magic("record", "nested", "%flnb doctor\nvalue = 3")
    assert shell.user_ns["value"] == 3


def test_doctor(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("flnb", "doctor")
    assert flnb.__version__ in capsys.readouterr().out


def test_an_unknown_word_names_the_known_ones(shell: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown command 'dance'; the commands are .* help; .*: !flnb dance"):
        shell.run_line_magic("flnb", "dance")


def test_under_flnb_lab_the_collector_is_tuned(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(flnb.magics, "tune_gc", lambda: calls.append(True), raising=False)
    flnb.load_ipython_extension(shell)
    assert not calls
    monkeypatch.setenv("FLNB_TUNE_GC", "1")
    flnb.load_ipython_extension(shell)
    assert calls == [True]


@pytest.mark.parametrize("word", ["", "help"])
def test_help_lists_every_command(shell: Any, capsys: pytest.CaptureFixture[str], word: str) -> None:
    shell.run_line_magic("flnb", word)
    lines = capsys.readouterr().out.splitlines()
    for start in ("%flnb dashboard  ", "%flnb doctor  ", "%flnb help  ", "%%record "):
        assert any(line.startswith(start) for line in lines)
