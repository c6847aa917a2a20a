"""Prefix beam search for CTC: finds the text with the highest probability, summed over all of its alignments.

Source: Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs"
(2014), algorithm 1, here for all prefixes of a step at once.

Legend: T time steps, K characters and the blank, which is the last class, C = K - 1 characters, W prefixes of the beam.
"""

from __future__ import annotations

from typing import Dict, Hashable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

NOWHERE = -1


class Scorer(Protocol):
    """Scores prefixes with a language model. The state holds all that the scores of a prefix depend on."""

    def initial_state(self) -> Hashable:
        """Returns the state of the empty prefix."""

    def scores(self, state: Hashable) -> np.ndarray:
        """Returns the amount added to the log probability of each possible next character, (K - 1,)."""

    def follow(self, state: Hashable, character: int) -> Hashable:
        """Returns the state after a character."""

    def end(self, state: Hashable) -> float:
        """Returns the amount added at the end of a text."""


class Transcription(NamedTuple):
    """A text found by the search.

    Attributes:
        characters: class indices of the characters.
        score: log probability, plus the score of the language model.
    """

    characters: List[int]
    score: float


class _PrefixTree:
    """Tree of prefixes. A node is its parent's prefix and one more character; node 0 is the empty prefix."""

    def __init__(self) -> None:
        self.parent, self.character = [NOWHERE], [NOWHERE]
        self._number: Dict[Tuple[int, int], int] = {}

    def child(self, parent: int, character: int) -> int:
        """Returns the node of a prefix and one more character; creates it if necessary."""
        number = self._number.setdefault((parent, character), len(self.parent))
        if number == len(self.parent):
            self.parent.append(parent)
            self.character.append(character)
        return number

    def characters(self, node: int) -> List[int]:
        """Returns the characters of a prefix."""
        characters = []
        while node:
            characters.append(self.character[node])
            node = self.parent[node]
        return characters[::-1]


def prefix_beam_search(
    log_p_TK: np.ndarray, width: int, scorer: Optional[Scorer] = None, num_best: int = 1
) -> List[Transcription]:
    """Returns the texts with the highest scores, best first.

    Args:
        log_p_TK: log probabilities.
        width: W, the beam width; the result is exact if no prefix is dropped.
        scorer: language model; None = none.
        num_best: maximum number of texts.
    """
    # In float32 sums over all steps would round away small differences between prefixes.
    log_p_TK = np.asarray(log_p_TK, np.float64)
    num_characters = log_p_TK.shape[1] - 1
    nodes, states = _PrefixTree(), {0: scorer.initial_state()} if scorer is not None else {}
    added_score = {0: 0.0}
    node_W = np.zeros(1, np.int64)
    blank_W, other_W = np.zeros(1), np.full(1, -np.inf)  # log p of alignments that end in a blank, and in a character
    zero_WC = np.zeros((1, num_characters))
    for log_p_K in log_p_TK:
        last_W = np.array([nodes.character[node] for node in node_W.tolist()])
        parent_W = np.array([nodes.parent[node] for node in node_W.tolist()])
        is_parent_WW = parent_W[:, None] == node_W[None, :]
        new_blank_W, new_other_W, longer_WC = _advance(log_p_K, blank_W, other_W, last_W, is_parent_WW)
        model_W = np.array([added_score[node] for node in node_W.tolist()])
        model_WC = zero_WC if scorer is None else np.stack([scorer.scores(states[node]) for node in node_W.tolist()])
        scores = np.concatenate(
            [np.logaddexp(new_blank_W, new_other_W) + model_W, (longer_WC + model_W[:, None] + model_WC).ravel()]
        )
        # The stable sort makes the order of equal scores independent of NumPy's algorithm.
        best = np.argsort(-scores, kind="stable")[:width]
        # -inf marks extensions that are impossible or counted in another row: they must not fill a wide beam.
        best = best[np.isfinite(scores[best])]
        if not len(best):  # all probabilities are 0, e.g. because scores are NaN: keep the current prefixes
            best = np.arange(len(node_W))
        kept, longer = best[best < len(node_W)], best[best >= len(node_W)] - len(node_W)
        new = []
        for row, character in zip(*np.divmod(longer, num_characters)):
            node = nodes.child(int(node_W[row]), int(character))
            new.append(node)
            # The model scores each prefix once: a prefix that left the beam and returns has its node already.
            if node not in added_score:
                model_score = 0.0 if scorer is None else float(model_WC[row, character])
                added_score[node] = added_score[int(node_W[row])] + model_score
                if scorer is not None:
                    states[node] = scorer.follow(states[int(node_W[row])], int(character))
        blank_W = np.concatenate([new_blank_W[kept], np.full(len(longer), -np.inf)])
        other_W = np.concatenate([new_other_W[kept], longer_WC.ravel()[longer]])
        node_W = np.concatenate([node_W[kept], np.array(new, np.int64)])
    total_W = np.logaddexp(blank_W, other_W)
    ends = [0.0 if scorer is None else scorer.end(states[node]) for node in node_W.tolist()]
    score_W = total_W + np.array([added_score[node] for node in node_W.tolist()]) + np.array(ends)
    order = np.argsort(-score_W, kind="stable")[:num_best]
    return [Transcription(nodes.characters(int(node_W[index])), float(score_W[index])) for index in order]


def _advance(
    log_p_K: np.ndarray, blank_W: np.ndarray, other_W: np.ndarray, last_W: np.ndarray, is_parent_WW: np.ndarray
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the probabilities of the beam's prefixes, and of their extensions, after one more time step.

    Args:
        log_p_K: log probabilities of the step.
        blank_W, other_W: log p of the alignments of each prefix that end in a blank, and in a character.
        last_W: last character of each prefix; `NOWHERE` for the empty one.
        is_parent_WW: entry [i, j] is True if prefix i is an extension of prefix j.

    Returns:
        The new `blank_W` and `other_W`, and log p of each prefix with one more character, (W, C).
    """
    total_W = np.logaddexp(blank_W, other_W)
    longer_WC = total_W[:, None] + log_p_K[None, :-1]
    has_last = np.flatnonzero(last_W >= 0)
    # CTC merges repeated characters: a repetition is a new character only after a blank.
    longer_WC[has_last, last_W[has_last]] = blank_W[has_last] + log_p_K[last_W[has_last]]
    new_other_W = np.where(last_W >= 0, other_W + log_p_K[last_W], -np.inf)
    # A prefix of the beam is also reached by extending its parent if the parent is in the beam: add both probabilities,
    # and do not extend the parent a second time.
    child, parent = np.nonzero(is_parent_WW)
    new_other_W[child] = np.logaddexp(new_other_W[child], longer_WC[parent, last_W[child]])
    longer_WC[parent, last_W[child]] = -np.inf
    return total_W + log_p_K[-1], new_other_W, longer_WC


def best_of_batch(log_p_BTK: np.ndarray, count_B: Sequence[int], width: int, scorer: Optional[Scorer]) -> np.ndarray:
    """Returns the best text of each sample, (B, T), padded with -1.

    Args:
        log_p_BTK: log probabilities.
        count_B: number of valid time steps of each sample.
        width: see `prefix_beam_search`.
        scorer: language model; None = none.
    """
    label_BT = np.full(log_p_BTK.shape[:2], -1.0, np.float32)
    for row, count in enumerate(count_B):
        (best,) = prefix_beam_search(log_p_BTK[row, : int(count)], width, scorer)
        label_BT[row, : len(best.characters)] = best.characters
    return label_BT
