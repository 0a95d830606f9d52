"""Backends side by side: a row for each op, from one run of the program."""

import numpy as np
import pytest

import flnb
from flnb import nn


class Sound(flnb.backends.NumpyBackend):
    pass


class Faulty(flnb.backends.NumpyBackend):
    def tanh(self, x, out=None):
        return np.multiply(np.tanh(x), 1.001 if x.ndim > 1 else 1.0, out)

    def maximum(self, a, b, out=None):
        raise OverflowError("not today")


def program():
    net = nn.Linear(4, 3)
    flnb.tanh(flnb.ones((5,)))
    loss = flnb.relu(flnb.tanh(net(flnb.random.normal((6, 4))))).sum()
    loss.backward()
    return loss


def test_a_sound_backend_passes_every_op():
    report = flnb.compare_backends(program, ["numpy", Sound])
    assert report, report
    assert {"matmul", "tanh", "maximum", "random_normal", "sum"} <= {row.op for row in report.results}
    assert all(row.error == 0 for row in report.results)


def test_failures_name_inputs_line_error_and_how_many():
    report = flnb.compare_backends(program, ["numpy", Faulty])
    assert {row.op for row in report.failed} == {"tanh", "maximum"}
    tanh = report["tanh"]
    assert tanh.inputs == "float32[6,3]"
    assert "test_compare.py:" in tanh.line
    assert "loss = flnb.relu(flnb.tanh(" in tanh.line
    assert 1e-5 < tanh.error < 2e-3
    assert "(1 of 2 calls)" in tanh.reason
    assert report["maximum"].reason == "raised OverflowError: not today"
    assert "FAILED  raised OverflowError" in repr(report)


def test_several_backends_by_name_class_and_instance():
    report = flnb.compare_backends(program, ["numpy", Sound(), Faulty, Faulty()])
    assert {row.backend for row in report.results} == {"Sound", "Faulty 1", "Faulty 2"}
    assert {row.backend for row in report.failed} == {"Faulty 1", "Faulty 2"}
    assert report.title.startswith("Sound, Faulty 1, Faulty 2 beside numpy: 4 of ")


def test_the_program_runs_once_on_the_reference_with_the_seed():
    seen = []

    def count():
        seen.append(flnb.random.uniform((2,)).tolist())

    flnb.compare_backends(count, ["numpy", Sound, Sound], seed=3)
    flnb.compare_backends(count, ["numpy", Sound], seed=3)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_inputs_written_by_a_backend_do_not_reach_the_program():
    class Corrupting(Sound):
        def negative(self, x, out=None):
            x[...] = 7
            return np.negative(x, out)

    x = flnb.ones((3,))
    report = flnb.compare_backends(lambda: flnb.negative(x), ["numpy", Corrupting])
    assert not report["negative"].passed
    assert x.tolist() == [1.0] * 3


def test_misspelt_methods_are_rows_that_fail():
    class Misspelt(Sound):
        def matmull(self, a, b, out=None):
            return a

    report = flnb.compare_backends(program, ["numpy", Misspelt])
    assert report["method 'matmull'"].reason == "is never called: no op has this name; did you mean 'matmul'?"


@pytest.mark.parametrize("backends", [["numpy"], "numpy", []])
def test_two_backends_are_needed(backends):
    with pytest.raises(ValueError, match="expected two or more backends, the reference first"):
        flnb.compare_backends(program, backends)


def test_an_error_of_the_program_reaches_the_user():
    with pytest.raises(ValueError, match="matmul"):
        flnb.compare_backends(lambda: flnb.ones((2, 3)) @ flnb.ones((2, 3)), ["numpy", Sound])


def test_times_are_taken_in_turns_of_warm_backends_and_their_spread_is_told():
    asked = []

    def backend(name):
        class Asked(flnb.backends.NumpyBackend):
            def exp(self, x, out=None):
                asked.append(name)
                return np.exp(x, out)

        return Asked

    x = flnb.ones((3,))
    report = flnb.compare_backends(lambda: flnb.exp(x), [backend("a"), backend("b")], rounds=4)
    assert "".join(asked) == "aab" + "abbaabba"  # the program, each once, then the rounds
    median, least, most = report["exp"].time
    assert 0.0 < least <= median <= most
    assert f"time {median:.2f}× ({least:.2f} to {most:.2f})" in repr(report)
    assert f"{median:.2f}× ({least:.2f} to {most:.2f})" in report._repr_html_()
    with pytest.raises(ValueError, match="rounds must be 1 or more, got 0"):
        flnb.compare_backends(lambda: flnb.exp(x), ["numpy", Sound], rounds=0)


def test_a_row_names_the_node_of_its_first_call_that_differs():
    class Faulty(flnb.backends.NumpyBackend):
        def exp(self, x, out=None):
            return np.add(np.exp(x), float(x.size == 6), out)

    def called():
        with flnb.scope("net"):
            for size in (3, 6, 6):
                flnb.exp(flnb.autograd.Variable(flnb.ones((size,)))).sum().backward()

    report = flnb.compare_backends(called, ["numpy", Faulty])
    assert (report["exp"].op, report["exp"].scope, report["exp"].nth) == ("exp", "net", 1)
    assert report["multiply"].nth is None, "an op of the backward pass has no node"
    html = report._repr_html_()
    assert "{&quot;op&quot;: &quot;exp&quot;, &quot;scope&quot;: &quot;net&quot;, &quot;nth&quot;: 1}" in html
    found = flnb.bisect(called, "numpy", Faulty)
    assert found.nth == 1
    assert "&quot;nth&quot;: 1}" in found._repr_html_()
