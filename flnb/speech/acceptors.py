"""Acceptors: which sequences of tokens, one a frame, are paths, and the score of each step.

A criterion compares two of them: the *numerator* holds the paths that spell the target, the *denominator* all that a
search considers possible (`flnb.speech.beam_search`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["START", "Acceptor", "Arc", "bigram", "ctc", "forced", "lexicon"]

START = -1
"""The state before the first frame; the others count from 0."""


class Arc(NamedTuple):
    """One step: consume a frame as ``token``, arrive in state ``to``, score ``weight``.

    The weight is a 0-d tensor, a number, or None for 0.
    """

    token: int
    to: int
    weight: Any = None


class Acceptor(NamedTuple):
    """The arcs that leave each state, and the states in which a path may end. All paths begin in `START`.

    >>> from flnb.speech import Acceptor, Arc
    >>> either = Acceptor({-1: [Arc(0, 0), Arc(1, 1)], 0: [Arc(0, 0)], 1: [Arc(1, 1)]}, frozenset({0, 1}))
    """

    arcs: Mapping[int, Sequence[Arc]]
    ends: frozenset[int]


def bigram(transitions: Any) -> Acceptor:
    """The acceptor of all sequences of tokens. A state is the latest token.

    Args:
        transitions: scores ``[from, to]`` of one token after another, or after itself, shape (tokens, tokens).

    >>> import flnb
    >>> acceptor = flnb.speech.bigram(flnb.zeros((2, 2)))
    >>> round(flnb.speech.path_score(acceptor, flnb.zeros((3, 2))).item(), 4)  # log of 8 paths
    2.0794
    """
    weight = _Weights(transitions)
    tokens = range(transitions.shape[0])
    arcs = {i: [Arc(j, j, weight(i, j)) for j in tokens] for i in tokens}
    arcs[START] = [Arc(j, j) for j in tokens]
    return Acceptor(arcs, frozenset(tokens))


def forced(tokens: Sequence[int], transitions: Any = None) -> Acceptor:
    """The paths that spell ``tokens`` in this order, each for one frame or more, without blanks.

    In state i the latest token is ``tokens[i]``.

    >>> import flnb
    >>> acceptor = flnb.speech.forced([0, 1])
    >>> round(flnb.speech.path_score(acceptor, flnb.zeros((3, 2))).item(), 4)  # log of 2 paths: 001 and 011
    0.6931
    """
    if not len(tokens):
        raise ValueError("forced: got no tokens, expected one or more; without blanks, silence is a token too")
    return lexicon([tokens], transitions, sentence=[0])


def ctc(tokens: Sequence[int], blank: int = 0) -> Acceptor:
    """The paths that collapse to ``tokens`` by connectionist temporal classification's rule: repetitions, then blanks.

    With emissions that are log-probabilities in every frame, its negative `path_score` is the CTC loss (A. Graves et
    al., 2006, section 3.2).

    >>> import flnb
    >>> acceptor = flnb.speech.ctc([1], blank=0)
    >>> round(flnb.speech.path_score(acceptor, flnb.zeros((2, 2))).item(), 4)  # log of 3 paths: 01, 10 and 11
    1.0986
    """
    said = [blank]
    for token in tokens:
        said += [token, blank]
    last = len(said) - 1
    arcs = {START: [Arc(said[s], s) for s in range(min(2, last + 1))]}
    for s, token in enumerate(said):
        skips_blank = s + 2 <= last and token not in (blank, said[s + 2])
        arcs[s] = [Arc(said[to], to) for to in (s, s + 1, *[s + 2] * skips_blank) if to <= last]
    return Acceptor(arcs, frozenset({last, max(0, last - 1)}))


def lexicon(
    words: Sequence[Sequence[int]],
    transitions: Any = None,
    scores: Sequence[Any] | None = None,
    sentence: Sequence[int] | None = None,
) -> Acceptor:
    """The paths that spell words, each letter for one frame or more: any words in any order, or those of a sentence.

    Args:
        words: each the tokens of its letters.
        transitions: as for `bigram`, within words and from one to the next.
        scores: of each word, a number or a 0-d tensor, added where its last letter begins.
        sentence: positions in ``words``; None allows all sequences of words. Both graphs of a criterion are made by
            this function: the numerator with a sentence, the denominator without.

    >>> from flnb.speech import lexicon
    >>> either = lexicon([[0, 1], [2]])  # "ab" or "c", as often as one likes
    >>> [arc.token for arc in either.arcs[-1]]
    [0, 2]
    """
    if not words or not all(len(word) for word in words):
        raise ValueError(f"lexicon: expected words of one token or more, got {words!r:.80}")
    if sentence is not None and not len(sentence):
        raise ValueError("lexicon: the sentence has no words; without blanks, silence is a word too")
    graph = _Words(words, _Weights(transitions), scores)
    if sentence is None:
        begins, ends = zip(*[graph.spell(word, share=True) for word in range(len(words))], strict=True)
        for end in ends:
            for begin in dict.fromkeys(begins):
                graph.connect(end, begin)
        for begin in dict.fromkeys(begins):
            graph.connect(START, begin)
        return Acceptor(graph.arcs, frozenset(ends))
    end = START
    for word in sentence:
        begin, after = graph.spell(word)
        graph.connect(end, begin)
        end = after
    return Acceptor(graph.arcs, frozenset({end}))


class _Words:
    """A graph of words under construction. Words that begin alike can share those states: a tree.

    The state of a word's last letter is its own, because the word's score is on the arc to it.
    """

    def __init__(self, words: Sequence[Sequence[int]], weight: _Weights, scores: Sequence[Any] | None) -> None:
        self.words, self.weight, self.scores = words, weight, scores
        self.arcs: dict[int, list[Arc]] = {START: []}
        self.token: list[int] = []
        self.bonus: list[Any] = []
        self.shared: dict[tuple[int, ...], int] = {}

    def spell(self, word: int, share: bool = False) -> tuple[int, int]:
        """Add the states of a word's letters; the first and the last."""
        letters = tuple(self.words[word])
        states: list[int] = []
        for n in range(1, len(letters) + 1):
            whole = n == len(letters)
            state = self.shared.get(letters[:n]) if share and not whole else None
            if state is None:
                state = self._state(letters[n - 1], self.scores[word] if whole and self.scores is not None else None)
                if states:
                    self.connect(states[-1], state)
                if share and not whole:
                    self.shared[letters[:n]] = state
            states.append(state)
        return states[0], states[-1]

    def _state(self, token: int, bonus: Any) -> int:
        state = len(self.token)
        self.token.append(token)
        self.bonus.append(bonus)
        self.arcs[state] = [Arc(token, state, self.weight(token, token))]
        return state

    def connect(self, a: int, b: int) -> None:
        """Add the arc from a state to the state of another letter."""
        weight = None if a == START else self.weight(self.token[a], self.token[b])
        bonus = self.bonus[b]
        both = weight if bonus is None else bonus if weight is None else weight + bonus
        self.arcs[a].append(Arc(self.token[b], b, both))


class _Weights:
    """The numbers of a matrix of scores, each made once, so that all arcs of a kind share one node."""

    def __init__(self, scores: Any) -> None:
        self.rows = None if scores is None else list(scores)
        self.made: dict[tuple[int, int], Any] = {}

    def __call__(self, i: int, j: int) -> Any:
        if self.rows is None:
            return None
        if (i, j) not in self.made:
            self.made[i, j] = self.rows[i][j]
        return self.made[i, j]
