"""An LSTM that predicts the next word."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.models.recipe import Recipe
from flnb.models.tokens import expect_tokens, next_tokens, token_loss
from flnb.nn import LSTM, Dropout, Embedding, Linear, Module


class LSTMLM(Module):
    """Predict the word after each word: (N, T) -> logits (N, T, vocabulary), and the LSTM's last state.

    LSTM layers follow word embeddings of the same width, with dropout on all but the recurrent connections (Zaremba et
    al. 2014, section 3.2). The state is (h, c), each (layers, N, features); ``model(words, state)`` continues a text.

    >>> import flnb
    >>> model = flnb.models.LSTMLM(vocabulary=50, features=8)
    >>> words = flnb.asarray([[3, 1, 4, 1, 5]])
    >>> logits, state = model(words)
    >>> logits, state = model(words, state)
    >>> logits.shape
    (1, 5, 50)

    Raises:
        ValueError: words or a state of another shape.
        IndexError: a word that is not below ``vocabulary``.
    """

    def __init__(self, vocabulary: int = 10_000, features: int = 200, layers: int = 1, dropout: float = 0.5) -> None:
        self.vocabulary = vocabulary
        self.embedding = Embedding(vocabulary, features)
        self.lstm = LSTM(features, features, layers, dropout=dropout)
        self.output = Linear(features, vocabulary)
        self.dropout = Dropout(dropout)

    def forward(self, words: Any, state: Any = None) -> tuple[Any, Any]:
        words = expect_tokens(self, words, self.vocabulary)
        x = self.dropout(self.embedding(words.mT))
        x, state = self.lstm(x, state)
        return self.output(self.dropout(ops.permute_dims(x, (1, 0, 2)))), state


def next_word_loss(model: Module, words: Any, targets: Any) -> Any:
    """Return the mean cross-entropy of predicting targets (N, T) from words (N, T), with a zero initial state."""
    logits, _ = model(words)
    return token_loss(logits, targets)


def _recipe(name: str, features: int, layers: int, steps: int, small: int, parameters: tuple[int, int]) -> Recipe:
    """Return the recipe of one of the paper's three language models, for 10,000 words, or 5,000 in the scale "small".

    Args:
        name: the model's name for `flnb.models.get`.
        features: the number of features in the scale "paper".
        layers: the number of LSTM layers.
        steps: the number of words in a sequence.
        small: the number of features in the scale "small".
        parameters: the number of trained numbers in the scales "paper" and "small".
    """
    return Recipe(
        name=name,
        model=LSTMLM,
        source="Al-Rfou et al. 2016 (Theano), section IV.3",
        settings={
            "paper": {"features": features, "layers": layers},
            "small": {"vocabulary": 5000, "features": small, "layers": layers},
        },
        parameters=dict(zip(("paper", "small"), parameters, strict=True)),
        batch_sizes={"paper": 20, "small": 20},
        draws={"paper": next_tokens(10_000, steps), "small": next_tokens(5000, steps)},
        loss=next_word_loss,
    )


LSTM_LM_RECIPES = (
    _recipe("lstm-lm-200", 200, layers=1, steps=20, small=200, parameters=(4_331_600, 2_326_600)),
    _recipe("lstm-lm-600", 600, layers=1, steps=40, small=300, parameters=(14_894_800, 3_727_400)),
    _recipe("lstm-lm-650x2", 650, layers=2, steps=50, small=325, parameters=(19_780_400, 4_950_200)),
)
