"""Listeners that are told of complete gradients change nothing for passes that are not theirs."""

from __future__ import annotations

from typing import Any

import pytest

import flnb
from flnb.autograd.arrivals import listen, unlisten


class Listening:
    def __init__(self, *variables: flnb.Variable) -> None:
        self.leaves = {each._node[2] for each in variables}
        self.told: list[int] = []

    def began(self, first: bool) -> None:
        pass

    def arrived(self, leaf: Any, gradient: Any) -> None:
        self.told.append(leaf[2])

    def ended(self) -> None:
        pass


@pytest.mark.parametrize("heard", [False, True])
def test_hooks_run_in_one_order_whoever_listens_elsewhere(heard: bool) -> None:
    order: list[str] = []
    one, other, elsewhere = (flnb.Variable([1.0]) for _ in range(3))
    one.register_hook(lambda g: order.append("one"))
    other.register_hook(lambda g: order.append("other"))
    listening = Listening(elsewhere)
    if heard:
        listen(listening)
    try:
        ((one * 2.0) + flnb.exp(other * one)).sum().backward()
    finally:
        unlisten(listening)
    assert order == reference(order)
    assert listening.told == []


def reference(order: list[str]) -> list[str]:
    """The order without a listener."""
    found: list[str] = []
    one, other = flnb.Variable([1.0]), flnb.Variable([1.0])
    one.register_hook(lambda g: found.append("one"))
    other.register_hook(lambda g: found.append("other"))
    ((one * 2.0) + flnb.exp(other * one)).sum().backward()
    assert sorted(found) == sorted(order) == ["one", "other"]
    return found


def test_only_leaves_that_are_listened_to_are_told_of_while_the_pass_goes_on() -> None:
    one, other = flnb.Variable([1.0]), flnb.Variable([2.0])
    listening = Listening(other)
    listen(listening)
    try:
        (one * other + other).sum().backward()
    finally:
        unlisten(listening)
    assert listening.told == [other._node[2]]
    assert one.grad is not None
    assert other.grad is not None
    assert (one.grad.item(), other.grad.item()) == (2.0, 2.0)
