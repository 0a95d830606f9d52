"""Optimizers: twenty steps against float64 NumPy (and torch), nothing allocated after the first, errors, state."""

import gc
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
import flnb.nn as nn
import flnb.optim as optim

STEPS = 20
SHAPES = [(4, 3), (3,), ()]


def sgd_by_hand(p, gradients, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
    velocity = np.zeros_like(p)
    for g in gradients:
        d = g(p) + weight_decay * p
        velocity = momentum * velocity + d
        p = p - lr * (d + momentum * velocity if nesterov else velocity)
    return p


def nag_by_hand(p, gradients, lr, momentum=0.9, weight_decay=0.0):
    step = np.zeros_like(p)  # the velocity with the learning rate in it, downwards
    for g in gradients:
        d = g(p)
        p = p * (1 - lr * weight_decay) + momentum**2 * step - (1 + momentum) * lr * d
        step = momentum * step - lr * d
    return p


def adam_by_hand(p, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False, amsgrad=False):
    m, v, largest = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        d = g(p) + (0.0 if decoupled else weight_decay * p)
        p = p * (1 - lr * weight_decay) if decoupled else p
        m = betas[0] * m + (1 - betas[0]) * d
        v = betas[1] * v + (1 - betas[1]) * d * d
        largest = np.maximum(largest, v)
        scale = largest if amsgrad else v
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(scale / (1 - betas[1] ** t)) + eps)
    return p


adamw_by_hand = partial(adam_by_hand, weight_decay=1e-2, decoupled=True)
amsgrad_by_hand = partial(adam_by_hand, amsgrad=True)


def rmsprop_by_hand(p, gradients, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    square, mean, velocity = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g in gradients:
        d = g(p) + weight_decay * p
        square = alpha * square + (1 - alpha) * d**2
        mean = alpha * mean + (1 - alpha) * d
        velocity = momentum * velocity + d / (np.sqrt(square - mean**2 if centered else square) + eps)
        p = p - lr * velocity
    return p


def adadelta_by_hand(p, gradients, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
    square, moved = np.zeros_like(p), np.zeros_like(p)
    for g in gradients:
        d = g(p) + weight_decay * p
        square = rho * square + (1 - rho) * d**2
        step = np.sqrt(moved + eps) / np.sqrt(square + eps) * d
        moved = rho * moved + (1 - rho) * step**2
        p = p - lr * step
    return p


def adagrad_by_hand(p, gradients, lr=1e-2, lr_decay=0.0, weight_decay=0.0, eps=1e-10):
    square = np.zeros_like(p)
    for t, g in enumerate(gradients):
        d = g(p) + weight_decay * p
        square = square + d**2
        p = p - lr / (1 + t * lr_decay) * d / (np.sqrt(square) + eps)
    return p


def novograd_by_hand(p, gradients, lr=1e-3, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0):
    m, v = np.zeros_like(p), None
    for g in gradients:
        d = g(p)
        norm = np.sum(d**2)
        v = norm if v is None else betas[1] * v + (1 - betas[1]) * norm
        m = betas[0] * m + d / (np.sqrt(v) + eps) + weight_decay * p
        p = p - lr * m
    return p


CASES = [
    (optim.SGD, sgd_by_hand, {"lr": 0.05}),
    (optim.SGD, sgd_by_hand, {"lr": 0.05, "momentum": 0.9}),
    (optim.SGD, sgd_by_hand, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    (optim.SGD, sgd_by_hand, {"lr": 0.05, "weight_decay": 0.1}),
    (optim.SGD, sgd_by_hand, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    (optim.SGD, sgd_by_hand, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    (optim.NAG, nag_by_hand, {"lr": 0.05}),
    (optim.NAG, nag_by_hand, {"lr": 0.05, "momentum": 0.7, "weight_decay": 0.1}),
    (optim.Adam, adam_by_hand, {"lr": 0.02}),
    (optim.Adam, adam_by_hand, {"lr": 0.02, "betas": (0.7, 0.9), "eps": 1e-2}),
    (optim.Adam, adam_by_hand, {"lr": 0.02, "weight_decay": 0.2}),
    (optim.AdamW, adamw_by_hand, {"lr": 0.02}),
    (optim.AdamW, adamw_by_hand, {"lr": 0.02, "betas": (0.7, 0.9), "eps": 1e-2, "weight_decay": 0.2}),
    (optim.AMSgrad, amsgrad_by_hand, {"lr": 0.2, "betas": (0.7, 0.8)}),
    (optim.AMSgrad, amsgrad_by_hand, {"lr": 0.2, "betas": (0.7, 0.8), "weight_decay": 0.2}),
    (optim.RMSProp, rmsprop_by_hand, {"lr": 0.02}),
    (optim.RMSProp, rmsprop_by_hand, {"lr": 0.02, "alpha": 0.8, "eps": 1e-2, "weight_decay": 0.1}),
    (optim.RMSProp, rmsprop_by_hand, {"lr": 0.02, "momentum": 0.5}),
    (optim.RMSProp, rmsprop_by_hand, {"lr": 0.02, "centered": True}),
    (optim.RMSProp, rmsprop_by_hand, {"lr": 0.02, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    (optim.Adadelta, adadelta_by_hand, {"lr": 1.0}),
    (optim.Adadelta, adadelta_by_hand, {"lr": 2.0, "rho": 0.7, "eps": 1e-2, "weight_decay": 0.1}),
    (optim.Adagrad, adagrad_by_hand, {"lr": 0.1}),
    (optim.Adagrad, adagrad_by_hand, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-2}),
    (optim.Novograd, novograd_by_hand, {"lr": 0.05}),
    (optim.Novograd, novograd_by_hand, {"lr": 0.05, "betas": (0.7, 0.5), "eps": 1e-2, "weight_decay": 0.1}),
]
NAMED_OTHERWISE_IN_TORCH = {
    optim.NAG: ("SGD", {"momentum": 0.9, "nesterov": True}),
    optim.AMSgrad: ("Adam", {"amsgrad": True}),
    optim.RMSProp: ("RMSprop", {}),
}


def torch_has(case):
    kind, _, settings = case
    return kind is not optim.Novograd and not (kind is optim.NAG and "weight_decay" in settings)


def problem(shape, dtype):
    """A start, and per step a target: the gradient of sum((p - target)^2 * curvature) depends on p and on the step."""
    rng = np.random.default_rng(len(shape))
    start = np.asarray(rng.normal(size=shape), dtype)
    return start, [np.asarray(rng.normal(size=shape), dtype) for _ in range(STEPS)]


def train(kind, settings, dtype):
    problems = [problem(shape, dtype) for shape in SHAPES]
    parameters = [nn.Parameter(flnb.asarray(start)) for start, _ in problems]
    optimizer = kind(parameters, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        for parameter, (_, targets) in zip(parameters, problems, strict=True):
            flnb.sum(flnb.square(parameter - flnb.asarray(targets[step]))).backward()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters], problems


def label(case):
    return f"{case[0].__name__}-" + "-".join(case[2])


@pytest.mark.parametrize("case", CASES, ids=label)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_twenty_steps_follow_the_formula(case, dtype, tolerance):
    kind, by_hand, settings = case
    for got, (start, targets) in zip(*train(kind, settings, dtype), strict=True):
        gradients = [partial(lambda t, p: 2 * (p - t), np.float64(t)) for t in targets]
        expected = by_hand(start.astype(np.float64), gradients, **settings)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", list(filter(torch_has, CASES)), ids=label)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-6)])
def test_twenty_steps_follow_torch(case, dtype, tolerance):
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    kind, _, settings = case
    for got, (start, targets) in zip(*train(kind, settings, dtype), strict=True):
        theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
        name, defaults = NAMED_OTHERWISE_IN_TORCH.get(kind, (kind.__name__, {}))
        optimizer = getattr(torch.optim, name)([theirs], **{**defaults, **settings})
        for target in targets:
            optimizer.zero_grad()
            ((theirs - torch.from_numpy(target)) ** 2).sum().backward()
            optimizer.step()
        expected = theirs.detach().numpy()
        largest = max(np.abs(values).max() for values in (start, *targets))  # of what rounding errors come from
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_parameter_that_is_used_later_begins_later(case):
    kind, by_hand, settings = case
    early, late = nn.Parameter(flnb.asarray([1.0, 2.0])), nn.Parameter(flnb.asarray(np.float64([3.0, -1.0])))
    optimizer = kind([early, late], **settings)
    for step in range(9):
        optimizer.zero_grad()
        flnb.sum(flnb.square(early)).backward()
        if step in (3, 4, 7):
            flnb.sum(flnb.square(late)).backward()
        optimizer.step()
    expected = by_hand(np.float64([3.0, -1.0]), [lambda p: 2 * p] * 3, **settings)
    np.testing.assert_allclose(late.detach().numpy(), expected, rtol=1e-12)


def traced_bytes_of(function):
    """(most bytes held during the call, bytes still held after it)."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    function()
    _, peak = tracemalloc.get_traced_memory()
    gc.collect()  # tuples that CPython keeps for reuse
    after, _ = tracemalloc.get_traced_memory()
    return peak - before, after - before


@pytest.mark.parametrize("case", CASES, ids=label)
def test_steps_after_the_first_allocate_nothing(case):
    kind, _, settings = case
    parameters = [nn.Parameter(flnb.ones(shape)) for shape in ((128, 64), (64, 128), (100,))]
    for parameter in parameters:
        flnb.sum(flnb.square(parameter)).backward()
    optimizer = kind(parameters, **settings)
    optimizer.step()
    addresses = [parameter.detach().numpy().ctypes.data for parameter in parameters]
    with flnb.record() as run:
        start, allocations = time.perf_counter_ns(), flnb.memory.stats()["allocs"]
        optimizer.step()
        assert flnb.memory.stats()["allocs"] == allocations
    assert len(run.table("op")["context"]) > 0
    assert (run.table("alloc")["t"] < start).all()  # those announced when the recording began
    phases = {intern.contexts.items[number].phase for number in run.table("op")["context"]}
    assert phases == {3}
    # NumPy's own small arrays are traced too: what a step needs in between must not grow with the parameters. Adam's
    # numbers change each step, and the dispatcher keeps up to 64 numbers per op and shape: fill that first.
    # The smallest of five, as other threads may allocate meanwhile; what a step allocates, each step would.
    tracemalloc.start()
    try:
        for _ in range(70):
            optimizer.step()
        measured = [traced_bytes_of(optimizer.step) for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert min(peak for peak, _ in measured) < 10_000  # one parameter has 32,768 bytes
    assert min(kept for _, kept in measured) < 500
    assert [parameter.detach().numpy().ctypes.data for parameter in parameters] == addresses


def test_state_is_allocated_once_at_the_first_step_as_optimizer_state():
    parameters = [nn.Parameter(flnb.ones((256, 128))), nn.Parameter(flnb.ones((256, 128)))]
    for parameter in parameters:
        flnb.sum(parameter).backward()
    optimizer = optim.Adam(parameters)
    with flnb.record() as run:
        start = time.perf_counter_ns()
        optimizer.step()
    table = run.table("alloc")
    new = table["t"] >= start
    assert table["category"][new].tolist() == [4] * 4  # two averages each, no work buffers
    assert set(table["requested"][new].tolist()) == {256 * 128 * 4}


def test_parameters_without_gradient_stay_and_tape_is_not_extended():
    used, unused = nn.Parameter(flnb.ones((2,))), nn.Parameter(flnb.ones((2,)))
    optimizer = optim.SGD([used, unused], lr=0.5, momentum=0.9)
    flnb.sum(used).backward()
    optimizer.step()
    assert used.detach().numpy().tolist() == [0.5, 0.5]
    assert unused.detach().numpy().tolist() == [1.0, 1.0]
    assert used.requires_grad
    flnb.sum(flnb.square(used)).backward()  # still a leaf
    assert used.grad.numpy().tolist() == [2.0, 2.0]
    optimizer.zero_grad()
    assert used.grad is None


def test_a_gradient_is_left_as_it_was():
    for kind, _, settings in CASES:
        parameter = nn.Parameter(flnb.asarray([1.0, 2.0]))
        flnb.sum(flnb.square(parameter)).backward()
        kind([parameter], **settings).step()
        assert parameter.grad.numpy().tolist() == [2.0, 4.0], kind


def test_a_changed_learning_rate_counts_at_once():
    parameter = nn.Parameter(flnb.asarray([1.0]))
    optimizer = optim.SGD([parameter], lr=0.5)
    for lr, expected in ((0.25, 0.75), (0.5, 0.25)):
        optimizer.lr = lr
        optimizer.zero_grad()
        flnb.sum(parameter).backward()
        optimizer.step()
        assert float(parameter.data[0]) == expected


def test_errors_say_what_to_do():
    parameter = nn.Parameter(flnb.ones((2,)))
    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"takes a list of parameters, got one Linear; pass model.parameters\(\)"):
        optim.SGD(net, lr=0.1)
    with pytest.raises(TypeError, match=r"takes a list of parameters, got one Parameter; pass .* or \[x\]"):
        optim.SGD(parameter, lr=0.1)
    with pytest.raises(TypeError, match=r"Adam: item 1 is Tensor; expected an nn\.Parameter"):
        optim.Adam([parameter, flnb.ones((2,))])
    with pytest.raises(TypeError, match="item 0 is ndarray"):
        optim.Adam([np.ones(2)])
    with pytest.raises(TypeError, match="item 0 is the result of an op"):
        optim.SGD([parameter * 2.0], lr=0.1)
    with pytest.raises(ValueError, match="got no parameters"):
        optim.SGD([], lr=0.1)
    with pytest.raises(ValueError, match="in the list twice"):
        optim.SGD([parameter, parameter], lr=0.1)
    with pytest.raises(ValueError, match=r"SGD: lr must be at least 0, got -0\.1"):
        optim.SGD([parameter], lr=-0.1)
    with pytest.raises(ValueError, match="lr must be at least 0, got nan"):
        optim.SGD([parameter], lr=float("nan"))
    with pytest.raises(ValueError, match="momentum must be at least 0, got -1"):
        optim.SGD([parameter], lr=0.1, momentum=-1)
    with pytest.raises(ValueError, match=r"betas must be below 1, got \(0\.9, 1\.0\)"):
        optim.Adam([parameter], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"Novograd: betas must be below 1, got \(1\.0, 0\.9\)"):
        optim.Novograd([parameter], betas=(1.0, 0.9))
    with pytest.raises(ValueError, match="RMSProp: alpha must be below 1, got 1"):
        optim.RMSProp([parameter], alpha=1.0)
    with pytest.raises(ValueError, match=r"Adadelta: rho must be below 1, got 1\.5"):
        optim.Adadelta([parameter], rho=1.5)
    with pytest.raises(ValueError, match=r"SGD: nesterov needs a momentum above 0, got 0\.0"):
        optim.SGD([parameter], lr=0.1, nesterov=True)
    with pytest.raises(RuntimeError, match=r"SGD\.step\(\): no parameter has a gradient; call loss\.backward"):
        optim.SGD([parameter], lr=0.1).step()


def test_a_plain_variable_is_trained_too_and_repr_is_short():
    w = flnb.Variable(flnb.asarray([2.0]))
    flnb.sum(w).backward()
    optimizer = optim.Adam([w], lr=0.1)
    optimizer.step()
    assert float(w.data[0]) < 2.0
    settings = "lr=0.1, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0"
    assert repr(optimizer) == f"Adam(1 parameters, {settings}, steps=1)"


def test_an_interrupted_first_step_can_be_repeated(monkeypatch):
    parameters = [nn.Parameter(flnb.ones((2,))), nn.Parameter(flnb.ones((3,)))]
    for parameter in parameters:
        flnb.sum(parameter).backward()
    optimizer, zeros_like, calls = optim.Adam(parameters, lr=0.5), flnb.ops.zeros_like, []

    def interrupted(x):
        calls.append(x)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return zeros_like(x)

    monkeypatch.setattr(flnb.ops, "zeros_like", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer.step()
    assert optimizer.steps == 1
    for parameter in parameters:
        np.testing.assert_allclose(parameter.detach().numpy(), 0.5, rtol=1e-6)
