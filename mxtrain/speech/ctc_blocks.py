"""The CTC loss as a Gluon block. Imports MXNet.

MXNet's operator gives a loss of 0 and a gradient of uninitialised memory where a transcript does not fit its frames,
corrupts the heap where a length exceeds the array, takes any number for a label, writes nothing where no transcript of
the batch has a character, and knows float32 only. So lengths are cut to the array here, a transcript that does not fit
has an infinite loss and no gradient, an empty first transcript is computed without the operator, and float64, in which
`verify` compares, is computed by the recursion itself. Loaders refuse transcripts that do not fit before that.

Legend: B batch, T scores of a sample, K classes, the last of which is the blank, L characters of a transcript,
S = 2 L + 1 of them with a blank around each.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import LoaderError

IMPOSSIBLE = -1e30
"""The logarithm of a probability of 0, of which differences are finite."""


class CTCLoss(gluon.Block):
    """Scores (B, T, K), characters (B, L), -1 behind the last, and how many scores count (B,), to the loss (B,)."""

    weighted = False

    def forward(self, score_BTK: nd.NDArray, label_BL: nd.NDArray, count_B: nd.NDArray) -> nd.NDArray:
        num_scores, width = score_BTK.shape[1], label_BL.shape[1]
        # MXNet's operator would damage the heap here and raise no error.
        if width > num_scores:
            raise LoaderError(
                f"The network returns {num_scores} scores for a batch with a transcript of {width} characters: CTC "
                "needs one for each at least. Choose a network with smaller steps in time."
            )
        is_exact = score_BTK.dtype == np.float64
        score_BTK = score_BTK if is_exact else score_BTK.astype("float32")
        label_BL, count_B = label_BL.astype("float32"), count_B.astype("float32")
        count_B, length_B, fits_B = _lengths(num_scores, label_BL, count_B)
        if is_exact:
            loss_B = -log_likelihood(score_BTK, label_BL, length_B, count_B)
        else:
            loss_B = _loss(score_BTK, label_BL, length_B, count_B)
        return nd.where(fits_B, loss_B, nd.full(loss_B.shape, np.inf, ctx=loss_B.context, dtype=loss_B.dtype))


def _loss(score_BTK: nd.NDArray, label_BL: nd.NDArray, length_B: nd.NDArray, count_B: nd.NDArray) -> nd.NDArray:
    """Returns -log p of transcripts that fit, (B,), by MXNet's operator in float32.

    The operator leaves its outputs unwritten if all transcripts are empty. So if the first one is empty, the operator
    gets one character, whose loss is then replaced by that of blanks only.
    """
    is_empty_B = nd.broadcast_logical_and(length_B < 1, nd.arange(len(length_B), ctx=length_B.context) < 1)
    loss_B = nd.CTCLoss(
        score_BTK.transpose((1, 0, 2)),
        # The operator checks no label: padding of -1 becomes class 0, which the lengths leave out.
        nd.relu(label_BL),
        count_B,
        length_B + is_empty_B,
        use_data_lengths=True,
        use_label_lengths=True,
        blank_label="last",
    )
    blank_1T = nd.log_softmax(score_BTK[:1])[:, :, -1]
    counts_1T = nd.arange(blank_1T.shape[1], ctx=count_B.context).expand_dims(0) < count_B[0]
    blanks_1 = -(blank_1T * counts_1T).sum(axis=1)
    return nd.where(is_empty_B, nd.broadcast_to(blanks_1, loss_B.shape), loss_B)


def _lengths(num_scores: int, label_BL: nd.NDArray, count_B: nd.NDArray) -> Tuple[nd.NDArray, nd.NDArray, nd.NDArray]:
    """Returns valid numbers of scores and of characters for the operator, and a mask of transcripts that fit, (B,)
    each."""
    counts_BL = label_BL >= 0
    length_B, needed_B = counts_BL.sum(axis=1), counts_BL.sum(axis=1)
    if label_BL.shape[1] > 1:
        # Two equal neighbours need a blank between them, which is one score more.
        needed_B = needed_B + (counts_BL[:, 1:] * (label_BL[:, 1:] == label_BL[:, :-1])).sum(axis=1)
    count_B = nd.clip(count_B, 1, num_scores)
    fits_B = needed_B <= count_B
    # Length 0 keeps transcripts that do not fit from the operator, whose gradient of them is uninitialised memory.
    return count_B, length_B * fits_B, fits_B


def log_likelihood(
    score_BTK: nd.NDArray, label_BL: nd.NDArray, length_B: nd.NDArray, count_B: nd.NDArray
) -> nd.NDArray:
    """Returns log p of transcripts that fit, (B,), in the precision of the scores.

    Source: Graves et al. (2006), section 4.1, in logarithms.
    """
    dtype, context, blank = score_BTK.dtype, score_BTK.context, score_BTK.shape[2] - 1
    label = label_BL.asnumpy()
    count, length = (array.asnumpy().astype(np.int64) for array in (count_B, length_B))
    state_BS = np.full((len(label), 2 * label.shape[1] + 1), blank)
    state_BS[:, 1::2] = np.where(label >= 0, label, blank)
    # The blank between two characters may be skipped if they differ.
    skips_BS = np.zeros(state_BS.shape, bool)
    skips_BS[:, 3::2] = state_BS[:, 3::2] != state_BS[:, 1:-2:2]

    def constant(array: np.ndarray) -> nd.NDArray:
        return nd.array(array, ctx=context, dtype=dtype)

    never_B1 = constant(np.full((len(label), 1), IMPOSSIBLE))
    blocked_BS = constant(np.where(skips_BS, 0.0, IMPOSSIBLE))
    chosen_BKS = constant(state_BS[:, None, :] == np.arange(blank + 1)[None, :, None])
    emitted_BTS = nd.batch_dot(nd.log_softmax(score_BTK), chosen_BKS)
    begin = np.full(state_BS.shape, IMPOSSIBLE)
    begin[:, :2] = 0
    alpha_BS = constant(begin) + emitted_BTS[:, 0]
    for step in range(1, score_BTK.shape[1]):
        one_back_BS = nd.concat(never_B1, alpha_BS[:, :-1], dim=1)
        two_back_BS = nd.concat(never_B1, never_B1, alpha_BS[:, :-2], dim=1) + blocked_BS
        next_alpha_BS = _add(alpha_BS, one_back_BS, two_back_BS) + emitted_BTS[:, step]
        counts_B1 = constant(np.broadcast_to((step < count)[:, None], state_BS.shape))
        alpha_BS = nd.where(counts_B1, next_alpha_BS, alpha_BS)
    # An alignment ends in the last blank or in the last character; an empty transcript has the blank alone.
    last_B = alpha_BS.pick(constant(2 * length))
    before_B = nd.where(constant(length > 0), alpha_BS.pick(constant(np.maximum(2 * length - 1, 0))), never_B1[:, 0])
    return _add(last_B, before_B)


def _add(*logs: nd.NDArray) -> nd.NDArray:
    """Returns the logarithm of the sum of exponentials (logsumexp) of arrays."""
    largest = logs[0]
    for log in logs[1:]:
        largest = nd.maximum(largest, log)
    # The shift cancels out of the value: a gradient through it is 0 but for rounding errors.
    largest = nd.BlockGrad(largest)
    return largest + nd.log(sum(nd.exp(log - largest) for log in logs))
