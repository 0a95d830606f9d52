"""Tracebacks in a real IPython shell: of flnb's own errors the user's frames, of all others every frame."""

from __future__ import annotations

import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb.show import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODULE = """class Net(flnb.nn.Module):
    def forward(self, x):
        return x @ x
"""
LEFT_OUT = re.compile(r"\(\d+ frames of flnb and IPython left out: %tb shows all\)")


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    before, mode = (shell.custom_exceptions, shell.CustomTB), shell.InteractiveTB.mode
    shell.custom_exceptions = ()
    register(shell)
    shell.push({"flnb": flnb})
    yield shell
    shell.custom_exceptions, shell.CustomTB = before
    shell.InteractiveTB.set_mode(mode)


@pytest.fixture
def shown(shell: Any, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What IPython prints for a cell, without colours."""

    def run(code: str) -> str:
        shell.run_cell(code)
        out, err = capsys.readouterr()
        return re.sub(r"\x1b\[[\d;]*m", "", out + err)

    return run


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("flnb.ones((2, 3)) @ flnb.ones((2, 3))", ValueError, "matmul: inner extents must agree"),
        ("flnb.nn.Linear(3, 4)(flnb.ones((1, 2)))", ValueError, "linear: x has 2 features"),
        ("flnb.ones(2)[3]", IndexError, "index 3 is out of range"),
        ("flnb.sum(flnb.ones(3), dim=0)", TypeError, "no argument is named dim"),
        ("flnb.autograd.Variable(flnb.ones(2)).backward()", RuntimeError, "a gradient starts from one number"),
    ],
)
def test_an_error_that_flnb_raised_is_shown_by_the_users_frame(
    shell: Any, shown: Callable[[str], str], code: str, kind: type[Exception], said: str
) -> None:
    text = shown(code)
    assert said in text
    assert code in text
    assert len(re.findall(r"^(?:File|Cell) ", text, re.M)) == 1, text
    assert LEFT_OUT.search(text)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(sys.last_traceback)]
    assert files[-1].startswith(flnb.__file__.removesuffix("__init__.py")), "where %debug begins"
    assert isinstance(sys.last_value, kind)
    whole = shown("%tb")
    assert len(re.findall(r"^File .*flnb/", whole, re.M)) == sum("flnb/" in name for name in files)
    assert not LEFT_OUT.search(whole)


def test_an_anomaly_is_shown_by_the_users_frames(shown: Callable[[str], str]) -> None:
    text = shown("with flnb.detect_anomaly():\n    flnb.log(flnb.zeros(3) * 1.0)")
    assert "'log' gave 3 -Inf" in text
    assert len(re.findall(r"^(?:File|Cell) ", text, re.M)) == 1, text


def test_every_frame_of_the_users_is_shown(shown: Callable[[str], str]) -> None:
    text = shown(MODULE + "Net()(flnb.ones((2, 3)))")
    assert len(re.findall(r"^Cell In", text, re.M)) == 2
    assert "in Net.forward" in text.replace("(self, x)", "")
    assert "flnb/nn/module.py" not in text


@pytest.mark.parametrize(
    "fails", ["int('x')", "raise ValueError('mine')", "{}['x']", "[].x", "__import__('numpy').ones(2).reshape(3)"]
)
def test_the_users_own_errors_are_shown_as_before(shown: Callable[[str], str], fails: str) -> None:
    """Also in a module that flnb calls: its frames between the user's are shown."""
    text = shown(MODULE.replace("return x @ x", fails) + "Net()(flnb.ones((2, 3)))")
    assert "flnb/nn/module.py" in text
    assert not LEFT_OUT.search(text)
    assert len(re.findall(r"^Cell In", text, re.M)) == 2


@pytest.mark.parametrize(("line", "short"), [("raise KeyError('a')", True), ("{}['a']", False)])
def test_an_error_in_flnb_that_it_did_not_raise_keeps_all_frames(
    shell: Any, shown: Callable[[str], str], line: str, short: bool
) -> None:
    names: dict[str, Any] = {}
    exec(compile(f"def flawed(): {line}", flnb.__file__, "exec"), names)
    shell.push(names)
    assert bool(LEFT_OUT.search(shown("flawed()"))) is short


def test_verbose_tracebacks_are_whole(shell: Any, shown: Callable[[str], str]) -> None:
    shown("%xmode Verbose")
    text = shown("flnb.ones((2, 3)) @ flnb.ones((2, 3))")
    assert "flnb/ops/linalg.py" in text
    assert not LEFT_OUT.search(text)
    shown("%xmode Context")
    assert LEFT_OUT.search(shown("flnb.ones((2, 3)) @ flnb.ones((2, 3))"))


def test_the_debugger_enters_all_frames(
    shown: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``%debug`` begins where flnb raised the error, and "up" leads to the user's cell with its variables."""
    shown("shape = (2, 3)\nflnb.ones(shape) @ flnb.ones(shape)")
    count = len(list(traceback.walk_tb(sys.last_traceback)))
    commands = iter(["p a.shape", *["up"] * (count - 2), "p shape[::-1]", "quit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(commands))
    from IPython.core.debugger import Pdb

    debugger = Pdb()
    debugger.reset()
    debugger.interaction(None, sys.last_traceback)
    said = capsys.readouterr().out
    assert "(2, 3)" in said
    assert "(3, 2)" in said
    assert next(commands, None) is None
