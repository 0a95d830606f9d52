"""A differentiable beam search: the scores of all paths through an acceptor, computed one scalar op at a time.

In each frame, the search adds up the probabilities of all paths to a state (as logarithms), and keeps only the states
with the highest sums: the beam. Each arc takes an addition, and each pair of paths that meet takes a `flnb.logaddexp`,
both on 0-d tensors. So a few seconds of speech make a graph of a million tiny nodes. Gradients flow back through the
search itself. States outside of the beam get no gradient and take no time. The ops of a frame are recorded in a scope
named after it, such as "frame3".

Source: R. Collobert, A. Hannun, G. Synnaeve, "A Fully Differentiable Beam Search Decoder", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, reduce
from typing import Any

from flnb_telemetry.bus import scope

from flnb.autograd.teaching.prefused import MatchedOp, register_sequence
from flnb.autograd.variable import plain
from flnb.ops import logaddexp
from flnb.speech.acceptors import START, Acceptor, Numbers


def path_score(
    acceptor: Acceptor, emissions: Any, beam: int | None = None, keep: Sequence[Collection[int]] | None = None
) -> Any:
    """Return log(sum(exp(score))) over all paths of an acceptor, as a 0-d tensor.

    A path's score is the sum of its arcs' weights and of ``emissions[frame, token]``. The gradient with respect to the
    emissions is the posterior probability of each token in each frame.

    Args:
        acceptor: the graph whose paths are summed up.
        emissions: a score for each token in each frame, (frames, tokens), floating point.
        beam: the number of states that are kept after every frame, those with the highest scores; None keeps all.
        keep: for every frame, states that are kept even if they are not in the beam.

    Raises:
        ValueError: a beam below 1, emissions of another shape, or no path that ends with the last frame, because there
            are too few frames or none of these paths is in the beam.

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
    if emissions.ndim != 2:
        raise ValueError(f"path_score: emissions must be (frames, tokens), got shape {emissions.shape}")
    for number, frame in enumerate(map(Numbers, list(emissions))):
        with scope(f"frame{number}"):
            arriving = _arrivals(acceptor, alive, frame)
        alive = arriving if beam is None else _best(arriving, beam, keep[number] if keep else ())
    ended = [score for state, score in alive.items() if state in acceptor.ends and score is not None]
    if not ended:
        raise _no_path(acceptor, len(emissions), beam)
    return reduce(logaddexp, ended)


def _arrivals(acceptor: Acceptor, alive: dict[int, Any], frame: Numbers) -> dict[int, Any]:
    """Return a dict from each state that can be reached after a frame to its score.

    Args:
        acceptor: the graph.
        alive: the score of each state before the frame; before the first frame, None stands for the score 0.
        frame: the score of each token in this frame.
    """
    arriving: dict[int, Any] = {}
    for state, score in alive.items():
        for token, to, weight in acceptor.arcs[state]:
            step = frame[token] if weight is None else frame[token] + weight
            step = step if score is None else score + step
            other = arriving.get(to)
            arriving[to] = step if other is None else logaddexp(other, step)
    return arriving


def beam_search_loss(numerator: Acceptor, denominator: Acceptor, emissions: Any, beam: int | None = None) -> Any:
    """Return the negative log-probability of the target's paths among all paths that the search considers.

    Training with this loss makes the search, including the beam, prefer the target. The beam is applied to the
    denominator only. States on the target's own paths are always kept there, because otherwise the target could be
    missing among the paths that it is compared with.

    Args:
        numerator: the acceptor of the target's paths: `forced`, or `lexicon` with a sentence.
        denominator: the acceptor of all paths: `bigram`, or `lexicon`, with the same scores on its arcs.
        emissions: a score for each token in each frame, (frames, tokens), floating point.
        beam: the number of states that are kept after every frame; None keeps all.

    Raises:
        ValueError: no path of the numerator ends with the last frame or, with a beam, none is a path of the
            denominator.

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
    """Return for each frame the states on those paths of the denominator that have the tokens of a numerator's path.

    Only paths of ``frames`` frames that end in a final state of both acceptors count.

    Raises:
        ValueError: there is no such path.

    >>> from flnb.speech import common_states, forced
    >>> common_states(forced([7, 8]), forced([7, 8, 8]), 3)
    [{0}, {1}, {2}]
    """

    @cache
    def successors(pair: tuple[int, int]) -> list[tuple[int, int]]:
        """Return all pairs of states, one of each acceptor, to which one token leads both acceptors from ``pair``."""
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
    """Return the tokens of the path with the highest score, one for each frame, and that score (Viterbi).

    Arguments and errors are those of `path_score`.

    >>> import flnb
    >>> from flnb.speech import best_path, forced
    >>> best_path(forced([0, 1]), flnb.asarray([[1.0, 0.0], [2.0, 3.0], [0.0, 5.0]]))
    ([0, 1, 1], 9.0)
    """
    _check_beam(beam)
    weighed = {s: [(a.token, a.to, _number(a.weight)) for a in arcs] for s, arcs in acceptor.arcs.items()}
    alive: dict[int, tuple[float, Any]] = {START: (0.0, None)}
    for frame in plain(emissions).tolist():
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


def _check_beam(beam: int | None) -> None:
    """Raise a ValueError if the beam would keep fewer than one state."""
    if beam is not None and beam < 1:
        raise ValueError(f"the beam must keep 1 state or more, or be None to keep all; got {beam}")


def _best(scores: dict[int, Any], beam: int, keep: Collection[int]) -> dict[int, Any]:
    """Return the ``beam`` highest entries of ``scores``, and the entries of the states in ``keep``."""
    if len(scores) <= beam:
        return scores
    best = set(sorted(scores, key=lambda state: scores[state].item())[-beam:])
    return {state: score for state, score in scores.items() if state in best or state in keep}


def _number(weight: Any) -> float:
    """Return the weight of an arc as a float; 0 for None."""
    return 0.0 if weight is None else weight if isinstance(weight, (int, float)) else weight.item()


def _no_path(acceptor: Acceptor, frames: int, beam: int | None) -> ValueError:
    """Make the error for a search that reached no final state."""
    wider = "" if beam is None else f", or a beam wider than {beam}"
    states = len(acceptor.arcs) - 1
    return ValueError(f"no path through {states} states ends after {frames} frames; give more frames{wider}")


def _arc(g: Any, meeting: MatchedOp, *additions: MatchedOp) -> tuple[Any, ...]:
    """Return the gradients of ``logaddexp(other, score + step)`` with respect to ``other`` and all summands.

    ``g`` is the result's cotangent, ``meeting`` the logaddexp, and ``additions`` are the ops that make its second
    input: one, or two if ``step`` is a sum.
    """
    other, along = (
        None if x is None else pull(g, meeting.plan, *meeting.saved)
        for x, pull in zip(meeting.saved[:2], meeting.plan.pulls, strict=True)
    )
    return other, *[along] * (len(additions) + 1)


# On the tape "prefused", an arc is one node rather than two or, with a weight, three.
register_sequence("weighted_arc", ("logaddexp", None, ("add", None, "add")), _arc)
register_sequence("arc", ("logaddexp", None, "add"), _arc)
