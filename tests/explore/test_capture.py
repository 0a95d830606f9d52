"""Recordings that keep inputs: any op runs again, in a fresh namespace, to the same bits."""

import contextlib
import io
import sys

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.optim import Adam


def cnn_training_steps(steps=2):
    """Forward, backward and optimizer of a small CNN."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )
    optimizer, loss_of = Adam(net.parameters(), lr=1e-2), nn.CrossEntropyLoss()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net(flnb.random.normal((8, 1, 7, 7))), flnb.asarray(np.arange(8))).backward()
        optimizer.step()


def reopened(code):
    """Run code as a cell of a fresh notebook would; what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {"__name__": "__main__"})
    return said.getvalue()


def test_200_random_ops_of_cnn_training_reopen_bit_for_bit(tmp_path):
    with flnb.record(inputs=True) as run:
        cnn_training_steps()
    recorded = len(run.table("op")["t0"])
    assert len(run.calls.rows()) == recorded >= 200
    chosen = np.random.default_rng(0).permutation(recorded)[:200].tolist()
    same = 0
    for i in chosen:
        path = tmp_path / f"{i}.npz" if i % 4 == 0 else None  # some from a file, as another kernel would
        same += "the same bits as recorded: True" in reopened(run.calls[i].to_code(path))
    print(f"{same} of {len(chosen)} ops reopened bit for bit, of {recorded} recorded")
    assert same == 200
    phases = {run.calls[i].phase for i in chosen}
    assert {"backward", "optimizer"} <= phases
    names = {run.calls[i].op for i in chosen}
    assert {"conv2d", "conv2d_weight_grad", "max_pool2d_grad", "sqrt", "matmul"} <= names


def test_an_op_knows_where_it_ran():
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with flnb.record("where", inputs=True) as run:
        net(flnb.ones((1, 3)))
    [matmul] = [op for op in run.calls if op.op == "matmul"]
    assert matmul.scope == "sequential.0"
    assert "test_capture.py:" in matmul.line
    assert matmul.line.endswith("net(flnb.ones((1, 3)))")
    assert repr(matmul).startswith(f"op {matmul.index}: matmul(float32[1,3], float32[3,2] strided)")
    assert run.calls.last("matmul") is run.calls.last("matmul", "sequential.0") is matmul
    assert run.calls.last("matmul", "elsewhere") is None


def test_inputs_are_those_before_a_write_in_place():
    x = flnb.asarray([1.0, 2.0])
    with flnb.record(inputs=True) as run:
        x += 1.0
        x += 1.0
    assert [op.arrays()[0].tolist() for op in run.calls] == [[1.0, 2.0], [2.0, 3.0]]
    assert [op.again().tolist() for op in run.calls] == [[2.0, 3.0], [3.0, 4.0]]


def test_layouts_are_kept():
    x = flnb.asarray(np.arange(12.0).reshape(3, 4))
    with flnb.record(inputs=True) as run:
        flnb.sum(x.T[::2], axis=0)
    assert run.calls[-1].op == "sum"
    assert run.calls[-1].arrays()[0].strides == (16, 32)


def test_random_ops_reopen_to_the_numbers_they_drew():
    with flnb.record(inputs=True) as run:
        flnb.random.normal((5,))
        drawn = flnb.random.uniform((3,), -1.0, 1.0)
    assert run.calls[1].again().tolist() == drawn.tolist()
    assert "True" in reopened(run.calls[1].to_code())


def test_another_result_is_told():
    class Other(flnb.backends.NumpyBackend):
        def exp(self, x, out=None):
            return np.multiply(np.exp(x), 1.0001, out)

    with flnb.record(inputs=True) as run:
        flnb.exp(flnb.ones((3,)))
    with flnb.use_backend(Other):
        assert "the same bits as recorded: False" in reopened(run.calls[1].to_code())


def test_beyond_its_limit_nothing_is_kept_and_that_is_told():
    x, y = flnb.ones((1000,)), flnb.ones((4,))
    told = pytest.warns(RuntimeWarning, match=r"of 1 not: beyond 1.00 KiB; give a larger inputs_limit")
    with told, flnb.record(inputs=True, inputs_limit="1KiB") as run:
        flnb.exp(y)
        flnb.exp(x)
        flnb.exp(y)
    assert run.calls.nbytes == 16
    assert "inputs of 2 ops kept (16 B), of 1 not: beyond 1.00 KiB" in repr(run)
    assert run.calls[2].op == "exp"
    with pytest.raises(IndexError, match=r"op 1 cannot be opened: the inputs of 1 ops did not fit into 1.00 KiB"):
        run.calls[1]


def test_equal_memory_is_kept_once():
    x = flnb.ones((1000,))
    with flnb.record(inputs=True) as run:
        for _ in range(5):
            flnb.exp(x)
    assert run.calls.nbytes == 4000


def test_without_inputs_the_way_to_keep_them_is_told():
    with flnb.record() as run:
        flnb.ones((2,))
    with pytest.raises(LookupError, match=r"record with flnb.record\(inputs=True\)"):
        run.calls[0]
    assert run.ops["full"].count == 1


def test_ops_are_rows_and_calls_single_ops_however_they_are_asked():
    with flnb.record(inputs=True) as run:
        x = flnb.ones((2,))
        for _ in range(3):
            x = flnb.exp(x)
    assert {row.key[0]: row.count for row in run.ops} == {"full": 1, "exp": 3}
    assert [run.ops[i] for i in range(len(run.ops))] == list(run.ops) == run.ops[:]
    assert run.ops[-1] == list(run.ops)[-1]
    assert [run.calls[i] for i in range(len(run.calls))] == list(run.calls)
    assert [op.op for op in run.calls] == ["full", "exp", "exp", "exp"]
    with pytest.raises(IndexError):
        run.ops[2]


def test_a_recording_that_is_gone_is_told():
    with flnb.record(inputs=True) as run:
        flnb.exp(flnb.ones((2,)))
    code = run.calls[1].to_code()
    del run
    with pytest.raises(LookupError, match="is not in this process"):
        reopened(code)


def test_a_file_of_inputs_that_is_not_whole_is_named(tmp_path):
    with flnb.record(inputs=True) as run:
        flnb.asarray([1.0, 2.0]) + 1.0
    path = tmp_path / "op.npz"
    run.calls[-1].to_code(path)
    whole = path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["op.npz"]
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"op.npz does not contain the inputs of an op.*write it again"):
            flnb.explore.inputs_of(path)
    np.savez(path, layout0=[0, 0, 1 << 40, 4], memory0=np.zeros(8, np.uint8), dtype0=np.array("float32"))
    with pytest.raises(ValueError, match="does not contain the inputs"):  # a layout that leaves its memory
        flnb.explore.inputs_of(path)
    np.savez(path, a=np.array([object()], dtype=object), b=[1], c=[2])
    with pytest.raises(ValueError, match="does not contain the inputs"):  # a pickle, which is not opened
        flnb.explore.inputs_of(path)


def test_only_npz_files_are_written():
    with flnb.record(inputs=True) as run:
        flnb.exp(flnb.ones((2,)))
    with pytest.raises(ValueError, match=r"the path must end in .npz, got 'op.bin'"):
        run.calls[1].to_code("op.bin")


def test_opening_a_cell_needs_a_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    with flnb.record(inputs=True) as run:
        flnb.exp(flnb.ones((2,)))
    with pytest.raises(RuntimeError, match=r"is not running in a notebook; the code is\n\n# exp of test_capture"):
        run.calls[1].open_in_cell()


def test_an_op_opens_in_the_next_cell():
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactiveshell.InteractiveShell.instance()
    with flnb.record(inputs=True) as run:
        flnb.exp(flnb.ones((2,)))
    run.calls[1].open_in_cell()
    assert shell.rl_next_input == run.calls[1].to_code()
    assert "the same bits as recorded: True" in reopened(shell.rl_next_input)


def test_a_recording_that_is_gone_says_how_to_keep_inputs():
    with pytest.raises(LookupError, match=r"recording 0 is not in this process .* run\.calls\[3\]\.to_code"):
        flnb.explore.inputs_of(0, 3)
