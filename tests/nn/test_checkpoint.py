"""Checkpoints: a run that was stopped goes on to the same bits; whole files only, and all parts or none."""

import json

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim
from flnb.nn.saving import read_whole, write_whole

pytest.importorskip("safetensors", reason="nn.save_checkpoint needs the extra lab")


class Run:
    """A model with dropout and batch norm, its optimizer and its schedule; random inputs."""

    def __init__(self, width: int = 4, kind: type[optim.Optimizer] = optim.AdamW) -> None:
        self.model = nn.Sequential(
            first=nn.Linear(3, width), norm=nn.BatchNorm(width), drop=nn.Dropout(0.5), out=nn.Linear(width, 2)
        )
        self.optimizer = kind(self.model.parameters(), lr=0.05)
        self.schedule = optim.Schedule(self.optimizer, optim.Chain({0: optim.LinearWarmUp(3), 3: optim.Cosine(9)}))

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = flnb.sum(flnb.square(self.model(flnb.random.normal((5, 3)))))
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(float(loss.detach()))
        return losses

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def values(self):
        return {name: item.numpy() for name, item in self.model.state_dict().items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path):
    flnb.manual_seed(1)
    first = Run()
    first.train(4)
    nn.save_checkpoint(tmp_path / "last", **first.parts, epoch=4, history={"loss": [1.0, None]}, best=np.float32(0.5))
    expected, values = first.train(5), first.values()
    flnb.manual_seed(99)
    second = Run()
    second.train(1)
    found = nn.load_checkpoint(tmp_path / "last", **second.parts)
    assert found == {"epoch": 4, "history": {"loss": [1.0, None]}, "best": 0.5}
    assert second.train(5) == expected
    same(values, second.values())
    assert [item.name for item in tmp_path.iterdir()] == ["last"]


def test_one_part_can_be_loaded_and_the_generator_left_alone(tmp_path):
    flnb.manual_seed(1)
    first, second = Run(), Run()
    first.train(2)
    nn.save_checkpoint(str(tmp_path / "last"), **first.parts)
    expected = flnb.manual_seed(7).numpy.normal()
    flnb.manual_seed(7)
    nn.load_checkpoint(str(tmp_path / "last"), random=False, model=second.model)
    assert flnb.random.default_generator.numpy.normal() == expected
    same(first.values(), second.values())
    assert second.optimizer.steps == 0


def test_every_mismatch_of_every_part_is_listed_and_nothing_is_loaded(tmp_path):
    saved, other = Run(4), Run(5, optim.Adam)
    saved.train(1)
    nn.save_checkpoint(tmp_path / "four", model=saved.model, optimizer=saved.optimizer)
    other.train(1)
    before, state = other.values(), flnb.random.default_generator.state
    with pytest.raises(ValueError) as error:
        nn.load_checkpoint(tmp_path / "four", **other.parts)
    for line in (
        "model: mis-shaped: first.weight: got (4, 3) float32, expected (5, 3) float32",
        "optimizer: kind: got AdamW, expected Adam",
        "optimizer: mis-shaped: 0.mean: got (4, 3) float32, expected (5, 3) float32",
        "missing: schedule (the file holds model, optimizer)",
        "nothing was loaded",
    ):
        assert line in str(error.value)
    same(before, other.values())
    assert other.optimizer.steps == 1
    assert flnb.random.default_generator.state == state


def test_data_sets_and_generators_go_on_where_they_were(tmp_path):
    def made():
        data = flnb.data.ShuffleDataset(flnb.data.TensorDataset(flnb.arange(12)), seed=3)
        return {"data": data, "noise": flnb.random.Generator(5)}

    def draw(parts, items):
        return [(int(item[0]), float(parts["noise"].numpy.normal())) for _, item in zip(range(4), items, strict=False)]

    first, second = made(), made()
    items = iter(first["data"])
    draw(first, items)
    nn.save_checkpoint(tmp_path / "last", **first)
    expected = draw(first, items)
    nn.load_checkpoint(tmp_path / "last", **second)
    assert draw(second, iter(second["data"])) == expected

    third = made()
    third["data"] = flnb.data.TensorDataset(flnb.arange(5))
    start = third["noise"].state
    with pytest.raises(ValueError, match="12"):
        nn.load_checkpoint(tmp_path / "last", noise=third["noise"], data=third["data"])
    assert third["noise"].state == start


def test_a_part_that_only_load_state_dict_checks_is_loaded_first(tmp_path):
    class Loader:
        def state_dict(self):
            return {"position": 3, "order": np.arange(4)}

        def load_state_dict(self, state):
            assert state["order"].tolist() == [0, 1, 2, 3]
            raise ValueError("another data set")

    saved, other = Run(), Run()
    nn.save_checkpoint(tmp_path / "last", model=saved.model, data=Loader())
    before = other.values()
    with pytest.raises(ValueError, match="another data set"):
        nn.load_checkpoint(tmp_path / "last", model=other.model, data=Loader())
    same(before, other.values())


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b"not safetensors", lambda b: b[:40]])
def test_a_truncated_file_is_named_and_nothing_is_loaded(tmp_path, damage):
    run, path = Run(), tmp_path / "last"
    nn.save_checkpoint(path, **run.parts)
    path.write_bytes(damage(path.read_bytes()))
    run.train(1)
    before = run.values()
    message = r"last is not a whole safetensors file .*nothing was loaded; save it again with nn\.save_checkpoint"
    with pytest.raises(ValueError, match=message):
        nn.load_checkpoint(path, **run.parts)
    same(before, run.values())
    assert run.optimizer.steps == 1


def rewritten(path, change):
    arrays, metadata = read_whole(path, purpose="", saved_by="")
    tree = json.loads(metadata["checkpoint"])
    change(tree)
    write_whole(path, arrays, {"checkpoint": json.dumps(tree)}, purpose="")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tree: tree.pop("random"), "damaged checkpoint"),
        (lambda tree: tree.pop("states"), "damaged checkpoint"),
        (lambda tree: tree["states"]["model"].update({"out.weight": {"__array__": "no such array"}}), "damaged"),
        (lambda tree: tree.update(random=None), "not a state of a random generator"),
        (lambda tree: tree["random"].update(bit_generator="MT19937"), "not a state of a random generator"),
        (lambda tree: tree["random"].update(uinteger="x"), "not a state of a random generator"),
        (lambda tree: tree["random"]["state"].update(inc=-1), "not a state of a random generator"),
    ],
)
def test_nothing_is_loaded_where_the_random_state_or_the_tree_is_bad(tmp_path, change, says):
    path, run, noise = tmp_path / "last", Run(), flnb.random.Generator(3)
    run.train(1)
    nn.save_checkpoint(path, **run.parts, noise=noise)
    rewritten(path, change)
    run.train(2)
    noise.numpy.normal()
    before, states = run.values(), (flnb.random.default_generator.state, noise.state)
    with pytest.raises(ValueError, match=says):
        nn.load_checkpoint(path, **run.parts, noise=noise)
    same(before, run.values())
    assert run.optimizer.steps == run.schedule.steps == 3
    assert (flnb.random.default_generator.state, noise.state) == states


def test_a_file_of_nn_save_is_told_apart(tmp_path):
    nn.save(Run().model, tmp_path / "weights")
    with pytest.raises(ValueError, match=r"weights holds tensors but no checkpoint; read it with nn\.load"):
        nn.load_checkpoint(tmp_path / "weights", model=Run().model)
    nn.save_checkpoint(tmp_path / "last", model=Run().model)
    with pytest.raises(ValueError, match=r"last holds a checkpoint, nothing was loaded; read it with nn\.load_checkp"):
        nn.load(Run().model, tmp_path / "last")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        nn.load_checkpoint(tmp_path / "nowhere", model=Run().model)


def test_an_interrupted_or_refused_save_keeps_the_old_file(tmp_path, interrupt_writes):
    run, path = Run(), tmp_path / "last"
    nn.save_checkpoint(path, **run.parts)
    old = path.read_bytes()
    with pytest.raises(TypeError, match=r"save_checkpoint: notes\.0\.who is a object; expected an array, a number"):
        nn.save_checkpoint(path, **run.parts, notes=[{"who": object()}])
    with pytest.raises(TypeError, match=r"notes is a dict; .*strings as keys"):
        nn.save_checkpoint(path, **run.parts, notes={1: 2})

    with pytest.raises(ValueError, match='"random" is the session\'s generator, which is saved in any case; give'):
        nn.save_checkpoint(path, **run.parts, random=flnb.random.Generator(1))
    interrupt_writes()
    with pytest.raises(KeyboardInterrupt):
        nn.save_checkpoint(path, **run.parts)
    assert path.read_bytes() == old
    assert [item.name for item in tmp_path.iterdir()] == ["last"]


def test_arrays_at_places_of_the_same_name_stay_apart(tmp_path):
    one, other = flnb.ones(2), flnb.zeros(3)
    nn.save_checkpoint(tmp_path / "x", part={"a.b": one, "a": {"b": other}}, turned=flnb.asarray([[1, 2], [3, 4]]).T)
    found = nn.load_checkpoint(tmp_path / "x")
    assert found["part"]["a.b"].tolist() == [1.0, 1.0]
    assert found["part"]["a"]["b"].tolist() == [0.0, 0.0, 0.0]
    assert found["turned"].tolist() == [[1, 3], [2, 4]]
