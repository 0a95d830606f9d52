"""Functions that return derivatives of functions: gradients, products with Jacobians and Hessians, whole Jacobians.

These functions can be nested in each other and in `vmap`. A derivative that is computed inside another transform, or
from arguments that require grad, is itself recorded on the tape. At the outermost level the results are plain Tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import reduce, wraps
from operator import add
from typing import Any

from flnb_telemetry.withblock import holding, with_block

from flnb.autograd.arguments import number_of, pair_of, results_of, vectors_of
from flnb.autograd.batched import Batched, rebatch, unbatch, wrap
from flnb.autograd.tape import grad_of
from flnb.autograd.tree import leaves, rebuild
from flnb.autograd.variable import Variable
from flnb.autograd.vmap import vmap
from flnb.dispatch import state
from flnb.ops.creation import asarray, eye, ones_like, zeros_like
from flnb.ops.elementwise import conj
from flnb.ops.movement import permute_dims, reshape

_depth: ContextVar[int] = ContextVar("flnb_transforms", default=0)
"""How many of this module's transforms enclose the running code."""


@with_block
def _differentiate() -> Iterator[bool]:
    """Record gradients inside the ``with`` block; yield whether the block runs inside another transform."""
    depth = _depth.get()
    with holding(_depth, depth + 1), state.use(grad=True):
        yield depth > 0


def _place(x: Any) -> Any:
    """Return a tensor with the values of ``x`` and a new node on the tape, at which the gradient will be read.

    The result is a view of ``x`` if x is on the tape, otherwise a new leaf (see `_leaf`).
    """
    x = wrap(asarray(x))
    return _leaf(x) if x._node is None else permute_dims(x, range(x.ndim))


def _leaf(x: Any) -> Any:
    """Return a new leaf with the values of ``x``; if x is a batched tensor of `vmap`, a batched tensor with a leaf."""
    return Variable(x) if x._level is None else Batched(_leaf(x._value), x._level)


def _on_tape(trees: Any) -> bool:
    """Return whether a container has a tensor that requires grad: a leaf, or the result of a recorded op."""
    return any(getattr(x, "_node", None) is not None for x in leaves(trees))


def _untaped(tree: Any, nested: bool) -> Any:
    """Return a container with plain Tensors in place of Variables; if ``nested``, return ``tree`` itself.

    ``nested`` says that an outer transform will differentiate the result.
    """
    return tree if nested else rebuild(tree, [x.data if isinstance(x, Variable | Batched) else x for x in leaves(tree)])


def _pull_back(
    outputs: list[Any], inputs: list[Any], cotangents: list[Any], create_graph: bool, retain: bool = False
) -> list[Any]:
    """Return the cotangents of ``inputs`` (made by `_place`), given those of ``outputs``: a vector-Jacobian product.

    Outputs that are None or not on the tape are ignored. The cotangent is None for an input without gradient.
    ``create_graph`` and ``retain`` say whether the pass is itself recorded, and whether another pass may follow.
    """
    level = inputs[0]._level if inputs else None
    pairs = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y is not None and y._node is not None]
    if not pairs:
        return [None] * len(inputs)
    if level is not None:  # each example's gradient: the batch is one more axis of everything
        outputs, cotangents = ([unbatch(x, level) for x in side] for side in zip(*pairs, strict=True))
        found = _pull_back(outputs, [unbatch(x, level) for x in inputs], cotangents, create_graph, retain)
        return [None if g is None else rebatch(g, level) for g in found]
    y, u = pairs[0] if len(pairs) == 1 else (_inner(*zip(*pairs, strict=True)), None)
    return grad_of(y, inputs, u, retain_graph=retain, create_graph=create_graph)


def _inner(left: Any, right: Any) -> Any:
    """Return the inner product of two lists of tensors: the sum of all products left * conj(right).

    The cotangent of z = x + iy is dL/dx + i dL/dy, so that dL is the real part of the inner product of dz and the
    cotangent.
    """
    return reduce(add, [(a * (conj(b) if b.dtype.kind == "c" else b)).sum() for a, b in zip(left, right, strict=True)])


def _finish(gradients: list[Any], inputs: list[Any], nested: bool) -> list[Any]:
    """Return the gradients of ``inputs``, with zeros in place of None.

    ``nested`` says that an outer transform will differentiate the gradients; otherwise they become plain Tensors.
    """
    filled = [zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]
    return _untaped(filled, nested)


def _evaluate(function: Callable[..., Any], primals: Any) -> tuple[list[Any], Any]:
    """Call a function with its arguments put on the tape; return these arguments' tensors, and the function's value."""
    inputs = [_place(x) for x in leaves(primals)]
    arguments = rebuild(primals, inputs)
    return inputs, function(*arguments) if isinstance(primals, tuple | list) else function(arguments)


def _by_arguments(
    function: Callable[..., Any], argnums: int | tuple[int, ...], name: str, derive: Callable[..., Any]
) -> Callable[..., Any]:
    """Make a function that calls ``function`` with some arguments on the tape and returns derivatives.

    Args:
        function: the function to differentiate.
        argnums: positions of the arguments with respect to which the function is differentiated.
        name: the name of the transform, for errors.
        derive: computes the derivatives, called as ``derive(result, inputs, nested, arranged)``. ``result`` is the
            result of the function, ``inputs`` is a list of the tensors in the chosen arguments, and ``nested`` says
            whether the derivatives will themselves be differentiated. ``arranged(values)`` returns containers like the
            arguments with one value for each of ``inputs``.
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(function, updated=())
    def derivatives(*arguments: Any, **keywords: Any) -> Any:
        if any(not -len(arguments) <= i < len(arguments) for i in positions):
            raise ValueError(f"{name}: argnums {argnums} do not fit a call with {len(arguments)} positional arguments")
        trees = tuple(arguments[i] for i in positions)

        def of_chosen(*chosen: Any) -> Any:
            full = list(arguments)
            for i, x in zip(positions, chosen, strict=True):
                full[i] = x
            return function(*full, **keywords)

        def arranged(values: list[Any]) -> Any:
            found = rebuild(trees, values)
            return found[0] if isinstance(argnums, int) else found

        with _differentiate() as inside:
            inputs, result = _evaluate(of_chosen, trees)
            return derive(result, inputs, inside or _on_tape(trees), arranged)

    return derivatives


def value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Make a function that returns the value of ``function``, and the gradients of the arguments ``argnums``.

    Args:
        function: returns one number; with ``has_aux`` the pair ``(number, anything else)``.
        argnums: positions of the arguments whose gradients are returned; these arguments may be tensors, or dicts,
            lists and tuples of tensors. For one int, the gradient has the structure of that argument; for a tuple, the
            result is a tuple of such gradients.
        has_aux: whether ``function`` returns a pair; then the new function returns ``((number, aux), gradients)``.

    >>> import flnb
    >>> value, gradient = flnb.value_and_grad(lambda x: (x * x).sum())(flnb.asarray([3.0]))
    >>> value.item(), gradient.tolist()
    (9.0, [6.0])

    Raises:
        TypeError: arguments that are no floating-point tensors; a function that returns no tensor.
        ValueError: a function that returns more than one number, or with ``has_aux`` no pair.
    """

    def derive(result: Any, inputs: list[Any], nested: bool, arranged: Callable[..., Any]) -> tuple[Any, Any]:
        value = number_of(pair_of(result)[0] if has_aux else result, "grad")
        found = _pull_back([value], inputs, [ones_like(value)], nested)
        return _untaped(result, nested), arranged(_finish(found, inputs, nested))

    return _by_arguments(function, argnums, "grad", derive)


def grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that returns the gradient of ``function``, which returns one number.

    With ``has_aux``, ``function`` returns a pair ``(number, aux)``, and the new function ``(gradient, aux)``.
    Arguments and errors are those of `value_and_grad`.

    Raises:
        TypeError, ValueError: as for `value_and_grad`, when the new function is called.

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
    """Return ``(function(*primals), pull)``: the value of a function, and its vector-Jacobian product as a function.

    ``pull(cotangent)`` returns a tuple with ``cotangent^T J`` for each of ``primals``, where J is the Jacobian with
    respect to that argument. It may be called any number of times, with cotangents that have the structure and shapes
    of the value.

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
        outputs = results_of(value, "vjp")

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = vectors_of("cotangent", "vjp", cotangent, value, outputs)
        with _differentiate() as inside:
            again = nested or inside or _on_tape(given)
            gradients = _finish(_pull_back(outputs, inputs, given, again, True), inputs, again)
        return rebuild(primals, gradients)

    return _untaped(value, nested), pull


def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return ``(function(*primals), J tangents)``: the value of a function and its derivative along a direction.

    The derivative has the structure of the value. It is computed by reverse mode: a vjp is linear in its cotangent, and
    the vjp of the vjp is the jvp (J. Townsend, "A new trick for calculating Jacobian vector products", 2017). This
    takes about as long as three evaluations of the function.

    Args:
        function: called with the primals as its arguments.
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
        outputs = results_of(value, "jvp")
        directions = vectors_of("tangents", "jvp", tangents, primals, inputs)
        live = [y for y in outputs if y._node is not None]
        probes = [_place(zeros_like(y)) for y in live]
        linear = _pull_back(live, inputs, probes, create_graph=True)
        pushed = iter(_pull_back(linear, probes, directions, nested))
        out = _finish([None if y._node is None else next(pushed) for y in outputs], outputs, nested)
    return _untaped(value, nested), rebuild(value, out)


def hvp(function: Callable[..., Any], primals: Any, vectors: Any) -> Any:
    """Multiply the Hessian of a function that returns one number by vectors, without computing the Hessian itself.

    This takes about as long as computing two gradients.

    Args:
        function: called with the primals as its arguments; returns one number.
        primals: a tuple of arguments, or one tensor.
        vectors: the vectors to multiply by, with the structure of ``primals``. The result has the same structure.

    >>> import flnb
    >>> flnb.hvp(lambda x: (x * x * x).sum(), flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 1.0])).tolist()
    [6.0, 12.0]

    Raises:
        TypeError, ValueError: as for `grad`, and vectors that are not like the primals.
    """
    with _differentiate() as inside:
        nested = inside or _on_tape((primals, vectors))
        inputs, value = _evaluate(function, primals)
        directions = vectors_of("vectors", "hvp", vectors, primals, inputs)
        first = _pull_back([number_of(value, "hvp")], inputs, [ones_like(value)], create_graph=True)
        products = _finish(_pull_back(first, inputs, directions, nested), inputs, nested)
    return rebuild(primals, products)


def jacobian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Make a function that returns all derivatives of all results of ``function``.

    The derivatives of a result y with respect to an argument x have shape ``y.shape + x.shape``. They are computed by
    one forward pass, and one backward pass for all rows together (`vmap` of the vjp). Arguments and results may be
    dicts, lists and tuples. The output has the structure of the results. In place of each result are the result's
    derivatives, arranged like the argument; for several ``argnums`` there is a tuple of such derivatives.

    For a holomorphic function with a complex result, the derivative is dy/dz, and its product with a direction is the
    `jvp`. For other functions it is the Wirtinger derivative (dy/da - i dy/db) / 2 with respect to z = a + ib. The
    derivative of a real result with respect to a complex argument is the gradient dy/da + i dy/db, as returned by
    `grad`.

    >>> import flnb
    >>> flnb.jacobian(lambda x: x * x)(flnb.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]

    Raises:
        TypeError: arguments that are no floating-point tensors; a function that returns no tensors.
    """

    def derive(value: Any, inputs: list[Any], nested: bool, arranged: Callable[..., Any]) -> Any:
        blocks = [arranged(_rows(y, inputs, nested)) for y in results_of(value, "jacobian")]
        return rebuild(value, blocks)

    return _by_arguments(function, argnums, "jacobian", derive)


def _rows(y: Any, inputs: list[Any], nested: bool, conjugate: bool = False) -> list[Any]:
    """Return the derivatives of one result with respect to each input, of shape ``y.shape + input.shape``.

    Args:
        y: the result.
        inputs: the inputs.
        nested: whether an outer transform will differentiate the derivatives.
        conjugate: for a complex y, return the gradient of each element's real part instead of the element's derivative.
    """

    def pulled(basis: Any) -> list[Any]:
        rows = vmap(lambda u: _finish(_pull_back([y], inputs, [u], nested, True), inputs, nested))(basis)
        return [reshape(r, (*y.shape, *x.shape)) for r, x in zip(rows, inputs, strict=True)]

    basis = reshape(eye(y.size, dtype=y.dtype), (y.size, *y.shape))
    if conjugate or y.dtype.kind != "c":
        return pulled(basis)
    pairs = zip(pulled(basis), pulled(basis * 1.0j), strict=True)  # of u: conj(conj(u) dy/dz) + conj(u) dy/dconj(z)
    return [(conj(a) + 1.0j * conj(b)) / 2.0 if a.dtype.kind == "c" else a + 1.0j * b for a, b in pairs]


def hessian(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Make a function that returns all second derivatives of ``function``, which returns one number.

    For an argument x they have shape ``x.shape + x.shape``. If ``argnums`` is a tuple, the result is a tuple of
    tuples: the first index selects the argument of the first derivative, the second index the argument of the second
    derivative. For complex arguments, the product of the result and a real vector equals the result of `hvp`: the
    change of the gradient when the real parts change.

    >>> import flnb
    >>> flnb.hessian(lambda x: (x * x * x).sum())(flnb.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]

    Raises:
        TypeError, ValueError: as for `grad`.
    """

    def derive(value: Any, inputs: list[Any], nested: bool, arranged: Callable[..., Any]) -> Any:
        rows = [_rows(y, inputs, nested, conjugate=True) for y in results_of(value, "hessian")]
        return rebuild(value, [arranged([_swapped(row[i], x.ndim) for row in rows]) for i, x in enumerate(inputs)])

    return _by_arguments(grad(function, argnums), argnums, "hessian", derive)


def _swapped(block: Any, last: int) -> Any:
    """Return a tensor with its last ``last`` dimensions moved to the front."""
    first = block.ndim - last
    return permute_dims(block, (*range(first, block.ndim), *range(first)))


def stop_gradient(x: Any) -> Any:
    """Return ``x`` as constants through which no gradient flows; they share memory with ``x``.

    ``x`` is a tensor, or a dict, list or tuple of tensors.

    >>> import flnb
    >>> flnb.grad(lambda x: x * flnb.stop_gradient(x))(flnb.asarray(3.0)).item()
    3.0
    """
    return rebuild(x, [v.detach() if isinstance(v, (Variable, Batched)) else v for v in leaves(x)])
