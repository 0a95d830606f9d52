"""Where a node was made: the user's line, found without keeping frames; whole stacks on request."""

import pytest

import flnb
from flnb import nn


def line_of(y):
    (line,) = flnb.creation_stack(y)
    return line


def test_every_kind_of_op_remembers_the_line_that_called_it():
    x = flnb.Variable([[1.0, 2.0]])
    made = {
        "unary": flnb.exp(x),
        "operator": x * 2.0,
        "reflected": 2.0 * x,
        "attributes": x.reshape((2, 1)),
        "composite": flnb.softmax(x, 1),
        "first call of its kind": flnb.log1p(x),
        "module": nn.Linear(2, 3)(x),
    }
    start = line_of(made["unary"]).line
    assert [line_of(y).line - start for y in made.values()] == list(range(7))
    assert line_of(made["module"]).source == '"module": nn.Linear(2, 3)(x),'
    assert line_of(made["unary"]).file == __file__
    assert line_of(made["unary"]).function == "test_every_kind_of_op_remembers_the_line_that_called_it"


def test_a_line_in_a_cell_has_its_source():
    import linecache

    source = "def double(x):\n    return x * 2.0\n"
    linecache.cache["<cell 7>"] = (len(source), None, source.splitlines(True), "<cell 7>")
    space = {}
    exec(compile(source, "<cell 7>", "exec"), space)
    assert str(line_of(space["double"](flnb.Variable([1.0])))) == "<cell 7>:2: return x * 2.0"


def test_a_cell_of_a_notebook_is_named_without_its_temporary_path():
    import linecache

    name, source = "/tmp/ipykernel_7/123.py", "def product(a, b):\n    return a @ b\n"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {}
    exec(compile(source, name, "exec"), space)
    w = flnb.Variable([[1.0, 2.0], [3.0, 4.0]])
    with flnb.record(grad_interval=0) as run:
        y = space["product"](w, w)
        y.sum().backward()
    assert str(line_of(y)) == line_of(y).brief == "cell:2: return a @ b"
    assert next(node.line for node in run.tape.nodes if node.op == "matmul") == "cell:2: return a @ b"
    with pytest.raises(ValueError, match="inner extents") as caught:
        space["product"](w, flnb.ones((3, 2)))
    assert caught.value.__notes__[0].endswith("called at cell:2: return a @ b")


def test_whole_stacks_on_request():
    def inner(x):
        return flnb.relu(x)

    def outer(x):
        return inner(x) + 1.0

    x = flnb.Variable([1.0])
    with flnb.creation_stacks("full"):
        stack = flnb.creation_stack(outer(x))
    assert [line.function for line in stack] == ["outer", "test_whole_stacks_on_request"]  # without pytest's frames
    with flnb.creation_stacks("full"):
        names = [line.function for line in flnb.creation_stack(inner(x))[:2]]
    assert names == ["inner", "test_whole_stacks_on_request"]
    assert len(flnb.creation_stack(outer(x))) == 1
    with pytest.raises(ValueError, match="creation_stacks: got 'all', expected 'full' or 'line'"):
        flnb.creation_stacks("all")


def test_a_leaf_and_a_result_off_the_tape_have_no_stack():
    x = flnb.Variable([1.0])
    assert flnb.creation_stack(x) == []
    assert flnb.creation_stack(x.detach() * 2.0) == []


def test_a_cell_is_named_by_its_number():
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell("import flnb\nx = flnb.Variable([1.0])", store_history=True)
    number = shell.execution_count
    with flnb.record() as run:
        shell.run_cell("def f(x):\n    return x * 3.0\ny = f(x)", store_history=True)
        shell.run_cell("z = f(y)\nflnb.reshape(z, (2,))", store_history=True)
    assert {row.key[0] for row in run.ops.by("line")} == {f"In [{number}]:2: return x * 3.0"}
    assert str(flnb.creation_stack(shell.user_ns["z"])[0]) == f"In [{number}]:2: return x * 3.0"
    (failed,) = run.to_pandas("op_failed").line
    assert failed == f"In [{number + 1}]:2: flnb.reshape(z, (2,))"
    InteractiveShell.clear_instance()


def test_the_stack_of_what_is_no_variable():
    assert flnb.creation_stack(flnb.ones(1)) == []
    with pytest.raises(TypeError, match=r"flnb\.creation_stack: expected a Variable, got 3"):
        flnb.creation_stack(3)
