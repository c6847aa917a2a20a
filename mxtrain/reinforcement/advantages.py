"""Generalised advantage estimation, and discounted returns. Plain NumPy.

Legend: T steps, E environments.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np


def generalised_advantages(
    reward_TE: np.ndarray,
    value_TE: np.ndarray,
    next_value_TE: np.ndarray,
    ended_TE: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Computes the advantages of the actions of a roll-out, (T, E) float64.

    Source: Schulman et al., "High-dimensional continuous control using generalized advantage estimation",
    https://arxiv.org/abs/1506.02438, equation 16, cut off at the end of an episode and of the roll-out.

    Args:
        reward_TE: reward of each step.
        value_TE: value of the observation before each step.
        next_value_TE: value of the observation after each step; 0 if the episode terminated, the value of its last
            observation if it was truncated.
        ended_TE: 1 if an episode terminated or was truncated at a step, else 0.
        gamma: discount factor per step.
        gae_lambda: weight of longer estimates; 1 = returns, 0 = one step.
    """
    error_TE = reward_TE.astype(np.float64) + gamma * next_value_TE - value_TE
    decay_TE = gamma * gae_lambda * (1.0 - ended_TE)
    advantage_TE = np.empty_like(error_TE)
    advantage_E = np.zeros(error_TE.shape[1])
    for step in reversed(range(len(error_TE))):
        advantage_E = error_TE[step] + decay_TE[step] * advantage_E
        advantage_TE[step] = advantage_E
    return advantage_TE


def discounted_sums(
    reward_TE: np.ndarray, ended_TE: np.ndarray, initial_E: np.ndarray, gamma: float
) -> Tuple[np.ndarray, np.ndarray]:
    """Computes discounted sums of the rewards of each episode so far.

    Args:
        reward_TE: reward of each step.
        ended_TE: 1 if an episode ended at a step, else 0.
        initial_E: sums at the end of the previous roll-out.
        gamma: discount factor per step.

    Returns:
        The sum after each step, (T, E), and the initial sums of the next roll-out, (E,).
    """
    sum_TE = np.empty(reward_TE.shape)
    sum_E = initial_E
    for step, (reward_E, ended_E) in enumerate(zip(reward_TE, ended_TE)):
        sum_E = gamma * sum_E + reward_E
        sum_TE[step] = sum_E
        sum_E = sum_E * (1.0 - ended_E)
    return sum_TE, sum_E
