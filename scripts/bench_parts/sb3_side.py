"""Trains DQN and SAC of stable-baselines3 in gymnasium's environments, and plays test episodes. Runs where
stable-baselines3 is installed, without mxtrain."""

from __future__ import annotations

import copy
import os
import time
import warnings
from typing import Any, Dict, Mapping, Optional

import numpy as np
import torch
from gymnasium import make
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, sync_envs_normalization

ALGORITHMS = {"DQN": DQN, "SAC": SAC}
END_FACTOR = 0.05
"""Learning rate at the end, as a share of that at the beginning."""
EVALUATED_AT_ONCE = 20


class Epochs(BaseCallback):
    """Plays validation episodes after every epoch and keeps the weights of the best; times the training between.

    Args:
        start: environment steps before the first epoch, with random actions; they are not timed.
        steps: environment steps of an epoch.
        played: environment of the validation.
        episodes: number of validation episodes.

    Attributes:
        wall_s, processor_s: time of training.
        counted: environment steps in that time.
        best: (mean return, weights, statistics of observations) of the best validation.
    """

    def __init__(self, start: int, steps: int, played: Any, episodes: int):
        super().__init__()
        self._start, self._steps, self._next = start, steps, start + steps
        self._played, self._episodes = played, episodes
        self.wall_s = self.processor_s = 0.0
        self.counted, self.best = 0, (-np.inf, {}, None)
        self._since: Optional[tuple[float, float, int]] = None

    def _on_rollout_start(self) -> None:
        # The gradient steps of the last environment steps of an epoch are done only now.
        if self._since is None and self.num_timesteps >= self._start:
            self._begin()
        if self.num_timesteps >= self._next:
            self.end_epoch()
            self._begin()

    def _on_step(self) -> bool:
        return True

    def _begin(self) -> None:
        self._since = (time.monotonic(), time.process_time(), self.num_timesteps)

    def end_epoch(self) -> None:
        """Adds the time since the last validation, and plays the next one."""
        assert self._since is not None
        wall, processor, steps = self._since
        self.wall_s += time.monotonic() - wall
        self.processor_s += time.process_time() - processor
        self.counted += self.num_timesteps - steps
        self._next += self._steps
        if isinstance(self.training_env, VecNormalize):
            sync_envs_normalization(self.training_env, self._played)
        mean, _ = evaluate_policy(self.model, self._played, self._episodes)
        if mean > self.best[0]:
            weights = copy.deepcopy(self.model.policy.state_dict())
            statistics = copy.deepcopy(getattr(self.training_env, "obs_rms", None))
            self.best = (float(mean), weights, statistics)


def learn(algorithm: str, seed: int, settings: Mapping[str, Any]) -> Dict[str, float]:
    """Trains and tests an agent.

    Args:
        algorithm: "DQN" or "SAC".
        seed: seed of weights, actions and environments.
        settings: `id`, `num_envs`, `hidden`, `lr`, `normalize`; `start`, `epochs` and `steps` of each in the
            environments; `val_episodes` and `test_episodes`; `arguments` of the algorithm.

    Returns:
        Environment steps without those before learning starts, and the seconds of the processor and of the clock that
        they took without validations; mean return of the test episodes with the weights of the best validation.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def environments(count: int, training: bool) -> Any:
        found = DummyVecEnv([lambda: make(settings["id"])] * count)
        if not settings["normalize"]:
            return found
        return VecNormalize(found, training=training, norm_reward=False, clip_obs=10.0)

    lr, total = settings["lr"], settings["start"] + settings["epochs"] * settings["steps"]
    model = ALGORITHMS[algorithm](
        "MlpPolicy",
        environments(settings["num_envs"], True),
        learning_rate=lambda left: lr * (END_FACTOR + (1.0 - END_FACTOR) * left),
        policy_kwargs={"net_arch": list(settings["hidden"]), "optimizer_kwargs": {"eps": 1e-8}},
        learning_starts=settings["start"],
        seed=seed,
        device="cpu",
        **settings["arguments"],
    )
    played = environments(EVALUATED_AT_ONCE, False)
    played.seed(10_000 + seed)
    epochs = Epochs(settings["start"], settings["steps"], played, settings["val_episodes"])
    model.learn(total, callback=epochs)
    epochs.end_epoch()
    _, weights, statistics = epochs.best
    model.policy.load_state_dict(weights)
    if statistics is not None:
        played.obs_rms = statistics
    mean, _ = evaluate_policy(model, played, settings["test_episodes"])
    return {
        "steps": epochs.counted,
        "wall_s": epochs.wall_s,
        "processor_s": epochs.processor_s,
        "return": float(mean),
    }
