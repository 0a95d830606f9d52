"""The transforms agree with each other over the whole op table, with closed forms, and nest in every order."""

import gc
from collections import namedtuple

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.testing.samples import samples

Point = namedtuple("Point", "x y")
rng = np.random.default_rng(0)


def float64(*shape):
    return flnb.asarray(rng.normal(size=shape))


def cubes(x):
    return (x * x * x).sum()


def mixed(x, y):
    return (flnb.tanh(x @ y) * flnb.exp(x).sum()).sum()


X, Y = float64(3, 4), float64(4, 2)


def inner(left, right):
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))


def differentiable(sample):
    arrays = [flnb.Variable(a) if a.dtype == np.float64 else flnb.asarray(a) for a in sample.inputs]
    return getattr(sample.function(*arrays), "requires_grad", False)


@pytest.mark.parametrize("sample", [s for s in samples() if s.inputs and differentiable(s)], ids=str)
def test_jvp_and_vjp_are_adjoint_for_every_op(sample):
    """<u, J v> = <J' u, v>."""
    wanted = [i for i, a in enumerate(sample.inputs) if a.dtype == np.float64]
    primals = tuple(flnb.asarray(sample.inputs[i]) for i in wanted)

    def function(*values):
        full = [flnb.asarray(a) for a in sample.inputs]
        for i, v in zip(wanted, values, strict=True):
            full[i] = v
        return sample.function(*full)

    tangents = tuple(float64(*p.shape) for p in primals)
    value, pushed = flnb.jvp(function, primals, tangents)
    again, pull = flnb.vjp(function, *primals)
    u = float64(*value.shape)
    np.testing.assert_array_equal(value.numpy(), again.numpy())
    left, right = inner([u], [pushed]), inner(pull(u), tangents)
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)


def test_jvp_by_its_definition():
    h, direction = 1e-6, (float64(3, 4), float64(4, 2))
    _, tangent = flnb.jvp(mixed, (X, Y), direction)
    ahead, behind = (mixed(X + s * h * direction[0], Y + s * h * direction[1]).item() for s in (1, -1))
    assert tangent.item() == pytest.approx((ahead - behind) / (2 * h), rel=1e-7)


def test_jacobian_has_the_closed_form():
    x = float64(5)
    s = flnb.softmax(x).numpy()
    np.testing.assert_allclose(flnb.jacobian(flnb.softmax)(x).numpy(), np.diag(s) - np.outer(s, s), atol=1e-14)
    by_x, by_y = flnb.jacobian(lambda x, y: x @ y, (0, 1))(X, Y)
    np.testing.assert_allclose(by_x.numpy(), np.einsum("ik,lj->ijkl", np.eye(3), Y.numpy()))
    np.testing.assert_allclose(by_y.numpy(), np.einsum("ik,jl->ijkl", X.numpy(), np.eye(2)))


def test_jacobian_in_containers_and_of_results_that_do_not_depend_on_an_argument():
    def function(p):
        return {"both": p.x * p.y, "one": p.y + 1.0, "none": flnb.ones(2, dtype="float64")}

    j = flnb.jacobian(function)(Point(float64(2), float64(2)))
    assert type(j["both"]) is Point
    assert j["both"].x.shape == (2, 2)
    np.testing.assert_array_equal(j["one"].y.numpy(), np.eye(2))
    assert not j["one"].x.numpy().any()
    assert not j["none"].x.numpy().any()


def test_hessian_hvp_and_jvp_of_grad_agree():
    x, v = float64(4), float64(4)
    h = flnb.hessian(lambda x: flnb.exp((x * x).sum()) + cubes(x))(x).numpy()
    e = np.exp((x.numpy() ** 2).sum())
    np.testing.assert_allclose(
        h, e * (4 * np.outer(x.numpy(), x.numpy()) + 2 * np.eye(4)) + np.diag(6 * x.numpy()), rtol=1e-12
    )
    f = lambda x: flnb.exp((x * x).sum()) + cubes(x)  # noqa: E731
    for product in (
        flnb.hvp(f, x, v),
        flnb.jvp(flnb.grad(f), x, v)[1],
        flnb.grad(lambda x: (flnb.grad(f)(x) * v).sum())(x),
        flnb.vjp(flnb.grad(f), x)[1](v)[0],
    ):
        np.testing.assert_allclose(product.numpy(), h @ v.numpy(), rtol=1e-12)


def test_hessian_of_several_arguments_is_symmetric():
    blocks = flnb.hessian(mixed, (0, 1))(X, Y)
    assert blocks[0][1].shape == (3, 4, 4, 2)
    np.testing.assert_allclose(
        blocks[0][1].numpy(), np.transpose(blocks[1][0].numpy(), (2, 3, 0, 1)), rtol=1e-10, atol=1e-12
    )
    products = flnb.hvp(mixed, (X, Y), (X, Y))
    expected = np.einsum("ijkl,kl->ij", blocks[0][0].numpy(), X.numpy()) + np.einsum(
        "ijkl,kl->ij", blocks[0][1].numpy(), Y.numpy()
    )
    np.testing.assert_allclose(products[0].numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_derivatives_of_any_order(order):
    f = flnb.sin
    for _ in range(order):
        f = flnb.grad(f)
    assert f(flnb.asarray(0.3, dtype="float64")).item() == pytest.approx(np.sin(0.3 + order * np.pi / 2))


NESTINGS = {
    "grad of grad": lambda f, x: flnb.grad(flnb.grad(f))(x),
    "grad of jvp": lambda f, x: flnb.grad(lambda x: flnb.jvp(f, x, flnb.ones_like(x))[1])(x),
    "jvp of grad": lambda f, x: flnb.jvp(flnb.grad(f), x, flnb.ones_like(x))[1],
    "jvp of jvp": lambda f, x: flnb.jvp(lambda x: flnb.jvp(f, x, flnb.ones_like(x))[1], x, flnb.ones_like(x))[1],
    "vjp of jvp": lambda f, x: flnb.vjp(lambda x: flnb.jvp(f, x, flnb.ones_like(x))[1], x)[1](1.0)[0],
    "jacobian of vjp": lambda f, x: flnb.jacobian(lambda x: flnb.vjp(f, x)[1](1.0)[0])(x),
    "hvp": lambda f, x: flnb.hvp(f, x, flnb.ones_like(x)),
    "hessian": lambda f, x: flnb.hessian(f)(x),
    "jacobian of jacobian": lambda f, x: flnb.jacobian(flnb.jacobian(f))(x),
}


@pytest.mark.parametrize("name", NESTINGS)
@pytest.mark.parametrize("outside", ["alone", "in vmap", "in vmap in grad"])
def test_transforms_nest_in_each_other(name, outside):
    """The second derivative of x^4 in a grad of many ways to take it; its derivative again through a vmap."""
    second = lambda x: NESTINGS[name](lambda x: x * x * x * x, x)  # noqa: E731
    x = float64(3)
    if outside == "alone":
        np.testing.assert_allclose(second(x[0]).item(), 12.0 * x[0].item() ** 2, rtol=1e-12)
    elif outside == "in vmap":
        np.testing.assert_allclose(flnb.vmap(second)(x).numpy(), 12.0 * x.numpy() ** 2, rtol=1e-12)
    else:
        third = flnb.grad(lambda x: flnb.vmap(second)(x).sum())(x)
        np.testing.assert_allclose(third.numpy(), 24.0 * x.numpy(), rtol=1e-12)


@pytest.mark.parametrize("tape", ["arena", "pruning", "prefused"])
def test_transforms_on_other_tapes(tape):
    def function(x):
        return (flnb.log(flnb.exp(x) + flnb.exp(x * x)) * flnb.tanh(x)).sum()

    x = float64(3)
    both = [flnb.grad(function), flnb.vmap(flnb.grad(lambda x: function(x[None])))]
    both += [] if tape == "prefused" else [flnb.hessian(function), lambda x: flnb.hvp(function, x, x)]
    expected = [f(x) for f in both]
    with flnb.use_tape(tape):
        for f, e in zip(both, expected, strict=True):
            np.testing.assert_allclose(f(x).numpy(), e.numpy(), rtol=1e-10)


def test_an_inner_derivative_of_a_constant_is_differentiated_by_what_it_closes_over():
    outer = flnb.grad(lambda x: flnb.grad(lambda y: x * x * y * y)(flnb.asarray(3.0)))
    assert outer(flnb.asarray(2.0)).item() == 24.0  # d/dx 2 x^2 y
    no_confusion = flnb.grad(lambda x: x * flnb.grad(lambda y: x + y)(flnb.asarray(1.0)))
    assert no_confusion(flnb.asarray(5.0)).item() == 1.0


def test_gradients_in_containers_with_auxiliary_results():
    def loss(p, scale, *, shift):
        out = p["w"] * scale + p["b"][0] + shift
        return out.sum(), {"out": out}

    p = {"w": float64(3), "b": (float64(3), None)}
    (value, aux), g = flnb.value_and_grad(loss, has_aux=True)(p, 2.0, shift=1.0)
    assert g["w"].tolist() == [2.0] * 3
    assert g["b"][0].tolist() == [1.0] * 3
    assert g["b"][1] is None
    assert type(value) is flnb.Tensor
    assert type(aux["out"]) is flnb.Tensor
    gradients, aux = flnb.grad(loss, argnums=(0, 1), has_aux=True)(p, flnb.asarray(2.0, dtype="float64"), shift=1.0)
    assert gradients[1].item() == pytest.approx(p["w"].sum().item())
    assert aux["out"].shape == (3,)


def test_results_at_the_outermost_level_are_plain_tensors():
    value, pull = flnb.vjp(cubes, X)
    plain = [value, *pull(1.0), *flnb.jvp(cubes, X, X), flnb.hvp(cubes, X, X), flnb.jacobian(cubes)(X)]
    plain += [flnb.grad(cubes)(X), flnb.hessian(cubes)(X), flnb.stop_gradient(X)]
    assert {type(t) for t in plain} == {flnb.Tensor}


def test_of_arguments_on_the_tape_the_results_are_on_it_too():
    for transform in (
        lambda x: flnb.grad(cubes)(x).sum(),
        lambda x: flnb.vjp(cubes, x)[1](1.0)[0].sum(),
        lambda x: flnb.jvp(cubes, x, flnb.ones_like(x))[1],
        lambda x: flnb.jacobian(cubes)(x).sum(),
    ):
        x = flnb.Variable(X)
        transform(x).backward()
        np.testing.assert_allclose(x.grad.numpy(), 6.0 * X.numpy(), rtol=1e-12)


def test_a_pull_can_be_called_again_and_differentiated_by_its_cotangent():
    _, pull = flnb.vjp(lambda x: x * x, X)
    assert pull(X)[0].tolist() == pull(X)[0].tolist()
    by_u = flnb.grad(lambda u: (pull(u)[0] * pull(u)[0]).sum())(X)
    np.testing.assert_allclose(by_u.numpy(), 8.0 * X.numpy() ** 3, rtol=1e-12)


def cubes_of_tanh(x):
    return cubes(flnb.tanh(x))


def hooked(x):
    y = flnb.tanh(x)
    y.register_hook(lambda g: g * 2.0)
    return cubes(y)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: flnb.grad(cubes_of_tanh)(x),
        lambda x: flnb.vmap(flnb.grad(cubes_of_tanh))(x),
        lambda x: flnb.jvp(cubes_of_tanh, x, x),
        lambda x: flnb.vjp(cubes_of_tanh, x)[1](1.0),
        lambda x: flnb.hvp(cubes_of_tanh, x, x),
        lambda x: flnb.hessian(cubes_of_tanh)(x),
        lambda x: flnb.hvp(lambda x: flnb.checkpoint(cubes_of_tanh)(x), x, x),
        lambda x: cubes_of_tanh(flnb.Variable(x)).backward(),
        lambda x: flnb.vmap(flnb.grad(hooked))(x),
    ],
)
def test_transforms_leave_no_cycle_behind(call):
    x = float64(2, 3)
    call(x)
    gc.collect()
    gc.disable()
    try:
        call(x)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_stop_gradient_in_containers_and_under_vmap():
    stopped = flnb.grad(lambda x: (flnb.stop_gradient({"a": [x]})["a"][0] * x).sum())
    np.testing.assert_array_equal(stopped(X).numpy(), X.numpy())
    np.testing.assert_array_equal(flnb.vmap(stopped)(X).numpy(), X.numpy())


def test_no_grad_inside_a_transform_records_nothing():
    def function(x):
        with flnb.no_grad():
            constant = x * x
            assert not constant.requires_grad
            assert constant._node is None
        return (constant * x).sum()

    np.testing.assert_allclose(flnb.grad(function)(X).numpy(), X.numpy() ** 2)


def test_closed_over_parameters_keep_their_own_gradients():
    layer = nn.Linear(4, 2)
    flnb.grad(lambda x: layer(x).sum())(flnb.ones((3, 4)))
    assert layer.weight.grad is None


def test_a_gradient_leaves_a_graph_alone_that_its_function_closes_over():
    w = flnb.Variable(X)
    outside = flnb.exp(w)
    g = flnb.grad(lambda x: (x * outside).sum())(X)
    np.testing.assert_array_equal(g.numpy(), outside.detach().numpy())
    outside.sum().backward()  # was neither walked nor freed
    np.testing.assert_array_equal(w.grad.numpy(), g.numpy())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: flnb.grad(lambda x: x * 2.0)(X), ValueError, r"it returned shape \(3, 4\).*flnb\.jacobian"),
        (lambda: flnb.grad(lambda x: 3.0)(X), TypeError, "compute a Variable from its arguments, it returned float"),
        (lambda: flnb.grad(cubes)(flnb.asarray([1, 2])), TypeError, "only floating-point Variables"),
        (lambda: flnb.grad(cubes, 1)(X), ValueError, "argnums 1 do not fit a call with 1 positional"),
        (lambda: flnb.grad(lambda x: (cubes(x), 1, 2), has_aux=True)(X), ValueError, "pair .* a tuple of 3"),
        (lambda: flnb.grad(cubes, has_aux=True)(X), ValueError, r"pair \(number, aux\), it .* a Variable"),
        (lambda: flnb.vjp(cubes, X)[1](flnb.ones(3)), ValueError, r"cotangent 0 must have shape \(\), got \(3,\)"),
        (lambda: flnb.jvp(cubes, X, Y), ValueError, r"tangents 0 must have shape \(3, 4\), got \(4, 2\)"),
        (lambda: flnb.jvp(mixed, (X, Y), X), ValueError, r"be 2 tensors of shapes \(3, 4\), \(4, 2\), got 1 tensors"),
        (lambda: flnb.hvp(cubes, X, Y), ValueError, r"vectors 0 must have shape \(3, 4\)"),
        (lambda: flnb.hvp(lambda x: x, X, X), ValueError, "hvp: the function must return one number"),
        (lambda: flnb.vjp(lambda x: None, X), TypeError, "the function returned nothing; end it with `return`"),
        (lambda: flnb.jacobian(lambda x: "a")(X), TypeError, "compute tensors from its arguments, it returned str"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_tensor_in_two_places_of_a_composite_counts_once_for_each():
    """-p log p - (1 - p) log(1 - p), whose slope is log((1 - p) / p): also where the gradient is recorded."""
    p = flnb.asarray([0.3, 0.6])

    def entropy(p):
        return flnb.binary_cross_entropy(p, p, "sum")

    slope = np.log((1 - p.numpy()) / p.numpy())
    np.testing.assert_allclose(np.asarray(flnb.grad(entropy)(p)), slope, rtol=1e-5)
    curvature = flnb.grad(lambda p: flnb.grad(entropy)(p).sum())(p)
    np.testing.assert_allclose(np.asarray(curvature), -1 / (p.numpy() * (1 - p.numpy())), rtol=1e-5)


Z = np.array([1 + 2j, 0.5 - 1j, -0.3 + 0.4j])
V = np.array([1j, 2 + 1j, -1 + 0.5j])


def difference(function, x, v):
    """The derivative along a direction, by five points."""
    h = 1e-3
    at = [np.asarray(function(x + t * h * v)) for t in (-2, -1, 1, 2)]
    return (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h)


ENTIRE = [lambda x: x * x, lambda x: flnb.exp(x) * flnb.conj(x), lambda x: flnb.abs(x) * x, lambda x: 2.0**x]


@pytest.mark.parametrize("function", ENTIRE)
def test_complex_directional_derivatives(function):
    value, tangent = flnb.jvp(function, Z, V)
    expected = difference(lambda x: function(flnb.asarray(x)).numpy(), Z, V)
    np.testing.assert_allclose(value.numpy(), function(flnb.asarray(Z)).numpy())
    np.testing.assert_allclose(tangent.numpy(), expected, rtol=1e-8)


def test_the_complex_directional_derivative_of_a_square_by_hand():
    assert flnb.jvp(lambda x: x * x, np.array(1 + 2j), np.array(1j))[1].item() == -4 + 2j


@pytest.mark.parametrize("function", ENTIRE)
def test_complex_hessian_products(function):
    """A gradient of z = x + iy is dL/dx + i dL/dy; its change along a direction is the Hessian's product."""

    def loss(x):
        return flnb.sum(flnb.square(flnb.abs(function(x))))

    found = flnb.hvp(loss, Z, V).numpy()
    np.testing.assert_allclose(found, difference(lambda x: flnb.grad(loss)(x).numpy(), Z, V), rtol=1e-7, atol=1e-9)


def test_complex_vjps_of_several_results_are_the_sums_of_those_of_one():
    cotangents = np.array(1 + 1j), np.array([2 - 1j, 0.5j, -1.0]), np.array([1.0, -2.0, 0.5])
    functions = [lambda x: flnb.sum(x * x), lambda x: x * x * x, flnb.abs]
    together = flnb.vjp(lambda x: tuple(f(x) for f in functions), Z)[1](cotangents)[0].numpy()
    alone = [flnb.vjp(f, Z)[1](u)[0].numpy() for f, u in zip(functions, cotangents, strict=True)]
    np.testing.assert_allclose(together, sum(alone), rtol=1e-12)
    slope = sum(
        np.sum(np.conj(u) * difference(lambda x, f=f: f(flnb.asarray(x)).numpy(), Z, V)).real
        for f, u in zip(functions, cotangents, strict=True)
    )
    assert np.sum(np.conj(together) * V).real == pytest.approx(slope, rel=1e-8)


ANALYTIC = [lambda x: x * x, lambda x: flnb.exp(x * (2 - 1j)), lambda x: flnb.cumulative_sum(x * x)]


@pytest.mark.parametrize("function", ANALYTIC)
def test_a_jacobian_of_a_holomorphic_function_is_its_complex_derivative(function):
    """Column j is the change along the real axis of element j, which `jvp` computes too."""
    expected = [difference(lambda x: function(flnb.asarray(x)).numpy(), Z, unit) for unit in np.eye(3)]
    found = flnb.jacobian(function)(Z).numpy()
    np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found @ V, flnb.jvp(function, Z, V)[1].numpy(), rtol=1e-12)


def test_a_jacobian_of_complex_results_by_real_arguments_has_both_parts():
    x = np.array([0.5, 2.0])
    expected = np.diag(1j * np.exp(1j * x))
    np.testing.assert_allclose(flnb.jacobian(lambda x: flnb.exp(x * 1j))(x).numpy(), expected, rtol=1e-12)


def test_a_jacobian_of_a_function_that_is_not_holomorphic_is_its_wirtinger_derivative():
    np.testing.assert_allclose(flnb.jacobian(lambda z: flnb.conj(z) * z)(Z).numpy(), np.diag(np.conj(Z)), rtol=1e-12)
    np.testing.assert_array_equal(flnb.jacobian(flnb.conj)(Z).numpy(), np.zeros((3, 3)))
