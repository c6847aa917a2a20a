"""Evaluation on whole episodes with the most probable actions; a sample is an episode.

Legend: B episodes of a batch, N episodes, T steps, A numbers of an action, X facts about a sample.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, Consumer, LoaderOptions
from mxtrain.data.loading.randomness import bits
from mxtrain.errors import DataError, LoaderError
from mxtrain.reinforcement.environments import EnvironmentFactory, Spaces, VectorEnvironment
from mxtrain.reinforcement.policy import FACTS, NUM_FACTS
from mxtrain.reinforcement.recording import RecordedEpisode
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.reinforcement.policy_client import PolicyClient

SCREEN = "SDL_VIDEODRIVER"
"""Environment variable with which pygame, which draws most environments, chooses a screen; none is needed here."""
MAX_STEPS = 100_000
"""Maximum length of an episode, because environments may have no limit."""


@dataclass(frozen=True)
class PlayedEpisode:
    """A played episode: its seed and the actions of the policy, (T, A)."""

    seed: int
    action_TA: np.ndarray


@dataclass(frozen=True)
class Episodes:
    """Episodes for evaluation.

    Attributes:
        maker: factory of the environment.
        spaces: observation and action spaces.
        seed_N: seed of each episode.
        played: last played episode by index.
    """

    maker: EnvironmentFactory
    spaces: Spaces
    seed_N: np.ndarray
    played: Dict[int, PlayedEpisode] = field(default_factory=dict)

    @classmethod
    def from_seed(cls, maker: EnvironmentFactory, spaces: Spaces, count: int, seed: int, draw: int) -> Episodes:
        """Builds `count` episodes, whose seeds are a function of `seed` and `draw`."""
        # 31 bits, since some environments take seeds as signed 32-bit integers.
        return cls(maker, spaces, (bits(seed, 0, np.arange(count), draw) >> np.uint64(33)).astype(np.int64))

    def __len__(self) -> int:
        return len(self.seed_N)

    def take(self, indices: Sequence[int]) -> Episodes:
        """Returns the episodes with these indices; indices beyond the end are ignored."""
        kept = [index for index in indices if index < len(self)]
        return Episodes(self.maker, self.spaces, self.seed_N[kept])

    def frames(self, index: int, max_frames: Optional[int] = None) -> List[np.ndarray]:
        """Replays a played episode and returns its frames, (H, W, 3) uint8 each.

        Args:
            index: index of the episode.
            max_frames: approximate number of frames, evenly spaced over the episode; None = all.

        Raises:
            DataError: the environment cannot be drawn.
            LoaderError: the environment raised an exception.
        """
        episode = self.played[index]
        environment = VectorEnvironment(self.maker, self.spaces, [f"episode {index}"], render_mode="rgb_array")
        screen = os.environ.get(SCREEN)
        os.environ.setdefault(SCREEN, "dummy")
        try:
            count = len(episode.action_TA)
            steps = set(range(count + 1))
            if max_frames is not None:
                steps = {*np.linspace(0, count, max_frames).astype(int).tolist()}
            environment.start_episode(0, episode.seed)
            frames = [environment.render(0)] if 0 in steps else []
            for number, action in enumerate(self.spaces.actions_for(episode.action_TA), start=1):
                environment.step(0, action, episode.action_TA[number - 1])
                if number in steps:
                    frames.append(environment.render(0))
            return frames
        finally:
            environment.close()
            if screen is None:
                del os.environ[SCREEN]

    def record(self, index: int) -> RecordedEpisode:
        """Replays a played episode and returns its observations, actions and rewards.

        Args:
            index: index of the episode.

        Raises:
            DataError: the episode has another length this time.
            LoaderError: the environment raised an exception.
        """
        episode = self.played[index]
        environment = VectorEnvironment(self.maker, self.spaces, [f"episode {index}"])
        actions, rewards, is_terminated, is_over = self.spaces.actions_for(episode.action_TA), [], False, False
        try:
            environment.start_episode(0, episode.seed)
            observations = [environment.observation_E[0].copy()]
            for number, action in enumerate(actions):
                if is_over:
                    break
                reward, is_terminated, is_truncated = environment.step(0, action, episode.action_TA[number])
                is_over = is_terminated or is_truncated
                observations.append(environment.observation_E[0].copy())
                rewards.append(reward)
        finally:
            environment.close()
        if not is_over or len(rewards) != len(actions):
            raise DataError(
                f"episode {index} of {self.maker.id} has another length when it is played again: the environment is no "
                "function of its seed and the actions in it, and its episodes cannot be recorded."
            )
        return RecordedEpisode(
            episode.seed, np.stack(observations), np.array(actions), np.array(rewards), is_terminated
        )


class EpisodeLoader(BatchLoader):
    """Plays episodes with the most probable action; batches hold their first observations and their results.

    Args:
        source: episodes.
        options: options of all loaders; `prefetch` is ignored, because batches depend on the current weights.
    """

    def __init__(self, source: Episodes, options: LoaderOptions):
        super().__init__(len(source), replace(options, prefetch=0))
        self._source = source

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        from mxtrain.data.loading.placing import place
        from mxtrain.reinforcement.policy_client import PolicyClient

        client = PolicyClient(consumer.strategies, self._device)
        for index_B in self._indices(epoch, start):
            share_B = index_B[slice(*self.world.share(len(index_B)))]
            arrays = self._play(share_B, client) if len(share_B) else ()
            inputs, targets = place(self._device, arrays[:1], arrays[1:])
            yield Batch(inputs, targets, len(share_B), len(index_B), share_B)

    def _play(self, index_B: np.ndarray, client: PolicyClient) -> Tuple[np.ndarray, np.ndarray]:
        """Plays whole episodes side by side; returns their first observations (B, ...) and facts (B, X)."""
        spaces, actions = self._source.spaces, self._source.spaces.actions
        client.refresh()
        environment = VectorEnvironment(self._source.maker, spaces, [f"episode {index}" for index in index_B])
        try:
            for number, index in enumerate(index_B):
                environment.start_episode(number, int(self._source.seed_N[index]))
            first_B = environment.observation_E.astype(np.float32)
            environment.require_finite()
            open_numbers = list(range(len(index_B)))
            # Without noise, the policy chooses the most probable action.
            no_noise = np.zeros((len(index_B), actions.count or actions.size), np.float32)
            for step in range(MAX_STEPS + 1):
                if step == MAX_STEPS:
                    raise LoaderError(
                        f"episode {index_B[open_numbers[0]]} of {self._source.maker.id} has not ended after {step:,} "
                        "steps. Type dataset.max_episode_steps=N."
                    )
                # Finished episodes stay in the batch, so that its size does not change.
                action_BA = actions.choose(client.act(environment.observation_E), no_noise)
                chosen, unfinished = spaces.actions_for(action_BA), []
                for number in open_numbers:
                    _, terminated, truncated = environment.step(number, chosen[number], action_BA[number])
                    if not (terminated or truncated):
                        unfinished.append(number)
                environment.require_finite()
                open_numbers = unfinished
                if not open_numbers:
                    break
        finally:
            environment.close()
        facts_BX = np.zeros((len(index_B), NUM_FACTS + actions.size), np.float32)
        facts_BX[:, FACTS.index("return")] = environment.returns
        facts_BX[:, FACTS.index("length")] = [len(episode_actions) for episode_actions in environment.actions]
        facts_BX[:, FACTS.index("ended")] = 1
        for number, index in enumerate(index_B.tolist()):
            self._source.played[index] = PlayedEpisode(environment.seeds[number], np.stack(environment.actions[number]))
        return first_B, facts_BX
