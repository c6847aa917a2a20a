"""DQN and SAC of mxtrain and of stable-baselines3 with the same settings: speed of training, and returns."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Callable, Dict, List, Mapping, Tuple

from bench_parts.harness import ONE_THREAD, Measured, Options, callback, in_turn, status_of, train
from bench_parts.seeded_runs import OURS, SEEDS, ask_theirs

START, VAL_EPISODES, TEST_EPISODES, LR = 1000, 20, 100, 0.001
THEIRS = "stable-baselines3"


@dataclass(frozen=True)
class Pair:
    """An algorithm on both sides.

    Attributes:
        id: environment.
        num_envs, rollout_steps, batch_size, passes: as the settings of dataset=gymnasium have them.
        epochs: number of epochs, with a validation after each.
        rollouts: roll-outs of an epoch.
        hidden: units of the hidden layers.
        normalize: whether observations are normalized by running statistics.
        overrides: further settings of mxtrain.
        arguments: the same for stable-baselines3.
    """

    id: str
    num_envs: int
    rollout_steps: int
    batch_size: int
    passes: int
    rollouts: int
    hidden: Tuple[int, ...]
    normalize: bool
    overrides: Tuple[str, ...]
    arguments: Mapping[str, Any]
    epochs: int = 8

    @property
    def steps_of_rollout(self) -> int:
        """Returns the environment steps of a roll-out, over all environments."""
        return self.num_envs * self.rollout_steps

    @property
    def gradient_steps(self) -> int:
        """Returns the optimizer steps after a roll-out."""
        return self.passes * self.steps_of_rollout // self.batch_size

    def words(self, epochs: int, rollouts: int) -> List[str]:
        """Returns the overrides of mxtrain."""
        return [
            "task=reinforcement_learning",
            *self.overrides,
            f"dataset.id={self.id}",
            f"dataset.num_envs={self.num_envs}",
            f"dataset.rollout_steps={self.rollout_steps}",
            f"dataset.rollouts_per_epoch={rollouts}",
            f"dataset.batch_size={self.batch_size}",
            f"dataset.passes={self.passes}",
            "dataset.gamma=0.99",
            f"dataset.val_episodes={VAL_EPISODES}",
            f"dataset.test_episodes={TEST_EPISODES}",
            f"model.hidden=[{','.join(map(str, self.hidden))}]",
            f"model.normalize_observations={str(self.normalize).lower()}",
            f"loss.learning_starts={START}",
            "loss.buffer_size=50000",
            f"optimizer.lr={LR}",
            "lr_scheduler=linear",
            "lr_scheduler.warmup_share=0",
            "lr_scheduler.end_factor=0.05",
            f"trainer.max_epochs={epochs}",
        ]

    def settings(self, epochs: int, rollouts: int) -> Dict[str, Any]:
        """Returns the settings of `sb3_side.learn`."""
        arguments = {
            "buffer_size": 50_000,
            "batch_size": self.batch_size,
            "gamma": 0.99,
            "train_freq": self.rollout_steps,
            "gradient_steps": self.gradient_steps,
            **self.arguments,
        }
        if "exploration_steps" in arguments:
            total = START + epochs * rollouts * self.steps_of_rollout
            arguments["exploration_fraction"] = min(arguments.pop("exploration_steps") / total, 1.0)
        return {
            "id": self.id,
            "num_envs": self.num_envs,
            "hidden": self.hidden,
            "lr": LR,
            "normalize": self.normalize,
            "start": START,
            "epochs": epochs,
            "steps": rollouts * self.steps_of_rollout,
            "val_episodes": VAL_EPISODES,
            "test_episodes": TEST_EPISODES,
            "arguments": arguments,
        }


# The target network is copied after 50 optimizer steps, of which there are 8 in 32 environment steps. Both sides have
# the variant of stable-baselines3, which has no double DQN, and clips errors and gradients.
DQN = Pair(
    "CartPole-v1",
    8,
    4,
    64,
    16,
    125,
    (128, 128),
    True,
    ("model=q_network", "loss.double=false", "loss.error_limit=1", "trainer.clip_global_norm=10"),
    {"target_update_interval": 200, "exploration_steps": 10_000, "exploration_final_eps": 0.05},
)
SAC = Pair("Pendulum-v1", 4, 1, 128, 64, 500, (64, 64), False, ("model=soft_actor_critic",), {"tau": 0.005})
PAIRS = {"DQN": DQN, "SAC": SAC}


def measure(options: Options, name: str) -> Measured:
    """Trains both sides of a pair, in turn, once for each seed, with one thread each."""
    found, pair = Measured(), PAIRS[name]
    epochs, rollouts = (1, 40) if options.quick else (pair.epochs, pair.rollouts)

    def ours(seed: int) -> Any:
        folder = Path(tempfile.mkdtemp(dir=options.work))
        clock = folder / "clock.json"
        words = [*pair.words(epochs, rollouts), f"trainer.seed={seed}", *callback("StepClock", path=clock)]
        status = status_of(train(words, folder, environment=ONE_THREAD))
        scale = pair.steps_of_rollout / pair.gradient_steps
        times = training_time(json.loads(clock.read_text()), rollouts * pair.gradient_steps, scale)
        return {**times, "return": status["metrics"]["test/return"]}

    def theirs(seed: int) -> Any:
        return ask_theirs(options, "sb3_side:learn", name, seed, pair.settings(epochs, rollouts))

    sides: Dict[str, Callable[[int], Any]] = {OURS: ours, THEIRS: theirs}
    _note(found, pair, in_turn(sides, 1 if options.quick else options.turns or SEEDS))
    return found


def _note(found: Measured, pair: Pair, measured: Mapping[str, List[Any]]) -> None:
    for unit, of in (("processor_s", "second of the processor"), ("wall_s", "second")):
        rates = {side: [run["steps"] / run[unit] for run in runs] for side, runs in measured.items()}
        for side, values in rates.items():
            found.add(f"{side}: environment steps in a {of}", "steps/s", values)
        found.compare(f"mxtrain / stable-baselines3, by the {of}", rates[OURS], rates[THEIRS], 1.0)
    returns = {side: [run["return"] for run in runs] for side, runs in measured.items()}
    for side, values in returns.items():
        found.add(f"{side}: mean return of {TEST_EPISODES} test episodes on {pair.id}", "return", values)
    deviation = stdev(returns[THEIRS]) if len(returns[THEIRS]) > 1 else 0.0
    surplus = mean(returns[OURS]) - mean(returns[THEIRS]) + deviation
    found.at_least("mean return, mxtrain minus stable-baselines3, plus one deviation of its seeds", surplus, 0.0)


def training_time(noted: List[List[float]], steps_per_epoch: int, scale: float) -> Dict[str, float]:
    """Returns environment steps and the seconds that they took, without validations and the random steps at first.

    Args:
        noted: (optimizer step, seconds, seconds of the processor) of some steps, see `callbacks.StepClock`.
        steps_per_epoch: optimizer steps of an epoch.
        scale: environment steps for each optimizer step.
    """
    total = {"steps": 0.0, "wall_s": 0.0, "processor_s": 0.0}
    epochs: Dict[int, List[List[float]]] = {}
    for one in noted:
        epochs.setdefault(int(one[0] - 1) // steps_per_epoch, []).append(one)
    for rows in epochs.values():
        begin, end = rows[0], rows[-1]
        total["steps"] += (end[0] - begin[0]) * scale
        total["wall_s"] += end[1] - begin[1]
        total["processor_s"] += end[2] - begin[2]
    return total
