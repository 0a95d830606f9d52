"""Meters."""

import math

import flnb
from flnb.meters import AverageMeter


def test_average_is_weighted_and_takes_variables():
    meter = AverageMeter()
    assert math.isnan(meter.value)
    meter.add(flnb.Variable(flnb.asarray(2.0)), weight=3)
    meter.add(flnb.asarray([6.0])[0], weight=1)
    assert meter.value == 3.0
    assert repr(meter) == "AverageMeter(3)"
    meter.reset()
    assert math.isnan(meter.value)
