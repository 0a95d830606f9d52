"""A differentiable beam search: scores of sets of paths through a lattice, one scalar op at a time.

The scores of all paths that an acceptor allows are summed up (in logarithms) frame by frame; of the states reached, the
beam keeps the best. Every arc is an addition and every meeting of two paths a `flnb.logaddexp`, on numbers: seconds of
speech are a graph of a million tiny nodes, and the gradient flows back through the search itself. Where the beam cuts,
no gradient flows; what was cut costs nothing. Each frame is a scope, by which the tape's views open and close.

Source: R. Collobert, A. Hannun, G. Synnaeve, "A Fully Differentiable Beam Search Decoder", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache, reduce
from typing import Any

from flnb_telemetry.bus import scope

from flnb.autograd import Variable
from flnb.autograd.teaching.prefused import MatchedOp, register_sequence
from flnb.ops import logaddexp
from flnb.speech.acceptors import START, Acceptor

__all__ = ["beam_search_loss", "best_path", "common_states", "path_score"]


def path_score(
    acceptor: Acceptor, emissions: Any, beam: int | None = None, keep: Sequence[Collection[int]] | None = None
) -> Any:
    """The logarithm of the summed exponentials of the scores of all paths, a 0-d tensor.

    A path's score is the sum of its arcs' weights and of ``emissions[frame, token]``. The gradient with respect to the
    emissions is each token's posterior probability in each frame.

    Args:
        emissions: scores of each token in each frame, shape (frames, tokens), floating point.
        beam: states kept after every frame, the best first, 1 or more; None keeps all.
        keep: for every frame, states that are kept in addition to the beam.

    Raises:
        ValueError: a beam of no states; or no path ends in time, because there are too few frames or the beam lost
            them all.

    >>> import flnb
    >>> from flnb.speech import forced, path_score
    >>> emissions = flnb.Variable([[1.0, 0.0], [2.0, 3.0], [0.0, 5.0]])
    >>> score = path_score(forced([0, 1]), emissions)  # 0 0 1 scores 8, 0 1 1 scores 9
    >>> round(score.item(), 4)
    9.3133
    >>> score.backward()
    >>> emissions.grad
    Tensor([[1.    , 0.    ],
            [0.2689, 0.7311],
            [0.    , 1.    ]], float32[3,2], numpy)
    """
    _check_beam(beam)
    alive: dict[int, Any] = {START: None}
    for number, frame in enumerate(_frames(emissions)):
        with scope(f"frame{number}"):
            arriving = _arrivals(acceptor, alive, frame)
        alive = arriving if beam is None else _best(arriving, beam, keep[number] if keep else ())
    ended = [score for state, score in alive.items() if state in acceptor.ends and score is not None]
    if not ended:
        raise _no_path(acceptor, len(emissions), beam)
    return reduce(logaddexp, ended)


def _arrivals(acceptor: Acceptor, alive: dict[int, Any], frame: _Frame) -> dict[int, Any]:
    """One frame: the score of all paths to each state that an arc leads to from the states alive."""
    arriving: dict[int, Any] = {}
    for state, score in alive.items():
        for token, to, weight in acceptor.arcs[state]:
            step = frame[token] if weight is None else frame[token] + weight
            step = step if score is None else score + step
            other = arriving.get(to)
            arriving[to] = step if other is None else logaddexp(other, step)
    return arriving


def beam_search_loss(numerator: Acceptor, denominator: Acceptor, emissions: Any, beam: int | None = None) -> Any:
    """The negative log-probability of the target's paths among all that the search considers; 0 or more.

    Training by it makes the search, as it is with its beam, prefer the target. The numerator is not pruned, and in the
    denominator the states that the target's own paths go through are kept beside the beam: else a search that loses
    the target would be scored by paths which the target is no longer among.

    Args:
        numerator: the paths that say the target, `forced` or `lexicon` with a sentence.
        denominator: all paths, `bigram` or `lexicon`, with the same scores on its arcs.
        emissions: as for `path_score`.
        beam: states kept after every frame of the denominator.

    Raises:
        ValueError: no path of the numerator ends in time or, with a beam, is one of the denominator.

    >>> import flnb
    >>> from flnb.speech import beam_search_loss, bigram, forced
    >>> emissions, transitions = flnb.zeros((3, 2)), flnb.zeros((2, 2))  # eight paths, of which two say 0 and then 1
    >>> loss = beam_search_loss(forced([0, 1], transitions), bigram(transitions), emissions)
    >>> round(flnb.exp(-loss).item(), 4)
    0.25
    """
    keep = None if beam is None else common_states(numerator, denominator, len(emissions))
    with scope("denominator"):
        everything = path_score(denominator, emissions, beam, keep)
    with scope("numerator"):
        target = path_score(numerator, emissions)
    return everything - target


def common_states(numerator: Acceptor, denominator: Acceptor, frames: int) -> list[set[int]]:
    """For every frame, the denominator's states on complete paths that spell what a path of the numerator spells.

    >>> from flnb.speech import common_states, forced
    >>> common_states(forced([7, 8]), forced([7, 8, 8]), 3)
    [{0}, {1}, {2}]
    """

    @cache
    def successors(pair: tuple[int, int]) -> list[tuple[int, int]]:
        n, d = pair
        return [(a.to, b.to) for a in numerator.arcs[n] for b in denominator.arcs[d] if a.token == b.token]

    reached = [{(START, START)}]
    for _ in range(frames):
        reached.append({after for pair in reached[-1] for after in successors(pair)})
    alive = {(n, d) for n, d in reached[-1] if n in numerator.ends and d in denominator.ends}
    if not alive:
        raise ValueError(
            f"beam_search_loss: no path of the numerator is a path of the denominator that ends after {frames} frames; "
            f"give more frames, or graphs over the same tokens"
        )
    kept = []
    for before in reversed(reached[:-1]):
        kept.append({d for _, d in alive})
        alive = {pair for pair in before if not alive.isdisjoint(successors(pair))}
    return kept[::-1]


def best_path(acceptor: Acceptor, emissions: Any, beam: int | None = None) -> tuple[list[int], float]:
    """The best path's tokens, one a frame, and its score (Viterbi): the same search with max in place of log-sum.

    >>> import flnb
    >>> from flnb.speech import best_path, forced
    >>> best_path(forced([0, 1]), flnb.asarray([[1.0, 0.0], [2.0, 3.0], [0.0, 5.0]]))
    ([0, 1, 1], 9.0)
    """
    _check_beam(beam)
    weighed = {s: [(a.token, a.to, _number(a.weight)) for a in arcs] for s, arcs in acceptor.arcs.items()}
    alive: dict[int, tuple[float, Any]] = {START: (0.0, None)}
    for frame in (emissions.data if isinstance(emissions, Variable) else emissions).tolist():
        arriving: dict[int, tuple[float, Any]] = {}
        for state, (score, path) in alive.items():
            for token, to, weight in weighed[state]:
                step = score + frame[token] + weight
                if to not in arriving or step > arriving[to][0]:
                    arriving[to] = (step, (path, token))
        kept = sorted(arriving, key=lambda state: arriving[state][0])
        alive = {state: arriving[state] for state in kept[-(beam or len(kept)) :]}
    ended = [found for state, found in alive.items() if state in acceptor.ends]
    if not ended:
        raise _no_path(acceptor, len(emissions), beam)
    score, path = max(ended, key=lambda found: found[0])
    tokens = []
    while path is not None:
        path, token = path
        tokens.append(token)
    return tokens[::-1], score


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


def _frames(emissions: Any) -> Iterator[_Frame]:
    if emissions.ndim != 2:
        raise ValueError(f"path_score: emissions must be (frames, tokens), got shape {emissions.shape}")
    return map(_Frame, list(emissions))


def _check_beam(beam: int | None) -> None:
    if beam is not None and beam < 1:
        raise ValueError(f"the beam must keep 1 state or more, or be None to keep all; got {beam}")


def _best(scores: dict[int, Any], beam: int, keep: Collection[int]) -> dict[int, Any]:
    if len(scores) <= beam:
        return scores
    best = set(sorted(scores, key=lambda state: scores[state].item())[-beam:])
    return {state: score for state, score in scores.items() if state in best or state in keep}


def _number(weight: Any) -> float:
    return 0.0 if weight is None else weight if isinstance(weight, (int, float)) else weight.item()


def _no_path(acceptor: Acceptor, frames: int, beam: int | None) -> ValueError:
    wider = "" if beam is None else f", or a beam wider than {beam}"
    states = len(acceptor.arcs) - 1
    return ValueError(f"no path through {states} states ends after {frames} frames; give more frames{wider}")


def _arc(g: Any, meeting: MatchedOp, *additions: MatchedOp) -> tuple[Any, ...]:
    """The gradient of ``logaddexp(other, score + step)``: the arc's cotangent goes to all of its summands."""
    other, along = (
        None if x is None else pull(g, meeting.plan, *meeting.saved)
        for x, pull in zip(meeting.saved[:2], meeting.plan.pulls, strict=True)
    )
    return other, *[along] * (len(additions) + 1)


# On the prefused tape an arc is one node instead of two or, with a weight, three.
register_sequence("weighted_arc", ("logaddexp", None, ("add", None, "add")), _arc)
register_sequence("arc", ("logaddexp", None, "add"), _arc)
