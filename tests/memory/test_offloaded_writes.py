"""Writes to tensors that `offload` saved, and to those that share or shared their memory."""

import gc
import threading
from contextlib import nullcontext

import pytest

import flnb
from flnb.autograd.keeping import Keeping
from flnb.memory import offload

pytestmark = pytest.mark.usefixtures("nothing_held")

N = 512  # float32[N, N] is 1 MiB


def start():
    return flnb.Variable(flnb.ones((N, N)))


def test_nested_blocks_that_save_one_tensor_leave_it_writable(manager):
    x, w = flnb.ones((N, N)), start()
    with offload():
        a = w * x
        with offload():
            b = w * x
        c = w * x
    (a + b + c).sum().backward()
    writing = threading.Thread(target=lambda: flnb.assign(x, 2.0), daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    assert x._last_write > 0


def test_steps_that_save_one_tensor_leave_nothing_in_it(manager):
    x, w = flnb.ones((N, N)), start()
    counts = []
    for _ in range(8):
        with offload():
            (w * x).sum().backward()
        w.zero_grad()
        gc.collect()
        counts.append(sum(isinstance(item, flnb.Tensor) for item in gc.get_objects()))
    assert counts[1:] == [counts[1]] * 7


class Buffered(flnb.nn.Module):
    def __init__(self):
        self.buffer = flnb.ones((N, N))


@pytest.mark.parametrize("block", [offload, nullcontext])
def test_views_of_memory_that_a_buffer_left_still_note_writes_to_it(manager, block):
    w, model = start(), Buffered()
    view = model.buffer[0]
    with block():
        y = w * model.buffer
    model.astype("float64")
    view[:] = 5.0
    with pytest.raises(RuntimeError, match=r"input 1 of 'multiply'.* was saved for the gradient and then written"):
        y.sum().backward()


@pytest.mark.parametrize("block", [offload, nullcontext])
def test_writes_to_new_memory_of_a_buffer_leave_views_of_the_former_as_they_are(manager, block):
    w, model = start(), Buffered()
    view = model.buffer[0]
    model.astype("float64")
    with block():
        y = w[0] * view
    model.buffer[:] = 7.0
    y.sum().backward()
    assert w.grad.numpy().sum() == N


def test_a_tensor_that_returns_to_its_former_memory_notes_writes_there(manager):
    y = flnb.Variable([1.0, 2.0]) + 1.0
    former = y.data
    y.data = flnb.zeros(2)
    y.data = former
    z = flnb.square(flnb.Variable([1.0, 1.0])) * former
    flnb.assign(y.data, 5.0)
    with pytest.raises(RuntimeError, match="written in place"):
        z.sum().backward()


def test_only_ops_on_large_tensors_look_for_idle_blocks(manager, monkeypatch):
    looked = []
    monkeypatch.setattr(Keeping, "settle", lambda self: looked.append(self))
    x, small = start(), flnb.Variable([1.0])
    with offload():
        kept = flnb.exp(x)
        before = len(looked)
        flnb.exp(small)
        assert len(looked) == before
        flnb.exp(kept)
        assert len(looked) == before + 1
