"""Dataset of gymnasium environments, for training and evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Optional, Sequence, Tuple, Type, Union

import pydantic
from typing_extensions import Literal

from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, run_dir_setting
from mxtrain.reinforcement.algorithm import Algorithm
from mxtrain.reinforcement.collecting import Environments, RolloutSettings
from mxtrain.reinforcement.draws import ReinforcementDraw
from mxtrain.reinforcement.environments import EnvironmentFactory, Spaces, close
from mxtrain.reinforcement.episodes import EpisodeLoader, Episodes
from mxtrain.reinforcement.image_layout import Channels
from mxtrain.reinforcement.kinds import Observations, Returns
from mxtrain.reinforcement.losses import PolicyLoss
from mxtrain.reinforcement.model import PolicyModel
from mxtrain.reinforcement.signature import ActionSignature
from mxtrain.types import Fraction, OpenFraction, PathText, Positive
from mxtrain.types.kinds import Gives, TargetKind

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json


class Gymnasium(BaseDataset):
    """Steps of the network in gymnasium environments.

    Training collects roll-outs with the current weights and trains on each roll-out for `passes` passes. Validation,
    test and prediction play whole episodes with separate seeds and always take the most probable action. For
    environments of your own, subclass this and override `maker`.
    """

    signature_class: ClassVar[Type[Signature]] = ActionSignature
    gives: ClassVar[Gives] = Gives(Observations, Returns)

    id: str = "CartPole-v1"
    """Id of the environment in gymnasium's registry."""
    kwargs: Dict[str, Any] = {}
    """Arguments of the environment."""
    channels: Channels = "auto"
    """The axis of an image that holds its channels; auto = the last one, or the first one if that is the shortest, as
    in stacks of frames."""
    max_episode_steps: Optional[Positive] = None
    """Maximum number of steps of an episode; null = as registered."""
    num_envs: Positive = 8
    """Number of parallel environments, over all workers together."""
    rollout_steps: Positive = 32
    """Steps of each environment in a roll-out."""
    passes: Union[Literal["auto"], Positive] = "auto"
    """Passes over a roll-out; with a replay buffer, the mean number of times that a step is used. auto = the default of
    the loss: 1 for a2c, 10 for ppo, 16 for dqn, 64 for sac."""
    rollouts_per_epoch: Positive = 40
    """Roll-outs of an epoch, after which there is a validation."""
    gamma: Fraction = 0.98
    """Discount factor per step."""
    gae_lambda: Fraction = 0.9
    """Lambda of generalised advantage estimation: 1 = advantages from whole returns, 0 = from one step. Not used with a
    replay buffer."""
    normalize_advantages: bool = True
    """If true, the advantages of a roll-out are standardized to mean 0 and deviation 1. Not used with a replay
    buffer."""
    normalize_rewards: bool = False
    """If true, rewards are divided by the running deviation of their discounted sums, and clipped to +-10."""
    recordings: Optional[PathText] = None
    """Folder of recorded episodes (.npz files, as `predict task.episode_files=npz folder=FOLDER` writes them), whose
    steps fill the replay buffer at first, instead of steps with random actions; null = none."""
    recordings_only: bool = False
    """If true, training takes no steps in environments, and learns from `recordings` alone (offline); validation and
    test play episodes."""
    val_episodes: Positive = 20
    """Episodes of a validation."""
    test_episodes: Positive = 100
    """Episodes of the test at the end."""
    predicted_episodes: Positive = 3
    """Episodes that `predict` plays."""
    batch_size: Positive = 256  # a part of a roll-out, which no number of samples gives
    """Samples per optimizer step, over all devices and workers together: as many steps of each environment."""
    eval_batch_size: Positive = 100
    """Number of parallel episodes in an evaluation."""
    val_fraction: OpenFraction = 0.0
    """Not used: validation plays episodes of its own."""
    prefetch: Literal[0] = 0
    """Must be 0: samples are played with the current weights."""

    @pydantic.field_validator("id")
    @classmethod
    def _check_id(cls, name: str) -> str:
        # gymnasium would import the module, and a stranger's checkpoint could name any.
        if ":" in name:
            raise ValueError(
                "a module in front of an id is not imported. For environments of your own write a subclass of "
                "mxtrain.reinforcement.gymnasium.Gymnasium that imports the module, and type "
                "dataset._target_=MODULE.CLASS"
            )
        return name

    _algorithm: Algorithm = pydantic.PrivateAttr(default_factory=PolicyLoss)

    @pydantic.model_validator(mode="after")
    def _check_environments(self) -> Gymnasium:
        if self.batch_size % self.num_envs:
            raise ValueError(self._misfit())
        if "render_mode" in self.kwargs:
            raise ValueError("kwargs: render_mode is chosen by what wants to draw. Leave it out")
        if self.recordings_only and self.recordings is None:
            raise ValueError("recordings_only=true needs recordings=FOLDER, the episodes to learn from")
        return self

    def _misfit(self) -> str:
        """Returns why `batch_size` does not fit, and what fits."""
        steps = self.rollout_steps
        if self._algorithm.has_buffer:
            total = self.num_envs * steps * self._resolved_passes
            fitting = [str(size) for size in range(self.num_envs, total + 1, self.num_envs) if total % size == 0]
            return (
                f"batch_size={self.batch_size}: a batch has as many steps of each of num_envs={self.num_envs} "
                f"environments, and passes={self._resolved_passes} over rollout_steps={steps} steps of each are whole "
                f"batches: it can be {', '.join(fitting)}"
            )
        fitting = [str(count * self.num_envs) for count in range(1, steps + 1) if steps % count == 0]
        return (
            f"batch_size={self.batch_size}: a batch has as many steps of each of num_envs={self.num_envs} "
            f"environments, and some batches are a roll-out of rollout_steps={steps} steps: it can be "
            f"{', '.join(fitting)}"
        )

    @property
    def _resolved_passes(self) -> int:
        return self._algorithm.passes if self.passes == "auto" else self.passes

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> Gymnasium:
        """See `BaseDataset.for_run`: the loss is the algorithm that collects and uses the steps.

        Raises:
            ConfigError: batches do not fit the roll-outs.
        """
        if not isinstance(loss, Algorithm):
            return self
        dataset = self.model_copy()
        dataset._algorithm = loss
        if isinstance(model, PolicyModel) and model.head != loss.head:
            return dataset  # the task rejects the pair, whatever its batches are
        total = self.num_envs * self.rollout_steps * (dataset._resolved_passes if loss.has_buffer else 1)
        if self.batch_size % self.num_envs or total % self.batch_size:
            raise ConfigError(f"dataset.{dataset._misfit()}.")
        return dataset.model_copy(update={"passes": dataset._resolved_passes})

    def maker(self) -> EnvironmentFactory:
        """Returns the factory of the environment."""
        return EnvironmentFactory(self.id, self.kwargs, self.max_episode_steps)

    def open(self) -> Splits:
        """See `BaseDataset.open`: opens the environment once to read its spaces."""
        maker, spaces = self._open_environment()
        settings = RolloutSettings(
            **{name: getattr(self, name) for name in RolloutSettings.__dataclass_fields__ if name != "passes"},
            passes=self._resolved_passes,
        )
        val, test = (
            Episodes.from_seed(maker, spaces, count, self.split_seed, draw)
            for count, draw in (
                (self.val_episodes, ReinforcementDraw.MEASURED_EPISODE),
                (self.test_episodes, ReinforcementDraw.MEASURED_EPISODE + 1),
            )
        )
        train = Environments(maker, spaces, settings, self._algorithm.build_loader)
        return Splits(train, val, test, class_names=(), shape=spaces.shape)

    def _open_environment(self) -> Tuple[EnvironmentFactory, Spaces]:
        maker = self.maker()
        environment = maker.make()
        try:
            spaces = Spaces.from_environment(environment, self.id, self.channels)
        finally:
            close(environment)
        reason = self._algorithm.unsupported_reason(spaces.actions, spaces.limits)
        if reason:
            raise DataError(f"dataset.id={self.id}: {reason}.")
        return maker, replace(spaces, actions=replace(spaces.actions, head=self._algorithm.head))

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: conversion of observations and actions."""
        _, spaces = self._open_environment()
        images = spaces.images
        layout: Json = (
            None
            if images is None
            else {"native": list(images.native), "order": list(images.order), "scale": images.scale}
        )
        facts: Dict[str, Json] = {"limits": spaces.limits.to_json(), "images": layout}
        if spaces.leaves:
            facts["leaves"] = [leaf.to_json() for leaf in spaces.leaves]
        return super().exported(signature).with_facts(facts)

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        train: Environments = splits.train  # type: ignore[assignment]  # its own
        spaces = train.spaces
        return ActionSignature(splits.shape, actions=spaces.actions, observation_names=spaces.names)

    def remark(self, signature: Signature, splits: Splits) -> str:
        train: Environments = splits.train  # type: ignore[assignment]  # its own
        return f"dataset.id={self.id}: {train.spaces.remark}" if train.spaces.remark else ""

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        earlier, now = ActionSignature.cast(before), ActionSignature.cast(signature)
        has_names = bool(earlier.observation_names)  # earlier versions saved none
        if (earlier.shape, earlier.actions) != (now.shape, now.actions) or (
            has_names and tuple(earlier.observation_names) != tuple(now.observation_names)
        ):
            raise CheckpointError(
                f"{source} was trained in an environment with other observations or actions than {self.id}. Choose "
                f"another {run_dir_setting()}."
            )

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Union[Environments, Episodes], signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        difference = ActionSignature.cast(signature).difference(source.spaces)
        if difference:
            raise ConfigError(f"dataset.id={self.id}: {difference}. Type the id of that environment.")
        if isinstance(source, Environments):
            return source.make_loader(source, options)
        return EpisodeLoader(source, options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Returns the episodes to play; a source location is `episode-NUMBER`."""
        if names:
            raise DataError(
                f"{names[0]}: predict plays episodes of {self.id} and reads no files. Leave it out; "
                "dataset.predicted_episodes=N says how many."
            )
        count = self.predicted_episodes
        maker, spaces = self._open_environment()
        episodes = Episodes.from_seed(maker, spaces, count, self.split_seed, ReinforcementDraw.MEASURED_EPISODE + 2)
        return episodes, [f"episode-{number}" for number in range(count)]
