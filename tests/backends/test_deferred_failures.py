"""Ops that fail or are interrupted on the backend `deferred`, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb.interface import TensorBackend
from tests.backends.test_deferred import X


def test_a_failing_op_says_so_where_it_is_computed_and_the_rest_goes_on() -> None:
    class Failing(flnb.backends.NumpyBackend):
        def tanh(self, x: Any, out: Any = None) -> Any:
            raise ValueError("no tanh today")

    with flnb.use_backend(flnb.backends.DeferredBackend(Failing)):
        x = flnb.asarray(X)
        y = flnb.tanh(x)
        with pytest.raises(ValueError, match="no tanh today"):
            y.numpy()
        assert (x + 1.0)[0, 0].item() == 1.0


def test_it_computes_on_arrays_of_numpy_only() -> None:
    with pytest.raises(
        TypeError, match="deferred: expected over='numpy' or another backend of NumPy arrays, got <MetaBackend"
    ):
        flnb.backends.DeferredBackend("meta")
    assert issubclass(flnb.backends.DeferredBackend, TensorBackend)
    with flnb.use_backend("deferred:numpy,fuse=false") as backend:
        assert backend.over.name == "numpy"
        assert not backend.fuse
    assert flnb.backends.DeferredBackend("cpu").over.name == flnb.backends.DeferredBackend().over.name == "cpu"


def test_an_interrupted_computation_is_done_again() -> None:
    class Once(flnb.backends.NumpyBackend):
        failed = False

        def exp(self, x: Any, out: Any = None) -> Any:
            if not Once.failed:
                Once.failed = True
                raise KeyboardInterrupt
            return np.exp(x, out)

    with flnb.use_backend(flnb.backends.DeferredBackend(Once)):
        y, z = flnb.exp(flnb.asarray(X)), flnb.asarray(X) + 1.0
        with pytest.raises(KeyboardInterrupt):
            flnb.sync()
        flnb.sync()
        assert z._data.value.tensor is not None
        np.testing.assert_array_equal(y.numpy(), np.exp(X))


def test_a_write_to_elements_that_share_memory_is_refused_at_once() -> None:
    with flnb.use_backend("deferred"):
        x = flnb.asarray([1.0])
        view = flnb.broadcast_to(x, (3,))
        with pytest.raises(ValueError, match="share memory"):
            view += 1.0
        assert x.tolist() == [1.0]


def test_a_write_into_a_tensor_of_another_backend_is_refused() -> None:
    x = flnb.asarray(X)
    with flnb.use_backend("deferred"), pytest.raises(TypeError, match="add: the tensors have 'ndarray' buffers"):
        flnb.add(x, 1.0, out=x)


def test_what_a_failing_op_says_tells_that_it_was_recorded() -> None:
    with flnb.use_backend("deferred"):
        y = flnb.linalg.cholesky(flnb.asarray([[1.0, 2.0], [2.0, 1.0]]))
        with pytest.raises(Exception, match=r"(?i)positive definite|cholesky") as caught:
            y.numpy()
    assert any("recorded earlier" in note for note in caught.value.__notes__)


def test_ctrl_c_before_the_results_of_a_composite_were_handed_out() -> None:
    from flnb.graph import running

    with flnb.use_backend("deferred"):
        y = flnb.softmax(flnb.asarray(X), 1)
        whole = y._data.value.inputs[0]
        whole.tensor = running.at_once(
            whole.place, running.run, whole, tuple([x.tensor for x in whole.inputs]), "ndarray"
        )
        whole.inputs = ()
        np.testing.assert_allclose(y.numpy().sum(1), 1.0, rtol=1e-6)
