"""What transformers, blocks and augmentation promise beyond their values: who sees what, and what is drawn."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn

RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def values(y):
    return (y.detach() if isinstance(y, flnb.Variable) else y).numpy()


def seen_by(module, shape, axis, step):
    """The steps along an axis of the output that change when one step of the input does."""
    x, other = drawn(*shape), drawn(*shape)
    place = (*(slice(None),) * axis, slice(step, step + 1))
    changed = x.copy()
    changed[place] = other[place]
    difference = values(module(flnb.asarray(changed))) != values(module(flnb.asarray(x)))
    return np.flatnonzero(difference.any(axis=tuple(i for i in range(difference.ndim) if i != axis))).tolist()


flnb.manual_seed(0)  # of the modules below, whose weights decide whether a ReLU lets a step through


@pytest.mark.parametrize(
    ("module", "shape", "axis", "seen"),
    [
        (nn.AsymmetricConv1d(2, 2, 3, future_part=0.0), (1, 2, 9), 2, [4, 5, 6]),
        (nn.AsymmetricConv1d(2, 2, 3), (1, 2, 9), 2, [3, 4, 5]),
        (nn.AsymmetricConv1d(2, 2, 3, future_part=1.0), (1, 2, 9), 2, [2, 3, 4]),
        (nn.AsymmetricConv1d(2, 2, 5, future_part=0.25, dilation=2), (1, 2, 15), 2, [2, 4, 6, 8, 10]),
        (nn.TDSBlock(2, 3, 4, future=0, norm_time=False), (1, 2, 9, 4), 2, [4, 5, 6]),
        (nn.TDSBlock(2, 3, 4, future=2, norm_time=False), (1, 2, 9, 4), 2, [2, 3, 4]),
        (nn.TDSBlock(2, 3, 4, future=0), (1, 2, 9, 4), 2, list(range(9))),  # the norm is over all of time
        (nn.Conformer(8, 2, 16, 3, 0.0), (1, 9, 8), 1, list(range(9))),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else None,
)
def test_which_steps_see_step_four(module, shape, axis, seen):
    assert seen_by(module, shape, axis, 4) == seen


@pytest.mark.parametrize("context", [0, 9])
def test_a_causal_decoder_sees_the_past_and_all_of_memory(context):
    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, context=context)
    memory, x = drawn(1, 5, 8), drawn(1, 9, 8)
    with_memory = nn.Transform(lambda x: layer(x, flnb.asarray(memory), is_causal=True))
    assert seen_by(with_memory, (1, 9, 8), 1, 4) == [4, 5, 6, 7, 8]
    allowed = flnb.asarray(np.arange(5) < 3)
    changed = memory.copy()
    changed[:, 3:] = drawn(1, 2, 8)
    of_three, of_others = (
        values(layer(flnb.asarray(x), flnb.asarray(m), memory_mask=allowed)) for m in (memory, changed)
    )
    np.testing.assert_array_equal(of_three, of_others)


def test_a_causal_decoder_is_torchs():
    torch = pytest.importorskip("torch", reason="torch is not installed: what it sees is checked above")
    theirs = torch.nn.Transformer(8, 2, 1, 2, 16, 0.0, batch_first=True)
    ours = nn.Transformer(8, 2, 1, 2, 16, 0.0)
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    source, target = drawn(3, 7, 8), drawn(3, 5, 8)
    padding = np.arange(7) >= np.array([[7], [4], [5]])
    expected = theirs(
        torch.from_numpy(source),
        torch.from_numpy(target),
        tgt_mask=torch.from_numpy(~np.tri(5, dtype=bool)),
        src_key_padding_mask=torch.from_numpy(padding),
        memory_key_padding_mask=torch.from_numpy(padding),
    )
    mask = flnb.asarray(~padding[:, None, None, :])
    got = ours(flnb.asarray(source), flnb.asarray(target), mask, memory_mask=mask, is_causal=True)
    np.testing.assert_allclose(values(got), expected.numpy(force=True), rtol=1e-5, atol=1e-5)


def test_what_a_conformer_is_told_to_leave_out_changes_nothing():
    module = nn.Conformer(8, 2, 16, 5, 0.0, context=9)
    x, mask = drawn(2, 9, 8), np.arange(9) < np.array([[9], [6]])
    other = np.where(mask[..., None], x, drawn(2, 9, 8))
    one, two = (values(module(flnb.asarray(a), flnb.asarray(mask)))[mask] for a in (x, other))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(
        values(module(flnb.asarray(x), flnb.asarray(mask)))[1, :6],
        values(module(flnb.asarray(x[1:, :6])))[0],
        rtol=1e-4,
        atol=1e-5,
    )


def test_distances_count_from_the_key_to_the_query_and_only_so_far():
    attention = nn.MultiheadAttention(2, 1, context=3)
    for parameter in attention.parameters():
        flnb.assign(parameter.data, 0.0)
    eye = np.eye(2, dtype=np.float32)
    flnb.assign(attention.in_proj_weight.data, np.concatenate([eye, 0 * eye, eye]))
    flnb.assign(attention.out_proj.weight.data, eye)
    flnb.assign(attention.relative.data, [[0, 0], [90.0, 0], [0, 0], [0, 0], [0, 0]])  # the key before the query
    x = np.array([[[1.0, 5.0], [1.0, 6.0], [1.0, 7.0]]], np.float32)
    np.testing.assert_allclose(values(attention(flnb.asarray(x)))[0, 1:, 1], [5.0, 6.0])
    with pytest.raises(ValueError, match="sequences of at most context=3, got 4 queries and 4 keys"):
        attention(flnb.ones((1, 4, 2)))


def test_layers_are_dropped_in_training_in_the_share_that_was_asked_for():
    flnb.manual_seed(1)
    layer = nn.LayerDrop(nn.Linear(2, 2), 0.25)
    x = flnb.ones((1, 2))
    dropped = [layer(x) is x for _ in range(400)]
    assert 0.19 < np.mean(dropped) < 0.31
    layer.eval()
    assert not any(layer(x) is x for _ in range(20))
    masked = nn.LayerDrop(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 0.0)
    y = flnb.asarray(drawn(1, 4, 8))
    np.testing.assert_array_equal(values(masked(y, is_causal=True)), values(masked.module(y, is_causal=True)))


def runs(mask):
    """Lengths of the runs of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


def test_spectra_lose_whole_bands_and_spans_of_bounded_widths_each_its_own():
    module = nn.SpecAugment(frequency_width=6, frequency_masks=1, time_width=10, time_masks=1, time_share=0.2)
    flnb.manual_seed(2)
    masked = values(module(flnb.ones((200, 30, 20)))) == 0
    bands, times = masked.all(axis=1), masked.all(axis=2)
    np.testing.assert_array_equal(masked, bands[:, None, :] | times[:, :, None])
    assert {len(runs(row)) for row in (*bands, *times)} == {0, 1}
    assert {max(runs(row), default=0) for row in bands} == set(range(7))
    assert {max(runs(row), default=0) for row in times} == set(range(7))  # 0.2 of 30 is less than 10
    assert bands[:, [0, -1]].any(axis=0).all()
    assert times[:, [0, -1]].any(axis=0).all()


def test_masks_are_seeded_take_a_value_and_let_no_gradient_through():
    x = flnb.Variable(drawn(4, 30, 20))
    module = nn.SpecAugment(6, time_width=5, value=-7.0)
    flnb.manual_seed(3)
    y = module(x)
    flnb.manual_seed(3)
    np.testing.assert_array_equal(values(module(x)), values(y))
    flnb.sum(y).backward()
    np.testing.assert_array_equal(x.grad.numpy(), values(y) != -7.0)
    assert (values(y) == -7.0).any()
    of_mean = nn.SpecAugment(6, time_width=5, value="mean")
    flnb.manual_seed(3)
    means = x.data.numpy().mean(axis=(1, 2), keepdims=True)
    expected = np.where(values(y) == -7.0, means, x.data.numpy())
    np.testing.assert_allclose(values(of_mean(x)), expected, rtol=1e-6, atol=1e-6)
    assert module.eval()(x) is x


def test_time_is_warped_in_order_with_its_ends_kept():
    steps = np.arange(40, dtype=np.float32)
    x = flnb.asarray(np.broadcast_to(steps[None, :, None], (50, 40, 3)).copy())
    module = nn.SpecAugment(frequency_masks=0, time_masks=0, time_warp=5)
    flnb.manual_seed(4)
    y = values(module(x))
    assert (np.diff(y, axis=1) > 0).all()
    np.testing.assert_array_equal(y[:, 0], 0)
    np.testing.assert_array_equal(y[:, -1], 39)
    moved = abs(y[:, :, 0] - steps).max(axis=1)
    assert moved.max() <= 5
    assert len(set(moved.round(3).tolist())) > 5
    short = x[:, :13]
    np.testing.assert_array_equal(values(module(short)), short.numpy())


def test_waves_lose_a_band_of_mel_frequencies_and_keep_the_others():
    module = nn.RawWavSpecAugment(frequency_width=12, frequency_masks=1, time_masks=0, bands=20)
    noise = drawn(12, 1, 16000)
    flnb.manual_seed(5)
    x = flnb.Variable(noise)
    y = module(x)
    gain = abs(np.fft.rfft(values(y)[:, 0, 2000:-2000])) / abs(np.fft.rfft(noise[:, 0, 2000:-2000]))
    smooth = np.apply_along_axis(lambda g: np.convolve(g, np.ones(61) / 61, "valid"), 1, np.minimum(gain, 2.0))
    out = smooth < 0.1
    assert all(len(runs(row)) <= 1 for row in out)
    assert out.any(axis=1).sum() >= 8
    assert (out & ~out.all(axis=0)).any()  # not the same one for all
    # More than half of all frequencies are as they were: bands are at most twelve of the twenty, mostly fewer.
    assert (abs(smooth - 1.0) < 0.1).mean() > 0.6
    flnb.sum(flnb.square(y)).backward()
    direction = drawn(12, 1, 16000)
    flnb.manual_seed(5)
    twice = values(module(flnb.asarray(noise + direction))) - values(y)  # linear in x
    np.testing.assert_allclose((x.grad.numpy() * direction).sum(), 2 * (values(y) * twice).sum(), rtol=1e-2)
    assert module.eval()(x) is x


def test_waves_lose_spans_of_samples_of_any_leading_axes():
    module = nn.RawWavSpecAugment(frequency_masks=0, time_width=50, time_masks=1)
    flnb.manual_seed(6)
    y = values(module(flnb.ones((30, 2, 400))))
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
    assert {len(runs(row == 0)) for row in y[:, 0]} <= {0, 1}
    assert 25 < max(max(runs(row == 0), default=0) for row in y[:, 0]) <= 50
    assert module(flnb.ones((3, 400))).shape == (3, 400)


def test_adaptive_modules_take_indices_of_a_dtype_that_their_bounds_do_not_fit():
    embedding, loss = nn.AdaptiveEmbedding(300, 8, [4, 10]), nn.AdaptiveSoftmaxLoss(nn.AdaptiveSoftmax(8, 300, [4, 10]))
    wide, small = flnb.asarray([0, 5, 120]), flnb.asarray([0, 5, 120], dtype="int8")
    assert np.array_equal(values(embedding(small)), values(embedding(wide)))
    x = flnb.ones((3, 8))
    assert loss(x, small).item() == loss(x, wide).item()


def test_embeddings_by_cluster_say_what_is_no_entry():
    embedding = nn.AdaptiveEmbedding(20, 8, [4, 10])
    assert embedding(flnb.zeros((0, 3), dtype="int64")).shape == (0, 3, 8)
    assert embedding(flnb.asarray(19)).shape == (8,)
    with pytest.raises(IndexError, match="AdaptiveEmbedding: indices go from 0 to 20, expected 0 to 19"):
        embedding(flnb.asarray([0, 20]))
    with pytest.raises(TypeError, match=r"AdaptiveEmbedding: expected integer indices, got float32\[2\]"):
        embedding(flnb.ones(2))
    spread = [float(np.std(values(rows.weight))) * rows.weight.shape[1] ** 0.5 for rows in nn.AdaptiveEmbedding(
        9000, 64, [3000, 6000]).rows]  # fmt: skip
    assert spread == pytest.approx([1.0, 1.0, 1.0], abs=0.05)
