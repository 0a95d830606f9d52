"""What a tensor, a module and a memory manager show of themselves in a notebook."""

import re

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.dispatch import state
from flnb.show.managers import manager_html
from flnb.show.modules import module_html
from flnb.show.tensors import facts, statistics, tensor_html


def text_of(html):
    """What a reader sees, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 3.0], "1.00 … 3.00, mean 2.00 ± 1.00"),
        ([-1, 3], "−1 … 3, mean 1.00 ± 2.00"),
        ([2.5], "2.50"),
        ([1.0, 1.0], "all 1.00"),
        ([0.0, 2e-5], "0 … 2.00e-05, mean 1.00e-05 ± 1.00e-05 · 50.0 % zero"),
        ([True, False, True], "2 of 3 true"),
        ([], "no elements"),
        ([np.nan, np.inf, 2.0], "all 2.00 · 1 NaN · 1 infinite"),
        ([np.nan], "1 NaN"),
        ([1j], ""),
    ],
)
def test_statistics(values, expected):
    assert text_of(statistics(np.asarray(values))).replace("  ", " ").strip() == expected


def test_facts_say_where_a_tensor_lies_and_where_it_comes_from(numpy_session: None):
    big, small = flnb.ones((64, 64)), flnb.ones((2, 3))
    assert facts(big)[0] == "numpy"
    assert re.fullmatch(r"block \d+, 16.0 KiB", facts(big)[1])
    assert facts(small)[1] == "24 B, no block of its own"
    assert facts(small.T)[-2:] == ["a view", "not contiguous"]
    weight = nn.Parameter(small)
    weight.name = "net.weight"
    assert facts(weight)[-1] == "requires grad, net.weight"
    assert facts(weight * 2.0)[-1] == "from multiply"


def test_a_tensor_of_another_backends_buffers_shows_what_it_is():
    class Elsewhere(flnb.backends.NumpyBackend):
        buffer = "elsewhere"

    x = flnb.ones((2,))
    with flnb.use_backend(Elsewhere):
        assert "in a &#x27;ndarray&#x27; buffer" in tensor_html(x)


def test_small_tensors_show_numbers_images_show_pictures():
    small = tensor_html(flnb.asarray([1.0, 2.0]))
    assert "<details open>" in small
    assert "[1., 2.]" in small
    assert "<img" not in small
    images = tensor_html(flnb.ones((4, 1, 8, 8)))
    assert images.count("<img") == 4
    assert "<details>" in images
    assert "heat map of values" in tensor_html(flnb.ones((10, 20)))
    assert "<svg" in tensor_html(flnb.arange(100))


def test_gradients_are_shown_with_their_norm():
    x = flnb.Variable([3.0, 4.0])
    (x * x * 0.5).sum().backward()
    shown = text_of(tensor_html(x))
    assert "gradient norm 5.00" in shown
    assert "[3., 4.]" in shown


def test_colours_follow_the_theme_and_text_is_escaped():
    html = tensor_html(flnb.Variable([np.nan])) + module_html(nn.Linear(2, 2)) + manager_html(state.current().manager)
    assert "var(--jp-ui-font-color1" in html
    assert not re.search(r"[^-]color:(black|white|#000|#fff)", html)
    net = nn.Linear(1, 1)
    net.odd = {"<script>": nn.Linear(1, 1)}
    assert "<script>" not in module_html(net)


class Net(nn.Module):
    def __init__(self):
        self.norm = nn.BatchNorm(4)
        self.parts = [nn.Linear(3, 4), nn.ReLU()]
        self.scale = nn.Parameter(flnb.ones((2,)))

    def forward(self, x):
        return self.norm(self.parts[1](self.parts[0](x))) * self.scale.sum()


def test_modules_are_trees_that_open():
    net = Net()
    net(flnb.ones((5, 3))).sum().backward()
    html = module_html(net)
    assert html.startswith("<div")
    assert html.count("<details open><summary style='cursor:pointer'><b>Net</b>") == 1
    assert html.count("<details") == html.count("</details>")
    shown = text_of(html)
    assert "scale float32[2] all 1.00 · gradient norm" in shown
    assert "running_mean float32[4] (buffer)" in shown
    assert "parts.0 Linear (in_features=3, out_features=4) 16 parameters, 64 B" in shown
    assert "26 parameters, 104 B" in shown
    assert ", evaluating" in text_of(module_html(net.eval()))


def test_large_parameters_stay_one_line():
    html = module_html(nn.Linear(100, 100))
    assert "weight float32[100,100]" in text_of(html)
    assert html.count("<img") == 0


def test_managers_show_sums_and_segments():
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager), flnb.category("parameter"):
        kept = [flnb.ones((1000,)) for _ in range(3)]
    html = manager_html(manager)
    shown = text_of(html)
    assert "Caching caching on host" in shown
    assert "in 3 blocks of" in shown
    assert html.count("<title>parameter") == 3
    assert "parameter" in shown
    del kept


def test_ipython_shows_html_in_notebooks_and_text_in_terminals():
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    from flnb.show import register

    shell = interactiveshell.InteractiveShell.instance()
    register(shell)
    shell.display_formatter.active_types = shell.display_formatter.format_types
    for thing in (flnb.ones((2,)), flnb.Variable([1.0]), nn.Parameter(flnb.ones((2,))), Net(), flnb.memory.Caching()):
        data, _ = shell.display_formatter.format(thing)
        assert data["text/html"].startswith("<div")
        assert data["text/plain"] == repr(thing)


def test_core_objects_know_nothing_of_html():
    for cls in (flnb.Tensor, flnb.Variable, nn.Module):
        assert not hasattr(cls, "_repr_html_")


def test_the_spread_of_large_numbers_is_no_warning():
    assert "mean 0" in statistics(np.array([1e308, -1e308]))
