"""nn.save and nn.load: complete files only, complete loads only."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn

pytest.importorskip("safetensors", reason="nn.save needs the extra lab")


def net(width: int = 5) -> nn.Module:
    conv, norm = nn.Conv2d(1, width, 3), nn.BatchNorm(width)
    return nn.Sequential(conv=conv, norm=norm, flat=nn.Flatten(), out=nn.Linear(width, 2))


def values(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("model", [3, {"a": 3}, [flnb.ones(2)]], ids=str)
def test_what_cannot_be_saved_is_refused_before_a_file_is_written(tmp_path, model):
    with pytest.raises(TypeError, match=r"nn\.save: expected a module or its state_dict\(\), a dict of tensors, got "):
        nn.save(model, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_round_trip_keeps_every_bit_and_leaves_no_other_file(tmp_path):
    first, second = net(), net()
    first(flnb.ones((2, 1, 3, 3)))
    path = tmp_path / "net.safetensors"
    nn.save(first, path)
    nn.save(first, path)  # replaces
    assert [item.name for item in tmp_path.iterdir()] == ["net.safetensors"]
    nn.load(second, str(path))
    for name, array in values(first).items():
        np.testing.assert_array_equal(values(second)[name], array, err_msg=name)


def test_strided_tensors_and_scalars_are_written_as_they_read(tmp_path):
    transposed = flnb.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)).T
    nn.save({"transposed": transposed, "scalar": flnb.asarray(2.5)}, tmp_path / "x")
    from safetensors.numpy import load_file

    back = load_file(tmp_path / "x")
    np.testing.assert_array_equal(back["transposed"], transposed.numpy())
    assert back["scalar"].shape == ()
    assert back["scalar"] == 2.5


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b"not safetensors", lambda b: b[:40]])
def test_a_corrupt_file_is_named_and_nothing_is_loaded(tmp_path, damage):
    model, path = net(), tmp_path / "broken.safetensors"
    nn.save(net(), path)
    path.write_bytes(damage(path.read_bytes()))
    before = values(model)
    with pytest.raises(ValueError, match=r"broken\.safetensors is not a whole safetensors file .*nothing was loaded"):
        nn.load(model, path)
    for name, array in values(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_another_architecture_lists_each_mismatch(tmp_path):
    nn.save(net(5), tmp_path / "five")
    with pytest.raises(ValueError) as error:
        nn.load(nn.Sequential(conv=nn.Conv2d(1, 6, 3), extra=nn.Linear(2, 2)), tmp_path / "five")
    for line in (
        "mis-shaped: conv.weight: got (5, 1, 3, 3) float32, expected (6, 1, 3, 3) float32",
        "missing: extra.weight",
        "unexpected: norm.running_mean",
        "nothing was loaded",
    ):
        assert line in str(error.value)


def test_an_interrupted_save_keeps_the_old_file(tmp_path, interrupt_writes):
    path = tmp_path / "net"
    nn.save(net(), path)
    old = path.read_bytes()
    interrupt_writes()
    with pytest.raises(KeyboardInterrupt):
        nn.save(net(), path)
    assert path.read_bytes() == old
    assert [item.name for item in tmp_path.iterdir()] == ["net"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        nn.load(net(), tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no_folder"):
        nn.save(net(), tmp_path / "no_folder" / "net")
