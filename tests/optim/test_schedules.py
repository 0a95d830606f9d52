"""Schedules: their rates by hand (and torch's), chained, resumed, over several optimizers."""

import math

import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

STEPS, RATE = 20, 0.3
RULES = [
    (optim.StepDecay(3, 0.5), lambda n: 0.5 ** (n // 3), ("StepLR", {"step_size": 3, "gamma": 0.5})),
    (optim.Exponential(0.9), lambda n: 0.9**n, ("ExponentialLR", {"gamma": 0.9})),
    (
        optim.Cosine(STEPS, floor=0.1),
        lambda n: 0.1 + 0.45 * (1 + math.cos(math.pi * n / STEPS)),
        ("CosineAnnealingLR", {"T_max": STEPS, "eta_min": 0.1 * RATE}),
    ),
    (
        optim.LinearWarmUp(6, start=0.25),
        lambda n: min(1.0, 0.25 + 0.125 * n),
        ("LinearLR", {"start_factor": 0.25, "total_iters": 6}),
    ),
]


def sgd(lr=RATE):
    return optim.SGD([nn.Parameter(flnb.ones(2))], lr=lr)


def rates(optimizer, schedule, steps=STEPS):
    found = []
    for _ in range(steps):
        found.append(optimizer.lr)
        schedule.step()
    return found


@pytest.mark.parametrize(("rule", "by_hand", "theirs"), RULES, ids=lambda x: type(x).__name__)
def test_rates(rule, by_hand, theirs):
    optimizer = sgd()
    got = rates(optimizer, optim.Schedule(optimizer, rule))
    assert got == pytest.approx([RATE * by_hand(n) for n in range(STEPS)], rel=1e-12)


def torch_rates(make):
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=RATE)
    schedule, found = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(("rule", "by_hand", "theirs"), RULES, ids=lambda x: type(x).__name__)
def test_rates_follow_torch(rule, by_hand, theirs):
    pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    optimizer, (name, settings) = sgd(), theirs
    expected = torch_rates(lambda schedulers, o: getattr(schedulers, name)(o, **settings))
    assert rates(optimizer, optim.Schedule(optimizer, rule)) == pytest.approx(expected, rel=1e-6)


CHAIN = optim.Chain({0: optim.LinearWarmUp(5, start=0.2), 5: optim.Cosine(10), 15: optim.StepDecay(2, 0.5)})


def test_a_chain_counts_anew_for_each_rule():
    optimizer = sgd()
    got = rates(optimizer, optim.Schedule(optimizer, CHAIN))
    parts = [(CHAIN.rules[0], 5), (CHAIN.rules[5], 10), (CHAIN.rules[15], 5)]
    assert got == [RATE * rule(n) for rule, count in parts for n in range(count)]
    assert got[0] == pytest.approx(0.2 * RATE)
    assert got[5] == RATE
    assert got[17] == 0.5 * RATE


@pytest.mark.parametrize("stop", [0, 3, 12])
def test_a_schedule_resumes_where_it_was(stop):
    optimizer = sgd()
    schedule = optim.Schedule(optimizer, CHAIN)
    rates(optimizer, schedule, stop)
    state = schedule.state_dict()
    expected = rates(optimizer, schedule)
    other = sgd(lr=77.0)
    resumed = optim.Schedule(other, CHAIN)
    resumed.load_state_dict(state)
    assert rates(other, resumed) == expected


def test_several_optimizers_keep_their_own_rates():
    both = optim.Together(sgd(1.0), sgd(10.0))
    schedule = optim.Schedule(both, optim.Exponential(0.5))
    schedule.step()
    assert [part.lr for part in both.parts()] == [0.5, 5.0]
    with pytest.raises(ValueError, match="base: got 2 learning rates, expected 1"):
        optim.Schedule(sgd(), optim.Exponential(0.5)).load_state_dict(schedule.state_dict())


def test_any_function_is_a_rule_and_the_repr_says_where_it_is():
    optimizer = sgd(1.0)
    schedule = optim.Schedule(optimizer, lambda n: 1.0 / (1 + n))
    schedule.step()
    assert optimizer.lr == 0.5
    schedule = optim.Schedule(optimizer, optim.StepDecay(3, 0.5))
    assert repr(schedule) == "Schedule(StepDecay(every=3, factor=0.5), base=[0.5], steps=0)"


def test_errors_say_what_was_got():
    with pytest.raises(ValueError, match=r"Chain: the first rule must begin at step 0, got steps \[3, 9\]"):
        optim.Chain({9: optim.Cosine(2), 3: optim.Cosine(2)})
    with pytest.raises(ValueError, match=r"got steps \[\]"):
        optim.Chain({})
    with pytest.raises(ValueError, match="StepDecay: every must be at least 1, got 0"):
        optim.StepDecay(0)
    with pytest.raises(ValueError, match="Cosine: steps must be at least 1, got -2"):
        optim.Cosine(-2)
    with pytest.raises(ValueError, match="LinearWarmUp: steps must be at least 1, got 0"):
        optim.LinearWarmUp(0)
    with pytest.raises(
        ValueError, match="does not fit Schedule; nothing was loaded\n  missing: base\n  missing: steps"
    ):
        optim.Schedule(sgd(), optim.Cosine(2)).load_state_dict({})
