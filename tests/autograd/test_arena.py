"""The arena tape: one flat list of nodes, cleared together."""

import threading
import weakref

import numpy as np
import pytest

import flnb
from flnb.autograd.teaching.arena import Arena
from tests.autograd.test_tapes import Stack


def test_the_arena_clears_all_nodes_together():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        first, other = (x * x).sum(), (x * 3.0).sum()
        first.backward()
    assert not arena.nodes
    with pytest.raises(RuntimeError, match=r"graph through 'sum' was cleared by another backward on its arena tape"):
        other.backward()
    with pytest.raises(RuntimeError, match=r"graph through 'sum' was freed by an earlier backward"):
        first.backward()


def test_an_arena_that_threads_share_is_told_and_never_gives_wrong_gradients(restless):
    arena, outcomes = Arena(), []

    def train():
        for _ in range(60):
            x = flnb.Variable([1.0, 2.0])
            try:
                with flnb.use_tape(arena):
                    y = x
                    for _ in range(20):
                        y = y * 1.0
                    y.sum().backward()
                outcomes.append(x.grad.tolist())
            except RuntimeError as error:
                outcomes.append(str(error))

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 180
    wrong = [o for o in outcomes if o != [1.0, 1.0]]
    assert [o for o in wrong if "thread" not in o] == []


def test_a_thread_whose_nodes_another_one_cleared_is_told():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        loss = (x * 3.0).sum()

    def other():
        with flnb.use_tape(arena):
            (flnb.Variable([1.0]) * 2.0).sum().backward()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="if it was another thread's, give each thread a tape"):
        loss.backward()


@pytest.mark.parametrize("tape", ["linked", "arena", "pruning", "prefused"])
def test_a_part_that_two_losses_share_is_walked_back_once(tape):
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape(tape):
        shared = x * 2.0  # the line
        shared.sum().backward()
        with pytest.raises(RuntimeError, match=r"through 'multiply' was freed by an earlier(.|\n)*# the line"):
            ((shared * 3.0).sum() + x.sum()).backward()


def test_a_tape_whose_walk_leaves_nodes_out_is_found():
    class Forgetful(Stack):
        def walk(self, root, walk):
            for node in self.nodes[:0:-1]:
                walk.pull(node)

    x = flnb.Variable([1.0, 2.0])
    forgetful = Forgetful()
    with flnb.use_tape(forgetful):
        loss = (x * x).sum()  # the line
    with pytest.raises(RuntimeError, match=r"<Forgetful tape .*did not pull every node(.|\n)*# the line"):
        loss.backward()


def test_the_arena_keeps_a_retained_graph_and_walks_from_the_middle():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        y = (x * x).sum()
        z = (y * 2.0).sum()
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [2.0, 4.0]
    x.zero_grad()
    z.backward(retain_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]
    assert len(arena.nodes) == 4
    arena.reset()
    assert repr(arena) == "<Arena tape 'arena', 0 nodes>"
    with pytest.raises(RuntimeError, match="freed"):
        z.backward()


@pytest.mark.parametrize("program", [lambda x: x * 2.0, flnb.checkpoint(flnb.tanh)], ids=["plain", "checkpoint"])
def test_the_arena_is_no_cycle(program, no_collector):
    with flnb.use_tape("arena") as arena:
        program(flnb.Variable(np.ones(4)))
    gone = weakref.ref(arena)
    del arena
    assert gone() is None
