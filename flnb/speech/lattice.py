"""A differentiable beam search over lattices: scores of sets of paths, one scalar op at a time.

Scores of all paths that an acceptor allows are summed up (in logarithms) frame by frame; of the states reached, the
beam keeps the best. Every arc is an addition and every meeting of two paths a `flnb.logaddexp`, on numbers: a second of
speech is a graph of tens of thousands of tiny nodes, and its gradient flows through the search itself.

Source: R. Collobert, A. Hannun, G. Synnaeve, "A Fully Differentiable Beam Search Decoder", ICML 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.autograd import Variable
from flnb.ops import logaddexp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Acceptor", "Arc", "beam_search_loss", "best_path", "bigram", "ctc_target", "path_score", "target_of"]


class Arc(NamedTuple):
    """One step: consume a frame as ``token``, arrive in state ``to``, add ``weight`` (a 0-d tensor, None for 0)."""

    token: int
    to: int
    weight: Any = None


class Acceptor(NamedTuple):
    """Which sequences of tokens, one a frame, are paths: the arcs that leave each state, where to begin and to end."""

    arcs: Mapping[int, Sequence[Arc]]
    start: int
    ends: frozenset[int]


def target_of(tokens: Sequence[int], transitions: Any = None) -> Acceptor:
    """The paths that say ``tokens``, each for one frame or more, without blanks (the paper's "constrained" graph).

    Args:
        transitions: scores ``[from, to]`` of going from a token to a token, shape (tokens, tokens).
    """
    if not len(tokens):
        raise ValueError("target_of: got no tokens, expected one or more; without blanks, silence is a token too")
    weights = _Weights(transitions)
    arcs: dict[int, list[Arc]] = {0: [Arc(tokens[0], 1)]}
    for i, token in enumerate(tokens, start=1):
        arcs[i] = [Arc(token, i, weights(token, token))]
        if i < len(tokens):
            arcs[i].append(Arc(tokens[i], i + 1, weights(token, tokens[i])))
    return Acceptor(arcs, 0, frozenset([len(tokens)]))


def ctc_target(tokens: Sequence[int], blank: int = 0) -> Acceptor:
    """The paths that collapse to ``tokens`` by connectionist temporal classification's rule: repetitions, then blanks.

    With emissions that are log-probabilities in every frame, the negative `path_score` of it is the CTC loss
    (A. Graves et al., 2006, section 3.2).
    """
    spoken = [blank]
    for token in tokens:
        spoken += [token, blank]
    last = len(spoken) - 1
    arcs: dict[int, list[Arc]] = {-1: [Arc(spoken[s], s) for s in range(min(2, last + 1))]}
    for s, token in enumerate(spoken):
        arcs[s] = [Arc(token, s)]
        if s < last:
            arcs[s].append(Arc(spoken[s + 1], s + 1))
        if s + 2 <= last and token not in (blank, spoken[s + 2]):
            arcs[s].append(Arc(spoken[s + 2], s + 2))
    return Acceptor(arcs, -1, frozenset({last, max(0, last - 1)}))


def bigram(transitions: Any) -> Acceptor:
    """All sequences of tokens, scored by ``transitions`` of shape (tokens, tokens): the paper's unconstrained graph."""
    count = transitions.shape[0]
    weights = _Weights(transitions)
    arcs = {i: [Arc(j, j, weights(i, j)) for j in range(count)] for i in range(count)}
    arcs[-1] = [Arc(j, j) for j in range(count)]
    return Acceptor(arcs, -1, frozenset(range(count)))


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


def path_score(acceptor: Acceptor, emissions: Any, beam: int | None = None) -> Any:
    """The logarithm of the summed exponentials of the scores of all paths, a 0-d tensor.

    A path's score is the sum of its arcs' weights and of ``emissions[frame, token]``.

    Args:
        emissions: scores of each token in each frame, shape (frames, tokens); a Variable's gradient flows.
        beam: states kept after every frame, the best first; None keeps all.

    Raises:
        ValueError: no path ends in time, because there are too few frames or the beam lost them all.

    >>> import flnb
    >>> from flnb.speech import path_score, target_of
    >>> emissions = flnb.asarray([[1.0, 0.0], [2.0, 3.0], [0.0, 5.0]])
    >>> round(path_score(target_of([0, 1]), emissions).item(), 4)  # 0 0 1 scores 8, 0 1 1 scores 9
    9.3133
    """
    alive: dict[int, Any] = {acceptor.start: None}
    for frame in _frames(emissions):
        arriving: dict[int, Any] = {}
        for state, score in alive.items():
            for token, to, weight in acceptor.arcs[state]:
                step = frame[token] if weight is None else frame[token] + weight
                step = step if score is None else score + step
                other = arriving.get(to)
                arriving[to] = step if other is None else logaddexp(other, step)
        alive = arriving if beam is None else _best(arriving, beam)
    total = None
    for state, score in alive.items():
        if state in acceptor.ends and score is not None:
            total = score if total is None else logaddexp(total, score)
    if total is None:
        frames, states = len(emissions), len(acceptor.arcs) - 1
        kept = "" if beam is None else f", or a beam wider than {beam}"
        raise ValueError(
            f"path_score: no path through {states} states ends after {frames} frames; give more frames{kept}"
        )
    return total


class _Frame:
    """One frame's scores as numbers, each made when first asked for: pruned tokens cost nothing."""

    __slots__ = ("made", "row")

    def __init__(self, row: Any) -> None:
        self.row = row
        self.made: dict[int, Any] = {}

    def __getitem__(self, token: int) -> Any:
        found = self.made.get(token)
        if found is None:
            found = self.made[token] = self.row[token]
        return found


def _frames(emissions: Any) -> list[_Frame]:
    if emissions.ndim != 2:
        raise ValueError(f"path_score: emissions must be (frames, tokens), got shape {emissions.shape}")
    return [_Frame(row) for row in emissions]


def _best(scores: dict[int, Any], beam: int) -> dict[int, Any]:
    if len(scores) <= beam:
        return scores
    kept = sorted(scores, key=lambda state: scores[state].item())[-beam:]
    return {state: scores[state] for state in kept}


def beam_search_loss(target: Acceptor, everything: Acceptor, emissions: Any, beam: int | None = None) -> Any:
    """The negative log-probability of the target among all that the search holds for possible.

    Training by it makes the search, as it is with its beam, prefer the target. The target's own paths are not pruned.
    """
    return path_score(everything, emissions, beam) - path_score(target, emissions)


def best_path(acceptor: Acceptor, emissions: Any, beam: int | None = None) -> tuple[list[int], float]:
    """The best path's tokens, one a frame, and its score (Viterbi): the same search with max in place of log-sum."""
    scores = np.asarray(emissions.data if isinstance(emissions, Variable) else emissions, np.float64)
    alive: dict[int, tuple[float, Any]] = {acceptor.start: (0.0, None)}
    for frame in scores:
        arriving: dict[int, tuple[float, Any]] = {}
        for state, (score, path) in alive.items():
            for token, to, weight in acceptor.arcs[state]:
                step = score + frame[token] + (0.0 if weight is None else weight.item())
                if to not in arriving or step > arriving[to][0]:
                    arriving[to] = (step, (path, token))
        keep = sorted(arriving, key=lambda state: arriving[state][0])[-(beam or len(arriving)) :]
        alive = {state: arriving[state] for state in keep}
    score, path = max(
        (alive[s] for s in alive if s in acceptor.ends), default=(-np.inf, None), key=lambda found: found[0]
    )
    tokens = []
    while path is not None:
        path, token = path
        tokens.append(token)
    return tokens[::-1], float(score)
