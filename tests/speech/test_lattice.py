"""The lattice search against enumeration of every path, and against CTC where torch has it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.speech import Acceptor, beam_search_loss, best_path, bigram, ctc_target, path_score, target_of

RNG = np.random.default_rng(3)


def scores_of_paths(acceptor: Acceptor, emissions: Any) -> dict[tuple[int, ...], list[float]]:
    """Every path by enumeration: what it says, one token a frame, and the scores of the ways to say it."""
    found: dict[tuple[int, ...], list[float]] = {}

    def walk(state: int, frame: int, said: tuple[int, ...], score: float) -> None:
        if frame == len(emissions):
            if state in acceptor.ends:
                found.setdefault(said, []).append(score)
            return
        for token, to, weight in acceptor.arcs[state]:
            step = emissions[frame, token] + (0.0 if weight is None else weight.item())
            walk(to, frame + 1, (*said, token), score + step)

    walk(acceptor.start, 0, (), 0.0)
    return found


def log_sum(scores: Any) -> float:
    return float(np.logaddexp.reduce(list(scores)))


def acceptors(transitions: Any) -> dict[str, Acceptor]:
    return {
        "target": target_of([1, 0, 2], transitions),
        "repeated": target_of([1, 1, 2], transitions),
        "ctc": ctc_target([1, 2], blank=0),
        "ctc_repeated": ctc_target([2, 2], blank=0),
        "ctc_empty": ctc_target([], blank=0),
        "bigram": bigram(transitions),
    }


@pytest.mark.parametrize("name", acceptors(flnb.zeros((3, 3))))
@pytest.mark.parametrize("frames", [4, 5])
def test_score_and_gradient_are_those_of_all_paths_enumerated(name: str, frames: int) -> None:
    values, transition_values = RNG.normal(size=(frames, 3)), RNG.normal(size=(3, 3))
    emissions, transitions = flnb.Variable(values), flnb.Variable(transition_values)
    acceptor = acceptors(transitions)[name]
    score = path_score(acceptor, emissions)
    paths = scores_of_paths(acceptor, values)
    expected = log_sum(itertools.chain.from_iterable(paths.values()))
    assert score.item() == pytest.approx(expected, rel=1e-12)
    if not score.requires_grad:
        pytest.fail("the score must depend on the emissions")
    score.backward()
    posterior = np.zeros((frames, 3))
    for said, ways in paths.items():
        for frame, token in enumerate(said):
            posterior[frame, token] += sum(np.exp(way - expected) for way in ways)
    np.testing.assert_allclose(emissions.grad.numpy(), posterior, rtol=1e-10, atol=1e-13)
    if transitions.grad is not None:
        eps = 1e-6
        for i, j in itertools.product(range(3), range(3)):
            shifted = []
            for sign in (1, -1):
                moved = transition_values.copy()
                moved[i, j] += sign * eps
                both = scores_of_paths(acceptors(flnb.asarray(moved))[name], values)
                shifted.append(log_sum(itertools.chain.from_iterable(both.values())))
            slope = (shifted[0] - shifted[1]) / (2 * eps)
            assert transitions.grad.numpy()[i, j] == pytest.approx(slope, abs=1e-8)


def test_the_beam_keeps_the_best_states_of_every_frame() -> None:
    values, transitions = RNG.normal(size=(6, 4)), flnb.asarray(RNG.normal(size=(4, 4)))
    everything = bigram(transitions)
    whole = path_score(everything, flnb.asarray(values)).item()
    scores = [path_score(everything, flnb.asarray(values), beam).item() for beam in (1, 2, 3, 4)]
    assert scores == sorted(scores)
    assert scores[-1] == whole
    alive = {-1: 0.0}  # the same by NumPy
    for frame in values:
        arriving: dict[int, float] = {}
        for state, score in alive.items():
            for token, to, weight in everything.arcs[state]:
                step = score + frame[token] + (0 if weight is None else weight.item())
                arriving[to] = np.logaddexp(arriving.get(to, -np.inf), step)
        alive = {s: arriving[s] for s in sorted(arriving, key=arriving.__getitem__)[-2:]}
    assert scores[1] == pytest.approx(log_sum(alive.values()), rel=1e-12)


def test_pruned_tokens_get_no_gradient() -> None:
    values = np.zeros((3, 4))
    values[:, 3] = -50
    emissions = flnb.Variable(values)
    path_score(bigram(flnb.zeros((4, 4), dtype=flnb.float64)), emissions, beam=3).backward()
    gradient = emissions.grad.numpy()
    assert (gradient[1:, :3] > 0).all()
    assert gradient[0, 3] == 0


def test_the_loss_is_the_probability_of_the_target_among_everything() -> None:
    values, transitions = RNG.normal(size=(5, 3)), flnb.asarray(RNG.normal(size=(3, 3)))
    target = target_of([2, 0], transitions)
    loss = beam_search_loss(target, bigram(transitions), flnb.asarray(values)).item()
    said = scores_of_paths(bigram(transitions), values)
    wanted = [p for p in said if [k for k, _ in itertools.groupby(p)] == [2, 0]]
    probability = np.exp(log_sum(said[p][0] for p in wanted) - log_sum(s[0] for s in said.values()))
    assert loss == pytest.approx(-np.log(probability), rel=1e-10)


@pytest.mark.parametrize("tokens", [[1, 2, 3], [1, 1, 2], [3], [2, 2, 2]])
def test_ctc_is_torchs(tokens: list[int]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: enumeration above checks the same sums")
    values = RNG.normal(size=(8, 5))
    emissions = flnb.Variable(values)
    loss = -path_score(ctc_target(tokens, blank=0), flnb.log_softmax(emissions, axis=-1))
    loss.backward()
    given = torch.tensor(values, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        given.log_softmax(-1)[:, None], torch.tensor([tokens]), [8], [len(tokens)], blank=0, reduction="sum"
    )
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(emissions.grad.numpy(), given.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_the_best_path_is_the_best_of_all() -> None:
    values, transitions = RNG.normal(size=(5, 3)), flnb.asarray(RNG.normal(size=(3, 3)))
    tokens, score = best_path(bigram(transitions), flnb.asarray(values))
    said = scores_of_paths(bigram(transitions), values)
    best = max(said, key=lambda path: said[path][0])
    assert tuple(tokens) == best
    assert score == pytest.approx(said[best][0])


def test_too_few_frames_and_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"no path through 3 states ends after 2 frames; give more frames$"):
        path_score(target_of([0, 1, 0]), flnb.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"emissions must be \(frames, tokens\), got shape \(3,\)"):
        path_score(target_of([0]), flnb.zeros((3,)))
    with pytest.raises(ValueError, match="got no tokens"):
        target_of([])


def test_training_by_the_loss_aligns_a_synthetic_task() -> None:
    """Emissions that begin as noise learn to say a target that no frame is labelled with."""
    flnb.manual_seed(0)
    target = [1, 3, 2, 3]
    emissions = flnb.Variable(0.1 * RNG.normal(size=(12, 4)).astype(np.float32))
    transitions = flnb.Variable(flnb.zeros((4, 4)))
    losses = []
    for _ in range(25):
        loss = beam_search_loss(target_of(target, transitions), bigram(transitions), emissions, beam=3)
        loss.backward()
        losses.append(loss.item())
        for weights in (emissions, transitions):
            weights.data -= 0.5 * weights.grad
            weights.zero_grad()
    said, _ = best_path(bigram(transitions), emissions)
    assert losses[-1] < 0.2 * losses[0]
    assert [k for k, _ in itertools.groupby(said)] == target
