"""The conformance kit for backends, as a table over the op table."""

import numpy as np
import pytest

import flnb
from flnb.dispatch.table import OPS
from flnb.testing import backends, check_backend, conformance
from flnb.testing.sample import Sample


class Faulty(flnb.backends.NumpyBackend):
    def tanh(self, x, out=None):
        return np.multiply(np.tanh(x), 1.001, out)

    def argmax(self, x, axes, keepdims, out=None):
        return np.argmax(x, axes[0], keepdims=keepdims).astype(np.int32)

    def sqrt(self, x, out=None):
        return np.sqrt(x)[:1]


def test_one_slow_call_is_not_the_time_of_an_op(monkeypatch):
    took = [1e-6, 1e-6, 1e-3, 1e-6, 1e-6]
    readings = [reading for spent in took for reading in (0.0, spent)]
    monkeypatch.setattr(backends, "perf_counter", iter(readings).__next__)
    x = np.ones(3)
    result, seconds = backends._run(Sample("add", lambda x: x + x, (x,)), "numpy", [x])
    assert (result.tolist(), seconds) == ([2.0, 2.0, 2.0], 1e-6)


def test_a_row_for_every_op_with_error_and_time():
    report = conformance("numpy")
    assert report
    assert {row.op for row in report.results} == set(OPS)
    assert all(row.error == 0.0 and row.time > 0 for row in report.results)
    assert report.title == f"backend numpy: all {len(OPS)} checks passed"


def test_failures_name_error_inputs_and_the_method():
    report = conformance(Faulty)
    tanh = report["tanh"]
    assert not tanh.passed
    assert 1e-4 < tanh.error < 1e-2
    assert tanh.inputs.startswith("float64[")
    assert tanh.line.startswith("test_backends.py:")
    assert "def tanh" in tanh.line


def test_shapes_and_dtypes_of_a_users_results_are_checked():
    report = conformance(Faulty)
    assert "argmax of backend 'Faulty' returned int32[], expected int64[]" in report["argmax"].reason
    assert (
        report["sqrt"].reason
        == "sqrt: TypeError: sqrt of backend 'Faulty' returned float64[1,4], expected float64[3,4]"
    )


def test_misspelt_methods_are_reported_and_warned_of_once():
    class Misspelt(flnb.backends.NumpyBackend):
        def mutliply(self, a, b, out=None):
            return a

        def remember(self):
            return "no primitive is spelt like this"

    with pytest.warns(UserWarning, match=r"'mutliply' is not a primitive and is never called; did you mean 'multiply'"):
        report = conformance(Misspelt)
    assert [row.check for row in report.failed] == ["method 'mutliply'"]
    assert "did you mean 'multiply'?" in repr(report)
    with flnb.use_backend(Misspelt):  # warnings are errors here: it is not said twice
        flnb.ones((2,))


def test_a_misspelt_method_is_warned_of_when_the_class_is_defined_again():
    def define(misspelt):
        class Edited(flnb.backends.NumpyBackend):
            if misspelt:

                def mutliply(self, x, out=None):
                    return x

        return Edited

    with flnb.use_backend(define(False)), pytest.warns(UserWarning, match="did you mean 'multiply'"):
        define(True)


def test_managers_go_to_their_own_kit():
    assert conformance("caching", examples=2)
    assert conformance(flnb.memory.Native, examples=2)
    with pytest.raises(TypeError, match="expected its class, because each check makes a new one"):
        conformance(flnb.dispatch.state.current().manager)


def test_check_backend_is_the_kit_for_backends():
    assert check_backend("numpy").title == conformance("numpy").title
