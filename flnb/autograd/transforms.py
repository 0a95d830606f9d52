"""Functions that return derivatives of functions: gradients, products with Jacobians and Hessians, whole Jacobians.

All of them nest in each other and in `vmap`. A derivative computed inside another transform, or of arguments that are
on the tape already, is on the tape itself; at the outermost level the results are plain Tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import reduce, wraps
from operator import add
from typing import Any

from flnb_telemetry.withblock import holding, with_block

from flnb.autograd.batched import Batched, enclose, expose, wrap
from flnb.autograd.tape import grad_of
from flnb.autograd.tree import leaves, rebuild
from flnb.autograd.variable import Variable
from flnb.autograd.vmap import vmap
from flnb.dispatch import state
from flnb.ops.creation import asarray, eye, ones_like, zeros_like
from flnb.ops.elementwise import conj
from flnb.ops.movement import permute_dims, reshape
from flnb.tensor import Tensor

__all__ = ["grad", "hessian", "hvp", "jacobian", "jvp", "stop_gradient", "value_and_grad", "vjp"]

_depth: ContextVar[int] = ContextVar("flnb_transforms", default=0)
"""How many transforms differentiate here, one inside the other."""


@with_block
def _differentiate() -> Iterator[bool]:
    """Record gradients; yields whether another transform is around this one."""
    depth = _depth.get()
    with holding(_depth, depth + 1), state.use(grad=True):
        yield depth > 0


def _place(x: Any) -> Any:
    """A tensor at a place of its own on the tape: a view of one that is on it, else a new leaf, one per example."""
    x = wrap(asarray(x))
    if x._node is not None:
        return permute_dims(x, range(x.ndim))
    return _leaf(x)


def _leaf(x: Any) -> Any:
    return Batched(_leaf(x._value), x._level) if x._level is not None else Variable(x)


def _on_tape(trees: Any) -> bool:
    return any(getattr(x, "_node", None) is not None for x in leaves(trees))


def _plain(x: Any) -> Any:
    return x.data if isinstance(x, (Variable, Batched)) else x


def _pull_back(
    outputs: list[Any], inputs: list[Any], cotangents: list[Any], create_graph: bool, retain: bool = False
) -> list[Any]:
    """The cotangents of inputs (from `_place`) from those of outputs; None where none arrives."""
    level = inputs[0]._level if inputs else None
    if level is not None:  # each example's gradient: the batch is one more axis of everything
        here = [expose(x, level) for x in (*outputs, *inputs, *cotangents)]
        ends = len(outputs), len(outputs) + len(inputs)
        found = _pull_back(here[: ends[0]], here[ends[0] : ends[1]], here[ends[1] :], create_graph, retain)
        return [None if g is None else enclose(g, level) for g in found]
    pairs = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y._node is not None]
    if not pairs:
        return [None] * len(inputs)
    if len(pairs) == 1:
        return grad_of(pairs[0][0], inputs, pairs[0][1], retain_graph=retain, create_graph=create_graph)
    return grad_of(_inner(*zip(*pairs, strict=True)), inputs, None, retain_graph=retain, create_graph=create_graph)


def _inner(left: Any, right: Any) -> Any:
    """The sum of the products of two lists of tensors, the second conjugated.

    A cotangent of z = x + iy is dL/dx + i dL/dy, so that dL is the real part of the sum of dz times its conjugate.
    """
    return reduce(add, [(a * (conj(b) if b.dtype.kind == "c" else b)).sum() for a, b in zip(left, right, strict=True)])


def _finish(gradients: list[Any], inputs: list[Any], nested: bool) -> list[Any]:
    """Zeros where no gradient arrived; plain Tensors unless they are to be differentiated again."""
    filled = [zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]
    return filled if nested else [_plain(g) for g in filled]


def _results(value: Any, name: str) -> list[Any]:
    """The tensors that a function returned."""
    found = leaves(value)
    for y in found:
        if not isinstance(y, Tensor):
            raise TypeError(
                f"{name}: the function must compute tensors from its arguments, it returned {type(y).__name__}"
            )
    if not found:
        raise TypeError(f"{name}: the function returned nothing; end it with `return`")
    return found


def _number(value: Any, name: str) -> Any:
    """The one number that a function must return."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: the function must compute a Variable from its arguments, it returned {type(value).__name__}"
        )
    if value.size != 1:
        raise ValueError(
            f"{name}: the function must return one number, it returned shape {value.shape}; reduce it (.sum(), "
            f".mean()), or use flnb.jacobian or flnb.vjp"
        )
    return value


def _tangents(what: str, name: str, given: Any, like: Any, tensors: list[Any]) -> list[Any]:
    """Vectors that must match tensors in container, shape and (by a cast) dtype."""
    found = leaves(given)
    if len(found) != len(tensors):
        raise ValueError(f"{name}: {what} must be like {_shapes(leaves(like))}, got {_shapes(found)}")
    vectors = [asarray(v, dtype=x.dtype) for v, x in zip(found, tensors, strict=True)]
    for i, (v, x) in enumerate(zip(vectors, tensors, strict=True)):
        if v.shape != x.shape:
            raise ValueError(f"{name}: {what} {i} must have shape {x.shape}, got {v.shape}")
    return vectors


def _shapes(tensors: list[Any]) -> str:
    return f"{len(tensors)} tensors of shapes {', '.join(str(tuple(getattr(x, 'shape', ()))) for x in tensors)}"


def _function_of(
    function: Callable[..., Any], positions: tuple[int, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Callable[..., Any]:
    """The function of the arguments at these positions alone; the others are fixed."""

    def of(*chosen: Any) -> Any:
        full = list(arguments)
        for i, x in zip(positions, chosen, strict=True):
            full[i] = x
        return function(*full, **keywords)

    return of


def _evaluate(function: Callable[..., Any], primals: Any) -> tuple[list[Any], Any]:
    """Inputs on the tape and the function's value, for a tuple of primals or one."""
    inputs = [_place(x) for x in leaves(primals)]
    arguments = rebuild(primals, inputs)
    return inputs, function(*arguments) if isinstance(primals, (tuple, list)) else function(arguments)


def value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Make a function that returns the value of ``function`` and its gradients by the arguments in ``argnums``.

    Args:
        function: returns one number; or, with ``has_aux``, a pair of that and anything else.
        argnums: positions of the arguments to differentiate by: tensors, or dicts, lists and tuples of them. For one
            int the gradient is arranged like its argument, for several it is a tuple of such.
        has_aux: the first result is then the pair ``(number, anything else)``.

    >>> import flnb
    >>> value, gradient = flnb.value_and_grad(lambda x: (x * x).sum())(flnb.asarray([3.0]))
    >>> value.item(), gradient.tolist()
    (9.0, [6.0])

    Raises:
        TypeError: arguments that are no floating-point tensors; a function that returns no tensor.
        ValueError: a function that returns more than one number.
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(function, updated=())
    def differentiated(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        if any(not -len(arguments) <= i < len(arguments) for i in positions):
            raise ValueError(f"grad: argnums {argnums} do not fit a call with {len(arguments)} positional arguments")
        trees = tuple(arguments[i] for i in positions)
        with _differentiate() as inside:
            nested = inside or _on_tape(trees)
            inputs, result = _evaluate(_function_of(function, positions, arguments, keywords), trees)
            value, aux = result if has_aux else (result, None)
            found = _pull_back([_number(value, "grad")], inputs, [ones_like(value)], create_graph=nested)
            gradients = rebuild(trees, _finish(found, inputs, nested))
        value = value if nested else _plain(value)
        if has_aux:
            value = value, aux if nested else rebuild(aux, [_plain(x) for x in leaves(aux)])
        return value, gradients[0] if isinstance(argnums, int) else tuple(gradients)

    return differentiated


def grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that returns the gradient of ``function``, which returns one number.

    With ``has_aux`` it returns ``(gradient, aux)``. Arguments and errors are those of `value_and_grad`.

    >>> import flnb
    >>> second = flnb.grad(flnb.grad(lambda x: x * x * x))
    >>> second(flnb.asarray(2.0)).item()
    12.0
    """
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function, updated=())
    def gradient(*arguments: Any, **keywords: Any) -> Any:
        value, found = both(*arguments, **keywords)
        return (found, value[1]) if has_aux else found

    return gradient


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of a function and its vector-Jacobian product: ``(function(*primals), pull)``.

    ``pull(cotangent)`` returns the tuple of ``cotangent^T J``, one for each primal. It may be called any number of
    times, with a cotangent arranged and shaped like the value.

    >>> import flnb
    >>> value, pull = flnb.vjp(lambda x, y: x * y, flnb.asarray([1.0, 2.0]), flnb.asarray([3.0, 4.0]))
    >>> [g.tolist() for g in pull(flnb.asarray([1.0, 10.0]))]
    [[3.0, 40.0], [1.0, 20.0]]

    Raises:
        TypeError: primals that are no floating-point tensors; a function that returns no tensors.
        ValueError: a cotangent that is not like the value.
    """
    with _differentiate() as inside:
        nested = inside or _on_tape(primals)
        inputs, value = _evaluate(function, primals)
        outputs = _results(value, "vjp")

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = _tangents("cotangent", "vjp", cotangent, value, outputs)
        with _differentiate() as inside:
            again = nested or inside or _on_tape(given)
            gradients = _finish(_pull_back(outputs, inputs, given, again, True), inputs, again)
        return rebuild(primals, gradients)  # type: ignore[no-any-return]

    return (value if nested else rebuild(value, [_plain(y) for y in outputs])), pull


def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The value of a function and its directional derivative: ``(function(*primals), J tangents)``, arranged alike.

    Derived from the gradients: a vjp is linear in its cotangent, and its own vjp is the jvp (J. Townsend, "A new trick
    for calculating Jacobian vector products", 2017). It costs about three evaluations.

    Args:
        function: takes the primals.
        primals: a tuple of arguments, or one tensor.
        tangents: the direction, arranged like the primals.

    >>> import flnb
    >>> value, tangent = flnb.jvp(lambda x: x * x, flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 0.5]))
    >>> tangent.tolist()
    [2.0, 2.0]

    Raises:
        TypeError: primals that are no floating-point tensors; a function that returns no tensors.
        ValueError: tangents that are not like the primals.
    """
    with _differentiate() as inside:
        nested = inside or _on_tape((primals, tangents))
        inputs, value = _evaluate(function, primals)
        outputs = _results(value, "jvp")
        directions = _tangents("tangents", "jvp", tangents, primals, inputs)
        probes = [_place(zeros_like(y)) if y._node is not None else zeros_like(y) for y in outputs]
        linear = _pull_back(outputs, inputs, probes, create_graph=True)
        found = _project(linear, directions, [p for p in probes if p._node is not None], nested)
        pushed = iter(found)
        out = _finish([next(pushed) if p._node is not None else None for p in probes], outputs, nested)
    return (value if nested else rebuild(value, [_plain(y) for y in outputs])), rebuild(value, out)


def _project(gradients: list[Any], directions: list[Any], inputs: list[Any], nested: bool) -> list[Any]:
    """The derivative by inputs of gradients projected on directions."""
    pairs = [(g, v) for g, v in zip(gradients, directions, strict=True) if g is not None]
    if not pairs or not inputs:
        return [None] * len(inputs)
    total = _inner(*zip(*pairs, strict=True))
    return _pull_back([total], inputs, [ones_like(total)], create_graph=nested)


def hvp(function: Callable[..., Any], primals: Any, vectors: Any) -> Any:
    """The Hessian of a function of one number, times vectors, without ever computing the Hessian.

    Args:
        function: takes the primals, returns one number.
        primals: a tuple of arguments, or one tensor.
        vectors: arranged like the primals, and so is the result.

    >>> import flnb
    >>> flnb.hvp(lambda x: (x * x * x).sum(), flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 1.0])).tolist()
    [6.0, 12.0]

    Raises:
        TypeError, ValueError: as for `grad`, and vectors that are not like the primals.
    """
    with _differentiate() as inside:
        nested = inside or _on_tape((primals, vectors))
        inputs, value = _evaluate(function, primals)
        directions = _tangents("vectors", "hvp", vectors, primals, inputs)
        first = _pull_back([_number(value, "hvp")], inputs, [ones_like(value)], create_graph=True)
        products = _finish(_project(first, directions, inputs, nested), inputs, nested)
    return rebuild(primals, products)


def jacobian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Make a function that returns all derivatives of all results of ``function``.

    For a result y and an argument x they have shape y.shape + x.shape. One forward pass, and one backward pass of all
    rows together (`vmap` of the vjp). Arguments and results may be dicts, lists and tuples: each result is replaced by
    its derivatives, arranged like the argument (like a tuple of them for several ``argnums``).

    >>> import flnb
    >>> flnb.jacobian(lambda x: x * x)(flnb.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]

    Raises:
        TypeError: arguments that are no floating-point tensors; a function that returns no tensors.
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(function, updated=())
    def derivatives(*arguments: Any, **keywords: Any) -> Any:
        trees = tuple(arguments[i] for i in positions)
        with _differentiate() as inside:
            nested = inside or _on_tape(trees)
            inputs, value = _evaluate(_function_of(function, positions, arguments, keywords), trees)
            blocks = []
            for y in _results(value, "jacobian"):
                found = rebuild(trees, _rows(y, inputs, nested))
                blocks.append(found[0] if isinstance(argnums, int) else found)
        return rebuild(value, blocks)

    return derivatives


def _rows(y: Any, inputs: list[Any], nested: bool) -> list[Any]:
    """The derivatives of one result by each input."""
    basis = reshape(eye(y.size, dtype=y.dtype), (y.size, *y.shape))
    rows = vmap(lambda u: _finish(_pull_back([y], inputs, [u], nested, True), inputs, nested))(basis)
    return [reshape(r, (*y.shape, *x.shape)) for r, x in zip(rows, inputs, strict=True)]


def hessian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Make a function that returns all second derivatives of ``function``, which returns one number.

    They have shape x.shape + x.shape; with several ``argnums`` they are a tuple (by the first derivative) of tuples (by
    the second).

    >>> import flnb
    >>> flnb.hessian(lambda x: (x * x * x).sum())(flnb.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]

    Raises:
        TypeError, ValueError: as for `grad`.
    """
    return jacobian(grad(function, argnums), argnums)


def stop_gradient(x: Any) -> Any:
    """The same values without gradient flow: tensors, or dicts, lists and tuples of them; memory is shared.

    >>> import flnb
    >>> flnb.grad(lambda x: x * flnb.stop_gradient(x))(flnb.asarray(3.0)).item()
    3.0
    """
    return rebuild(x, [v.detach() if isinstance(v, (Variable, Batched)) else v for v in leaves(x)])
