"""The small picture of a tape, without scripts."""

from __future__ import annotations

import re

import flnb


def test_the_lines_of_a_tapes_picture_stay_inside() -> None:
    w = [flnb.Variable(flnb.ones((4, 4))) for _ in range(6)]
    with flnb.record("a tape", grad_interval=0) as run:
        x = flnb.ones((4, 4))
        for weight in w:
            x = flnb.exp(x @ flnb.sin(weight) * 0.01)
        x.sum().backward()
    svg = run.tape._repr_html_()
    paths = re.findall(r'<path d="M([^"]+)"', svg)
    assert len(paths) > 12
    xs = [float(pair.split()[0]) for path in paths for pair in re.findall(r"-?[\d.]+ [\d.]+", path)]
    assert min(xs) >= 0
    assert max(xs) <= float(re.search(r'viewBox="0 0 (\d+)', svg)[1])  # type: ignore[index]
