"""Meters against their definitions."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

import flnb
from flnb.meters import (
    AverageMeter,
    CountMeter,
    EditDistanceMeter,
    FrameErrorMeter,
    MSEMeter,
    TimeMeter,
    TopKMeter,
)


def test_average_is_weighted_and_takes_variables():
    meter = AverageMeter()
    assert math.isnan(meter.value)
    meter.add(flnb.Variable(flnb.asarray(2.0)), weight=3)
    meter.add(flnb.asarray([6.0])[0], weight=1)
    assert meter.value == 3.0
    assert repr(meter) == "AverageMeter(3)"
    meter.reset()
    for _ in range(3):
        meter.add(np.float32(2.0), weight=np.int8(64))
    assert meter.value == 2.0, "weights of a small dtype do not overflow"
    meter.reset()
    assert math.isnan(meter.value)


def test_counts():
    meter = CountMeter()
    for key in ("a", 1, "a"):
        meter.add(key)
    meter.add(1, 4)
    assert meter.value == {"a": 2, 1: 5}
    assert repr(meter) == "CountMeter({'a': 2, 1: 5})"
    for _ in range(2):
        meter.add(2, np.int8(100))
    assert meter.value[2] == 200
    meter.reset()
    assert meter.value == {}


def distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edit_distance_is_the_least_number_of_edits(output, target):
    meter = EditDistanceMeter()
    meter.add(output, target)
    edits = meter.deletions + meter.insertions + meter.substitutions
    assert edits == distance(output, target)
    assert len(target) - meter.deletions + meter.insertions == len(output)
    assert meter.value == edits / len(target) if target else math.isnan(meter.value)


def test_edit_distance_adds_up_and_takes_words_and_tensors():
    meter = EditDistanceMeter()
    meter.add(["the", "cat"], ["the", "black", "cat"])
    meter.add(flnb.asarray([1, 2, 3]), np.asarray([1, 2, 4, 5]))
    assert (meter.value, meter.deletions, meter.insertions, meter.substitutions) == (3 / 7, 2, 0, 1)
    assert repr(meter) == "EditDistanceMeter(0.428571)"
    meter.reset()
    assert (meter.deletions, math.isnan(meter.value)) == (0, True)


@pytest.mark.parametrize("wrap", [list, np.asarray, flnb.asarray, lambda v: flnb.Variable(flnb.asarray(v))])
def test_errors_of_entries_in_every_form(wrap):
    frames, squares = FrameErrorMeter(), MSEMeter()
    for output, target in (([1.0, 2.0, 3.0], [1.0, 2.0, 5.0]), ([0.0], [1.0])):
        frames.add(wrap(output), target)
        squares.add(wrap(output), target)
    assert (frames.value, squares.value) == (0.5, 1.25)


def test_squares_of_small_integers_do_not_wrap():
    meter = MSEMeter()
    meter.add(np.asarray([0], np.uint8), np.asarray([200], np.uint8))
    assert meter.value == 40000.0


@given(hn.arrays(np.int64, (4, 5), elements=st.integers(0, 3)), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_top_k_agrees_with_sorting(scores, labels):
    for k in (1, 2, 5, 9):
        meter = TopKMeter(k)
        meter.add(scores, labels)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        assert meter.value == np.mean([label in row for label, row in zip(labels, best, strict=True)])


def test_top_k_finds_no_label_whose_score_is_nan():
    meter = TopKMeter(2)
    meter.add([[np.nan, 1.0]], [0])
    assert meter.value == 0.0
    assert repr(meter) == "TopKMeter(0, k=2)"


def test_time_runs_between_start_and_stop(monkeypatch):
    now = iter([10.0, 13.0, 20.0, 21.0, 22.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    meter = TimeMeter()
    assert math.isnan(meter.per_unit)
    with meter:
        meter.start()  # runs already
        meter.add(4)
    assert (meter.value, meter.per_unit) == (3.0, 0.75)
    meter.start()
    assert meter.value == 4.0
    meter.stop()
    assert (meter.value, repr(meter)) == (5.5, "TimeMeter(5.5 s)")
    meter.reset()
    assert meter.value == 0.0


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: MSEMeter().add([1, 2], [1]), r"MSEMeter takes output and target of equal shapes, got \(2,\) and"),
        (lambda: FrameErrorMeter().add([[1]], [1]), r"FrameErrorMeter .* got \(1, 1\) and \(1,\)"),
        (
            lambda: EditDistanceMeter().add([1], np.ones((2, 2))),
            r"target is a sequence \(one axis\), got shape \(2, 2\)",
        ),
        (lambda: TopKMeter(0), "k must be at least 1, got 0"),
        (lambda: TopKMeter(1).add([1.0], [0]), r"\(N, classes\) and labels \(N,\), got \(1,\) and \(1,\)"),
        (lambda: TopKMeter(1).add([[1.0]], [1]), r"whole numbers in range\(1\), got int64 \[1\]"),
        (lambda: TopKMeter(1).add([[1.0]], [0.0]), r"whole numbers in range\(1\), got float64"),
    ],
)
def test_errors(use, text):
    with pytest.raises(ValueError, match=text):
        use()


@pytest.mark.parametrize("meter", [AverageMeter(), EditDistanceMeter(), FrameErrorMeter(), MSEMeter(), TopKMeter(3)])
def test_empty_meters_are_nan(meter):
    assert math.isnan(meter.value)
