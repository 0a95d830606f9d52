"""What keeps NumPy's warnings away leaves the user's own NumPy as it is."""

import threading

import numpy as np
import pytest

import flnb
from flnb.dispatch import quiet as module
from flnb.dispatch.quiet import Reporting, quiet, quiet_methods, unnamed

ZERO = np.zeros(2)


def division(a, b):
    return a / b


def test_numpy_of_the_user_warns_as_before():
    before = np.geterr()
    x = flnb.asarray(ZERO)
    flnb.softmax(flnb.log(x) / x) @ flnb.log_softmax(flnb.exp(x) / x)
    assert np.geterr() == before
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        np.log(ZERO)

    class Own(flnb.backends.NumpyBackend):
        def log(self, x):
            return np.log(x)

    with flnb.use_backend(Own), pytest.warns(RuntimeWarning, match="divide by zero"):
        flnb.log(x)


def test_an_error_state_that_the_user_chose_holds_for_elementwise_ops():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero encountered in log"):
        flnb.log(flnb.asarray(ZERO))
    with np.errstate(all="raise"):
        assert np.geterr()["over"] == "raise"
        flnb.softmax(flnb.asarray([1e4, -1e4, np.inf]))
        assert np.geterr()["over"] == "raise"


@pytest.mark.parametrize("wrap", [quiet, unnamed])
def test_wrapped_functions_do_not_warn_and_keep_their_names(wrap):
    silent = wrap(division)
    assert silent(ZERO, b=ZERO).tolist() == pytest.approx([np.nan] * 2, nan_ok=True)
    assert (silent.__name__, silent.__doc__) == ("division", division.__doc__)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        division(ZERO, ZERO)
    with pytest.raises(ValueError, match="broadcast"):
        silent(ZERO, np.zeros(3))
    assert np.geterr()["divide"] == "warn"
    found = []
    thread = threading.Thread(target=lambda: found.append(silent(ZERO, ZERO)))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_methods_of_a_class(monkeypatch):
    @quiet_methods
    class Methods:
        log = np.log

        def divide(self, a, b):
            return a / b

    Methods().divide(ZERO, ZERO)
    assert Methods.log is np.log
    monkeypatch.setattr(module, "_CHANGED", [])  # a NumPy that keeps its error state elsewhere
    assert np.isnan(quiet(division)(ZERO, ZERO)).all()


def test_errors_are_reported_in_a_block_and_the_error_state_of_the_user_is_back_after_it(monkeypatch):
    errors, inner = [], []
    before = np.geterr()
    for _ in range(2):
        with Reporting(errors):
            np.log(ZERO)
            with Reporting(inner):
                np.exp(ZERO + 1e4)
            division(ZERO, ZERO)
        assert np.geterr() == before
    assert (errors, inner) == (["divide by zero", "invalid value"] * 2, ["overflow"] * 2)
    with pytest.raises(ValueError, match="broadcast"), Reporting(errors):
        division(ZERO, np.zeros(3))
    assert np.geterr() == before
    monkeypatch.setattr(module, "_CHANGED", [])  # a NumPy that keeps its error state elsewhere
    with Reporting(errors), pytest.warns(RuntimeWarning, match="divide by zero"):
        np.log(ZERO)


def test_errors_that_the_user_asked_for_are_not_reported():
    errors, called = [], []
    with np.errstate(divide="raise"), Reporting(errors), pytest.raises(FloatingPointError, match="divide by zero"):
        np.log(ZERO)
    with np.errstate(divide="call", call=lambda *found: called.append(found)), Reporting(errors):
        np.log(ZERO)
    assert (errors, len(called)) == ([], 1)


class Interrupted:
    """A context variable whose `set` raises KeyboardInterrupt when it has set the value, as a signal may."""

    def __init__(self, variable):
        self.variable, self.get, self.left = variable, variable.get, 1

    def set(self, value):
        self.variable.set(value)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def entered(errors):
    with Reporting(errors):
        pass


@pytest.mark.parametrize("run", [lambda: quiet(division)(ZERO, ZERO), lambda: entered([])])
def test_ctrl_c_before_the_block_begins_leaves_the_error_state_of_the_user(run, monkeypatch):
    before = np.geterr()
    ((variable, silence),) = module._CHANGED
    monkeypatch.setattr(module, "_CHANGED", [(Interrupted(variable), silence)])
    with pytest.raises(KeyboardInterrupt):
        run()
    assert np.geterr() == before
