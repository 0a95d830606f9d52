"""The post-mortem in a notebook's cell."""

from __future__ import annotations

import re
import sys
import traceback
from html.parser import HTMLParser
from typing import Any

import pytest

import flnb
from flnb.show.postmortem import postmortem_html
from flnb.show.remedying import action, applied
from tests.memory.test_postmortem import report_of


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_request_is_drawn_to_scale_and_everything_is_in_a_table() -> None:
    report = report_of()
    html = postmortem_html(report)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "class='request' style='left:15.000%;width:45.000%'" in html  # 3 MiB on, 9 MiB wide, of 20 MiB
    widths = [float(w) for w in re.findall(r"class='tile[^']*' style='left:[\d.]+%;width:([\d.]+)%", html)]
    assert sum(widths) == pytest.approx(100, abs=0.01)
    for text in (
        "del probe",
        "gets past it",
        "does not get past it",
        "over 48.0 MiB",
        "a variable of fragmented()",
        "room left",
    ):
        assert text in html


def test_names_are_escaped_and_nothing_is_predicted_without_a_recording() -> None:
    html = postmortem_html(report_of(run=False))
    assert "Nothing was being recorded" in html
    assert "Peak, of" not in html


@pytest.fixture
def shell() -> Any:
    """IPython, as flnb found it once: importing flnb and %load_ext both register."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    flnb.show.register(shell)
    flnb.show.register(shell)
    return shell


FAILS = (
    "from tests.memory.test_postmortem import fragmented\n"
    "import flnb\nfragmented(flnb.memory.Caching(flnb.memory.HostDevice('48MiB')))"
)


@pytest.mark.parametrize(("kernel", "order"), [(True, ["card", "traceback"]), (False, ["traceback", "card"])])
def test_a_cell_that_fails_shows_it_by_a_traceback_of_the_users_frames(
    shell: Any, monkeypatch: pytest.MonkeyPatch, kernel: bool, order: list[str]
) -> None:
    seen: list[tuple[str, Any]] = []
    if kernel:
        monkeypatch.setattr(shell, "kernel", object(), raising=False)
    monkeypatch.setattr(shell, "_showtraceback", lambda kind, error, lines: seen.append(("traceback", lines)))
    monkeypatch.setattr("IPython.display.display", lambda report: seen.append(("card", report)))
    result = shell.run_cell(FAILS)
    assert isinstance(result.error_in_exec, flnb.memory.OutOfMemoryError)
    assert [name for name, _ in seen] == order
    shown = dict(seen)
    assert "Out of memory" in postmortem_html(shown["card"])
    text = re.sub(r"\x1b\[[\d;]*m", "", "".join(shown["traceback"]))
    assert "in fragmented" in text
    assert "flnb/dispatch" not in text
    assert shown["traceback"][-1].endswith("frames of flnb and IPython left out: %tb shows all)")
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(sys.last_traceback)]
    assert any("flnb/dispatch" in name for name in files), "what %tb and %debug begin at"


def test_other_errors_and_others_handlers_are_left_alone(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("flnb.show.tracebacks.show_error", lambda *about: seen.append(about))
    monkeypatch.setattr(shell, "_showtraceback", lambda *about: None)
    shell.run_cell("raise KeyboardInterrupt")
    assert seen == []
    before = shell.custom_exceptions, shell.CustomTB
    shell.set_custom_exc((ZeroDivisionError,), lambda *about: ["theirs"])
    try:
        flnb.show.register(shell)
        assert shell.custom_exceptions == (ZeroDivisionError,)
        monkeypatch.setattr("IPython.display.display", lambda report: seen.append(report))
        shell.run_cell(FAILS)
        assert ["Out of memory" in postmortem_html(report) for report in seen] == [True], "the report all the same"
    finally:
        shell.custom_exceptions, shell.CustomTB = before
        shell.events.unregister("post_run_cell", flnb.show._after_cell)


def test_the_debugger_is_entered_where_it_is_asked_for(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []
    monkeypatch.setattr(shell, "_showtraceback", lambda *about: None)
    monkeypatch.setattr("IPython.display.display", lambda report: None)
    monkeypatch.setattr(shell, "debugger", lambda force=False: entered.append(force))
    shell.call_pdb = True
    try:
        shell.run_cell(FAILS)
    finally:
        shell.call_pdb = False
    assert entered == [True]


def test_remedies_that_fit_carry_the_code_of_their_buttons() -> None:
    html = postmortem_html(report_of())
    assert "data-code='del probe'" in html
    best = "data-code='flnb.set_memory_manager(flnb.memory.BestFit(flnb.memory.HostDevice(&quot;48MiB&quot;)))"
    assert best in html
    rows = [row for row in html.partition("<script>")[0].split("<tr>") if "get past it" in row or "gets past it" in row]
    assert [("data-code" in row) for row in rows] == [("does not get past it" not in row) for row in rows]
    assert html.count("<script>") == 1
    assert "<script>" not in postmortem_html(report_of(run=False)), "without remedies there is nothing to press"


MADE = "flnb.memory.Slab(flnb.memory.HostDevice('48MiB'))"


@pytest.mark.parametrize(
    ("what", "code", "runs"),
    [
        ("del probe", "del probe", False),  # no variable of this program
        ("del here, probe", "del here, probe", False),
        ("del here", "del here", True),
        ("flnb.memory.release_cached()", "flnb.memory.release_cached()", True),
        (
            "flnb.memory.lean(here, offload=['a'])",
            "with flnb.memory.lean(here, offload=['a']):\n    ...  # the step",
            False,
        ),
        (
            f"flnb.use_memory_manager({MADE})",
            f"flnb.set_memory_manager({MADE})  # for tensors made from now on: run again from where the model is made",
            True,
        ),
    ],
)
def test_what_a_remedy_is_as_a_cell(monkeypatch: pytest.MonkeyPatch, what: str, code: str, runs: bool) -> None:
    monkeypatch.setattr("__main__.here", 1, raising=False)
    monkeypatch.setattr("__main__.flnb", flnb, raising=False)
    assert action(what) == (code, runs)


def test_what_a_remedy_did_is_described_by_the_state_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the manager that failed stay with it, and are counted."""
    device = flnb.memory.HostDevice("48MiB")
    failing, before = flnb.memory.Caching(device), flnb.dispatch.state.session.manager
    try:
        flnb.set_memory_manager(failing)
        x = flnb.zeros((1 << 20,))
        with pytest.raises(flnb.memory.OutOfMemoryError) as caught:
            flnb.zeros((12 << 20,))
        monkeypatch.setattr("sys.last_value", caught.value, raising=False)
        assert str(applied("flnb.memory.release_cached()")) == (
            "caching has 4.00 MiB live in 20.0 MiB reserved now; at the failure 4.00 MiB were live. Run the cell that "
            "failed again. Line to paste before the one that failed: flnb.memory.release_cached()"
        )
        what = "flnb.use_memory_manager(flnb.memory.ExactFit(device))"
        flnb.set_memory_manager(flnb.memory.ExactFit(device))
        expected = (
            "New tensors are allocated by ExactFit() on host (48.0 MiB). 1 block (4.00 MiB) made before stay with "
            "caching: run again from where the model is made. Line to paste: "
            "flnb.set_memory_manager(flnb.memory.ExactFit(device))"
        )
        assert repr(applied(what)) == expected, "as a kernel answers"
        monkeypatch.delattr("sys.last_value")
        assert "stay with" not in applied(what), "without an error it is not known whose blocks they are"
        del x
    finally:
        flnb.set_memory_manager(before)
