"""Pictures beside NumPy, SciPy and torch where they are there, gradients, and edges."""

import tracemalloc

import numpy as np
import pytest

import flnb
from flnb import vision
from flnb.testing import verify_grad

RNG = np.random.default_rng(11)
X = RNG.normal(size=(2, 3, 6, 5))
MATRIX = [[0.9, 0.4], [-0.3, 1.2]]


def close(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(got.numpy(), expected, rtol=tolerance, atol=tolerance)


# Beside others


@pytest.mark.parametrize("size", [(6, 5), (3, 5), (9, 13), (1, 1), (4, 12)])
@pytest.mark.parametrize("how", ["linear", "antialias", "nearest"])
def test_resize_beside_torch(how, size):
    torch = pytest.importorskip("torch", reason="torch is not installed: sizes are checked by hand below")
    ours = vision.resize(flnb.asarray(X), size, "nearest" if how == "nearest" else "linear", how == "antialias")
    mode = "nearest-exact" if how == "nearest" else "bilinear"
    options = {} if how == "nearest" else {"antialias": how == "antialias", "align_corners": False}
    close(ours, torch.nn.functional.interpolate(torch.tensor(X), size, mode=mode, **options).numpy())


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_affine_and_sample_beside_torch(method):
    torch = pytest.importorskip("torch", reason="torch is not installed: SciPy and NumPy are beside it, too")
    h, w = X.shape[-2:]
    back = np.linalg.inv(MATRIX)
    shift = np.array([0.7, -1.1])
    x = flnb.Variable(X)
    ours = vision.affine(x, MATRIX, shift, (4, 7), method)
    places = (np.indices((4, 7)).reshape(2, -1).T - [1.5, 3.0] - shift) @ back.T + [2.5, 2.0]
    grid = np.stack([(2 * places[:, 1] + 1) / w - 1, (2 * places[:, 0] + 1) / h - 1], axis=-1).reshape(4, 7, 2)
    theirs = torch.tensor(X, requires_grad=True)
    wide = torch.tensor(grid).expand(2, 4, 7, 2)
    mode = "bilinear" if method == "linear" else "nearest"
    y = torch.nn.functional.grid_sample(theirs, wide, mode=mode, align_corners=False)
    close(ours.data, y.detach().numpy())
    weight = RNG.normal(size=y.shape)
    (ours * flnb.asarray(weight)).sum().backward()
    (y * torch.tensor(weight)).sum().backward()
    close(x.grad, theirs.grad.numpy())


@pytest.mark.parametrize(("mode", "theirs"), [("symmetric", "reflect"), ("reflect", "mirror"), ("edge", "nearest")])
@pytest.mark.parametrize("sigma", [0.8, (2.5, 0.0), 0.0])
def test_gaussian_filter_beside_scipy(mode, theirs, sigma):
    ndimage = pytest.importorskip(
        "scipy.ndimage", reason="scipy is not installed: what a row becomes is in the doctest"
    )
    each = (sigma, sigma) if isinstance(sigma, float) else sigma
    close(
        vision.gaussian_filter(flnb.asarray(X), sigma, mode=mode),
        ndimage.gaussian_filter(X, (0, 0, *each), mode=theirs),
    )


def test_affine_beside_scipy():
    ndimage = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: NumPy's turns are beside it, too")
    x, centre = X[0, 0], (np.array(X.shape[-2:]) - 1) / 2
    back = np.linalg.inv(MATRIX)
    expected = ndimage.affine_transform(x, back, centre - back @ centre, order=1, mode="grid-constant", cval=2.5)
    close(vision.affine(flnb.asarray(x), MATRIX, value=2.5), expected)


@pytest.mark.parametrize("bins", [1, 7, 256])
def test_histogram_beside_numpy(bins):
    x = RNG.uniform(-0.2, 1.2, size=(3, 4, 5))
    x[0, 0, :3] = 0.0, 1.0, 0.5
    counts = vision.histogram(flnb.asarray(x), bins)
    assert counts.dtype == flnb.int64
    edges = np.linspace(0.0, 1.0, bins + 1)
    np.testing.assert_array_equal(counts.numpy(), np.stack([np.histogram(one, edges)[0] for one in x]))


# By hand


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, -1])
def test_quarter_turns(method, turns):
    turned = vision.rotate(flnb.asarray(X), 90 * turns, expand=True, method=method)
    close(turned, np.rot90(X, turns, axes=(-2, -1)), 0 if method == "nearest" else 1e-12)


def test_what_is_turned_and_not_expanded_keeps_its_size_and_centre():
    x = np.zeros((5, 7))
    x[2, 3] = 1.0
    turned = vision.rotate(flnb.asarray(x), 33.0)
    assert turned.shape == (5, 7)
    assert turned[2, 3].item() == 1.0
    assert vision.rotate(flnb.ones((5, 7)), 45.0, expand=True).shape == (9, 9)


def test_translate_by_pixels_and_halves():
    moved = vision.translate(flnb.asarray(X), (2, -1), value=9.0).numpy()
    np.testing.assert_array_equal(moved[..., 2:, :-1], X[..., :-2, 1:])
    assert (moved[..., :2, :] == 9.0).all()
    assert (moved[..., -1] == 9.0).all()
    half = vision.translate(flnb.asarray([[0.0, 4.0, 8.0]]), (0.0, 0.5))
    assert half.tolist() == [[0.0, 2.0, 6.0]]


def test_shear_moves_what_is_farther_from_the_centre_more():
    sheared = vision.shear(flnb.eye(3)[::-1], (0.0, 1.0))
    assert sheared.tolist() == [[0.0, 1.0, 0.0]] * 3
    sheared = vision.shear(flnb.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), (-1.0, 0.0))
    assert sheared.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


def test_integers_stay_integers_where_nothing_is_mixed():
    x = flnb.asarray(RNG.integers(0, 256, (4, 6)), dtype=flnb.uint8)
    for made in (
        vision.resize(x, (8, 3), "nearest"),
        vision.rotate(x, 30, method="nearest", value=7),
        vision.equalize(x),
    ):
        assert made.dtype == flnb.uint8
    assert vision.resize(x, (2, 3)).dtype == flnb.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda x: vision.rotate(x, 180, method="nearest"),
        lambda x: vision.affine(x, -np.eye(2), method="nearest", value=1),
        lambda x: vision.sample(x, [[1, 1], [0, 0]], [[1, 0], [1, 0]], method="nearest"),
    ],
)
def test_bool_stays_bool_where_nothing_is_mixed(call):
    turned = call(flnb.asarray([[True, False], [False, False]]))
    assert turned.dtype == flnb.bool
    assert turned.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_positions_that_are_not_finite_lie_outside(method):
    """Warnings are errors in tests: none comes from casting them."""
    x = flnb.asarray([[1.0, 2.0], [3.0, 4.0]])
    rows, columns = [np.nan, np.inf, -np.inf, 0.0, 1.0, 1e30], [0.0, 0.0, 0.0, np.nan, 1.0, 1.0]
    assert vision.sample(x, rows, columns, method, value=7.0).tolist() == [7.0, 7.0, 7.0, 7.0, 4.0, 7.0]


def test_what_is_not_finite_counts_where_it_has_a_weight_alone():
    x = [[1.0, 2.0], [3.0, 4.0]]
    assert vision.translate(x, (0, 0), value=np.nan).tolist() == x
    assert vision.translate([[np.inf, 2.0], [3.0, np.nan]], (0, 0)).tolist()[0] == [np.inf, 2.0]
    halved = vision.translate(x, (0, 0.5), value=np.nan).numpy()
    np.testing.assert_array_equal(halved, [[np.nan, 1.5], [np.nan, 3.5]])


def test_gradients_at_whole_positions_are_those_of_the_line():
    """The weight of the pixel after is 0 there, but not its slope; a value of nan changes nothing."""
    shift = flnb.Variable([0.0, 0.0])
    x = flnb.Variable([[1.0, 2.0, 4.0], [3.0, 7.0, 5.0]])
    vision.affine(x, np.eye(2), shift)[0, 0].backward()
    assert shift.grad.tolist() == [-2.0, -1.0]
    x.grad = None
    vision.affine(x, np.eye(2), value=np.nan).sum().backward()
    assert x.grad.tolist() == [[1.0] * 3] * 2
    rows = flnb.Variable([np.nan, 5.0, 0.0])
    vision.sample(x, rows, [0.0, 0.0, 0.0]).sum().backward()
    assert rows.grad.tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize("shape", [(4, 8000), (8000, 4)])
def test_smoothing_a_long_line_holds_a_few_pictures(shape):
    """A matrix over all pixels of the line would take 2000 times as much as the picture."""
    x = flnb.asarray(RNG.normal(size=shape))
    expected = vision.gaussian_filter(x[3990:4010] if shape[0] == 8000 else x[:, 3990:4010], 2.0).numpy()
    tracemalloc.start()
    with flnb.use_memory_manager("native") as manager:
        smooth = vision.gaussian_filter(x, 2.0)
        assert manager.stats()["peak_allocated"] < 20 * x.nbytes
    _, host = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert host < 20 * x.nbytes
    middle = smooth[3998:4002] if shape[0] == 8000 else smooth[:, 3998:4002]
    close(middle, expected[8:12] if shape[0] == 8000 else expected[:, 8:12])


@pytest.mark.parametrize(
    ("values", "dtype", "options", "expected"),
    [
        ([0, 1, 2, 127], "int8", {}, [-128, -43, 42, 127]),
        ([0, 1000, 30000, 65535], "uint16", {}, [0, 21845, 43690, 65535]),
        ([-32768, 0, 300, 32767], "int16", {}, [-32768, -10923, 10922, 32767]),
        ([0, 1000, 30000, 40000], "uint16", {"bounds": (0, 40000)}, [0, 13333, 26667, 40000]),
        ([50, 51, 52, 53], "uint8", {}, [0, 85, 170, 255]),
        ([50, 51, 52, 53], "int64", {}, [0, 85, 170, 255]),
        ([0, 2000, 3000, 9000], "int32", {"bounds": (0, 9000)}, [0, 3000, 6000, 9000]),
        ([0.0, 0.1, 0.2, 1.0], "float64", {}, [0.0, 1 / 3, 2 / 3, 1.0]),
        ([True, False, True, True], "bool", {}, [True, False, True, True]),
    ],
)
def test_equalized_values_lie_in_what_the_dtype_holds(values, dtype, options, expected):
    spread = vision.equalize(flnb.asarray([values], dtype=dtype), **options)
    assert spread.dtype == dtype
    np.testing.assert_allclose(spread.numpy(), [expected], rtol=1e-12)


def test_histograms_reach_from_the_least_to_the_most_of_a_dtype():
    assert vision.histogram(flnb.asarray([[True, False, True]]), 2).tolist() == [1, 2]
    assert vision.histogram(flnb.asarray([[-128, 0, 127]], dtype="int8"), 3).tolist() == [1, 1, 1]
    assert vision.histogram(flnb.asarray([[0, 300, 65535]], dtype="uint16"), 2).tolist() == [2, 1]
    assert vision.histogram(flnb.asarray([[0, 255, 300]]), 2).tolist() == [1, 1]


def test_equalized_values_are_spread_evenly():
    x = np.exp(RNG.normal(size=(2, 64, 64)))
    x /= x.max()
    even = vision.equalize(flnb.asarray(x), bins=4096).numpy()
    for before, after in zip(x, even, strict=True):
        assert (np.argsort(before.ravel(), kind="stable")[[0, -1]] == [before.argmin(), before.argmax()]).all()
        assert (np.diff(after.ravel()[np.argsort(before.ravel())]) >= 0).all()
        counts = np.histogram(after, 8, (0.0, 1.0))[0]
        assert counts.min() > 0.9 * counts.max()
    flat = flnb.full((3, 3), 0.25)
    assert vision.equalize(flat).tolist() == [[0.0] * 3] * 3


# Gradients


GRADIENTS = {
    "resize": lambda x: vision.resize(x, (4, 7)),
    "resize smaller": lambda x: vision.resize(x, (2, 3), antialias=True),
    "resize nearest": lambda x: vision.resize(x, (9, 2), "nearest"),
    "gaussian_filter": lambda x: vision.gaussian_filter(x, 1.3),
    "rotate": lambda x: vision.rotate(x, 25.0, expand=True),
    "rotate nearest": lambda x: vision.rotate(x, 25.0, method="nearest"),
    "translate": lambda x: vision.translate(x, (0.3, -1.6)),
    "shear": lambda x: vision.shear(x, (0.2, -0.4)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert verify_grad(GRADIENTS[name], [X], tolerance=1e-8)


def test_gradients_of_positions_matrices_and_shifts():
    rows, columns = RNG.uniform(0.1, 0.9, (2, 3, 4)) + RNG.integers(-1, 5, (2, 3, 4))
    assert verify_grad(vision.sample, [X, rows, columns], tolerance=1e-7)
    shift = np.array([0.31, -0.23])
    assert verify_grad(lambda x, m, s: vision.affine(x, m, s), [X, np.array(MATRIX), shift], tolerance=1e-7)


def test_every_example_by_itself_under_vmap():
    batch = flnb.asarray(X)
    for function in (lambda x: vision.rotate(x, 25.0), lambda x: vision.gaussian_filter(x, 1.0)):
        close(flnb.vmap(function)(batch), function(batch).numpy())
