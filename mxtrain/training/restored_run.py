"""An earlier run, opened for evaluation, prediction or export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Optional

from mxtrain.checkpoint import Checkpoint
from mxtrain.checkpoint.folder import run_dir_of
from mxtrain.config.groups import Description
from mxtrain.data.signature import Signature, signature_of
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError
from mxtrain.task.fit import title_of
from mxtrain.task.threshold import ChoosingTask, ThresholdTask

if TYPE_CHECKING:
    from mxtrain.task.spec import Task
    from mxtrain.training.trained import Trained


@dataclass(frozen=True)
class RestoredRun:
    """A checkpoint, and the description of its run for one device. Creating it does not import MXNet; `load` does.

    Attributes:
        checkpoint: the checkpoint.
        description: description of the run, with the overrides of the caller.
        dataset: the dataset of `description`, with the preprocessing that the network was trained with.
        signature: shapes, classes and preprocessing of the network's inputs and outputs.
        described_task: the task of `description` without the values that validations of the run have chosen.
    """

    checkpoint: Checkpoint
    description: Description
    dataset: BaseDataset
    signature: Signature
    described_task: Optional[Task] = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, description: Description, overrides: Collection[str] = ()) -> RestoredRun:
        """Combines a checkpoint and a description.

        Args:
            checkpoint: the checkpoint.
            description: description of its run.
            overrides: groups and settings of the description that the caller has chosen, e.g. "dataset.root".

        Raises:
            CheckpointError: the checkpoint has no signature of the kind that the dataset's class reads.
            ConfigError: an override would change the inputs of the network.
        """
        signature = signature_of(checkpoint, description.dataset.signature_class)
        dataset, signature = description.dataset.restored(signature, overrides, str(checkpoint.path))
        task = description.task
        if isinstance(task, ChoosingTask):
            task = task.restored(checkpoint.state.get("states") or {})
        return cls(checkpoint, replace(description, task=task), dataset, signature, description.task)

    def choosing(self) -> RestoredRun:
        """Returns the run with the task as in training: measuring a split chooses thresholds and margins on it."""
        assert self.described_task is not None
        return replace(self, description=replace(self.description, task=self.described_task))

    def with_threshold(self, threshold: Optional[float]) -> RestoredRun:
        """Returns the run with another decision threshold; itself for None.

        Raises:
            ConfigError: the task decides by no threshold.
        """
        if threshold is None:
            return self
        task = self.description.task
        if not isinstance(task, ThresholdTask):
            raise ConfigError(f"threshold={threshold}: {title_of(task)} decides by no threshold. Leave it out.")
        task = task.with_threshold(threshold, self.signature)
        return replace(self, description=replace(self.description, task=task))

    @property
    def run_dir(self) -> Path:
        """Returns the run directory that contains the checkpoint, or the current folder if none does."""
        return run_dir_of(self.checkpoint.path)

    def load(self, fuse: bool = False, exported: bool = False) -> Trained:
        """Builds the network with the weights of the checkpoint; see `load_trained`."""
        from mxtrain.training.trained import load_trained  # imports MXNet

        return load_trained(self.checkpoint, self.description, self.signature, fuse, exported)
