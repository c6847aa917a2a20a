"""Reinforcement-learning task: trains a policy on its own steps in environments.

Legend: B batch, O outputs of the network, X facts about a sample.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, List, Literal, Mapping, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import ConfigError, LoaderError, MxtrainError
from mxtrain.reinforcement.algorithm import Algorithm, ReplayAlgorithm
from mxtrain.reinforcement.gymnasium import Gymnasium
from mxtrain.reinforcement.kinds import Returns
from mxtrain.reinforcement.losses import episode_loss
from mxtrain.reinforcement.model import DensePolicyModel, PolicyModel
from mxtrain.reinforcement.policy import FACTS, Actions
from mxtrain.reinforcement.signature import ActionSignature
from mxtrain.task.needs import EQUAL_SHARES, FULL_PRECISION
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.report import Report
from mxtrain.task.spec import Task
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact, Figure, NonNegative, PositiveFloat, Shapes, Table, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.reinforcement.episodes import Episodes
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, LossBlock

log = logging.getLogger("mxtrain")


class ReinforcementLearning(Task):
    """Reinforcement learning by an `Algorithm`, the loss.

    Outputs (B, O) are those of the policy; targets are facts (B, X) about actions, see
    `mxtrain.reinforcement.policy`. A training sample is a step in an environment. Otherwise a sample is an episode,
    whose loss is its negative return. Predictions are return and length of each episode, (B, 2).
    """

    name: ClassVar[str] = "reinforcement_learning"
    takes: ClassVar[Takes] = Takes(Returns)
    needs: ClassVar[Tuple[str, ...]] = (FULL_PRECISION, EQUAL_SHARES)

    shown_frames: NonNegative = 12
    """Images of an episode that TensorBoard shows after a validation; 0 = none."""
    frames_per_s: PositiveFloat = 30.0
    """Frame rate of the animations that `predict` writes."""
    episode_files: Literal["gif", "npz"] = "gif"
    """Files that `predict` writes: gif = animations, npz = observations, actions and rewards."""
    recorded_episodes: NonNegative = 5
    """Episodes of which `eval` writes each observation, action and reward to `steps.csv`; 0 = none."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss, trainer, model = description.loss, description.trainer, description.model
        if not isinstance(loss, Algorithm):
            raise ConfigError(
                "loss: task=reinforcement_learning learns from facts about actions, which a loss of (predictions, "
                "labels) does not know. Type loss=ppo or loss=a2c, or model=q_network (DQN) or model=soft_actor_critic "
                "(SAC), which choose their loss."
            )
        loss.require_unsmoothed("actions are no labels to smooth")
        reason = loss.unsupported_model(model)
        if isinstance(model, PolicyModel) and model.head != loss.head:
            reason = f"its outputs are those of an {model.head.replace('_', ' ')} policy"
            reason = reason if model.head[0] in "aeiou" else reason.replace(" an ", " a ")
        if reason:
            raise ConfigError(
                f"model: {type(model).__name__} cannot be trained by {type(loss).__name__}: {reason}. "
                f"Type {loss.setting}."
            )
        if trainer.overfit_batches is not None:
            raise ConfigError(
                f"trainer.overfit_batches={trainer.overfit_batches}: samples come from the weights, so no batch is the "
                "same again. Leave it out."
            )
        if isinstance(description.dataset, Gymnasium):
            self._check_passes(description.dataset, loss)
            if isinstance(loss, ReplayAlgorithm):
                self._check_buffer(description, description.dataset, loss)
            self._check_workers(description, description.dataset)

    def _check_passes(self, dataset: Gymnasium, loss: Algorithm) -> None:
        if not loss.reuses_steps and dataset.passes not in ("auto", 1):
            raise ConfigError(
                f"dataset.passes={dataset.passes}: a second pass learns from actions of earlier weights, which only "
                "loss=ppo corrects. Type loss=ppo, or dataset.passes=1."
            )

        if dataset.recordings is not None and not loss.has_buffer:
            raise ConfigError(
                f"dataset.recordings={dataset.recordings}: recorded steps fill a replay buffer, and "
                f"{type(loss).__name__} has none: it learns from steps of the current weights. Leave it out, or type "
                "model=q_network (DQN) or model=soft_actor_critic (SAC)."
            )

    def _check_buffer(self, description: RunParts, dataset: Gymnasium, loss: ReplayAlgorithm) -> None:
        least = max(loss.learning_starts, dataset.num_envs, dataset.batch_size)
        if loss.buffer_size < least:
            raise ConfigError(
                f"loss.buffer_size={loss.buffer_size}: it must hold loss.learning_starts={loss.learning_starts} steps "
                f"of dataset.num_envs={dataset.num_envs} environments, and a batch of "
                f"dataset.batch_size={dataset.batch_size}. Type loss.buffer_size={least} or more."
            )
        epochs = description.trainer.max_epochs
        steps = dataset.num_envs * dataset.rollout_steps * dataset.rollouts_per_epoch * (epochs or 0)
        if epochs is not None and dataset.recordings is None and loss.learning_starts > steps:
            raise ConfigError(
                f"loss.learning_starts={loss.learning_starts}: more steps with random actions than the {steps} that "
                f"trainer.max_epochs={epochs} of dataset.rollouts_per_epoch={dataset.rollouts_per_epoch} learn from "
                f"afterwards. Type loss.learning_starts={steps} or less, or train for longer."
            )
        cause, remedy = description.kvstore.independence
        if cause and description.cluster.workers > 1:
            raise ConfigError(
                f"{loss.setting} with {cause}: each worker would have a target network of its own. Type {remedy}."
            )

    def _check_workers(self, description: RunParts, dataset: Gymnasium) -> None:
        cluster, model, (cause, remedy) = description.cluster, description.model, description.kvstore.independence
        if cluster.workers > dataset.num_envs:
            raise ConfigError(
                f"cluster.workers={cluster.workers}: there are only dataset.num_envs={dataset.num_envs} environments "
                "to share. Type more of them, or fewer workers."
            )
        normalizes = {
            "dataset.normalize_rewards": dataset.normalize_rewards,
            "model.normalize_observations": isinstance(model, DensePolicyModel) and model.normalize_observations,
        }
        for setting in (name for name, is_on in normalizes.items() if is_on and cause and cluster.workers > 1):
            raise ConfigError(
                f"{setting}=true with {cause}: workers do not wait for each other, so each would have statistics of "
                f"its own. Type {setting}=false, or {remedy}."
            )

    def num_classes(self, signature: Signature) -> int:
        return actions_of(signature).num_outputs

    def output_names(self, signature: Signature) -> Sequence[str]:
        return actions_of(signature).names()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(actions_of(signature).num_outputs,)]

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        model, actions, shape = description.model, actions_of(signature), shapes_of(signature.shape)[0]

        def build() -> gluon.Block:
            if isinstance(model, PolicyModel):
                return model.build_policy(actions, shape)
            return model.build(actions.num_outputs, shape)

        return algorithm_of(description).build_network(build, actions, shape)

    def training_shapes(self, description: RunParts, signature: Signature) -> Shapes:
        return algorithm_of(description).training_shapes(actions_of(signature), shapes_of(signature.shape)[0])

    def export_form(self) -> TaskExport:
        return PolicyExport(self)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.loss.function_block import FunctionBlock

        if training:
            return algorithm_of(description).build_for(actions_of(signature))
        # Returns are comparable between runs with and without normalised rewards; the errors of predicted values are
        # not.
        return FunctionBlock(episode_loss, lambda output_BO, facts_BX: (facts_BX,))

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import Meter, MeterOutputs

        metrics = dict(description.metric)
        if training:
            metrics.update(algorithm_of(description).metrics(actions_of(signature)))
        # Metrics of an episode read only its facts: the network's outputs belong to its first observation.
        outputs = MeterOutputs(num_read=None if training else 0)
        return Meter(metrics, self.num_classes(signature), weights, outputs, training=training)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the return and the length of each episode, (B, 2)."""
        begin = FACTS.index("return")
        return batch.targets[0].slice_axis(axis=1, begin=begin, end=begin + 2)

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        return {"return": round(float(prediction[0]), 6), "length": int(prediction[1])}

    def can_show(self, description: RunParts) -> bool:
        return self.shown_frames > 0

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns frames of the first episode; empty if the environment cannot be drawn."""
        from mxtrain.reinforcement.episode_figure import draw_episode

        episodes: Episodes = source  # type: ignore[assignment]  # of environments
        try:
            frames = episodes.frames(0, self.shown_frames)
        except MxtrainError as error:
            log.warning("no figures of episodes: %s Type task.shown_frames=0 to leave them out.", error)
            return []
        caption = ", ".join(f"{name} {value}" for name, value in self.row(signature, predictions[0], 1).items())
        return [Figure("episode", lambda max_images: draw_episode(frames, caption, int(predictions[0][1])))]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        return EpisodeReport(source, self.recorded_episodes)  # type: ignore[arg-type]  # of environments

    def prediction_format(self) -> PredictionFormat:
        return ReinforcementLearningFormat(self)


class ReinforcementLearningFormat(PredictionFormat):
    """Rows and files of the predictions of `ReinforcementLearning`."""

    task: ReinforcementLearning

    inputs: ClassVar[str] = ""
    writes_by_default: ClassVar[bool] = False

    def __init__(self, task: ReinforcementLearning) -> None:
        super().__init__(task)
        self.writes = {"gif": "animation", "npz": "record"}[task.episode_files]  # type: ignore[misc]  # of this task
        self.writes_ending = f".{task.episode_files}"  # type: ignore[misc]

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns an animated GIF of the episode, or an NPZ file of its steps."""
        from mxtrain.reinforcement.episode_figure import encode_animation

        episodes: Episodes = source  # type: ignore[assignment]  # of environments
        if self.task.episode_files == "npz":
            return episodes.record(index).encode()
        return encode_animation(episodes.frames(index), self.task.frames_per_s)


def actions_of(signature: Signature) -> Actions:
    """Returns the action space of a network.

    Raises:
        LoaderError: the network is not a policy.
    """
    if not isinstance(signature, ActionSignature):
        raise LoaderError("The checkpoint's network does not act: it knows no actions.")
    return signature.actions


def algorithm_of(description: RunParts) -> Algorithm:
    """Returns the algorithm of a run."""
    assert isinstance(description.loss, Algorithm)
    return description.loss


class EpisodeReport(Report):
    """Report of return and length of each episode, with mean, standard deviation, minimum and maximum, and of the steps
    of the first episodes.

    Args:
        source: episodes.
        num_recorded: number of episodes whose steps are reported.
    """

    def __init__(self, source: Episodes, num_recorded: int = 0) -> None:
        self._source, self._num_recorded = source, num_recorded
        self._found: List[Tuple[np.ndarray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        assert batch.index_B is not None
        self._found.append((batch.index_B, batch.targets[0]))

    def artifacts(self, title: str) -> List[Artifact]:
        index_N = np.concatenate([index for index, _ in self._found])
        facts_NX = np.concatenate([facts.asnumpy() for _, facts in self._found]).astype(np.float64)
        order = np.argsort(index_N, kind="stable")
        return_N, length_N = (facts_NX[order, FACTS.index(name)] for name in ("return", "length"))
        rows = [
            [int(index), float(return_of_episode), int(length)]
            for index, return_of_episode, length in zip(index_N[order], return_N, length_N)
        ]
        statistics: List[Sequence[Union[str, float]]] = [
            [name, float(function(return_N)), float(function(length_N))]
            for name, function in (("mean", np.mean), ("deviation", np.std), ("least", np.min), ("most", np.max))
        ]
        return [
            Table("returns", ["over episodes", "return", "length"], statistics),
            Table("episodes", ["episode", "return", "length"], rows, is_shown=False),
            *self._steps(index_N[order].tolist()),
        ]

    def _steps(self, indices: Sequence[int]) -> List[Artifact]:
        """Returns the table of the steps of the first episodes; empty if observations are too large for one."""
        header: List[str] = []
        rows: List[Sequence[Union[int, float]]] = []
        for index in indices[: self._num_recorded]:
            try:
                episode = self._source.record(index)
            except MxtrainError as error:
                log.warning("no table of steps: %s Type task.recorded_episodes=0 to leave it out.", error)
                return []
            header = episode.header(self._source.spaces.names)
            if not header:
                return []
            rows += episode.rows(index)
        return [Table("steps", header, rows, is_shown=False)] if rows else []


class PolicyExport(TaskExport):
    """Export of policies: validation plays episodes, and has no loss of the network's outputs."""

    has_loss: ClassVar[bool] = False
