"""Prefix beam search: the likeliest text of scores along time, summed over all of its alignments.

Source: Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs"
(2014), algorithm 1, here for all prefixes of a step at once.

Legend: T scores of a sample, K characters and the blank, which is the last class, W prefixes that are kept.
"""

from __future__ import annotations

from typing import Dict, Hashable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

NOWHERE = -1


class Scorer(Protocol):
    """Scores prefixes with a language model. A state is what the model remembers of a prefix."""

    def initial_state(self) -> Hashable:
        """The state of the empty prefix."""

    def scores(self, state: Hashable) -> np.ndarray:
        """Returns the amount added to the log probability of each possible next character, (K - 1,)."""

    def follow(self, state: Hashable, character: int) -> Hashable:
        """The state behind a character."""

    def end(self, state: Hashable) -> float:
        """Returns the amount added at the end of a text."""


class Transcription(NamedTuple):
    """A text that was found.

    Attributes:
        characters: their numbers.
        score: log p, and what the language model adds.
    """

    characters: List[int]
    score: float


class _Nodes:
    """Prefixes as a tree: each is its parent and one more character."""

    def __init__(self) -> None:
        self.parent, self.character = [NOWHERE], [NOWHERE]
        self._number: Dict[Tuple[int, int], int] = {}

    def child(self, parent: int, character: int) -> int:
        """The number of a prefix and one more character."""
        number = self._number.setdefault((parent, character), len(self.parent))
        if number == len(self.parent):
            self.parent.append(parent)
            self.character.append(character)
        return number

    def characters(self, node: int) -> List[int]:
        """The characters of a prefix."""
        found = []
        while node:
            found.append(self.character[node])
            node = self.parent[node]
        return found[::-1]


def prefix_beam_search(
    log_p_TK: np.ndarray, width: int, scorer: Optional[Scorer] = None, num_best: int = 1
) -> List[Transcription]:  # fmt: skip
    """The best texts, best first.

    Args:
        log_p_TK: logarithms of probabilities.
        width: W; with as many as there are prefixes the sums are exact.
        scorer: a language model.
        num_best: texts at most.
    """
    log_p_TK = np.asarray(log_p_TK, np.float64)
    num_characters = log_p_TK.shape[1] - 1
    nodes, states = _Nodes(), {0: scorer.initial_state()} if scorer is not None else {}
    added = {0: 0.0}
    node_W = np.zeros(1, np.int64)
    blank_W, other_W = np.zeros(1), np.full(1, -np.inf)  # log p of alignments that end in a blank, and in a character
    nothing_WC = np.zeros((1, num_characters))
    for log_p_K in log_p_TK:
        last_W = np.array([nodes.character[node] for node in node_W.tolist()])
        parent_W = np.array([nodes.parent[node] for node in node_W.tolist()])
        total_W = np.logaddexp(blank_W, other_W)
        longer_WC = total_W[:, None] + log_p_K[None, :-1]
        has_last = np.flatnonzero(last_W >= 0)
        # The same character again is a new one only behind a blank; else it is the same one for longer.
        longer_WC[has_last, last_W[has_last]] = blank_W[has_last] + log_p_K[last_W[has_last]]
        new_blank_W = total_W + log_p_K[-1]
        new_other_W = np.where(last_W >= 0, other_W + log_p_K[last_W], -np.inf)
        # A prefix may also come from its parent, if that is kept, too.
        child, parent = np.nonzero(parent_W[:, None] == node_W[None, :])
        new_other_W[child] = np.logaddexp(new_other_W[child], longer_WC[parent, last_W[child]])
        longer_WC[parent, last_W[child]] = -np.inf
        model_W = np.array([added[node] for node in node_W.tolist()])
        model_WC = nothing_WC if scorer is None else np.stack([scorer.scores(states[node]) for node in node_W.tolist()])
        ranks = np.concatenate([np.logaddexp(new_blank_W, new_other_W) + model_W,
                                (longer_WC + model_W[:, None] + model_WC).ravel()])  # fmt: skip
        best = np.argsort(-ranks, kind="stable")[:width]
        best = best[np.isfinite(ranks[best])]
        if not len(best):  # nothing has a probability: what there is goes on
            best = np.arange(len(node_W))
        kept, longer = best[best < len(node_W)], best[best >= len(node_W)] - len(node_W)
        new = []
        for row, character in zip(*np.divmod(longer, num_characters)):
            node = nodes.child(int(node_W[row]), int(character))
            new.append(node)
            if node not in added:
                added[node] = added[int(node_W[row])] + (0.0 if scorer is None else float(model_WC[row, character]))
                if scorer is not None:
                    states[node] = scorer.follow(states[int(node_W[row])], int(character))
        blank_W = np.concatenate([new_blank_W[kept], np.full(len(longer), -np.inf)])
        other_W = np.concatenate([new_other_W[kept], longer_WC.ravel()[longer]])
        node_W = np.concatenate([node_W[kept], np.array(new, np.int64)])
    total_W = np.logaddexp(blank_W, other_W)
    ends = [0.0 if scorer is None else scorer.end(states[node]) for node in node_W.tolist()]
    score_W = total_W + np.array([added[node] for node in node_W.tolist()]) + np.array(ends)
    order = np.argsort(-score_W, kind="stable")[:num_best]
    return [Transcription(nodes.characters(int(node_W[place])), float(score_W[place])) for place in order]


def best_of_batch(
    log_p_BTK: np.ndarray, count_B: Sequence[int], width: int, scorer: Optional[Scorer]
) -> np.ndarray:  # fmt: skip
    """The best text of each sample as (B, T), -1 behind its last character.

    Args:
        log_p_BTK: logarithms of probabilities.
        count_B: how many scores of each sample count.
        width: see `prefix_beam_search`.
        scorer: a language model.
    """
    found_BT = np.full(log_p_BTK.shape[:2], -1.0, np.float32)
    for row, count in enumerate(count_B):
        (best,) = prefix_beam_search(log_p_BTK[row, : int(count)], width, scorer)
        found_BT[row, : len(best.characters)] = best.characters
    return found_BT
