"""Swapping backends and managers: by name, class and instance, scoped and for good, and by re-running a cell."""

import contextvars
import threading

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import registry, state
from flnb.dispatch.table import OPS, Op, shaped
from flnb.optim import Adam


class Counting(flnb.backends.NumpyBackend):
    def __init__(self):
        self.additions = 0

    def add(self, a, b, out=None):
        self.additions += 1
        return super().add(a, b, out)


def small_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


def train(net, steps=3):
    x = np.random.default_rng(0).normal(size=(8, 1, 8, 8)).astype(np.float32)
    optimizer, loss_of = Adam(net.parameters(), lr=1e-2), nn.CrossEntropyLoss()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net(flnb.asarray(x)), flnb.asarray(np.arange(8))).backward()
        optimizer.step()


def test_an_overridden_add_sees_every_addition_of_training():
    net = small_net()
    with flnb.use_backend(Counting) as backend, flnb.record() as run:
        train(net)
    assert backend.additions == run.ops["add"].count > 20


def test_a_class_defined_again_is_active_at_once():
    def define(scale):
        class Edited(flnb.backends.NumpyBackend):
            def add(self, a, b, out=None):
                return np.multiply(super().add(a, b), scale, out)

        return Edited

    with flnb.use_backend(define(1)):
        x = flnb.ones((3,))
        assert (x + x).tolist() == [2.0] * 3
        define(10)  # what re-running the cell does
        assert (x + x).tolist() == [20.0] * 3
    assert (x + x).tolist() == [2.0] * 3


def test_a_method_without_out_works_everywhere():
    class Plain(flnb.backends.NumpyBackend):
        def add(self, a, b):
            return a + b

        def exp(self, x):
            return np.exp(x) * 2

    big = flnb.ones((64, 64))
    with flnb.use_backend(Plain):
        assert (big + 1.0).sum().item() == 2 * 64 * 64
        flnb.add(big, 1.0, out=big)
        assert flnb.exp(flnb.zeros((64, 64)))[0, 0].item() == 2.0
    assert big[3, 3].item() == 2.0


def test_an_op_declared_inside_a_scope_leaves_the_others_in_their_places():
    x = flnb.ones((3,))
    names = ("declared_first", "declared_second")

    class Extended(flnb.backends.NumpyBackend):
        def declared_second(self, x, out=None):
            return np.multiply(x, 7, out)

    try:
        with flnb.use_backend(Extended), flnb.no_grad():
            _, second = (Op(name, "elementwise", shaped()) for name in names)
            assert dispatch.call(second, (x,)).tolist() == [7.0] * 3
        assert (x + x).tolist() == [2.0] * 3
        with pytest.raises(NotImplementedError, match="does not implement 'declared_second'"):
            dispatch.call(second, (x,))
    finally:
        for name in names:
            OPS.pop(name)


def test_scopes_nest_and_come_back_after_errors():
    outer = state.current().backend
    with pytest.raises(ZeroDivisionError), flnb.use_backend(Counting):
        with flnb.use_backend("numpy"):
            assert type(state.current().backend) is flnb.backends.NumpyBackend
        assert isinstance(state.current().backend, Counting)
        raise ZeroDivisionError
    assert state.current().backend is outer


def test_setting_lasts_and_reaches_scopes_that_did_not_choose():
    before = state.session.backend, state.session.manager
    try:
        with flnb.use_memory_manager("native"):
            chosen = flnb.set_backend(Counting)
            assert state.current().backend is chosen
            caching = flnb.set_memory_manager("caching")
            assert state.current().manager is not caching
        assert state.current().backend is chosen
        assert state.current().manager is caching
    finally:
        flnb.set_backend(before[0])
        flnb.set_memory_manager(before[1])


def test_setting_reaches_every_block_under_way():
    before = state.session.backend
    try:
        with flnb.no_grad():
            with flnb.enable_grad():
                chosen = flnb.set_backend(Counting)
            assert state.current().backend is chosen
            assert not flnb.is_grad_enabled()
    finally:
        flnb.set_backend(before)


def test_one_no_grad_may_be_entered_again_and_within_itself():
    block = flnb.no_grad()
    for _ in range(2):
        with block:
            with flnb.enable_grad(), block:
                assert not flnb.is_grad_enabled()
            assert not flnb.is_grad_enabled()
        assert flnb.is_grad_enabled()


def test_other_threads_keep_the_session():
    seen = []
    with flnb.use_backend(Counting):
        thread = threading.Thread(target=lambda: seen.append(type(state.current().backend)))
        thread.start()
        thread.join()
    assert seen == [type(state.session.backend)]


@pytest.mark.parametrize("kind", ["backend", "memory manager"])
def test_unknown_names_list_the_known(kind):
    with pytest.raises(
        ValueError, match=rf"unknown {kind} 'nope'; known: .*{'numpy' if kind == 'backend' else 'native'}"
    ):
        registry.make(kind, "nope")
    with pytest.raises(TypeError, match=r"expected the name, the class or an instance"):
        registry.make(kind, 3)


def test_a_managers_name_may_have_settings(monkeypatch):
    with flnb.use_memory_manager("caching:split_limit=64MiB,recycling_limit=1GiB") as manager:
        assert (manager.split_limit, manager.recycling_limit) == (64 << 20, 1 << 30)
        assert manager.constructor_arguments == {"split_limit": "64MiB", "recycling_limit": "1GiB"}
    with flnb.use_memory_manager("caching: split_limit = 64MiB , recycling_limit=1GiB,") as manager:
        assert (manager.split_limit, manager.recycling_limit) == (64 << 20, 1 << 30)
    monkeypatch.setenv("FLNB_MEM_MANAGER", "buddy:smallest=4096")
    monkeypatch.setattr(state, "session", state.session)  # put back afterwards
    state.start(["numpy"], "caching")
    assert state.session.manager.smallest == 4096


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cachin:split_limit=1", "unknown memory manager 'cachin'; known: best-fit, .*"),
        ("caching:split=1", "caching has no setting 'split'; its settings: split_limit, recycling_limit"),
        ("caching:split_limit", "caching needs a value for 'split_limit'; its settings: split_limit, recycling_limit"),
        ("native:device=host", "native has no setting 'device'; its settings: none"),
        ("caching: split_limit = ", "caching needs a value for 'split_limit'"),
        (
            "caching:split_limit=1MiB, split_limit=2MiB",
            "caching is given 'split_limit' twice, '1MiB' and '2MiB'; its set",
        ),
        ("buddy:arena=3", r"Buddy\(arena=3\): expected a power of two"),
        ("caching:split_limit=many", r"Caching\(split_limit=...\) is 'many'; expected bytes"),
    ],
)
def test_a_managers_name_with_other_settings_lists_what_it_has(text, says):
    with pytest.raises(ValueError, match=says):
        flnb.set_memory_manager(text)


@pytest.mark.parametrize("setting", ["foo", "args", "kwargs"])
def test_a_backend_without_settings_has_none(setting):
    with pytest.raises(ValueError, match=rf"numpy has no setting '{setting}'; its settings: none"):
        flnb.set_backend(f"numpy:{setting}=1")


def test_tensors_of_another_backend_are_refused_with_the_remedy():
    class Strings(flnb.interface.TensorBackend):
        name = "strings"
        buffer = "str"

    v = flnb.Variable([1.0, 2.0])
    with flnb.use_backend(Strings):
        for call in (lambda: v + v, lambda: v + 1.0, lambda: flnb.tanh(v), lambda: v.sum()):
            with pytest.raises(TypeError, match=r"have 'ndarray' buffers but the active backend 'strings' .*\.to\('"):
                call()
        with pytest.raises(TypeError, match=r"this tensor has a 'ndarray' buffer, backend 'strings' works on 'str'"):
            v.detach().numpy()
        assert "in a 'ndarray' buffer" in repr(v)


def test_to_another_backend_of_the_same_buffers_is_itself():
    x = flnb.ones((2,))
    assert x.to(Counting) is x


def test_training_is_bit_identical_under_every_manager():
    results = []
    for manager in ("caching", "native"):
        flnb.manual_seed(0)
        with flnb.use_memory_manager(manager):
            net = small_net()
            train(net)
        results.append([p.detach().numpy().copy() for p in net.parameters()])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)


def test_random_numbers_of_the_user_are_input_and_those_of_a_module_temporary():
    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
        x = flnb.random.normal((1000,))
        with flnb.scope("inside"):
            y = flnb.random.normal((1000,))
        held = run.memory.at(run.seconds).by_category
    assert (held["input"], held["temporary"]) == (4096, 4096)
    assert x.shape == y.shape


def test_categories_label_what_is_allocated():
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager), flnb.record() as run:
        inputs = flnb.asarray(np.ones((64, 64), np.float32))
        with flnb.category("parameter"):
            weights = flnb.Variable(flnb.ones((64, 64)))
        y = flnb.tanh(inputs @ weights)
        plain = inputs + 1.0
        y.sum().backward()
    by_category = dict(zip(*np.unique(run.table("alloc")["category"], return_counts=True), strict=True))
    names = {state.CATEGORIES[c] for c in by_category}
    assert {"input", "parameter", "activation", "temporary", "gradient"} <= names
    assert plain.shape == (64, 64)
    with pytest.raises(ValueError, match=r"category: got 'x', expected one of unknown, parameter"):
        flnb.category("x").__enter__()


def test_custom_backend_survives_a_failing_op():
    class Fails(flnb.backends.NumpyBackend):
        def tanh(self, x, out=None):
            raise MemoryError("on purpose")

    x = flnb.Variable(np.ones((64, 64), np.float32))
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager):
        with flnb.use_backend(Fails), pytest.raises(MemoryError, match="on purpose"):
            flnb.tanh(x)
        flnb.tanh(x)
        assert manager.stats()["allocated"] == 0


def test_a_method_that_returns_nothing_is_named():
    class Forgetful(flnb.backends.NumpyBackend):
        def add(self, a, b, out=None):
            super().add(a, b, out)

    with flnb.use_backend(Forgetful), pytest.raises(TypeError, match=r"add of backend 'Forgetful' returned None"):
        flnb.ones((2,)) + 1.0


def test_a_method_may_return_a_scalar_of_numpy():
    class Reduces(flnb.backends.NumpyBackend):
        def sum(self, x, axes, keepdims, out=None):
            return np.sum(x, axis=axes, keepdims=keepdims)

    with flnb.use_backend(Reduces):
        x = flnb.Variable(np.ones(3))
        x.sum().reshape((1, 1)).sum().backward()
        total = x.data.sum()
        total += 1.0
    assert x.grad.tolist() == [1.0] * 3
    assert total.item() == 4.0


def test_a_manager_that_returns_nothing_is_named():
    class Forgetful(flnb.memory.MemoryManager):
        def alloc(self, nbytes, stream=0, hint=None):
            self.device.reserve(nbytes)

    with (
        flnb.use_memory_manager(Forgetful),
        pytest.raises(TypeError, match=r"'Forgetful': alloc\(4096\) returned None"),
    ):
        flnb.ones((1024,))


@pytest.mark.parametrize("run", [lambda x: x + x, lambda x: -x, lambda x: x.sum(), lambda x: x[0:1] + 1.0])
def test_a_dtype_that_a_backend_does_not_support_is_refused_also_where_the_plan_is_known(run):
    class Wide(flnb.backends.NumpyBackend):
        def supports(self, dtype):
            return dtype != np.float16

    x = flnb.ones((2,), dtype=flnb.float16)
    run(x)
    with flnb.use_backend(Wide):
        with pytest.raises(TypeError, match="does not support float16"):
            run(x)
        assert run(x.astype(flnb.float32)).dtype == flnb.float32


def test_no_grad_makes_its_state_once_and_follows_what_changes():
    x = flnb.Variable([1.0])
    with flnb.no_grad() as first, flnb.no_grad() as inner, flnb.enable_grad():
        assert (x * 2.0).requires_grad
        assert not inner.grad
    with flnb.no_grad() as second:
        assert second is first
    with flnb.use_backend(Counting) as backend:
        with flnb.no_grad() as other:
            x + x
        assert other is not first
        assert backend.additions == 1
    before = state.current().backend
    try:
        counting = flnb.set_backend(Counting)
        with flnb.no_grad() as third:
            assert not (x + x).requires_grad
        assert counting.additions == 1
        assert third is not first
    finally:
        flnb.set_backend(before)


def test_a_thread_in_a_copied_context_has_a_lane_and_a_scope_of_its_own():
    def work():
        with flnb.scope("inside"):
            return flnb.ones((2,)) * 2.0

    with flnb.record() as run, flnb.scope("outside"):
        _ = flnb.ones((2,)) + 1.0
        worker = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        worker.start()
        worker.join()
    assert {row.key for row in run.ops.by("op", "scope").rows} >= {("add", "outside"), ("multiply", "inside")}
    assert len(set(run.table("op")["lane"].tolist())) == 2


def test_blocks_that_end_in_another_order_leave_nothing_behind():
    session = state.current()
    first, second = flnb.record("first"), flnb.record("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert state.current() is session


def test_a_recording_may_end_in_another_context_than_it_began_in():
    block = flnb.record()
    run = contextvars.copy_context().run(block.__enter__)
    _ = flnb.ones((2,)) * 2.0
    block.__exit__(None, None, None)
    assert run.ops["multiply"].count == 1


def test_what_a_users_method_returns_is_held_against_the_plan() -> None:
    class First(flnb.backends.NumpyBackend):
        def add(self, x, y, out=None):  # type: ignore[no-untyped-def]
            return x

        def sum(self, x, axes, keepdims, out=None):  # type: ignore[no-untyped-def]
            return np.float64(3)

    with flnb.use_backend(First):
        x, y = flnb.ones((3,)), flnb.ones((2, 3))
        with pytest.raises(TypeError, match=r"add of backend 'First' returned float32\[3\], expected float32\[2,3\]"):
            x + y
        assert (y + y).shape == (2, 3)
        with pytest.raises(TypeError, match=r"sum of backend 'First' returned float64\[\], expected float32\[\]"):
            y.sum()
