"""Evaluation on whole episodes, in which the policy takes its most probable action: a sample is an episode.

Legend: B episodes of a batch, N episodes, T steps, A numbers of an action, X facts about a sample.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, Consumer, LoaderOptions
from mxtrain.data.loading.randomness import bits
from mxtrain.errors import LoaderError
from mxtrain.reinforcement.environments import EnvironmentFactory, Spaces, VectorEnvironment
from mxtrain.reinforcement.policy import FACTS, NUM_FACTS
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.reinforcement.policy_client import PolicyClient

SCREEN = "SDL_VIDEODRIVER"
"""The variable by which pygame, with which most environments draw, chooses a screen: it needs none here."""
MOST_STEPS = 100_000
"""After which an episode ends that would go on for ever: an environment may have no limit of its own."""


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
        played: number -> episode as it was last played.
    """

    maker: EnvironmentFactory
    spaces: Spaces
    seed_N: np.ndarray
    played: Dict[int, PlayedEpisode] = field(default_factory=dict)

    @classmethod
    def drawn(cls, maker: EnvironmentFactory, spaces: Spaces, count: int, seed: int, draw: int) -> Episodes:
        """Builds `count` episodes, whose seeds are a function of `seed` and `draw`."""
        return cls(maker, spaces, (bits(seed, 0, np.arange(count), draw) >> np.uint64(33)).astype(np.int64))

    def __len__(self) -> int:
        return len(self.seed_N)

    def take(self, indices: Sequence[int]) -> Episodes:
        """Returns the episodes with these indices; indices beyond the end are ignored."""
        kept = [index for index in indices if index < len(self)]
        return Episodes(self.maker, self.spaces, self.seed_N[kept])

    def frames(self, index: int, most: Optional[int] = None) -> List[np.ndarray]:
        """Replays a played episode and returns its frames, (H, W, 3) uint8 each.

        Args:
            index: index of the episode.
            most: approximate number of frames, evenly spaced over the episode; None = all.

        Raises:
            DataError: the environment cannot be drawn.
            LoaderError: the environment raised an exception.
        """
        one = self.played[index]
        playing = VectorEnvironment(self.maker, self.spaces, [f"episode {index}"], render_mode="rgb_array")
        screen = os.environ.get(SCREEN)
        os.environ.setdefault(SCREEN, "dummy")
        try:
            count = len(one.action_TA)
            wanted = set(range(count + 1)) if most is None else {*np.linspace(0, count, most).astype(int).tolist()}
            playing.start_episode(0, one.seed)
            found = [playing.drawn(0)] if 0 in wanted else []
            for number, action in enumerate(self.spaces.actions_for(one.action_TA), start=1):
                playing.step(0, action, one.action_TA[number - 1])
                if number in wanted:
                    found.append(playing.drawn(0))
            return found
        finally:
            playing.close()
            if screen is None:
                del os.environ[SCREEN]


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
        playing = VectorEnvironment(self._source.maker, spaces, [f"episode {index}" for index in index_B])
        try:
            for place, index in enumerate(index_B):
                playing.start_episode(place, int(self._source.seed_N[index]))
            first_B = playing.observation_E.astype(np.float32)
            playing.require_finite()
            open_places = list(range(len(index_B)))
            # Without noise, the policy chooses the most probable action.
            still = np.zeros((len(index_B), actions.count or actions.size), np.float32)
            for step in range(MOST_STEPS + 1):
                if step == MOST_STEPS:
                    raise LoaderError(
                        f"episode {index_B[open_places[0]]} of {self._source.maker.id} has not ended after {step:,} "
                        "steps. Type dataset.max_episode_steps=N."
                    )
                # Finished episodes stay in the batch, so that its size does not change.
                action_BA = actions.choose(client.act(playing.observation_E), still)
                chosen, still_open = spaces.actions_for(action_BA), []
                for place in open_places:
                    _, terminated, truncated = playing.step(place, chosen[place], action_BA[place])
                    if not (terminated or truncated):
                        still_open.append(place)
                playing.require_finite()
                open_places = still_open
                if not open_places:
                    break
        finally:
            playing.close()
        facts_BX = np.zeros((len(index_B), NUM_FACTS + actions.size), np.float32)
        facts_BX[:, FACTS.index("return")] = playing.returns
        facts_BX[:, FACTS.index("length")] = [len(taken) for taken in playing.taken]
        facts_BX[:, FACTS.index("ended")] = 1
        for place, index in enumerate(index_B.tolist()):
            self._source.played[index] = PlayedEpisode(playing.seeds[place], np.stack(playing.taken[place]))
        return first_B, facts_BX
