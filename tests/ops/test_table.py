"""Every op of the table: gradients of first and second order, agreement with NumPy, and nothing forgotten."""

import re

import numpy as np
import pytest

import flnb
from flnb.dispatch.table import OPS
from flnb.testing import check_backend, samples, verify_grad

SAMPLES = samples()
CHECKED = [s for s in SAMPLES if any(a.dtype == np.float64 for a in s.inputs)]
"""Those whose gradients are compared with finite differences; others are about integers, or have no gradient."""


def test_every_op_has_a_sample():
    assert {s.op for s in SAMPLES} == set(OPS)


@pytest.mark.parametrize("sample", CHECKED, ids=str)
def test_gradients(sample):
    verify_grad(sample.function, sample.inputs, tolerance=1e-8)


DIFFERENTIABLE = {name for name, op in OPS.items() if op.joint or callable(op.pulls) or any(op.pulls)}


def test_every_op_with_a_gradient_was_checked():
    assert {s.op for s in CHECKED if verify_grad(s.function, s.inputs, order=1)} >= DIFFERENTIABLE


def test_every_op_with_a_gradient_was_checked_without_elements():
    empty = {s.op for s in SAMPLES for a in s.inputs if a.dtype == np.float64 and a.size == 0}
    refuses = {"batch_norm"}  # there are no statistics of nothing
    assert empty | refuses >= DIFFERENTIABLE


def apart(x):
    """A tensor of the same values between which others lie."""
    return flnb.asarray(np.stack([x, x], axis=-1))[..., 0]


@pytest.mark.parametrize("sample", [s for s in SAMPLES if any(a.ndim for a in s.inputs)], ids=str)
def test_non_contiguous_inputs_give_the_same(sample):
    results = []
    for make in (flnb.asarray, apart):
        tensors = [make(a) for a in sample.inputs]
        variables = [flnb.Variable(t) if t.dtype == np.float64 else t for t in tensors]
        y = sample.function(*variables)
        if getattr(y, "requires_grad", False):
            (y * y).sum().backward()
        results.append([y._values(), *[v.grad.numpy() for v in variables if getattr(v, "grad", None) is not None]])
    assert len(results[0]) == len(results[1])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


def test_numpy_backend_conforms():
    report = check_backend("numpy")
    assert report, report
    assert {result.check for result in report.results} == set(OPS)


def test_conformance_kit_finds_a_planted_fault():
    class Faulty(flnb.backends.NumpyBackend):
        def multiply(self, a, b, out=None):
            if np.ndim(a) == 2 and not a.flags.c_contiguous:
                return np.multiply(a, b) * 1.001
            return super().multiply(a, b, out)

    report = check_backend(Faulty)
    assert not report
    failed = {r.check for r in report.results if not r.passed}
    assert failed
    assert failed <= {s.op for s in SAMPLES}


def test_missing_op_is_an_error_that_says_what_to_define():
    class Stub(flnb.interface.TensorBackend):
        buffer = "ndarray"

    with flnb.use_backend(Stub), pytest.raises(NotImplementedError) as caught:
        flnb.add(_X, _X)
    assert "backend 'Stub' does not implement 'add': define add(self, ...) in its class" in str(caught.value)
    assert re.search(r"lacks (\d+) of the \1 methods that flnb.interface.TensorBackend requires: ", str(caught.value))


@pytest.mark.parametrize(
    ("contract", "use", "call"),
    [
        ("TensorBackend", flnb.use_backend, "empty(self, spec, manager, min_block, code, category)"),
        ("MemoryManager", flnb.use_memory_manager, "alloc(self, nbytes, stream, hint)"),
        ("MemoryDevice", flnb.use_memory_device, "reserve(self, nbytes)"),
    ],
)
def test_a_missing_method_is_an_error_that_names_the_contract_and_all_that_is_missing(contract, use, call):
    base = getattr(flnb.interface, contract)
    first, *others = base.required
    part = type("Half", (base,), dict.fromkeys(others[1:], lambda *_: None))
    lacks = ", ".join((first, *others[:1]))
    text = f"'Half' does not implement '{first}': define {call} in its class, .*"
    text = text.replace("(", r"\(").replace(")", r"\)") + f"flnb.interface.{contract} requires: {lacks}$"
    with use(part), pytest.raises(NotImplementedError, match=text):
        flnb.memory.Native().alloc(1 << 20) if contract == "MemoryDevice" else flnb.ones((1 << 20,))


_X = flnb.ones((3,))
