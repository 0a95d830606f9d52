"""The figure of collective calls holds the join's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flnb_telemetry.ranks import Ranks
from flnb_telemetry.recording import Recording

from flnb import plot
from tests.distributed.test_collectives import Columns, joined
from tests.distributed.test_ranks import recording

pytest.importorskip("plotly")


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draw ranks that are written by hand."""

    def drawn(*ranks: Columns, **options: Any) -> Any:
        calls = joined(*ranks)
        monkeypatch.setattr("flnb.plot.ranks.joined", lambda _: calls)
        return plot.collectives(Recording("by hand"), **options)

    return drawn


def late_loader(ranks: int, late: int = 1, steps: int = 3) -> list[Columns]:
    """Ranks with a call in each step, to which one comes 30 ms late in step 1, and which takes 2 ms."""
    made = [Columns(rank, ranks) for rank in range(ranks)]
    for number, rank in enumerate(made):
        for step in range(steps):
            t = 100.0 * step
            delay = 30 if step == 1 and number == late else 0
            rank.step(step, t, t + 50)
            rank.scope("data.take", t, t + 5 + delay)
            meet = 40 if step == 1 else 10
            rank.call(step + 1, t + 10 + delay, t + meet + 2, asked=t + 10 + delay)
    return made


def spans(bar: Any) -> list[tuple[float, float, float]]:
    """Begin and end of each bar and the rank on whose line it stands."""
    return [
        (float(base), float(base + x), round(float(y)))
        for base, x, y in zip(bar.base, bar.x, bar.y, strict=True)
        if x > 0
    ]


def test_waiting_is_hatched_up_to_the_last_rank_and_transfer_filled(draw: Any) -> None:
    figure = draw(*late_loader(3), steps=(1, 1))
    waiting, transferring, meets = figure.data
    assert [waiting.name, transferring.name] == ["waiting", "transferring"]
    assert waiting.marker.pattern.shape == "/"
    assert transferring.marker.pattern.shape is None
    assert sorted(spans(waiting), key=lambda span: span[2]) == [(0, 30, 0), (0, 30, 2)]
    assert sorted(spans(transferring), key=lambda span: span[2]) == [(30, 32, 0), (30, 32, 1), (30, 32, 2)]
    assert meets.x[0] == meets.x[1] == 30
    assert "rank 0: all_reduce #2" in waiting.hovertext[0]
    assert "waiting 30.0 ms" in waiting.hovertext[0]
    assert list(figure.layout.yaxis.ticktext) == [0, 1, 2]


def test_the_subtitle_says_who_was_late_and_why(draw: Any) -> None:
    text = draw(*late_loader(3)).layout.title.subtitle.text
    assert text.startswith("rank 1 was last, by 30.0 ms: 35.0 ms in data.take")
    assert text.endswith("(step 1)")


def test_the_costliest_step_is_drawn_with_its_neighbours(draw: Any) -> None:
    ranks = late_loader(3, steps=8)
    figure = draw(*ranks)
    assert len({span[0] for span in spans(figure.data[1])}) == 3
    assert len({span[0] for span in spans(draw(*ranks, steps=(0, 7)).data[1])}) == 8
    with pytest.raises(ValueError, match=r"got steps=\(90, 99\).*steps of the recording: 0 to 7"):
        draw(*ranks, steps=(90, 99))
    for wrong in (6, (6,), "all"):
        with pytest.raises(TypeError, match="expected the first and the last step to draw, such as"):
            draw(*ranks, steps=wrong)


def test_calls_in_flight_at_one_time_stand_side_by_side(draw: Any) -> None:
    ranks = [Columns(rank, 2) for rank in range(2)]
    for rank in ranks:
        for number in range(3):
            rank.call(number + 1, 10 + number, 20 + 5 * number, bucket=number)
    figure = draw(*ranks)
    lines = sorted({round(float(y), 3) for y in figure.data[1].y})
    assert len(lines) == 6
    assert max(bar.width for bar in figure.data[:2]) < 0.3
    assert "bucket 2" in " ".join(figure.data[1].hovertext)


def test_many_ranks_are_rows_of_colours(draw: Any) -> None:
    figure = draw(*late_loader(40, late=37))
    (heat,) = figure.data
    assert heat.type == "heatmap"
    values = np.asarray(heat.z, float)
    assert values.shape == (40, 3)
    assert np.argwhere(values > 1).tolist() == [[37, 1]]
    assert values[37, 1] == 30


def test_recordings_of_several_processes_are_drawn_on_one_clock() -> None:
    figure = plot.collectives(Ranks([recording(1, [(13, 20)]), recording(0, [(10, 20)])]))
    assert spans(figure.data[0]) == [(0, 3, 0)]
    assert sorted(spans(figure.data[1]), key=lambda span: span[2]) == [(3, 10, 0), (3, 10, 1)]


def test_a_recording_without_calls_is_an_empty_figure(draw: Any) -> None:
    assert draw(Columns(0, 2), Columns(1, 2)).data == ()
