"""Every public name is documented for a stranger to the code: docstring, signature, an example that runs."""

import doctest
import inspect
import pydoc

import pytest

import flnb

pytestmark = pytest.mark.usefixtures("numpy_session")
OPS = [*flnb.ops.__all__, *(f"linalg.{name}" for name in flnb.linalg.__all__)]
OPS += [f"fft.{name}" for name in flnb.fft.__all__]


def resolve(path):
    found = flnb
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("exp", "(x: ArrayLike, /, *, out: Tensor | None = None) -> Tensor"),
        ("add", "(x1: ArrayLike, x2: ArrayLike, /, *, out: Tensor | None = None) -> Tensor"),
        ("softmax", "(x: ArrayLike, /, axis: int = -1) -> Tensor"),
        ("sum", "(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, "
                "dtype: DTypeLike = None) -> Tensor"),
        ("linalg.inv", "(x: ArrayLike, /) -> Tensor"),
        ("fft.fft", "(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = 'backward') -> Tensor"),
        ("nn.Linear", "(in_features: int, out_features: int, bias: bool = True) -> None"),
        ("Tensor.to", "(self, backend: str | type[TensorBackend] | TensorBackend) -> Tensor"),
        ("random.rand", "(*shape: int | Sequence[int], dtype: DTypeLike = None, generator: Generator | None = None) "
                        "-> Tensor"),
    ],
)  # fmt: skip
def test_signatures_are_shown_without_quotes(path, signature):
    assert str(inspect.signature(resolve(path))) == signature


@pytest.mark.parametrize("path", OPS)
def test_every_op_has_a_signature_with_types_and_examples_that_run(path):
    function = resolve(path)
    for parameter in inspect.signature(function).parameters.values():
        assert str(parameter.annotation) != "Any" or parameter.name == "generator"  # of a module above
        assert parameter.annotation is not parameter.empty
    tests = doctest.DocTestFinder(recurse=False).find(function, path, module=False, globs={})
    assert sum(len(test.examples) for test in tests) > 0
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        assert runner.run(test).failed == 0


def test_help_shows_an_elementwise_op_as_a_function_of_flnb():
    text = pydoc.plaintext.document(flnb.remainder)
    assert text.startswith("remainder(x1: ArrayLike, x2: ArrayLike, /, *, out: Tensor | None = None) -> Tensor\n")
    assert "Complex numbers are refused." in text
    with pytest.raises(TypeError, match=r"^exp\(\) missing 1 required positional argument: 'x'"):
        flnb.exp()


def public_names():
    """Every public function and class of `flnb` and its public modules, by the first path that leads to it."""
    found, waiting, seen = {}, [("flnb", flnb)], {flnb}
    while waiting:
        path, module = waiting.pop()
        for name in module.__all__:
            member = getattr(module, name)
            ours = getattr(member, "__module__", getattr(member, "__name__", "")).startswith("flnb")
            if inspect.ismodule(member) and hasattr(member, "__all__") and member not in seen:
                seen.add(member)
                waiting.append((f"{path}.{name}", member))
            elif callable(member) and ours:
                found.setdefault(member, f"{path}.{name}")
    return {path: member for member, path in found.items()}


PUBLIC = public_names()
NO_EXAMPLE_YET = {  # shrink it
    "flnb.data.cifar10",  # of a file to be downloaded
}  # fmt: skip


def check_first_line(text, path):
    first = text.strip().split("\n")[0]
    assert len(first) <= 116, f"{path}: the first line is too long"
    assert first.endswith((".", ":")), f"{path}: the first line is no sentence: {first}"
    if not path.startswith(("flnb.memory", "flnb.plot", "flnb.telemetry")):
        assert not first.startswith(("This ", "What ", "Gives ", "Tells ")), f"{path}: {first}"


def shown_by_its_module(member):
    """Whether the docstring of the module that defines it has an example with its name."""
    text = inspect.getmodule(member).__doc__ or ""
    return ">>> " in text and member.__name__ in text


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_every_public_name_has_a_docstring_whose_first_line_a_stranger_can_read(path):
    member = PUBLIC[path]
    text = vars(member).get("__doc__") if inspect.isclass(member) else inspect.getdoc(member)
    assert text, f"{path} has no docstring"
    check_first_line(text, path)


@pytest.mark.parametrize("path", sorted(p for p, member in PUBLIC.items() if not inspect.isclass(member)))
def test_every_public_function_has_an_example(path):
    shown = ">>> " in inspect.getdoc(PUBLIC[path]) or shown_by_its_module(PUBLIC[path])
    assert shown != (path in NO_EXAMPLE_YET), f"{path}: add an example, or take it off the list"


LIBRARY = ("flnb.nn.", "flnb.optim.", "flnb.data.", "flnb.meters.", "flnb.models.", "flnb.speech.", "flnb.vision.")


@pytest.mark.parametrize("path", sorted(path for path in PUBLIC if path.startswith(LIBRARY)))
def test_examples_of_the_library_can_be_pasted_into_an_empty_namespace(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(PUBLIC[path], path, module=False, globs={}):
        assert runner.run(test).failed == 0


BY_CLASS = ("forward",)  # documented by its class: x's and the result's shapes


@pytest.mark.parametrize("path", sorted(p for p, member in PUBLIC.items() if inspect.isclass(member)))
def test_every_public_method_has_a_docstring(path):
    """A method that overrides one of a base class inherits its docstring; those of a backend are the ops' own."""
    cls = PUBLIC[path]
    for name, member in vars(cls).items():
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        own = inspect.isfunction(inner) and inner.__qualname__ == f"{cls.__qualname__}.{name}"
        if name.startswith("_") or name in BY_CLASS or not own:  # not own: registered by another module
            continue
        text = inspect.getdoc(getattr(cls, name)) or getattr(flnb.dispatch.table.OPS.get(name), "name", "")
        assert text, f"{path}.{name} has no docstring"
