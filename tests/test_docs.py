"""Every public name is documented for a stranger to the code: docstring, signature, an example that runs."""

import doctest
import inspect
import pydoc

import pytest

import flnb

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
