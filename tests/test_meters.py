"""Meters."""

import math
import time

import numpy as np
import pytest

import flnb
from flnb.meters import AccuracyMeter, AverageMeter, CountMeter, TimeMeter


def test_average_is_weighted_and_takes_variables():
    meter = AverageMeter()
    assert math.isnan(meter.value)
    meter.add(flnb.Variable(flnb.asarray(2.0)), weight=3)
    meter.add(flnb.asarray([6.0])[0], weight=1)
    assert meter.value == 3.0
    assert repr(meter) == "AverageMeter(3)"
    meter.reset()
    assert math.isnan(meter.value)


def test_count():
    meter = CountMeter()
    meter.add(5)
    meter.add()
    assert (meter.value, repr(meter)) == (6, "CountMeter(6)")
    meter.reset()
    assert meter.value == 0


def test_accuracy_top_k_ties_nan_and_shapes():
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 0.0, 0.0], [np.nan, np.nan, np.nan], [1.0, 5.0, np.nan]])
    first, two = AccuracyMeter(), AccuracyMeter(top=2)
    for meter in (first, two):
        meter.add(flnb.Variable(flnb.asarray(scores)), flnb.asarray([2, 0, 0, 1]))
    assert (first.correct, first.total, first.value) == (2, 4, 0.5)
    assert two.value == 0.75
    with pytest.raises(ValueError, match=r"got shapes \(4, 3\) and \(3,\)"):
        first.add(scores, np.zeros(3, int))
    first.reset()
    assert math.isnan(first.value)


def test_time_adds_its_blocks_and_can_be_read_inside():
    meter = TimeMeter()
    with meter:
        time.sleep(0.01)
        assert meter.value >= 0.01
        with pytest.raises(RuntimeError, match="already running"):
            meter.__enter__()
    spent = meter.value
    time.sleep(0.005)
    assert meter.value == spent
    with meter:
        pass
    assert (meter.value >= spent, meter.blocks) == (True, 2)
    meter.reset()
    assert (meter.value, meter.blocks) == (0.0, 0)
