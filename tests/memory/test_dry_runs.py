"""Dry runs: what they find is what a real run takes, what does not fit, and who holds the peak."""

import re

import pytest

import flnb
from flnb import cli, optim
from flnb.memory import Caching, Native, dry_run, replay, trace
from flnb.nn import Linear
from tests.backends.test_meta import EveryTensor


def really(name, manager):
    """Peak bytes allocated and reserved of the same steps, really trained."""
    recipe = flnb.models.get(name)
    with flnb.use_memory_manager(manager):
        model, batch = recipe.build("small"), [flnb.asarray(array) for array in recipe.batch("small", size=2)]
        optimizer = optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            recipe.loss(model, *batch).backward()
            optimizer.step()
        del model, batch, optimizer
        return manager.stats()


@pytest.mark.parametrize("name", ["mlp", "bert"])
def test_its_peak_is_that_of_real_training(name, numpy_session):  # oneDNN's scratch memory depends on what was quicker
    stats = really(name, Caching(EveryTensor()))
    found = dry_run(name, batch=2, scale="small", optimizer="Adam")
    assert found.fits
    assert found.peak.allocated == stats["peak_allocated"]
    assert abs(found.reserved - stats["peak_reserved"]) <= 2 << 20  # frees between two calls come in another order
    assert sum(found.by_category.values()) == found.peak.allocated
    assert sum(row.nbytes for row in found.held) == found.peak.requested


MIB = 1 << 20


def program():
    x = flnb.Variable(flnb.ones((256, 1024)))
    y = x * 2.0
    flnb.exp(y).sum().backward()


def test_everything_about_the_peak_of_a_program_that_is_known():
    found = dry_run(program, Native)
    assert (found.title, found.manager, found.capacity) == ("program", "native", None)
    assert [row for row in found.held if row.nbytes == MIB] == [
        (MIB, "input", "full", "", (256, 1024), "float32"),
        (MIB, "activation", "multiply", "", (256, 1024), "float32"),
        (MIB, "activation", "exp", "", (256, 1024), "float32"),
        (MIB, "gradient", "multiply", "", (256, 1024), "float32"),
    ]
    assert found.when == "backward, in 'multiply'"
    assert found.run.memory.at(found.run.seconds).allocated == 0
    lines = repr(found).splitlines()
    assert re.fullmatch(r"program on native and a device without limit: fits \([\d.]+ .?s\)", lines[0])
    assert lines[1].startswith("peak: 4.00 MiB in 6 tensors: backward, in 'multiply'")
    assert lines[2].startswith("reserved: at most 4.00 MiB; reserved/live 1.00 at the peak")
    assert any(re.fullmatch(r"  activation +2.00 MiB +50.0 %", line) for line in lines)
    assert any(re.fullmatch(r"  1.00 MiB  gradient +multiply +– +256×1024  float32", line) for line in lines)
    html = found._repr_html_()
    assert "fits" in html
    assert html.count("<tr>") == 3 + 1 + 6  # categories, titles, tensors
    assert html.count("<svg") == 2


def test_a_module_of_backward_is_that_of_the_op_it_is_for():
    def with_module():
        layer = Linear(64, 32)
        x = flnb.Variable(flnb.ones((128, 64)))
        flnb.exp(layer(x)).sum().backward()

    found = dry_run(with_module)
    assert found.when == "backward, in 'sum' of linear"
    scopes = {(row.op, row.shape): row.scope for row in found.held if row.category == "gradient"}
    assert scopes == {
        ("multiply", (128, 32)): "",  # of exp
        ("sum", (32,)): "linear",
        ("matmul", (64, 32)): "linear",
        ("matmul", (128, 64)): "linear",
    }


def test_what_does_not_fit_says_what_failed_and_what_it_would_take():
    found = dry_run(program, "native", capacity="2.5MiB")
    assert not found.fits
    error = found.error
    assert (error.request, error.reserved, error.capacity) == (MIB, 2 * MIB, 5 * MIB // 2)
    assert error.report.blockers[0].size == MIB
    assert found.run.state == "failed"
    assert len(found.run.table("oom")["t"]) == 1
    assert found.whole.state == "finished"
    assert found.reserved >= found.peak.allocated > 4 * MIB - 1
    text = repr(found)
    assert "a device of 2.50 MiB: DOES NOT FIT" in text
    assert "asked for 1.00 MiB (1048576 bytes), free 512 KiB (524288 bytes): use a smaller batch" in text
    assert "Free in its segments 0 bytes" in text
    assert "not yet reserved 512 KiB" in text
    assert "with no limit:" in text
    assert "DOES NOT FIT" in found._repr_html_()
    assert dry_run(program, "native", capacity=found.reserved).fits


def test_its_recording_is_one_like_any_other():
    found = dry_run("lenet", batch=4, scale="small", steps=3)
    assert len(found.run.steps["index"]) == 3
    asked = trace(found.run)
    assert asked.peak_live == found.peak.requested
    (row,) = replay(found.run, ["caching"]).rows
    assert row.peak_reserved == found.reserved
    assert re.match(r"step [23], (forward|backward|optimizer), in ", found.when)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50", "bert", "asr-transformer", "vit"])
def test_the_models_of_table_3_run_dry_at_the_papers_size(name):
    found = dry_run(name, "native", steps=1)
    parameters = 4 * flnb.models.get(name).parameters["paper"]
    assert found.fits
    assert parameters <= found.by_category["parameter"]
    assert found.peak.allocated > 3 * parameters


def test_a_model_of_400_million_parameters_at_batch_128_does_not_fit_into_16_GiB():
    found = dry_run("bert", "native", "16GiB", steps=1, optimizer="adam")
    assert "128 examples" in found.title
    assert not found.fits
    assert found.reserved > 16 << 30


def test_the_session_is_afterwards_as_it_was():
    flnb.manual_seed(3)
    expected = flnb.rand(3).tolist()
    flnb.manual_seed(3)
    dry_run("mlp", batch=2, scale="small")
    assert flnb.rand(3).tolist() == expected
    assert flnb.ones(2).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"what": "resnet51"}, ValueError, "no model 'resnet51'; did you mean 'resnet50'"),
        ({"what": "mlp", "scale": "huge"}, ValueError, "expected the scale 'paper' or 'small', got 'huge'"),
        ({"what": "mlp", "batch": 0}, ValueError, "expected a batch of 1 example or more, got 0"),
        ({"what": "mlp", "steps": 0}, ValueError, "expected 1 step or more, got 0"),
        ({"what": "mlp", "optimizer": "adamm"}, ValueError, "unknown optimizer 'adamm'; known: adadelta, ada"),
        ({"what": "mlp", "manager": "cachin"}, ValueError, "unknown memory manager 'cachin'"),
        ({"what": "mlp", "capacity": "16GiBs"}, ValueError, "the capacity of SimulatedDevice is '16GiBs'"),
        ({"what": program, "batch": 3}, ValueError, "optimizer= and batch= are for recipes"),
        ({"what": 3}, TypeError, "expected a function without arguments or a recipe of flnb.models, got 3"),
        ({"what": Linear(2, 2)}, TypeError, "got a Linear whose memory is allocated already; give a function that"),
        ({"what": lambda: flnb.ones(2).sum().item()}, TypeError, "stores shapes and dtypes but no values"),
    ],
)
def test_what_cannot_run_dry_is_refused(given, error, message):
    with pytest.raises(error, match=re.escape(message)):
        dry_run(**given)


def test_the_command_line(tmp_path, capsys):
    saved = tmp_path / "dry.flnb"
    assert cli.main(["dry-run", "mlp", "--batch", "32", "--capacity", "1GiB", "-o", str(saved)]) == 0
    told = capsys.readouterr()
    assert "mlp (paper), 2 steps of 32 examples on caching and a device of 1.00 GiB: fits" in told.out
    assert f"saved {saved}" in told.err
    assert trace(saved).peak_live > 0
    assert cli.main(["dry-run", "mlp", "--manager", "caching:split_limit=4MiB", "--capacity", "1MiB"]) == 1
    assert "on caching(split_limit=4MiB) and a device of 1.00 MiB: DOES NOT FIT" in capsys.readouterr().out
    assert cli.main(["dry-run", "mpl"]) == 2
    assert "no model 'mpl'; did you mean" in capsys.readouterr().err
