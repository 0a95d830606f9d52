"""Acceptors: graphs whose paths are sequences of tokens, one for each frame of speech, with a score for each step.

A training criterion compares two acceptors: the paths of the *numerator* spell the target, those of the *denominator*
are all paths that a search considers possible (`flnb.speech.beam_search_loss`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

START = -1
"""The number of the state before the first frame; other states count from 0."""


class Arc(NamedTuple):
    """One step of a path: read a frame as ``token``, go to state ``to``, and add ``weight`` to the score.

    The weight is a 0-d tensor, a number, or None for 0.
    """

    token: int
    to: int
    weight: Any = None


class Acceptor(NamedTuple):
    """A graph whose paths are sequences of tokens.

    ``arcs`` lists the arcs that leave each state; ``ends`` are the states in which a path may end. All paths begin in
    the state `START`, which is -1.

    >>> from flnb.speech import Acceptor, Arc
    >>> either = Acceptor({-1: [Arc(0, 0), Arc(1, 1)], 0: [Arc(0, 0)], 1: [Arc(1, 1)]}, frozenset({0, 1}))
    """

    arcs: Mapping[int, Sequence[Arc]]
    ends: frozenset[int]


def bigram(transitions: Any) -> Acceptor:
    """Return the acceptor of all sequences of tokens; a state's number is that of the latest token.

    Args:
        transitions: a matrix (tokens, tokens), indexed [from, to], of the score of each token after each token.

    >>> import flnb
    >>> acceptor = flnb.speech.bigram(flnb.zeros((2, 2)))
    >>> round(flnb.speech.path_score(acceptor, flnb.zeros((3, 2))).item(), 4)  # log of 8 paths
    2.0794
    """
    tokens, rows = range(transitions.shape[0]), list(transitions)
    arcs = {i: [Arc(j, j, rows[i][j]) for j in tokens] for i in tokens}
    arcs[START] = [Arc(j, j) for j in tokens]
    return Acceptor(arcs, frozenset(tokens))


def forced(tokens: Sequence[int], transitions: Any = None) -> Acceptor:
    """Return the acceptor of the paths that spell ``tokens`` in order, each for one frame or more, without blanks.

    In state i the latest token is ``tokens[i]``. ``transitions`` is the matrix of scores that `bigram` takes; None
    stands for zeros.

    Raises:
        ValueError: no tokens.

    >>> import flnb
    >>> acceptor = flnb.speech.forced([0, 1])
    >>> round(flnb.speech.path_score(acceptor, flnb.zeros((3, 2))).item(), 4)  # log of 2 paths: 001 and 011
    0.6931
    """
    if not len(tokens):
        raise ValueError("forced: got no tokens, expected one or more (silence is a token, too)")
    return lexicon([tokens], transitions, sentence=[0])


def ctc(tokens: Sequence[int], blank: int = 0) -> Acceptor:
    """Return the acceptor of the paths that become ``tokens`` once repetitions and then blanks are removed (CTC).

    If emissions are log-probabilities in every frame, the negative `path_score` of the result is the CTC loss (A.
    Graves et al., 2006, section 3.2).

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
    """Return the acceptor of frame sequences that spell words, each letter in one frame or several.

    If ``sentence`` is given, the paths spell this sentence. Otherwise the paths spell any sequence of words.

    Args:
        words: for each word, the list of its letters' tokens.
        transitions: the scores of tokens after tokens, as for `bigram`, used within words and between them.
        scores: a score for each word, a number or a 0-d tensor, which is added at the word's last letter.
        sentence: the words of the sentence in order, as indices of ``words``; None allows all sequences of words.

    Raises:
        ValueError: no words, a word without letters, or a sentence without words.

    >>> from flnb.speech import lexicon
    >>> either = lexicon([[0, 1], [2]])  # tokens 0, 1, 2 are a, b, c: any sequence of the words "ab" and "c"
    >>> [arc.token for arc in either.arcs[-1]]
    [0, 2]
    """
    if not words or not all(len(word) for word in words):
        raise ValueError(f"lexicon: expected words of one token or more, got {words!r:.80}")
    if sentence is not None and not len(sentence):
        raise ValueError("lexicon: the sentence has no words, expected one or more (silence is a word, too)")
    graph = _Words(words, transitions, scores)
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
    """A graph of words under construction; words with a common prefix can share the states of the prefix.

    The state of a word's last letter is not shared, because the arc to it has the word's score.

    Attributes:
        arcs: the arcs that leave each state.
        token: the letter of each state.
        bonus: the score of the word that ends in each state, None for other states.
        shared: for each prefix, the state of its last letter, which all words with this prefix share.
    """

    def __init__(self, words: Sequence[Sequence[int]], transitions: Any, scores: Sequence[Any] | None) -> None:
        self.words, self.scores = words, scores
        self.weights = None if transitions is None else list(map(Numbers, transitions))
        self.arcs: dict[int, list[Arc]] = {START: []}
        self.token: list[int] = []
        self.bonus: list[Any] = []
        self.shared: dict[tuple[int, ...], int] = {}

    def spell(self, word: int, share: bool = False) -> tuple[int, int]:
        """Add states for a word's letters, and return the first and the last.

        ``word`` is the word's index. With ``share``, words that begin with the same letters share the states of these
        letters.
        """
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

    def _weight(self, a: int, b: int) -> Any:
        """Return the score of token b after token a; None if there are no transitions."""
        return None if self.weights is None else self.weights[a][b]

    def _state(self, token: int, bonus: Any) -> int:
        """Add a state for ``token``, with an arc to itself, and return the state's number.

        ``bonus`` is the score of the word that ends in the state; None if no word ends there.
        """
        state = len(self.token)
        self.token.append(token)
        self.bonus.append(bonus)
        self.arcs[state] = [Arc(token, state, self._weight(token, token))]
        return state

    def connect(self, a: int, b: int) -> None:
        """Add the arc from state a to state b, with the score of the transition plus that of a word that ends in b."""
        weight = None if a == START else self._weight(self.token[a], self.token[b])
        bonus = self.bonus[b]
        both = weight if bonus is None else bonus if weight is None else weight + bonus
        self.arcs[a].append(Arc(self.token[b], b, both))


class Numbers(dict[int, Any]):
    """A dict from an index to the element of a vector, as a 0-d tensor, which is made at its first use.

    All uses of an element share the tensor, and so one node of the tape.
    """

    def __init__(self, row: Any) -> None:
        self.row = row

    def __missing__(self, index: int) -> Any:
        self[index] = found = self.row[index]
        return found
