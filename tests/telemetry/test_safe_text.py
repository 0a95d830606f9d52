"""Names of users and files are shown short, on one line, without control characters: in terminals, pages, pictures."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest
from flnb_telemetry.intern import Catalog, Context, Plan, Table
from flnb_telemetry.safe_text import brief, html_text, safe_lines, safe_text
from hypothesis import given
from hypothesis import strategies as st

import flnb
import flnb.nn as nn
from flnb.explore.report import Report

EVIL = "\x1b[31m\u202egnp.\u2066<b>\x9b\u2028\ud800" + "x" * 20_000
FORBIDDEN = set("\x1b\x9b\u202e\u2066\u2028\ud800")


def check(shown: str) -> None:
    """Nothing of the evil name reaches the screen raw."""
    assert not FORBIDDEN & set(shown)
    assert "x" * 2000 not in shown
    shown.encode()


@given(st.text(st.characters(), max_size=300), st.integers(8, 100))
def test_what_is_shown_is_short_and_has_no_control_characters(text: str, longest: int) -> None:
    shown = safe_text(text, longest)
    assert len(shown) <= longest
    kinds = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    if text.isprintable() and len(text) <= longest:
        assert shown == text


def test_scripts_and_emoji_stay_as_they_are() -> None:
    for text in ("größe", "权重", "شبكة", "नेटवर्क", "می‌خواهم", "👩‍💻 net"):
        assert safe_text(text) == text
    assert safe_text("a\tb\n") == r"a\tb\n"
    assert safe_lines("a\x1b\nb\u202e") == "a\\x1b\nb\\u202e"
    assert html_text('<a href="x">\x1b') == r"&lt;a href=&quot;x&quot;&gt;\x1b"
    assert safe_text("begin" + "-" * 1000 + "end", 11) == "begin--…end"
    assert brief({EVIL: 1, (1, 2): 3}).startswith(r"a dict with '\x1b[31m\u202egnp.")


@pytest.fixture
def evil() -> Any:
    """A run in which all names are evil."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    setattr(net, EVIL, nn.Linear(2, 2))
    with (
        flnb.use_memory_manager(flnb.memory.Caching()),
        flnb.record(EVIL, grad_interval=0) as run,
        flnb.scope(EVIL),
        flnb.step(),
    ):
        loss = (getattr(net, EVIL)(net(flnb.ones((4, 3)))) * flnb.ones((256, 256)).sum()).sum()
        loss.backward()
        flnb.log(**{EVIL: 1.0})
        flnb.log(**{EVIL: 2.0})
    run.error = f"ValueError: {EVIL}"
    run.meta["device"] = EVIL
    return net, run


def test_no_name_reaches_the_terminal_or_a_page_raw(evil: Any) -> None:
    net, run = evil
    replay = flnb.memory.replay(run, ["native"], seconds=0)
    shown = [run, run.ops.by("op", "scope"), run.memory, run.memory.peak, run.tape, replay, run.tape.why(-1), net]
    shown += [flnb.memory.diff(run.memory.at(0), run), Report(EVIL, ())]
    for item in shown:
        check(repr(item))
        check(item._repr_html_() if hasattr(item, "_repr_html_") else "")
    check(run.tape.summary(depth=5))


def test_no_name_reaches_the_dashboard_raw(evil: Any) -> None:
    from flnb_telemetry.live.recording import LiveRecording

    _, run = evil
    for frame in LiveRecording(run).frames():
        text = json.dumps(frame[0], ensure_ascii=False)
        check(re.sub(r'"key": "[^"]*"', "", text))  # by which the browser asks for more
    catalog = Catalog(Table([EVIL]), Table([Plan(EVIL, "f", (), "", 0)]), Table([Context(EVIL, 0)]))
    for table in ("strings", "plans", "contexts"):
        check(json.dumps(catalog.to_json(table), ensure_ascii=False))


def test_no_name_reaches_a_figure_raw(evil: Any) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("graphviz")
    _, run = evil
    replay = flnb.memory.replay(run, ["native"], seconds=0)
    for figure in (flnb.plot.op_times(run), flnb.plot.memory(run), flnb.plot.replay(replay)):
        check(json.dumps(figure.to_plotly_json(), ensure_ascii=False, default=str))
    check(flnb.plot.tape(run).source)


@pytest.mark.parametrize(
    "call", [flnb.set_backend, flnb.set_memory_manager, flnb.category, lambda name: getattr(flnb, name)]
)
@pytest.mark.parametrize("prefix", ["", "caching:", "caching:split_limit=1MiB,split_limit=", "caching:wrong"])
def test_no_name_reaches_an_error_raw(call: Any, prefix: str) -> None:
    with pytest.raises((ValueError, AttributeError)) as raised:
        call(f"{prefix}{EVIL}=1")
    check(str(raised.value))


def test_no_name_reaches_the_summary_raw(evil: Any) -> None:
    check("\n".join(evil[1].summary()))
