"""Hessians of complex arguments: their products with real vectors are those of `hvp`, also over several arguments."""

import numpy as np
import pytest

import flnb

Z = np.array([1 + 2j, 0.5 - 1j, -0.3 + 0.4j])
WEIGHTS = np.array([1.0, 2j, -1 + 1j])
LOSSES = [
    lambda z: (z * z).sum(),
    lambda z: flnb.exp(z).sum(),
    lambda z: flnb.abs(z).sum(),
    lambda z: flnb.square(flnb.abs((z * WEIGHTS).sum())),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_products_with_real_vectors_are_those_of_hvp(loss):
    v = np.array([1.0, -2.0, 0.5])
    found = flnb.hessian(loss)(Z).numpy()
    np.testing.assert_allclose(found @ v, flnb.hvp(loss, Z, v + 0j).numpy(), rtol=1e-12, atol=1e-12)


def test_the_hessian_of_a_sum_of_squares_is_twice_the_identity():
    np.testing.assert_array_equal(flnb.hessian(LOSSES[0])(Z).numpy(), 2 * np.eye(3))


def test_blocks_of_a_real_and_a_complex_argument():
    def loss(x, z):
        return flnb.square(flnb.abs((x * z).sum())) + (x * x * x).sum()

    x, u, v = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, -1.0]), np.array([2.0, 1.0, 0.5])
    (xx, xz), (zx, zz) = (tuple(b.numpy() for b in row) for row in flnb.hessian(loss, (0, 1))(x, Z))
    by_x, by_z = flnb.hvp(loss, (x, Z), (u, v + 0j))
    np.testing.assert_allclose(xx @ u + xz @ v, by_x.numpy(), rtol=1e-12)
    np.testing.assert_allclose(zx @ u + zz @ v, by_z.numpy(), rtol=1e-12)
