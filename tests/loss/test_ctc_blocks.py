"""The CTC loss against the forward algorithm in NumPy and finite differences, and MXNet's traps."""

from __future__ import annotations

import itertools
from typing import Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, nd
from mxtrain.errors import LoaderError
from mxtrain.speech.ctc_blocks import CTCLoss

RNG = np.random.RandomState(0)
SCORE = RNG.randn(5, 7, 4) * 2
LABEL = np.array([[0, 0, 1], [2, -1, -1], [-1, -1, -1], [1, 2, 1], [0, 0, 0]], np.float32)
COUNT = np.array([7, 5, 4, 3, 5], np.float32)
"""The last two fit exactly."""


def by_alignments(score_TK: np.ndarray, label: Tuple[int, ...]) -> float:
    """-log of the summed probabilities of all alignments of a transcript."""
    log_p = score_TK - np.log(np.exp(score_TK).sum(axis=1, keepdims=True))
    blank, total = score_TK.shape[1] - 1, 0.0
    for path in itertools.product(range(blank + 1), repeat=len(score_TK)):
        if tuple(one for one, _ in itertools.groupby(path) if one != blank) == label:
            total += np.exp(sum(log_p[step, one] for step, one in enumerate(path)))
    return -float(np.log(total))


def by_forward_algorithm(score_TK: np.ndarray, label: Tuple[int, ...]) -> float:
    """The same by dynamic programming, with probabilities as they are."""
    p = np.exp(score_TK) / np.exp(score_TK).sum(axis=1, keepdims=True)
    blank = p.shape[1] - 1
    states = [blank, *itertools.chain(*((one, blank) for one in label))]
    alpha = np.zeros(len(states))
    alpha[:2] = p[0, states[:2]]
    for step in range(1, len(p)):
        before, alpha = alpha, np.zeros(len(states))
        for place, state in enumerate(states):
            alpha[place] = before[place] + (before[place - 1] if place else 0)
            if place > 1 and state != blank and state != states[place - 2]:
                alpha[place] += before[place - 2]
            alpha[place] *= p[step, state]
    return -float(np.log(alpha[-2:].sum()))


def loss_and_gradient(score: np.ndarray, dtype: str, label=LABEL, count=COUNT) -> Tuple[np.ndarray, np.ndarray]:
    score_BTK = nd.array(score, dtype=dtype)
    score_BTK.attach_grad()
    with autograd.record():
        loss = CTCLoss()(score_BTK, nd.array(label, dtype=dtype), nd.array(count, dtype=dtype))
    loss.backward()
    assert loss.dtype == np.dtype(dtype)
    return loss.asnumpy(), score_BTK.grad.asnumpy()


def wanted(score: np.ndarray, compute=by_forward_algorithm) -> np.ndarray:
    return np.array(
        [compute(score[row, : int(COUNT[row])], tuple(int(one) for one in LABEL[row] if one >= 0)) for row in range(5)]
    )


def test_the_forward_algorithm_sums_over_all_alignments() -> None:
    np.testing.assert_allclose(wanted(SCORE), wanted(SCORE, by_alignments), rtol=1e-12)


@pytest.mark.parametrize("dtype, digits", [("float32", 1e-5), ("float64", 1e-12)])
def test_the_loss_equals_the_forward_algorithm(dtype: str, digits: float) -> None:
    loss, _ = loss_and_gradient(SCORE, dtype)
    np.testing.assert_allclose(loss, wanted(SCORE), rtol=digits)


@pytest.mark.parametrize("dtype, digits", [("float32", 2e-4), ("float64", 1e-7)])
def test_the_gradient_equals_finite_differences(dtype: str, digits: float) -> None:
    _, gradient = loss_and_gradient(SCORE, dtype)
    assert not gradient[2, 4:].any(), "scores that do not count have no gradient"
    for place in np.ndindex(2, 7, 4):
        step = np.zeros(SCORE.shape)
        step[place] = 1e-5
        difference = (wanted(SCORE + step)[place[0]] - wanted(SCORE - step)[place[0]]) / 2e-5
        assert gradient[place] == pytest.approx(difference, abs=digits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_transcript_that_does_not_fit_has_an_infinite_loss_and_no_gradient(dtype: str) -> None:
    """MXNet's operator gives 0, and a gradient of uninitialised memory."""
    count = np.array([3, 5, 4, 3, 4], np.float32)
    loss, gradient = loss_and_gradient(SCORE, dtype, count=count)
    assert np.isinf(loss).tolist() == [True, False, False, False, True]
    assert not gradient[[0, 4]].any() and gradient[1].any() and np.isfinite(gradient).all()


def test_lengths_beyond_the_array_are_cut_to_it() -> None:
    """MXNet's operator would write behind its memory."""
    loss, _ = loss_and_gradient(SCORE, "float32", count=np.full(5, 1000, np.float32))
    whole, _ = loss_and_gradient(SCORE, "float32", count=np.full(5, 7, np.float32))
    np.testing.assert_array_equal(loss, whole)


def test_more_characters_than_scores_are_refused_by_name() -> None:
    with pytest.raises(LoaderError, match="returns 7 scores for a batch with a transcript of 8 characters"):
        CTCLoss()(nd.array(SCORE), nd.zeros((5, 8)), nd.array(COUNT))


def test_weights_of_samples_scale_their_gradients() -> None:
    score = nd.array(SCORE)
    score.attach_grad()
    with autograd.record():
        loss = CTCLoss()(score, nd.array(LABEL), nd.array(COUNT))
    loss.backward(nd.array([0, 1, 2, 0.5, 0]))
    _, whole = loss_and_gradient(SCORE, "float32")
    np.testing.assert_allclose(score.grad.asnumpy(), whole * np.array([0, 1, 2, 0.5, 0])[:, None, None], rtol=1e-5)


def test_scores_of_half_precision_have_the_loss_in_single_precision() -> None:
    half = SCORE.astype(np.float16)
    loss = CTCLoss()(nd.array(half, dtype="float16"), nd.array(LABEL), nd.array(COUNT))
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss.asnumpy(), wanted(half.astype(np.float64)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, digits", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_without_a_character_has_the_loss_of_blanks(dtype: str, digits: float, size: int) -> None:
    """MXNet's operator leaves loss and gradient unwritten there."""
    label, count = np.full((size, 2), -1, np.float32), np.array([4, 7, 1], np.float32)[:size]
    for _ in range(20):  # memory that is used again holds these
        nd.full((size,), -1e36).wait_to_read()
        nd.full((size, 7, 4), -1e36).wait_to_read()
        loss, gradient = loss_and_gradient(SCORE[:size], dtype, label, count)
        for row, steps in enumerate(count.astype(int)):
            assert loss[row] == pytest.approx(by_forward_algorithm(SCORE[row, :steps], ()), rel=digits)
            p = np.exp(SCORE[row]) / np.exp(SCORE[row]).sum(axis=1, keepdims=True)
            p[:, -1] -= 1
            p[steps:] = 0
            np.testing.assert_allclose(gradient[row], p, rtol=1e-4, atol=1e-6)


def test_unfitting_transcripts_have_infinite_losses() -> None:
    loss, gradient = loss_and_gradient(SCORE[:2], "float32", np.full((2, 3), 1, np.float32), np.array([3, 2]))
    assert np.isinf(loss).all() and not gradient.any()
