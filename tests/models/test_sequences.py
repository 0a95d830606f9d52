"""Models of sequences: what they may see, shapes, states, and errors that say what was expected."""

import re

import numpy as np
import pytest

import flnb
from flnb.models import BERT, LSTMLM, ASRTransformer, Captioner, TransformerLM
from flnb.models.tokens import expect_tokens, token_loss

WORDS = 11
LENGTH = 6


def tiny(name):
    """A model in evaluation, and a function of tokens (N, T) that gives logits (N, T, WORDS)."""
    flnb.manual_seed(0)
    if name == "lstm":
        model = LSTMLM(WORDS, features=5, layers=2).eval()
        return model, lambda tokens: model(tokens)[0]
    if name == "captioner":
        model = Captioner(WORDS, features=4, word_features=3, hidden=5).eval()
        frames = flnb.randn((2, 7, 4))
        return model, lambda tokens: model(frames, tokens)
    kinds = {"transformer": TransformerLM, "bert": BERT}
    model = kinds[name](WORDS, features=8, heads=2, layers=2, length=LENGTH).eval()
    return model, model


def close(x, y, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol, atol)


TOKENS = np.random.default_rng(0).integers(WORDS, size=(2, LENGTH))


@pytest.mark.parametrize(("name", "sees"), [("transformer", 1), ("lstm", 1), ("captioner", 0), ("bert", None)])
def test_what_each_output_sees(name, sees):
    """Outputs at t depend on tokens up to t (a caption's: before t), in BERT on all of them."""
    _, logits = tiny(name)
    for changed in range(LENGTH):
        other = TOKENS.copy()
        other[:, changed] = (other[:, changed] + 1) % WORDS
        with flnb.no_grad():
            differs = (logits(flnb.asarray(TOKENS)) != logits(flnb.asarray(other))).numpy().any(axis=(0, 2))
        expected = np.arange(LENGTH) >= (0 if sees is None else changed + 1 - sees)
        np.testing.assert_array_equal(differs, expected)


def test_bert_gives_the_positions_that_are_asked_for():
    model, _ = tiny("bert")
    places = flnb.asarray([[0, 3], [5, 5]])
    every, some = model(flnb.asarray(TOKENS)), model(flnb.asarray(TOKENS), places)
    close(some[1, 0], every[1, 5])
    close(some[0, 1], every[0, 3])


def test_masked_tokens_hide_what_they_ask_for():
    tokens, places, targets = flnb.models.get("bert").batch("paper", size=200)
    assert (tokens.shape, places.shape) == ((200, 128), (200, 19))  # 15%
    assert (np.diff(places, axis=1) > 0).all()
    there = np.take_along_axis(tokens, places, axis=1)
    hidden, kept = (there == 50_264).mean(), (there == targets).mean()
    assert abs(hidden - 0.8) < 0.02
    assert abs(kept - 0.1) < 0.02
    assert tokens.size - (tokens == 50_264).sum() == 200 * 128 - (there == 50_264).sum()


def test_an_lstm_goes_on_where_it_was():
    model, logits = tiny("lstm")
    whole = logits(flnb.asarray(TOKENS))
    _, state = model(flnb.asarray(TOKENS[:, :2]))
    rest, _ = model(flnb.asarray(TOKENS[:, 2:]), state)
    close(rest, whole[:, 2:])


@pytest.mark.parametrize(("frames", "outputs"), [(1, 1), (3, 1), (4, 2), (20, 7)])
def test_every_third_frame_is_heard(frames, outputs):
    model = ASRTransformer(WORDS, bands=5, features=8, heads=2, layers=1, feedforward=16, length=20)
    assert model(flnb.ones((2, frames, 5))).shape == (2, outputs, WORDS)


def test_loudness_is_not_heard():
    flnb.manual_seed(0)
    model = ASRTransformer(WORDS, bands=5, features=8, heads=2, layers=1, feedforward=16).eval()
    x = flnb.randn((2, 9, 5))
    close(model(x * 3.0 + 2.0), model(x), rtol=1e-3, atol=1e-4)


def test_attention_weighs_frames():
    model, _ = tiny("captioner")
    frames = flnb.randn((2, 7, 4))
    context, weights = model.attention(flnb.randn((2, 5)), frames, model.attention.projected(frames))
    close(flnb.sum(weights, axis=1), flnb.Variable(flnb.ones(2)))
    close(context, flnb.sum(weights[..., None] * frames, axis=1))


def call(name, tokens):
    _, logits = tiny(name)
    return lambda: logits(flnb.asarray(tokens))


WRONG = {
    "too long": (call("bert", [[1] * 7]), ValueError, "BERT: expected tokens (N, T) with T at most 6, got (1, 7)"),
    "too long, too": (
        call("transformer", [[1] * 7]),
        ValueError,
        "TransformerLM: expected tokens (N, T) with T at most",
    ),
    "one axis": (call("lstm", [1, 2]), ValueError, "LSTMLM: expected tokens (N, T) with T > 0, got (2,)"),
    "no token": (call("lstm", np.zeros((2, 0), int)), ValueError, "expected tokens (N, T) with T > 0, got (2, 0)"),
    "unknown": (call("bert", [[1, 11]]), IndexError, "BERT: expected tokens from 0 to 10, got tokens from 1 to 11"),
    "negative": (call("lstm", [[-1, 2]]), IndexError, "LSTMLM: expected tokens from 0 to 10, got tokens from -1 to 2"),
    "no integers": (call("lstm", [[0.5]]), TypeError, "must be integers, got float"),
    "one video": (
        call("captioner", [[1, 2]]),
        ValueError,
        "Captioner: expected frames (1, F, 4) for 1 sentences, got (2, 7, 4)",
    ),
    "positions": (
        lambda: tiny("bert")[0](flnb.asarray(TOKENS), flnb.asarray([[0], [6]])),
        IndexError,
        "BERT: expected positions from 0 to 5, got positions from 0 to 6",
    ),
    "positions of one": (
        lambda: tiny("bert")[0](flnb.asarray(TOKENS), flnb.asarray([[0]])),
        ValueError,
        "BERT: expected integer positions (2, K), got int64[1,1]",
    ),
    "bands": (
        lambda: ASRTransformer(WORDS, 5, 8, 2, 1, 16, length=9)(flnb.ones((2, 4, 6))),
        ValueError,
        "ASRTransformer: expected frames (N, T, 5) with T from 1 to 9, got (2, 4, 6)",
    ),
    "frames": (
        lambda: ASRTransformer(WORDS, 5, 8, 2, 1, 16, length=9)(flnb.ones((2, 10, 5))),
        ValueError,
        "ASRTransformer: expected frames (N, T, 5) with T from 1 to 9, got (2, 10, 5)",
    ),
    "state": (
        lambda: tiny("lstm")[0](flnb.asarray(TOKENS), (flnb.zeros((1, 2, 5)), flnb.zeros((1, 2, 5)))),
        ValueError,
        "LSTM: expected 2 state(s) of shape (2, 2, 5), got (1, 2, 5), (1, 2, 5)",
    ),
    "targets": (
        lambda: token_loss(flnb.ones((2, 3, 4)), flnb.asarray([[1, 2]])),
        ValueError,
        "token_loss: expected targets (2, 3) for logits (2, 3, 4), got (1, 2)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_say_what_was_expected(name):
    wrong, kind, message = WRONG[name]
    with pytest.raises(kind, match=re.escape(message)):
        wrong()


def test_tokens_may_be_arrays():
    assert expect_tokens(object(), TOKENS, WORDS).shape == TOKENS.shape
