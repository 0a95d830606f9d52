"""Where a number goes wrong: in the forward pass, in backward, and by the user's own condition."""

import numpy as np
import pytest

import flnb
from flnb.autograd import anomaly
from flnb.autograd.anomaly import AnomalyError

HERE = r"test_anomaly\.py:\d+"


@pytest.mark.parametrize(
    ("values", "limit", "what"),
    [
        ([1.0, 0.0], 1e10, r"1 -Inf of 2 elements \(float64\[2\]\), the first at \(1,\)"),
        ([-1.0, 1.0, -2.0], 1e10, r"2 NaN of 3 elements \(float64\[3\]\), the first at \(0,\)"),
        ([1.0, 100.0], 4.0, r"1 above the limit \(largest 4\.605\) of 2 elements"),
    ],
)
def test_forward_names_op_line_and_inputs(values, limit, what):
    x = flnb.asarray(values, dtype="float64")
    expected = rf"'log' gave {what}.*, called at .*{HERE}: flnb\.log\(x\)\n  input 0: float64\[\d\], min .*, max .*"
    with np.errstate(all="ignore"), flnb.detect_anomaly(limit), pytest.raises(AnomalyError, match=expected):
        flnb.log(x)


@pytest.mark.parametrize("shape", [(), (3,), (40, 40)])
def test_backward_names_the_forward_op_and_its_line(shape):
    x = flnb.Variable(np.zeros(shape))
    with np.errstate(all="ignore"), flnb.detect_anomaly():
        y = flnb.sqrt(x)  # the line to be named
        with pytest.raises(AnomalyError, match=r"'divide' gave \d+ Inf") as caught:
            y.sum().backward()
    notes = "\n".join(caught.value.__notes__)
    assert "in backward" in notes
    assert "'sqrt' of float64" in notes
    assert "y = flnb.sqrt(x)  # the line to be named" in notes


def test_an_infinite_limit_looks_for_nan_alone():
    with np.errstate(all="ignore"), flnb.detect_anomaly(limit=float("inf")):
        assert flnb.log(flnb.asarray([0.0])).tolist() == [-np.inf]
        with pytest.raises(AnomalyError, match="1 NaN of 1 elements"):
            flnb.log(flnb.asarray([-1.0]))


def test_nothing_is_watched_outside():
    with flnb.detect_anomaly():
        flnb.ones((2,)) + 1.0
    with np.errstate(all="ignore"):
        assert np.isnan(flnb.log(flnb.asarray([-1.0])).item())
    with pytest.raises(ValueError, match="limit must be positive, got 0"), flnb.detect_anomaly(0):
        pass


@pytest.fixture
def stopped(monkeypatch):
    seen = []
    monkeypatch.setattr(anomaly, "debugger", lambda frame, values: seen.append((frame, values)))
    return seen


@pytest.mark.parametrize(
    ("condition", "stops"),
    [
        (True, True),
        (False, False),
        (lambda a, b: a.max() > b.max(), False),
        (lambda a, b: (a < b).all(), True),
        (flnb.asarray([False, True]), True),
    ],
)
def test_breakpoint_if_stops_where_the_condition_holds(stopped, capsys, condition, stops):
    a, b = flnb.Variable([1.0, 2.0]), flnb.asarray([3.0, 4.0])
    assert flnb.breakpoint_if(condition, a, b) is a
    assert bool(stopped) is stops
    if stops:
        frame, values = stopped[0]
        assert frame.f_code.co_name == "test_breakpoint_if_stops_where_the_condition_holds"
        assert [v.tolist() for v in values] == [[1.0, 2.0], [3.0, 4.0]]
        assert "values[1]: float32[2], min 3, max 4, mean 3.5" in capsys.readouterr().out


def test_the_debugger_is_pdb_with_the_values(monkeypatch):
    import pdb

    frames = []
    monkeypatch.setattr(pdb.Pdb, "set_trace", lambda self, frame: frames.append(frame))

    def program():
        flnb.breakpoint_if(True, flnb.asarray([7.0]))

    program()
    assert frames[0].f_code.co_name == "program"
