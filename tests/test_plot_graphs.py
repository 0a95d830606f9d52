"""Programs and tapes as graphs: what ran, in which order, what was computed from what."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, record

import flnb
from flnb import plot
from flnb.show import programgraph, tapegraph
from tests.plotted import jitted, op, plotted


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bus, "announcers", [])
    return plotted()


def test_a_program_is_a_graph_of_calls_and_values() -> None:
    f = jitted(fuse=False)
    text = str(f.programs[0]).splitlines()
    source = plot.graph(f).source.replace("\\n", "\n")
    calls = [line.partition("(")[0] for line in text]
    assert len(calls) >= 5
    for i, (name, line) in enumerate(zip(calls, text, strict=True)):
        assert f"#{i} {name}" in source
        assert line.rpartition("-> ")[2].split(" ", 2)[2] in source, "where it is stored"
    assert "input 0\n4×3 float32" in source
    assert "in place, 24 B" in source
    assert "result 0\nscalar float32" in source
    assert {"n1 -> n2", "n0 -> n1"} <= lines_of(source)
    assert plot.graph(f.programs[0]).source.count("->") == source.count("->")


def test_a_kernel_is_a_box_of_its_ops() -> None:
    f = jitted()
    if all("kernel" not in str(program) for program in f.programs):
        pytest.skip("no llvmlite: nothing is fused")
    source = plot.graph(f).source.replace("\\n", "\n")
    box = source[source.index("subgraph") : source.index("}")]
    assert "kernel of 3 ops" in box
    assert all(name in box for name in ("exp\n4×2", "multiply(·, 2)", "sum"))
    assert {"n1_0 -> n1_1", "n1_1 -> n1_2", "n0 -> n1_0"} <= lines_of(source)
    f(flnb.ones((2, 3)))
    f(flnb.ones((2, 3)))
    both = plot.graph(f).source
    assert both.count("cluster_program") == len(f.programs) == 2
    assert "p0n1_0 -> p0n1_1" in both
    assert "p1n1_0 -> p1n1_1" in both


def test_parameters_have_names_and_what_the_user_computes_a_heavy_border() -> None:
    class Mine(flnb.backends.NumpyBackend):
        def exp(self, x: Any, out: Any = None) -> Any:
            return np.exp(x, out)

    model = flnb.nn.Linear(3, 2)
    f = flnb.jit(lambda x: flnb.exp(model(x)))
    with flnb.use_backend(Mine):
        f(flnb.ones((4, 3)))
        f(flnb.ones((4, 3)))
    nodes = [node.replace("\n", " ") for node in plot.graph(f).source.split("\n\t")]
    assert any("weight 2×3 float32" in node for node in nodes)
    heavy = [node for node in nodes if "penwidth=4" in node]
    assert len(heavy) == 1
    assert "exp" in heavy[0]


def test_of_a_long_program_kernels_are_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jitted()
    monkeypatch.setattr(programgraph, "MOST_OPS", 2)
    source = plot.graph(f).source
    assert "more than 2 ops: each kernel is one node" in source
    assert "subgraph" not in source


def test_what_was_not_captured_is_not_drawn() -> None:
    def double(x: Any) -> Any:
        return x + x

    f = flnb.jit(double)
    message = r"flnb.plot.graph: nothing of double was captured yet: call it twice with arguments of the same shapes"
    with pytest.raises(ValueError, match=message):
        plot.graph(f)
    f(flnb.ones(3))
    with pytest.raises(ValueError, match=message):
        plot.graph(f)
    with pytest.raises(TypeError, match=r"expected a function wrapped by flnb.jit or its program, got function"):
        plot.graph(double)


def test_drawing_a_program_without_dot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = plot.graph(jitted())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"flnb.plot.graph: drawing needs graphviz's `dot` program"):
        graph.render()
    assert "exp" in graph._repr_mimebundle_()["text/html"]


def lines_of(source: str) -> set[str]:
    return {line.strip() for line in source.splitlines()}


def test_the_tape_is_a_graph_of_ops_and_leaves(run: Any) -> None:
    source = plot.tape(run).source
    assert {"n1 -> n2", "n2 -> n3", "leaf1 -> n1", "leaf2 -> n1"} <= lines_of(source)
    assert "conv2d\nnet.conv\n" in source.replace("\\n", "\n")
    assert "conv.weight" in source
    assert "|grad| 2.00, 4 NaN/Inf" in source
    assert "forward 2.00 ms" in source
    assert "log\\\\odd" in source
    assert plot.tape(run.tape.step(0)).source == source


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stem of two ops, four equal blocks of an op and a module of two, and a loss; every op reads the one before."""
    monkeypatch.setattr(bus, "announcers", [])
    ops = [("net.stem", "conv2d"), ("net.stem", "relu")]
    for i in range(4):
        ops += [(f"net.blocks.{i}", "norm"), (f"net.blocks.{i}.lin", "matmul"), (f"net.blocks.{i}.lin", "add")]
    with record("deep") as run:
        for number, (scope, name) in enumerate([*ops, ("loss", "sum")], start=1):
            with bus.scope(scope):
                op(name, "elementwise", time.perf_counter_ns(), 1000, number, (number - 1 or -1, -1 - number))
    return run


def test_modules_deeper_than_asked_are_one_node(deep: Any) -> None:
    closed = plot.tape(deep, depth=0).source
    assert "cluster" not in closed
    assert "blocks.0–3 ×4" in closed
    assert {"n2 -> n14", "n14 -> n15"} <= lines_of(closed)
    assert "12 ops" in closed
    assert "matmul" not in closed
    one = plot.tape(deep.tape, depth=1).source
    assert "cluster_/stem#0" in one
    assert {"n1 -> n2", "n2 -> n14"} <= lines_of(one)
    full = plot.tape(deep).source
    assert full.index("cluster_/*2") < full.index("cluster_/*2/blocks.1#0") < full.index("cluster_/*2/blocks.1#0/lin#0")
    assert {f"n{i} -> n{i + 1}" for i in range(1, 15)} <= lines_of(full)


def test_of_a_long_tape_what_can_be_read_is_drawn(monkeypatch: pytest.MonkeyPatch, deep: Any) -> None:
    monkeypatch.setattr(tapegraph, "NODES", 8)
    source = plot.tape(deep).source
    assert "modules beyond 8 things are left closed" in source
    assert "matmul" not in source


@pytest.mark.parametrize("depth", [-1, 1.5, True, "all"])
def test_a_depth_is_a_number_of_levels(run: Any, depth: Any) -> None:
    with pytest.raises(ValueError, match=r"got depth=.*; expected a number of levels, 0 or more, or None"):
        plot.tape(run, depth=depth)


def test_drawing_without_dot_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = plot.tape(run)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"needs graphviz's `dot` program.*apt install graphviz"):
        graph.pipe(format="svg")
    bundle = graph._repr_mimebundle_()
    assert "apt install graphviz" in bundle["text/plain"]
    assert "conv2d" in bundle["text/html"]
