"""A compiled function is captured again if an object to which its code refers has changed; it can be copied."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections import deque
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.dispatch import guards

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
CASES: list[Callable[[], Any]] = []
Case = tuple[Any, "Callable[[], object]"]
factor = 2.0


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES.append(function)
    return function


class Scale:
    k: Any = 2.0

    def __init__(self) -> None:
        self.own: Any = 2.0

    def times(self, x: Any) -> Any:
        return x * self.own

    @property
    def twice(self) -> float:
        return 2.0 * self.own

    def __call__(self, x: Any) -> Any:
        return x * self.own


class Slots:
    __slots__ = ("k",)


class ScaleModule(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * factor


def change_factor() -> None:
    global factor
    factor = 3.0


def scaled(holder: Any, x: Any) -> Any:
    return x * holder.own


@case
def an_argument_of_a_partial() -> Case:
    scale = Scale()
    return functools.partial(scaled, scale), lambda: setattr(scale, "own", 3.0)


@case
def a_keyword_of_a_partial() -> Case:
    partial = functools.partial(lambda x, k: x * k, k=2.0)
    return partial, lambda: partial.keywords.__setitem__("k", 3.0)


@case
def an_attribute_that_a_helper_reads() -> Case:
    scale = Scale()
    return lambda x: scaled(scale, x), lambda: setattr(scale, "own", 3.0)


@case
def a_closure_of_a_helper_in_a_list() -> Case:
    k = 2.0

    def change() -> None:
        nonlocal k
        k = 3.0

    helpers = {"one": [lambda x: x * k]}
    return lambda x: helpers["one"][0](x), change


@case
def a_callable_object() -> Case:
    scale = Scale()
    return scale, lambda: setattr(scale, "own", 3.0)


@case
def a_property() -> Case:
    scale = Scale()
    return lambda x: x * scale.twice, lambda: setattr(scale, "own", 3.0)


@case
def an_attribute_of_a_class() -> Case:
    class Own(Scale):
        pass

    scale = Own()
    return lambda x: x * scale.k, lambda: setattr(Own, "k", 3.0)


@case
def an_attribute_that_hides_that_of_a_class() -> Case:
    scale = Scale()
    return lambda x: x * scale.k, lambda: setattr(scale, "k", 3.0)


@case
def a_method_that_is_exchanged() -> Case:
    class Own(Scale):
        def times(self, x: Any) -> Any:
            return x * 2.0

    scale = Own()
    return lambda x: scale.times(x), lambda: setattr(Own, "times", lambda self, x: x * 3.0)


@case
def an_attribute_in_slots() -> Case:
    slots = Slots()
    slots.k = 2.0  # type: ignore[attr-defined]
    return lambda x: x * slots.k, lambda: setattr(slots, "k", 3.0)  # type: ignore[attr-defined]


@case
def a_global_that_a_module_reads() -> Case:
    model = nn.Sequential(ScaleModule(), nn.ReLU())
    return lambda x: model(x), change_factor


@case
def a_variable_of_a_hook() -> Case:
    model, k = nn.ReLU(), [2.0]
    model.register_forward_hook(lambda module, inputs, y: y * k[0])
    return lambda x: model(x), lambda: k.__setitem__(0, 3.0)


@case
def a_setting_of_a_custom_op() -> Case:
    k = [2.0]

    @flnb.custom_op
    def times(x: Any) -> Any:
        return x * k[0]

    return lambda x: times(x), lambda: k.__setitem__(0, 3.0)


@case
def a_name_in_a_module() -> Case:
    module = sys.modules["settings_of_a_test"] = ModuleType("settings_of_a_test")
    module.k = 2.0  # type: ignore[attr-defined]
    return lambda x: x * module.k, lambda: setattr(module, "k", 3.0)


@case
def an_item_of_a_long_list() -> Case:
    items = [2.0] * 1000
    return lambda x: x * items[999], lambda: items.__setitem__(999, 3.0)


@case
def items_of_a_set_and_a_deque() -> Case:
    numbers, queue = {2.0}, deque([1.0])

    def change() -> None:
        numbers.add(1.0)
        queue[0] = 1.0

    return lambda x: x * sum(numbers) * queue[0], change


@case
def an_array_that_is_written_in_place() -> Case:
    array, arrays = np.full(4, 2.0, np.float32), [np.ones(4, np.float32)]

    def change() -> None:
        array[:] = 1.0
        arrays[0][:] = 3.0

    return lambda x: x * flnb.asarray(array) * flnb.asarray(arrays[0]), change


@case
def a_zero_that_changes_its_sign() -> Case:
    zero = [0.0]
    return lambda x: flnb.copysign(x * 2.0, zero[0]) + x, lambda: zero.__setitem__(0, -0.0)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_what_a_function_refers_to_may_change(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "factor", 2.0)
    monkeypatch.setitem(sys.modules, "settings_of_a_test", None)
    function, change = make()
    f, x = flnb.jit(function), flnb.asarray(X)
    before = function(x).tolist()
    assert [f(x).tolist() for _ in range(3)] == [before] * 3
    change()
    after = function(x).tolist()
    assert after != before
    assert [f(x).tolist() for _ in range(3)] == [after] * 3
    assert len(f.programs) == 2  # what is not changed is not captured again


class Doubling:
    """A descriptor that does not work without an instance."""

    def __get__(self, instance: Any, owner: type) -> float:
        vars(instance)  # raises a TypeError for None
        return 2.0 * instance.weight


class Described:
    double = Doubling()
    weight = 1.0


@pytest.mark.parametrize("how", ["import", "from", "relative", "descriptor"])
def test_what_imports_in_the_code_and_descriptors_lead_to_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, settings, described = ModuleType("flnb_user"), ModuleType("flnb_user.settings"), Described()
    package.settings, settings.rate = settings, 2.0  # type: ignore[attr-defined]
    for module in (package, settings):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lines = {
        "import": "import flnb_user.settings; return x * flnb_user.settings.rate",
        "from": "from flnb_user.settings import rate; return x * rate",
        "relative": "from .settings import rate; return x * rate",
        "descriptor": "return x * described.double",
    }
    names: dict[str, Any] = {"described": described, "__package__": "flnb_user", "__name__": "flnb_user.steps"}
    exec(f"def step(x):\n if x.ndim > 9: from ... import missing\n {lines[how]}", names)
    f, x = flnb.jit(names["step"]), flnb.ones(2)
    assert [f(x).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4
    assert f.programs
    settings.rate, described.weight = 5.0, 2.5  # type: ignore[attr-defined]
    assert f(x).tolist() == [5.0, 5.0]


def test_another_thread_may_change_a_container_while_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    values, same = deque([0.5, 1.5]), guards._same_plain

    def same_meanwhile(now: Any, then: Any) -> bool:
        values.append(2.5)
        return same(now, then)

    copied = guards.guarded([({"values": values}, "values")])
    values[0] = float("0.5")  # an equal number, but another object
    with monkeypatch.context() as patch:
        patch.setattr(guards, "_same_plain", same_meanwhile)
        assert guards.hold(copied)
    assert not guards.hold(copied)


def test_an_array_that_is_large_is_compared_by_identity_only() -> None:
    large = np.full((200, 100), 2.0, np.float32)
    f = flnb.jit(lambda x: x * flnb.asarray(large[0, :4]))
    assert [f(flnb.asarray(X))[0].tolist() for _ in range(3)] == [[2.0, 4.0, 6.0, 8.0]] * 3
    large[:] = 3.0
    assert f(flnb.asarray(X))[0].tolist() == [2.0, 4.0, 6.0, 8.0]  # as documented
    large = large.copy()
    assert f(flnb.asarray(X))[0].tolist() == [3.0, 6.0, 9.0, 12.0]


@flnb.jit
def doubled(x: Any) -> Any:
    return x * 2.0


class WithMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fast = flnb.jit(self.forward)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def test_copies_of_a_compiled_function_have_programs_of_their_own() -> None:
    x, model = flnb.asarray(X), WithMethod()
    for _ in range(3):
        expected = model.fast(x).tolist()
        doubled(x)
    assert pickle.loads(pickle.dumps(doubled)) is doubled is copy.deepcopy(doubled)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not other.fast.programs
        assert other.fast(x).tolist() == expected
        flnb.assign(other.layer.weight.data, 0.0)
        for _ in range(3):
            assert other.fast(x).tolist() == [other.layer.bias.tolist()] * 3
            assert model.fast(x).tolist() == expected
