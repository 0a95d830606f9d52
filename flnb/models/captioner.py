"""An LSTM that captions a video, attending to the frames at each word."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.models.recipe import Recipe, noise
from flnb.models.tokens import expect_tokens, token_loss
from flnb.nn import LSTM, Dropout, Embedding, Linear, Module


class SoftAttention(Module):
    """Additive attention of a state (N, hidden) to frames (N, F, features) (Bahdanau et al. 2015, appendix A.1.2).

    Called as ``attention(state, frames, projected)``; returns the weighted sum of the frames (N, features) and their
    weights (N, F), the softmax of ``w tanh(W state + U frame + b)``. The term ``U frame + b`` is the same for all
    states, so it is computed once, by `projected`, and passed to every call.

    >>> import flnb
    >>> attention = SoftAttention(features=4, hidden=3)
    >>> frames = flnb.ones((2, 5, 4))
    >>> context, weights = attention(flnb.ones((2, 3)), frames, attention.projected(frames))
    >>> context.shape, weights[0].tolist()
    ((2, 4), [0.20000000298023224, 0.20000000298023224, 0.20000000298023224, 0.20000000298023224, 0.20000000298023224])
    """

    def __init__(self, features: int, hidden: int) -> None:
        self.frames = Linear(features, features)
        self.state = Linear(hidden, features, bias=False)
        self.score = Linear(features, 1, bias=False)

    def projected(self, frames: Any) -> Any:
        """Return ``U frame + b`` for all frames (N, F, features): (N, F, hidden)."""
        return self.frames(frames)

    def forward(self, state: Any, frames: Any, projected: Any) -> tuple[Any, Any]:
        scores = self.score(ops.tanh(projected + self.state(state)[:, None]))[..., 0]
        weights = ops.softmax(scores)
        return (weights[:, None] @ frames)[:, 0], weights


class Captioner(Module):
    """Predict each word of a sentence from the words before it and the frames of a video, by an LSTM with attention.

    Called as ``model(frames, words)``: frames (N, F, features) and words (N, L); returns logits (N, L, vocabulary).
    Linear maps of the mean frame make the first state. At each step the LSTM reads the previous word (zeros before the
    first) and the attended frames, scaled by a gate (Xu et al. 2015, section 4.2.1). A word is predicted from the
    state, the attended frames and the previous word.

    The defaults are the sizes in the code of Yao et al. 2015, on which Theano's benchmark is based: a frame is the 1024
    features of a GoogLeNet.

    >>> import flnb
    >>> model = flnb.models.Captioner(vocabulary=50, features=6, word_features=4, hidden=8)
    >>> model(flnb.ones((2, 5, 6)), flnb.asarray([[3, 1, 4], [1, 5, 9]])).shape
    (2, 3, 50)

    Raises:
        ValueError: frames of another shape, or another number of videos than of sentences.
        IndexError: a word that is not below ``vocabulary``.
    """

    def __init__(
        self, vocabulary: int = 20_000, features: int = 1024, word_features: int = 468, hidden: int = 3518,
        dropout: float = 0.5,
    ) -> None:  # fmt: skip
        self.vocabulary, self.features = vocabulary, features
        self.embedding = Embedding(vocabulary, word_features)
        self.first_h, self.first_c = Linear(features, hidden), Linear(features, hidden)
        self.attention = SoftAttention(features, hidden)
        self.gate = Linear(hidden, 1)
        self.lstm = LSTM(word_features + features, hidden)
        self.from_state = Linear(hidden, word_features)
        self.from_context = Linear(features, word_features)
        self.output = Linear(word_features, vocabulary)
        self.dropout = Dropout(dropout)

    def forward(self, frames: Any, words: Any) -> Any:
        words = expect_tokens(self, words, self.vocabulary)
        if frames.ndim != 3 or frames.shape[2] != self.features or frames.shape[0] != words.shape[0]:
            raise ValueError(
                f"Captioner: expected frames ({words.shape[0]}, F, {self.features}) for {words.shape[0]} sentences, "
                f"got {frames.shape}"
            )
        before = ops.pad(self.embedding(words)[:, :-1], ((0, 0), (1, 0), (0, 0)))
        states, contexts = self._over_time(frames, before)
        scored = self.from_state(self.dropout(states)) + self.from_context(contexts) + before
        return self.output(self.dropout(ops.tanh(scored)))

    def _over_time(self, frames: Any, before: Any) -> tuple[Any, Any]:
        """Run the LSTM over ``before``, the embeddings of the previous words (N, L, word_features), one word at a time.

        Returns:
            The LSTM's states (N, L, hidden), and the attended, gated frames (N, L, features).
        """
        projected, mean = self.attention.projected(frames), ops.mean(frames, axis=1)
        h, c = ops.tanh(self.first_h(mean)), ops.tanh(self.first_c(mean))
        states, contexts = [], []
        for t in range(before.shape[1]):
            context, _ = self.attention(h, frames, projected)
            context = context * ops.sigmoid(self.gate(h))
            x = ops.concat([before[:, t], context], axis=1)
            _, (h, c) = self.lstm(x[None], (h[None], c[None]))
            h, c = h[0], c[0]
            states.append(h)
            contexts.append(context)
        return ops.stack(states, axis=1), ops.stack(contexts, axis=1)


def caption_loss(model: Module, frames: Any, words: Any) -> Any:
    """Return the mean cross-entropy of words (N, L), each predicted from the frames and the words before it."""
    return token_loss(model(frames, words), words)


SMALL = {"vocabulary": 2000, "features": 256, "word_features": 128, "hidden": 256}

CAPTIONER_RECIPE = Recipe(
    name="captioner",
    model=Captioner,
    source="Al-Rfou et al. 2016 (Theano), section IV.4; Yao et al. 2015",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 103_263_931, "small": 1_500_625},
    batch_sizes={"paper": 64, "small": 48},
    draws={"paper": noise((28, 1024), 20_000, targets=(30,)), "small": noise((28, 256), 2000, targets=(10,))},
    loss=caption_loss,
)
