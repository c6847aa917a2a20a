"""Sentences for a person before training begins: settings that do something unexpected, and what training takes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Optional

from mxtrain.config.groups import Description
from mxtrain.data.sample_weights import has_weights
from mxtrain.training.estimate import Estimate, estimate_training
from mxtrain.training.plan import total_steps_of
from mxtrain.training.remedies import less_memory

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Splits
    from mxtrain.kvstore.store import Store
    from mxtrain.metric.meter import Meter
    from mxtrain.parallel.layout import Layout
    from mxtrain.parallel.objective import Objective

log = logging.getLogger("mxtrain")
FEW_SAMPLES = 10
"""With fewer samples a validation is warned of."""


def warnings_of(
    description: Description, num_samples: int, steps_per_epoch: int, meter: Meter, workers: Store
) -> List[str]:
    """Returns warnings about settings that are allowed but unexpected for this number of samples, a sentence each."""
    (setting, size), total_steps = description.dataset.batch_unit, total_steps_of(description.trainer, steps_per_epoch)
    warnings = description.rates.schedule.warnings(steps_per_epoch, total_steps)
    if setting == "batch_size" and size > num_samples:
        warnings.append(
            f"dataset.batch_size={size} is more than the {num_samples} training samples: a step takes them all, so an "
            "epoch is one step. Type dataset.batch_size=auto for more of them."
        )
    kind, _, count = description.parallel.devices.partition(":")
    if count == "1" and {"replicas", "stages"}.intersection(type(description.parallel).model_fields) == {"replicas"}:
        warnings.append(
            f"parallel.devices={kind}:1: one device trains as parallel=single does. Type parallel.devices={kind}:2 for "
            "two."
        )
    if meter.weighted and workers.independent_steps and workers.world.size > 1:
        warnings.append(
            f"this loss weighs samples, and workers of {description.kvstore.independence[0]} do not wait for each "
            "other: each divides its gradients by the weight of its own share of a batch, not of the whole batch"
        )
    return warnings


def constant_metrics(description: Description, signature: Signature) -> List[str]:
    """Returns a warning for each metric that is always 1 with these data, such as the top-5 accuracy of 5 classes."""
    messages = []
    for name, metric in description.metric.items():
        count = description.task.num_choices(metric, signature)
        setting = metric.constant_by(count)
        if setting:
            instead = "Type a smaller one, or leave the metric out"
            if description.trainer.monitor == f"val/{name}":
                instead = "Nothing can get better by it: type a smaller one, or trainer.monitor=val/loss"
            messages.append(f"metric.{name}.{setting}: of {count} choices, so it is always 1. {instead}.")
    return messages


def unweighted_metrics(description: Description) -> List[str]:
    """Returns a warning about metrics that count each sample once although the dataset gives weights, in a list."""
    names = [name for name, metric in description.metric.items() if not metric.takes_weights]
    if not names or not has_weights(description.dataset):
        return []
    return [
        f"dataset.weight: {', '.join(names)} {'have' if len(names) > 1 else 'has'} no weights: each sample counts once."
    ]


def few_samples(splits: Splits) -> List[str]:
    """Returns the warning about a validation split whose metrics say little, in a list; empty if it has enough
    samples."""
    count = len(splits.val)
    if count >= FEW_SAMPLES:
        return []
    had = "1 sample" if count == 1 else f"{count} samples"
    return [f"validation has {had}, so its metrics say little. Give more data, or more of them for validation."]


def log_remarks(
    description: Description,
    splits: Splits,
    signature: Signature,
    train: BatchLoader,
    objective: Objective,
    layout: Layout,
    workers: Store,
) -> None:
    """Logs all that there is to say before training.

    Args:
        description, splits, signature: of the run.
        train: the loader of training.
        objective: network, loss and meter.
        layout: the devices.
        workers: the gradient store.
    """
    if description.dataset.sampler != "shuffle" and description.trainer.overfit_batches is None:
        log.info("dataset.sampler=%s: %s", description.dataset.sampler, train.sampler.summary)
    if description.rates.remark:
        log.info("%s", description.rates.remark)
    warnings = warnings_of(description, train.total, len(train), objective.meter, workers)
    for line in [
        *warnings,
        *few_samples(splits),
        *constant_metrics(description, signature),
        *unweighted_metrics(description),
    ]:
        log.warning("%s", line)
    say_estimate(description, estimate_training(objective, layout, len(train), train.total))


def say_estimate(description: Description, estimate: Optional[Estimate]) -> None:
    """Logs the estimated memory and time of training, if they are large."""
    if estimate is None or not estimate.sentence:
        return
    if estimate.exceeds_memory:
        log.warning("%s, more than there is. %s", estimate.sentence, less_memory(description))
    else:
        log.info("%s", estimate.sentence)
