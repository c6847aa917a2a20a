"""Generalised advantage estimation, and discounted returns. Plain NumPy.

Legend: T steps, E environments.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np


def generalised_advantages(
    reward_TE: np.ndarray, value_TE: np.ndarray, next_value_TE: np.ndarray, ended_TE: np.ndarray, gamma: float,
    gae_lambda: float,
) -> np.ndarray:  # fmt: skip
    """Advantages of the actions of a roll-out, (T, E) float64.

    Source: Schulman et al., "High-dimensional continuous control using generalized advantage estimation",
    https://arxiv.org/abs/1506.02438, equation 16, cut off at the end of an episode and of the roll-out.

    Args:
        reward_TE: what came of each action.
        value_TE: of the observation before it.
        next_value_TE: of the observation after it: 0 where the episode was over, that of the episode's last observation
            where only its time was.
        ended_TE: whether an episode ended with it, for whatever reason.
        gamma: discount of a step.
        gae_lambda: weight of longer estimates; 1 = returns, 0 = one step.
    """
    error_TE = reward_TE.astype(np.float64) + gamma * next_value_TE - value_TE
    goes_on_TE = gamma * gae_lambda * (1.0 - ended_TE)
    found_TE = np.empty_like(error_TE)
    following_E = np.zeros(error_TE.shape[1])
    for step in reversed(range(len(error_TE))):
        following_E = error_TE[step] + goes_on_TE[step] * following_E
        found_TE[step] = following_E
    return found_TE


def discounted_sums(
    reward_TE: np.ndarray, ended_TE: np.ndarray, before_E: np.ndarray, gamma: float
) -> Tuple[np.ndarray, np.ndarray]:
    """Discounted sums of the rewards so far of each episode, (T, E), and what the next roll-out goes on from, (E,).

    Args:
        reward_TE: what came of each action.
        ended_TE: whether an episode ended with it.
        before_E: what the last roll-out left.
        gamma: discount of a step.
    """
    found_TE = np.empty(reward_TE.shape)
    sum_E = before_E
    for step, (reward_E, ended_E) in enumerate(zip(reward_TE, ended_TE)):
        sum_E = gamma * sum_E + reward_E
        found_TE[step] = sum_E
        sum_E = sum_E * (1.0 - ended_E)
    return found_TE, sum_E
