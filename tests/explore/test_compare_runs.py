"""`flnb.compare_runs`: rows aligned by scope and op, in numbers of one step, beside the machine's peaks."""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry.analysis.roofline import Peaks

import flnb
from flnb.explore.peaks import measure_peaks
from flnb.explore.runs import ComparedRow
from flnb.explore.work import Work, _unnumbered

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording

PEAKS = Peaks(1e11, 1e10, 1e11)


def trained(name: str, batch: int, steps: int, times: int = 1) -> Recording:
    layer = flnb.nn.Linear(32, 32)
    with flnb.record(name) as run:
        for _ in range(steps):
            with flnb.step(), flnb.scope("net"):
                for _ in range(times):
                    layer(flnb.ones((batch, 32)))
    return run


@pytest.fixture(scope="module")
def pair() -> tuple[Recording, Recording]:
    return trained("short", 16, 2), trained("long", 64, 3, times=2)


def test_numbers_are_of_one_step_and_add_up_to_the_runs(pair: tuple[Recording, Recording]) -> None:
    found = flnb.compare_runs(*pair, peaks=PEAKS)
    assert (found.per, found.names) == ("step", ("short", "long"))
    for at, (run, steps) in enumerate(zip(pair, (2, 3), strict=True)):
        assert found.seconds[at] == pytest.approx(run.steps["seconds"].sum() / steps)
        for stats in run.ops.by("op", "scope"):
            op, scope = stats.key
            work = (found[op, scope].a, found[op, scope].b)[at]
            assert work.calls == stats.count / steps
            assert work.time == pytest.approx(stats.total / steps)
            assert work.bytes == pytest.approx(stats.bytes / steps)
    row = found["linear"]
    assert (row.a.calls, row.b.calls) == (1, 2)
    assert row.b.flops == 2 * (2 * 64 * 32 * 32 + 64 * 32)
    assert row.b.traffic == 2 * 4 * (64 * 32 + 32 * 32 + 32 + 64 * 32)
    assert {"bigger 4.00×", "more often 2.00×"} <= set(row.changes)


def test_a_row_states_what_changed_and_its_bound() -> None:
    row = ComparedRow("add", "net", Work(2, 200, 64), Work(4, 1000, 64), 0.75, 1.1)
    assert row.changes == ("slower 2.50×", "smaller 2.00×", "more often 2.00×")
    assert (row.difference, row.bound) == (800, 4.0)
    assert ComparedRow("add", "", Work(1, 100, 8), Work(1, 105, 8), 0, 1.1).changes == ()
    assert ComparedRow("add", "", Work(), Work(1, 1, 1), 0, 1.1).changes == ("only in B",)
    assert ComparedRow("add", "", Work(1, 1, 1), Work(), 0, 1.1).changes == ("only in A",)


def test_what_a_row_states_is_what_its_calls_show(pair: tuple[Recording, Recording]) -> None:
    for row in flnb.compare_runs(*pair, least=1.0, peaks=PEAKS).rows:
        if row.a.calls and row.b.calls:
            stated = {words: ratio for words, _, ratio in (change.rpartition(" ") for change in row.changes)}
            apart = abs(row.a.typical - row.b.typical) >= max(row.a.spread, row.b.spread)
            assert bool({"slower", "faster"} & set(stated)) == apart
            for words, before, after in (
                ("slower", row.a.typical, row.b.typical), ("faster", row.b.typical, row.a.typical),
                ("more often", row.a.calls, row.b.calls),
            ):  # fmt: skip
                if words in stated:
                    assert float(stated[words].removesuffix("×")) == pytest.approx(after / before, rel=0.02)


def test_a_few_slow_calls_are_noise_and_not_a_change() -> None:
    def run(times: list[int]) -> Recording:
        with flnb.record("made") as made:
            for _ in times:
                with flnb.step():
                    flnb.exp(x)
        table = made.table("op")
        table["t1"][:] = table["t0"] + np.array(times)  # recorded ops, with these times
        return made

    x = flnb.ones((8, 8))
    calm, disturbed, slow = (run(times) for times in ([100] * 20, [100] * 19 + [90_000], [300] * 20))
    noisy = run([100, 900] * 10)
    row = flnb.compare_runs(calm, disturbed, peaks=PEAKS)["exp"]
    assert (row.a.typical, row.b.typical, row.changes) == (100, 100, ())
    assert row.b.time == pytest.approx((19 * 100 + 90_000) / 20)  # the sums have all calls
    assert flnb.compare_runs(disturbed, slow, peaks=PEAKS)["exp"].changes == ("slower 3.00×",)
    assert flnb.compare_runs(slow, disturbed, peaks=PEAKS)["exp"].changes == ("faster 3.00×",)
    assert flnb.compare_runs(noisy, slow, peaks=PEAKS)["exp"].changes == ()  # within the spread of A
    assert flnb.compare_runs(run([100, 100]), run([150, 150]), peaks=PEAKS)["exp"].changes == ()  # too few to know
    assert flnb.compare_runs(run([100]), run([900]), peaks=PEAKS)["exp"].changes == ("slower 9.00×",)


def test_rates_beyond_the_peaks_are_said_in_words(pair: tuple[Recording, Recording]) -> None:
    text = repr(flnb.compare_runs(*pair, peaks=Peaks(1e3, 1e3, 1e3)))
    assert " (from caches)" in text
    assert " (over 100 %)" in text
    assert not re.search(r"\d{3,}\.\d %", text)


def test_a_long_table_names_the_option_that_shows_all() -> None:
    with flnb.record("long") as run:
        for i in range(25):
            with flnb.scope(f"s{i}"):
                flnb.exp(flnb.ones(3))
    found = flnb.compare_runs(run, run, peaks=PEAKS)
    last = repr(found).splitlines()[-1]
    assert last == f"... and {len(found.rows) - 20} more; all: flnb diff --all A B, or in Python .to_pandas()"
    assert "more; all" not in found.text(None)
    assert all(f"s{i}" in found.text(None).split() for i in range(25))
    assert "more; all: flnb export RUN --to csv, or in Python" in repr(run.ops.by("op", "scope"))


def test_runs_of_different_length_without_steps_say_so_once() -> None:
    def run(times: int, more: int = 0) -> Recording:
        x = flnb.ones((8, 8))
        with flnb.record(f"{times} times") as made:
            for _ in range(times):
                flnb.tanh(flnb.exp(x) + x)
            for _ in range(more):
                flnb.tanh(x)
        return made

    found = flnb.compare_runs(run(2), run(10, more=5), peaks=PEAKS)
    assert (found.per, found.repeats) == ("run", 5)
    assert "B calls most ops 5.00× as often" in " ".join(repr(found).split())
    assert "with flnb.step():" in found.summary()
    often = {row.op: [change for change in row.changes if "often" in change] for row in found.rows}
    assert often == {"exp": [], "add": [], "tanh": ["more often 1.50×"]}
    assert flnb.compare_runs(run(2), run(2), peaks=PEAKS).repeats == 1


def test_a_terminal_gets_the_columns_that_fit(
    pair: tuple[Recording, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = flnb.compare_runs(*pair, peaks=PEAKS)
    widths = {}
    for columns in (72, 90, 140, 240):  # 98 or 99 are needed for the calls, as the times have more digits or fewer
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = repr(found).splitlines()
        widths[columns] = max(map(len, lines))
        title = next(line for line in lines if line.startswith("op "))
        assert all(name in title for name in ("scope", "time A", "time B", "B - A", "changed"))
        assert ("bytes/s B" in title, "calls A" in title) == (columns == 240, columns > 99), columns
    assert all(width <= columns for columns, width in widths.items()), widths
    monkeypatch.setenv("COLUMNS", "72")
    assert re.search(r"bigger 4.00×,\n *more often 2.00×", repr(found))


def test_it_prints_as_a_table_also_from_files(pair: tuple[Recording, Recording], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pair[0].save(tmp_path / "a.flnb")
    found = flnb.compare_runs(tmp_path / "a.flnb", pair[1], peaks=PEAKS)
    text, html = repr(found), found._repr_html_()
    assert "A: short" in text
    assert "100 GFLOP/s, 9.31 GiB/s from memory" in text
    line = next(line for line in text.splitlines() if line.startswith("linear"))
    assert "bigger 4.00×, more often 2.00×" in line
    assert html.count("<tr>") == 1 + len(found.rows)
    assert ">linear</button><br>net.linear<" in html
    assert re.search(r"FLOP/s B<.*>[\d.]+ [kMG]<br>\([\d.]+ %\)<", html, re.S)
    assert "bigger\u00a04.00×, more\u00a0often\u00a02.00×" in html.replace("&nbsp;", "\u00a0")
    titles = found.cells()[0]
    assert len(set(titles)) == len(titles)
    sizes = re.findall(r'<td style="([^"]*)">[\d.]+ KiB<', html)
    assert sizes
    assert all("nowrap" in style for style in sizes)  # a unit stays beside its number
    frame = found.to_pandas()
    assert len(frame) == len(found.rows)
    assert frame.set_index("op").loc["linear", "flops_b"] == found["linear"].b.flops


def test_runs_without_steps_are_compared_whole() -> None:
    with flnb.record("a") as a:
        flnb.exp(flnb.ones((8, 8)))
    with flnb.record("nothing") as nothing:
        pass
    found = flnb.compare_runs(a, nothing, peaks=PEAKS)
    assert found.per == "run"
    assert found["exp"].changes == ("only in A",)
    assert "no op events" in repr(flnb.compare_runs(nothing, nothing, peaks=PEAKS))


def test_a_step_within_another_is_part_of_it() -> None:
    with flnb.record("nested") as run:
        for _ in range(3):
            with flnb.step():
                for _ in range(2):
                    with flnb.step():
                        flnb.exp(flnb.ones((8, 8)))
    found = flnb.compare_runs(run, run, peaks=PEAKS)
    assert len(run.steps["t0"]) == 9
    assert found["exp"].a.calls == 2  # in each of the three outer steps
    outer = (run.steps["t1"] - run.steps["t0"])[::3]  # in order of their beginnings
    assert found.seconds[0] == pytest.approx(float(outer.sum()) / 3)
    assert sum(row.share for row in found.rows) <= 1


def test_ops_outside_of_steps_are_a_row_of_their_own() -> None:
    with flnb.record("loads first") as run:
        for _ in range(5):
            flnb.exp(flnb.ones((64, 64)))
        for _ in range(2):
            with flnb.step():
                flnb.exp(flnb.ones((8, 8)))
    found = flnb.compare_runs(run, run, peaks=PEAKS)
    assert (found["exp"].a.calls, found["exp"].a.bytes) == (1, 4 * 8 * 8)
    assert sum(row.share for row in found.rows) <= 1
    assert found.outside is not None
    exp, full = (run.ops[op] for op in ("exp", "full"))
    assert found.outside.a.calls == exp.count + full.count - 4 == 10
    spent = sum(row.a.time * 2 for row in found.rows) + found.outside.a.time
    assert spent == pytest.approx(exp.total + full.total)
    assert repr(found).splitlines()[-1].startswith("outside steps")
    assert "outside steps" in found._repr_html_()


def test_the_peaks_are_measured_once(pair: tuple[Recording, Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def measure() -> Peaks:
        calls.append(1)
        return PEAKS

    monkeypatch.setattr("flnb.explore.runs.measured_peaks", measure)
    assert flnb.compare_runs(*pair).peaks == PEAKS
    assert calls == [1]


def test_the_peak_of_products_is_the_cpu_backend_s_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.ones((64, 64), np.float32)
    products: list[Any] = []

    def measured(product: Any = None) -> Peaks:
        products.append(product and product(a, a, np.empty_like(a)))
        return PEAKS

    monkeypatch.setattr("flnb.explore.peaks.roofline.measured", measured)
    assert measure_peaks() == PEAKS
    try:
        with flnb.use_backend("cpu"):
            assert products.pop().tolist() == (a @ a).tolist()
    except (ImportError, OSError):
        assert products == [None]


def test_what_is_wrong_is_said(pair: tuple[Recording, Recording]) -> None:
    with pytest.raises(TypeError, match=r"compare_runs: expected two recordings \(flnb.record\) or paths .* got int"):
        flnb.compare_runs(pair[0], 3)
    with pytest.raises(ValueError, match=r"compare_runs: got least=0.5; expected a ratio of 1 or more"):
        flnb.compare_runs(*pair, least=0.5)
    for wrong in ("x", None):
        with pytest.raises(TypeError, match=rf"compare_runs: got least={wrong!r}; expected a number, a ratio"):
            flnb.compare_runs(*pair, least=wrong)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no op 'sinh' in these runs; they have "):
        flnb.compare_runs(*pair, peaks=PEAKS)["sinh"]


def test_ops_are_compared_by_line_wherever_edits_have_moved_it() -> None:
    def run(above: str, size: int) -> Any:
        source = above + "flnb.exp(flnb.ones((size, size)))\nflnb.sin(flnb.ones(3))\n"
        name = f"/somewhere/{len(above)}/train.py"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        with flnb.record(f"{size}") as run, flnb.step():
            exec(compile(source, name, "exec"), {"flnb": flnb, "size": size})
        return run

    found = flnb.compare_runs(run("", 32), run("# two\n# more\n", 64), by="line", peaks=PEAKS)
    row = found["exp", "train.py: flnb.exp(flnb.ones((size, size)))"]
    assert (row.a.calls, row.b.calls, row.a.bytes, row.b.bytes) == (1, 1, 4096, 16384)
    assert {(row.op, row.scope.partition(": ")[2]) for row in found.rows if row.op == "sin"} == {
        ("sin", "flnb.sin(flnb.ones(3))")
    }
    assert found.cells()[0][:2] == ["op", "line"]
    assert ">op, line<" in found._repr_html_()
    with pytest.raises(ValueError, match=r"flnb\.compare_runs: got by='shape'; expected 'scope' or 'line'"):
        flnb.compare_runs("a", "b", by="shape")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("train.py:12: y = x[1:2]", "train.py: y = x[1:2]"),
        ("In [5]:14: y = 2", "cell: y = 2"),
        ("f0.py:1", "f0.py:1"),
        ("", ""),
    ],
)
def test_lines_are_compared_without_their_number(line: str, shown: str) -> None:
    assert _unnumbered(line) == shown
