"""Ops and allocations have the user's line in their context, and with `flnb.record(stacks=True)` the call stack."""

from __future__ import annotations

import copy
import functools
import json
import linecache
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import bus, intern, schema
from flnb_telemetry.live.recording import LiveRecording

import flnb
from flnb import nn
from flnb.dispatch.source_lines import user_frames

if TYPE_CHECKING:
    from pathlib import Path


def inner(x: Any) -> Any:
    return flnb.exp(x)


def outer(x: Any) -> Any:
    return inner(x) + 1.0


def test_ops_and_blocks_have_the_stack_of_the_user_s_frames(tmp_path: Path) -> None:
    x = flnb.ones((64, 64))
    with flnb.use_memory_manager("caching"), flnb.scope("net"), flnb.record(stacks=True) as run:
        y = outer(x)
        z = inner(y)
    assert run.meta["stacks"] is True
    path = tmp_path / "a.flnb"
    run.save(path)
    for one in (run, flnb.load_run(path)):
        stacks = {row.key: row.count for row in one.ops.by("op", "stack")}
        lines = [stack.split("\n") for op, stack in stacks if op == "exp"]
        assert sorted(map(len, lines)) == [2, 3]  # pytest's frames and flnb's are left out
        longest = max(lines, key=len)
        assert longest[0].endswith(": return flnb.exp(x)")
        assert longest[1].startswith("from test_lines_of_events.py:")
        assert longest[1].endswith(": return inner(x) + 1.0")
        assert longest[2].endswith(": y = outer(x)")
        assert {row.key[0].split(": ", 1)[1]: row.count for row in one.ops.by("line")} == {
            "return flnb.exp(x)": 2, "return inner(x) + 1.0": 1
        }  # fmt: skip
        assert {row.key for row in one.ops.by("scope")} == {("net",)}
        owners = {row.key: (row.blocks, row.bytes) for row in one.memory.at(one.seconds).by("line", "op")}
        held = {(line.split(": ", 1)[1], op): size for (line, op), (_, size) in owners.items() if op == "exp"}
        assert held == {("return flnb.exp(x)", "exp"): z.nbytes}
        assert max(row.key[0].count("\n") for row in one.memory.by("stack")) == 2
        assert "from test_lines_of_events.py" in repr(one.memory.by("stack"))
        blocks = [block for segment in one.memory.peak.segments for block in segment.blocks if block.op == "exp"]
        assert all(block.line.endswith(": return flnb.exp(x)") for block in blocks)
        number = next(int(c) for c, op in zip(one.table("alloc")["context"], one.table("alloc")["plan"], strict=True)
                      if one.catalog.plans.items[op].op == "exp")  # fmt: skip
        answer = LiveRecording(one).answer({"type": "stack", "context": number})
        assert answer is not None
        assert [line.split()[1] for line in answer["lines"][:2]] == ["inner", "outer"]
        assert one.sql("select stack from ops where op = 'exp' limit 1").iloc[0, 0].count("\n") == 2


def sources(run: Any, *keys: str) -> set[tuple[str, ...]]:
    """Return the rows' keys of ops grouped by line and ``keys``, with the text of the line alone."""
    return {(row.key[0].partition(": ")[2], *row.key[1:]) for row in run.ops.by("line", *keys)}


def test_after_stacks_were_recorded_events_have_one_line_again() -> None:
    with flnb.record(stacks=True) as run:
        outer(flnb.ones(3))
    with flnb.record() as other:
        outer(flnb.ones(3))
    assert run.meta["stacks"] != other.meta["stacks"]
    assert max(row.key[0].count("\n") for row in run.ops.by("stack")) == 2
    assert {row.key[0].count("\n") for row in other.ops.by("stack")} == {0}


def test_an_op_of_the_backward_pass_has_the_line_of_its_forward_op() -> None:
    w = flnb.Variable(flnb.ones((64, 64)))
    with flnb.use_memory_manager("caching"), flnb.record() as run:
        y = flnb.exp(w)
        z = y * y
        z.sum().backward()
        with flnb.no_grad():
            flnb.add(w, 1.0)
    exp, product, total = "y = flnb.exp(w)", "z = y * y", "z.sum().backward()"
    assert sources(run, "op", "phase") >= {
        (exp, "exp", "forward"), (exp, "multiply", "backward"), (product, "multiply", "backward"),
        (total, "sum", "forward"), ("flnb.add(w, 1.0)", "add", schema.PHASES[0]),
    }  # fmt: skip
    assert not any(line in ("", total) for line, op, phase in sources(run, "op", "phase") if op == "multiply")
    held = {row.key[0].partition(": ")[2]: row.bytes for row in run.memory.at(run.seconds).by("line", "phase")}
    assert held[exp] >= w.nbytes  # y, and w's gradient
    frame = run.to_pandas("alloc")
    assert set(frame[frame.phase == "backward"].line.str.partition(": ")[2]) <= {exp, product, total}


@pytest.mark.parametrize("compiled", [True, False])
def test_also_if_the_pass_is_differentiated_or_runs_op_by_op(compiled: bool) -> None:
    w = flnb.Variable(flnb.ones(3))
    with flnb.record() as run:
        y = flnb.sin(w)
        y.sum().backward(create_graph=not compiled)
    assert ("y = flnb.sin(w)", "cos", "backward") in sources(run, "op", "phase")


def lines_of_scratch(run: Any) -> set[tuple[str, str]]:
    """Return phase and text of the line of each block that was allocated without naming an op."""
    blocks = run.table("alloc")
    contexts = [run.catalog.contexts.items[c] for c in blocks["context"][blocks["plan"] == 0]]
    return {(schema.PHASES[c.phase], c.line.partition(": ")[2]) for c in contexts}


def test_scratch_memory_inside_an_op_has_the_op_s_line() -> None:
    x, w = flnb.Variable(flnb.randn(8, 4, 32, 32)), flnb.Variable(flnb.randn(8, 4, 3, 3))
    with flnb.use_memory_manager("caching"), flnb.use_backend("numpy"), flnb.record() as run:
        y = flnb.conv2d(x, w)
        y.sum().backward()
    assert lines_of_scratch(run) == {("other", "y = flnb.conv2d(x, w)"), ("backward", "y = flnb.conv2d(x, w)")}


def test_scratch_memory_inside_an_op_of_a_program_has_that_op_s_line() -> None:
    @flnb.jit
    def f(x: Any, w: Any) -> Any:
        return flnb.conv2d(x, w)

    x, w = flnb.randn(8, 4, 32, 32), flnb.randn(8, 4, 3, 3)
    with flnb.use_memory_manager("caching"), flnb.use_backend("numpy"), flnb.record() as run:
        for _ in range(3):
            f(x, w)
    assert lines_of_scratch(run) == {("other", "return flnb.conv2d(x, w)"), ("other", "f(x, w)")}  # and of a result


def test_what_lies_between_ops_has_no_line_and_an_error_leaves_none_behind() -> None:
    x, manager = flnb.ones((4, 4)), flnb.memory.Caching()
    with flnb.record() as run:
        assert bus.lanes is not None
        before = bus.lanes.lane.context
        flnb.exp(x)
        assert bus.lanes.lane.context == before
        with pytest.raises(ValueError, match=r"definite|cholesky"):
            flnb.linalg.cholesky(-x)
        assert bus.lanes.lane.context == before
        flnb.memory.allocate(manager, 1000)
    assert run.to_pandas("op_failed").line.str.partition(": ")[2].tolist() == ["flnb.linalg.cholesky(-x)"]
    alloc = run.to_pandas("alloc").set_index("requested").line
    assert alloc[1000].endswith(": flnb.memory.allocate(manager, 1000)")


def test_functions_of_the_user_in_a_backward_pass_have_their_own_lines() -> None:
    @flnb.custom_op
    def twice(x: Any) -> Any:
        return flnb.add(x, x)

    @twice.def_vjp
    def rule(g: Any, y: Any, x: Any) -> Any:
        return flnb.sin(g)

    def hook(g: Any) -> Any:
        return flnb.cos(g)

    w = flnb.Variable(flnb.ones(3))
    with flnb.record() as run:
        h = flnb.exp(w)
        h.register_hook(hook)
        y = twice(h)
        y.sum().backward()
    assert sources(run, "op", "phase") >= {
        ("return flnb.add(x, x)", "add", "forward"), ("return flnb.sin(g)", "sin", "backward"),
        ("return flnb.cos(g)", "cos", "backward"), ("h = flnb.exp(w)", "multiply", "backward"),
    }  # fmt: skip


def test_frames_of_libraries_are_passed_over_for_the_user_s() -> None:
    x = flnb.ones(3)
    with flnb.record() as run:
        functools.reduce(flnb.add, [x, x])
        y = copy.deepcopy([x])
        with ThreadPoolExecutor(1) as pool:
            list(pool.map(flnb.cos, y))
    lines = dict(row.key for row in run.ops.by("op", "line"))
    assert lines["add"].endswith(": functools.reduce(flnb.add, [x, x])")
    assert lines["copy"].endswith(": y = copy.deepcopy([x])")
    assert lines["cos"].startswith("thread.py:")  # no frame of the user is there


def test_an_optimizer_s_ops_have_the_line_of_its_step() -> None:
    w = flnb.Variable(flnb.ones(3))
    optimizer = flnb.optim.SGD([w], lr=0.1)
    (w * w).sum().backward()
    with flnb.record() as run:
        optimizer.step()
    assert sources(run, "phase") == {("optimizer.step()", "optimizer")}


class Own(nn.Module):
    """A user's module, between modules of flnb."""

    def __init__(self) -> None:
        self.inside = nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x: Any) -> Any:
        x = flnb.log1p(x)
        return flnb.sin(self.inside(x))


class Taller(nn.Linear):
    """A layer of flnb of which the user replaces a part."""

    def forward(self, x: Any) -> Any:
        return self.stretched(super().forward(x))

    def stretched(self, x: Any) -> Any:
        return flnb.cosh(x)


def test_ops_of_a_layer_have_the_line_of_its_call_and_those_of_a_user_s_layer_their_own() -> None:
    net = nn.Sequential(nn.Sigmoid(), Own(), nn.Transform(outer), Taller(3, 3), nn.Softmax())
    patched = nn.GELU()
    patched.forward = inner  # type: ignore[method-assign]
    hooked = nn.Identity()
    hooked.register_forward_pre_hook(lambda module, inputs: flnb.abs(inputs[0]))
    x = flnb.Variable(flnb.ones((2, 3)))
    with flnb.record() as other:
        patched(x)
    assert sources(other, "op") == {("return flnb.exp(x)", "exp")}
    with flnb.record() as run:
        y = net(x)
        z = flnb.floor(hooked(y))
    lines = {op: line for line, op in sources(run, "op")}
    call, own = "y = net(x)", "return flnb.sin(self.inside(x))"
    assert lines == {
        "sigmoid": call, "log1p": "x = flnb.log1p(x)", "exp": "return flnb.exp(x)", "relu": own, "tanh": own,
        "sin": own, "linear": lines["linear"], "add": "return inner(x) + 1.0", "cosh": "return flnb.cosh(x)",
        "softmax": call, "floor": lines["floor"],
        "abs": "hooked.register_forward_pre_hook(lambda module, inputs: flnb.abs(inputs[0]))",
    }  # fmt: skip
    assert lines["linear"] == "return self.stretched(super().forward(x))"
    assert lines["floor"] == "z = flnb.floor(hooked(y))"
    assert z.shape == (2, 3)
    assert [line.source for line in flnb.creation_stack(y)] == [call]


def test_an_optimizer_of_the_user_s_has_its_own_lines() -> None:
    class Plain(flnb.optim.SGD):
        def update(self, data: Any, gradient: Any, state: Any, work: Any) -> None:
            flnb.assign(data, flnb.subtract(data, flnb.multiply(gradient, 0.1)))

    weight = nn.Parameter(flnb.ones(3))
    weight.grad = flnb.ones(3)
    optimizer = Plain([weight], lr=0.1)
    with flnb.record() as run:
        optimizer.step()
    assert ("flnb.assign(data, flnb.subtract(data, flnb.multiply(gradient, 0.1)))", "subtract") in sources(run, "op")


def test_an_error_in_a_layer_leaves_its_line_behind_for_no_other_op() -> None:
    layer, x = nn.Linear(3, 2), flnb.ones((2, 4))
    with flnb.record() as run:
        with pytest.raises(ValueError, match="linear"):
            layer(x)
        flnb.exp(x)
        assert bus.lanes is not None
        assert bus.lanes.lane.location is None
    assert ("flnb.exp(x)", "exp") in sources(run, "op")


def test_code_that_was_freed_passes_no_line_on() -> None:
    with flnb.record() as run:
        for i in range(200):  # the addresses of code objects are used again
            exec(compile(f"flnb.exp(flnb.ones({i + 1}))", f"/project/f{i}.py", "exec"), {"flnb": flnb})
    rows = {row.key for row in run.ops.by("line", "op", "shape") if row.key[1] == "exp"}
    assert rows == {(f"f{i}.py:1", "exp", f"{i + 1}") for i in range(200)} | set()


def test_threads_have_lines_of_their_own() -> None:
    def work(op: Any) -> None:
        for _ in range(300):
            op(x)

    x = flnb.ones(3)
    with flnb.record() as run:
        threads = [threading.Thread(target=work, args=[lambda x, op=op: op(x)]) for op in (flnb.exp, flnb.sin)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {row.key[0]: row.count for row in run.ops.by("op", "line")} == {"exp": 300, "sin": 300}


def test_a_recording_that_runs_already_gets_them_from_then_on() -> None:
    with flnb.record() as run:
        flnb.ones(3)
        with flnb.creation_stacks("full"):
            inner(flnb.ones(3))
        flnb.ones(3)
    assert sorted(row.key[0].count("\n") for row in run.ops.by("stack")) == [0, 0, 0, 1]  # ones, ones, ones, exp


def test_a_deferred_op_has_the_stack_of_where_it_was_recorded() -> None:
    with flnb.use_backend("deferred"), flnb.record(stacks=True) as run:
        y = inner(flnb.asarray([0.0]))
        assert y.tolist() == [1.0]
        assert bus.lanes is not None
        assert not intern.contexts.items[bus.lanes.lane.context].line  # what is computed later leaves no stack behind
    line = next(line for op, line in (row.key for row in run.ops.by("op", "line")) if op == "exp")
    assert line.endswith(": return flnb.exp(x)")


def test_a_notebook_s_cell_ends_the_stack() -> None:
    source = "def f(frame):\n    return frame()\nfound = f(frame)\n"
    name = "/tmp/ipykernel_7/123.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {"frame": lambda: flnb.exp(flnb.ones(2))}
    with flnb.record(stacks=True) as run:
        exec(compile(source, name, "exec"), space)
    (stack,) = next(row.key for row in run.ops.by("stack") if "exp" in row.key[0])
    assert stack.split("\n")[1:] == ["from cell:2: return frame()", "from cell:3: found = f(frame)"]
    assert "ipykernel" not in stack


def test_frames_of_libraries_are_left_out() -> None:
    class Formatter(json.JSONEncoder):
        def default(self, o: Any) -> Any:
            import sys

            self.frames = [code.co_name for code, _ in user_frames(sys._getframe())]
            return None

    encoder = Formatter()
    encoder.encode(object())
    assert encoder.frames == ["default", "test_frames_of_libraries_are_left_out"]


def test_owners_by_what_is_unknown_are_refused() -> None:
    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
        pass
    with pytest.raises(ValueError, match=r"run\.memory: cannot group by colour; expected one or more of category, op"):
        run.memory.by("colour")
    assert repr(run.memory.by("op")) == "no live blocks"


def test_an_out_of_memory_report_says_the_line_of_blocks() -> None:
    small = flnb.memory.Caching(device=flnb.memory.HostDevice(capacity=4 << 20))
    with flnb.use_memory_manager(small), flnb.record(stacks=True):
        held = [inner(flnb.ones((256, 1024)))]
        with pytest.raises(flnb.OutOfMemoryError) as caught:
            for _ in range(9):
                held.append(inner(held[-1]))
    assert {blocker.line.split(": ", 1)[1] for blocker in caught.value.report.blockers} == {"return flnb.exp(x)"}
