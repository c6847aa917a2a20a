"""Settings of the training loop: length of a run, and intervals of logging and validation."""

from __future__ import annotations

from typing import Literal, Optional, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.folds import Fold
from mxtrain.errors import ConfigError
from mxtrain.types import NonNegative, OpenFraction, Positive, PositiveFloat, Spec


class Trainer(Spec):
    """Limits and intervals of a run."""

    max_epochs: Optional[Positive] = 30
    """Epochs of the whole run, over all resumes; null: `max_steps` decides."""
    max_steps: Optional[Positive] = None
    """Step budget. If it is reached before max_epochs, the process ends with exit code 75, resumable."""
    epoch_budget: Optional[Positive] = None
    """Epoch budget: after this epoch the process validates, saves and exits with code 75, resumable. Schedules keep the
    length of `max_epochs`, so that a run in several parts computes the same as an unbroken one."""
    max_time: Optional[PositiveFloat] = None
    """Time budget of this process in seconds; then it saves and exits with code 75, resumable."""
    seed: NonNegative = 0
    """Seed of initial weights, sample order, augmentation and dropout."""
    log_interval: Positive = 50
    """Number of steps between two reads of metrics from the device. Every step has a row in metrics.jsonl in any
    case."""
    val_interval: Positive = 1
    """Interval between validations, in `val_interval_unit`s."""
    val_interval_unit: Literal["epochs", "steps"] = "epochs"
    """Unit of `val_interval`."""
    limit_train_batches: Optional[Positive] = None
    """Steps of an epoch, for quick trials."""
    limit_val_batches: Optional[Positive] = None
    """Batches of a validation pass, for quick trials."""
    limit_test_batches: Optional[Positive] = None
    """Batches of the test split, for quick trials; `eval` measures all of them unless it gets limit_batches."""
    overfit_batches: Optional[Positive] = None
    """Train on this number of first batches in every epoch, without augmentation and shuffling, to check that the
    network can overfit them."""
    reference_batch_size: Optional[Positive] = None
    """Global batch size that optimizer.lr and lr_scheduler.warmup were tuned for; they are scaled to
    dataset.batch_size. null = no scaling."""
    lr_scaling: Literal["auto", "linear", "sqrt"] = "auto"
    """Scaling of the learning rate with the batch size: auto = linear for SGD and its variants, square root for Adam
    and other optimizers that normalize gradients."""
    grad_accumulation: Positive = 1
    """Number of parts in which a global batch is computed, one after the other, to save memory. The result is that of
    the whole batch."""
    clip_global_norm: Optional[PositiveFloat] = None
    """Maximum L2 norm of all gradients together; larger ones are scaled down."""
    ema_decay: Optional[OpenFraction] = None
    """Validate and keep an exponential moving average of the weights with this decay, e.g. 0.99; at step t it is
    min(this, (1 + t) / (10 + t))."""
    sparse_grad: Union[Literal["auto"], bool] = "auto"
    """Row-sparse gradients of embedding tables: true for every table, false for none, auto for tables large enough to
    be faster. With optimizer.lazy_update=false the results are the same."""
    monitor: str = "val/accuracy"
    """Value that decides which checkpoint is best: a split and a loss or metric, e.g. val/loss."""
    test: bool = True
    """Measure the best weights on the test split at the end, if there is one."""
    folds: Optional[Annotated[int, pydantic.Field(ge=2)]] = None
    """Number of folds of a cross validation: for each fold, a run is trained with the other folds and validated with
    it. null = one run with the dataset's own validation split."""
    fold: Optional[Positive] = None
    """Train only this fold, as an ordinary run: from 1 to folds * fold_repeats; null = all, one after the other."""
    fold_repeats: Positive = 1
    """Number of cross validations, each with folds of its own."""
    fold_stratify: Union[Literal["auto"], bool] = "auto"
    """Stratify folds by class; auto = if each sample has one class."""
    fold_groups: Optional[str] = None
    """Column of a table; rows with equal values stay in the same fold, e.g. those of a patient. It is not an input of
    the network."""
    profile: bool = False
    """Run operators one by one, and record three steps, on one device too: a table, and timeline.json, a trace for
    ui.perfetto.dev."""

    @pydantic.model_validator(mode="after")
    def _check_folds(self) -> Trainer:
        defaults = {"fold": None, "fold_repeats": 1, "fold_stratify": "auto", "fold_groups": None}
        for name, default in defaults.items():
            value = getattr(self, name)
            if self.folds is None and value != default:
                raise ValueError(f"{name}={value} needs the number of folds. Type trainer.folds=5, or leave {name} out")
        if self.folds is not None and self.fold is not None and self.fold > self.num_folds:
            raise ValueError(f"fold={self.fold}: there are {self.num_folds} folds (folds * fold_repeats)")
        return self

    @property
    def num_folds(self) -> int:
        """Returns the number of runs of a cross validation; 0 without one."""
        return (self.folds or 0) * self.fold_repeats

    @property
    def is_fold_group(self) -> bool:
        """Returns True if a run is trained for each fold."""
        return self.folds is not None and self.fold is None

    def require_one_run(self, command: str) -> None:
        """Rejects a description of several runs for a command that handles a single one.

        Args:
            command: name of the command, for the message; "-m" for a sweep.

        Raises:
            ConfigError: the description is of all folds; the message says what to type.
        """
        if self.is_fold_group:
            folds = ",".join(map(str, range(1, min(self.num_folds, 5) + 1)))
            raise ConfigError(
                f"trainer.folds={self.folds}: {command} trains one fold in a run. Type "
                f"trainer.fold={folds if command == '-m' else 1} as well, or leave trainer.folds out."
            )

    @property
    def held_out(self) -> Optional[Fold]:
        """Returns the fold that this run validates with, the first one if all are trained; None without cross
        validation."""
        if self.folds is None:
            return None
        return Fold(self.folds, self.fold or 1, self.fold_stratify, self.fold_groups)
