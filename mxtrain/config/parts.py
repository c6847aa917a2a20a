"""The settings of a run besides its task. Tasks get these, so that this module does not depend on tasks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Mapping

from mxtrain.lr_scheduler.reference_batch import LearningRates, scale_rates

if TYPE_CHECKING:
    from mxtrain.amp.spec import Precision
    from mxtrain.callback.spec import CallbackSpec
    from mxtrain.checkpoint.spec import CheckpointSpec
    from mxtrain.cluster.spec import Cluster
    from mxtrain.data.spec import BaseDataset
    from mxtrain.early_stopping.spec import StoppingRule
    from mxtrain.kvstore.spec import KVStore
    from mxtrain.logger.spec import Logger
    from mxtrain.loss.spec import Distillation, Loss
    from mxtrain.lr_scheduler.spec import Schedule
    from mxtrain.metric.spec import Metric
    from mxtrain.model.spec import Model
    from mxtrain.optimizer.spec import Optimizer
    from mxtrain.parallel.spec import Parallel
    from mxtrain.runtime.spec import Runtime
    from mxtrain.training.spec import Trainer
    from mxtrain.types.annotations import Config


@dataclass(frozen=True)
class RunParts:
    """All settings of a run but the task: one spec per group, and `config`, the same settings as plain nested dicts."""

    config: Config
    model: Model
    dataset: BaseDataset
    parallel: Parallel
    kvstore: KVStore
    amp: Precision
    optimizer: Optimizer
    lr_scheduler: Schedule
    loss: Loss
    metric: Mapping[str, Metric]
    distillation: Distillation
    early_stopping: StoppingRule
    checkpoint: CheckpointSpec
    callback: Mapping[str, CallbackSpec]
    logger: Mapping[str, Logger]
    trainer: Trainer
    cluster: Cluster
    runtime: Runtime

    @functools.cached_property
    def rates(self) -> LearningRates:
        """Returns the base learning rate and schedule, scaled to the global batch size of the run.

        Raises:
            ConfigError: `trainer.reference_batch_size` is set, but the batch size is not known.
        """
        trainer, optimizer = self.trainer, self.optimizer
        return scale_rates(
            optimizer.lr,
            self.lr_scheduler,
            batch_size=self.dataset.batch_unit[1],
            reference=trainer.reference_batch_size,
            rule=optimizer.lr_scaling if trainer.lr_scaling == "auto" else trainer.lr_scaling,
            optimizer=type(optimizer).__name__,
        )

    @property
    def metric_signatures(self) -> Dict[str, str]:
        """Returns the signature (variant) of each metric that has several variants, by name."""
        return {name: metric.signature for name, metric in self.metric.items() if metric.signature}
