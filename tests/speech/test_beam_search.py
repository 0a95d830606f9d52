"""The search against enumeration of every path, and against CTC where torch has it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.speech import (
    START,
    Acceptor,
    beam_search_loss,
    best_path,
    bigram,
    common_states,
    ctc,
    forced,
    lexicon,
    path_score,
)

RNG = np.random.default_rng(3)
WORDS = [[0, 1], [0], [1, 2]]  # the second begins the first


def scores_of_paths(acceptor: Acceptor, emissions: Any) -> dict[tuple[int, ...], list[float]]:
    """Every path by enumeration: what it says, one token a frame, and the scores of the ways to say it."""
    found: dict[tuple[int, ...], list[float]] = {}

    def walk(state: int, frame: int, said: tuple[int, ...], score: float) -> None:
        if frame == len(emissions):
            if state in acceptor.ends:
                found.setdefault(said, []).append(score)
            return
        for token, to, weight in acceptor.arcs[state]:
            step = emissions[frame, token] + number(weight)
            walk(to, frame + 1, (*said, token), score + step)

    walk(START, 0, (), 0.0)
    return found


def number(weight: Any) -> float:
    return 0.0 if weight is None else weight if isinstance(weight, float) else weight.item()


def log_sum(scores: Any) -> float:
    return float(np.logaddexp.reduce(list(scores)))


def acceptors(transitions: Any) -> dict[str, Acceptor]:
    return {
        "target": forced([1, 0, 2], transitions),
        "repeated": forced([1, 1, 2], transitions),
        "ctc": ctc([1, 2], blank=0),
        "ctc_repeated": ctc([2, 2], blank=0),
        "ctc_empty": ctc([], blank=0),
        "bigram": bigram(transitions),
        "lexicon": lexicon(WORDS, transitions, [0.5, None, -1.0]),
        "lexicon_unscored": lexicon(WORDS),
        "sentence": lexicon(WORDS, transitions, [0.5, None, -1.0], sentence=[0, 2]),
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
                step = score + frame[token] + number(weight)
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


def collapsed(tokens: Any) -> list[int]:
    return [token for token, _ in itertools.groupby(tokens)]


def test_the_loss_is_the_probability_of_the_target_among_everything() -> None:
    values, transitions = RNG.normal(size=(5, 3)), flnb.asarray(RNG.normal(size=(3, 3)))
    numerator, denominator = forced([2, 0], transitions), bigram(transitions)
    loss = beam_search_loss(numerator, denominator, flnb.asarray(values)).item()
    said = scores_of_paths(denominator, values)
    wanted = [score for path, scores in said.items() if collapsed(path) == [2, 0] for score in scores]
    probability = np.exp(log_sum(wanted) - log_sum(itertools.chain.from_iterable(said.values())))
    assert loss == pytest.approx(-np.log(probability), rel=1e-10)


CRITERIA = {
    "letters": lambda w: (forced([2, 0, 1], w), bigram(w)),
    "words": lambda w: (
        lexicon(WORDS, w, [0.5, -1.0, w[0, 0]], sentence=[1, 2]),
        lexicon(WORDS, w, [0.5, -1.0, w[0, 0]]),
    ),
}


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), frames=st.integers(3, 6), beam=st.integers(1, 3))
def test_with_any_beam_the_target_is_among_what_the_search_keeps(
    criterion: Any, seed: int, frames: int, beam: int
) -> None:
    """So that the loss, however unlikely the target, is a probability's: 0 or more; and no wider beam lowers it."""
    rng = np.random.default_rng(seed)
    emissions = flnb.asarray(5 * rng.normal(size=(frames, 3)))
    numerator, denominator = criterion(flnb.asarray(rng.normal(size=(3, 3))))
    losses = [beam_search_loss(numerator, denominator, emissions, width).item() for width in (beam, beam + 1, None)]
    assert losses[0] >= -1e-12
    assert sorted(losses) == pytest.approx(losses, rel=1e-12, abs=1e-12)


def test_a_beam_that_would_lose_the_target_keeps_its_states() -> None:
    emissions = flnb.asarray([[9.0, 0.0, 0.0]] * 3)  # token 0 all the time, by far
    transitions = flnb.zeros((3, 3))
    numerator, denominator = forced([1, 2], transitions), bigram(transitions)
    assert common_states(numerator, denominator, 3) == [{1}, {1, 2}, {2}]
    lost = (path_score(denominator, emissions, 1) - path_score(numerator, emissions)).item()
    loss = beam_search_loss(numerator, denominator, emissions, 1).item()
    whole = beam_search_loss(numerator, denominator, emissions).item()
    assert lost < loss < whole


@pytest.mark.parametrize("frames", [3, 4, 5])
@pytest.mark.parametrize("name", ["letters", "words"])
def test_common_states_are_those_of_the_common_paths_enumerated(name: str, frames: int) -> None:
    numerator, denominator = CRITERIA[name](flnb.zeros((3, 3)))
    wanted = set(scores_of_paths(numerator, np.zeros((frames, 3))))
    found: list[set[int]] = [set() for _ in range(frames)]

    def walk(state: int, states: tuple[int, ...], said: tuple[int, ...]) -> None:
        if len(said) == frames:
            if state in denominator.ends and said in wanted:
                for frame, visited in enumerate(states):
                    found[frame].add(visited)
            return
        for token, to, _ in denominator.arcs[state]:
            walk(to, (*states, to), (*said, token))

    walk(START, (), ())
    assert common_states(numerator, denominator, frames) == found


@pytest.mark.parametrize("weighted", [True, False])
def test_the_prefused_tape_makes_one_node_of_an_arc(weighted: bool) -> None:
    values, weights = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 3))
    found = []
    for tape in ("linked", "prefused"):
        emissions, scores = flnb.Variable(values), flnb.Variable(weights)
        with flnb.use_tape(tape) as active:
            path_score(bigram(scores) if weighted else lexicon([[0], [1], [2]]), emissions).backward()
        found.append([emissions.grad.numpy(), *([scores.grad.numpy()] if weighted else [])])
    arcs = 3 if weighted else 4  # that arrive at a state; a word of one letter may also be said again
    assert active.fused == 3 * 3 * (arcs - 1)  # in each frame but the first, at each state all arcs but the first
    for linked, prefused in zip(*found, strict=True):
        np.testing.assert_allclose(prefused, linked, rtol=1e-12)


def test_graphs_and_frames_are_scopes_on_the_tape() -> None:
    transitions = flnb.Variable(flnb.zeros((3, 3)))
    with flnb.record() as run:
        beam_search_loss(forced([0, 1], transitions), bigram(transitions), flnb.zeros((3, 3))).backward()
    scopes = {node.scope for node in run.tape.nodes if node.op == "logaddexp" and "frame" in node.scope}
    assert scopes == {"denominator.frame1", "denominator.frame2", "numerator.frame2"}


@pytest.mark.parametrize("tokens", [[1, 2, 3], [1, 1, 2], [3], [2, 2, 2]])
def test_ctc_is_torchs(tokens: list[int]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: enumeration above checks the same sums")
    values = RNG.normal(size=(8, 5))
    emissions = flnb.Variable(values)
    loss = -path_score(ctc(tokens, blank=0), flnb.log_softmax(emissions, axis=-1))
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


def test_the_best_path_of_a_lexicon_says_words() -> None:
    emissions = flnb.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 2.0], [0.0, 0.5, 4.0], [0.0, 3.0, 0.0]])
    tokens, _ = best_path(lexicon([[0, 1], [2, 1]]), emissions)
    assert tokens == [0, 1, 2, 1]
    tokens, score = best_path(lexicon([[0, 1], [2, 1]], scores=[0.0, -9.0]), emissions)
    assert (tokens, score) == ([0, 1, 1, 1], 8.5)
    tokens, _ = best_path(lexicon([[0, 1], [2, 1]]), emissions, beam=1)
    assert tokens == [0, 1, 2, 1]


def test_words_that_begin_alike_share_their_states() -> None:
    tree = lexicon([[0, 1, 2], [0, 1, 3], [0, 1]])
    assert len(tree.arcs) - 1 == 2 + 3  # "0" and "01" shared, the ends of three words
    assert len(tree.ends) == 3


def test_too_few_frames_and_wrong_shapes_are_named() -> None:
    for search in (path_score, best_path):
        with pytest.raises(ValueError, match=r"no path through 3 states ends after 2 frames; give more frames$"):
            search(forced([0, 1, 0]), flnb.zeros((2, 2)))
        with pytest.raises(ValueError, match="the beam must keep 1 state or more, or be None to keep all; got 0"):
            search(forced([0]), flnb.zeros((2, 2)), beam=0)
    with pytest.raises(ValueError, match=r"ends after 2 frames; give more frames, or a beam wider than 1"):
        path_score(forced([0, 1]), flnb.asarray([[0.0, 0.0], [9.0, 0.0]]), beam=1)
    with pytest.raises(ValueError, match=r"no path of the numerator is a path of the denominator that ends after 2"):
        beam_search_loss(forced([0, 1, 0]), bigram(flnb.zeros((2, 2))), flnb.zeros((2, 2)), beam=1)
    with pytest.raises(ValueError, match=r"emissions must be \(frames, tokens\), got shape \(3,\)"):
        path_score(forced([0]), flnb.zeros((3,)))
    with pytest.raises(ValueError, match="got no tokens"):
        forced([])
    with pytest.raises(ValueError, match=r"expected words of one token or more, got \[\[0\], \[\]\]"):
        lexicon([[0], []])
    with pytest.raises(ValueError, match="the sentence has no words"):
        lexicon([[0]], sentence=[])


def test_training_by_the_loss_aligns_a_synthetic_task() -> None:
    """Emissions that begin as noise learn to say a target that no frame is labelled with."""
    flnb.manual_seed(0)
    target = [1, 3, 2, 3]
    emissions = flnb.Variable(0.1 * RNG.normal(size=(12, 4)).astype(np.float32))
    transitions = flnb.Variable(flnb.zeros((4, 4)))
    losses = []
    for _ in range(25):
        loss = beam_search_loss(forced(target, transitions), bigram(transitions), emissions, beam=2)
        loss.backward()
        losses.append(loss.item())
        for weights in (emissions, transitions):
            weights.data -= 0.5 * weights.grad
            weights.zero_grad()
    said, _ = best_path(bigram(transitions), emissions)
    assert losses[-1] < 0.2 * losses[0]
    assert collapsed(said) == target
