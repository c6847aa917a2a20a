"""Builds the loaders of a run: one for each split, and one for the few samples that are shown."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.groups import Description
from mxtrain.config.rules import batch_divisions
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions, Scale
from mxtrain.data.loading.samples import SelectableSamples
from mxtrain.data.loading.sampling import GroupSampler, Sampler, build_class_sampler, checked_labels
from mxtrain.data.loading.sources import Subset
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits, choose_batch_size, open_splits, samples_per_step
from mxtrain.kvstore.world import ALONE, World
from mxtrain.training.evaluate import ShownSamples
from mxtrain.training.plan import RunData

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.training.teacher import Teacher


log = logging.getLogger("mxtrain")
NUM_SHOWN_SAMPLES = 16


def build_loader(
    description: Description,
    source: Samples,
    signature: Signature,
    device: Context,
    training: bool = False,
    teacher: Optional[Teacher] = None,
    **options: Any,
) -> BatchLoader:
    """Builds the loader of one split. By default, samples are in order and not augmented.

    Args:
        description: description of the run.
        source: samples of the split.
        signature: signature of the network.
        device: device that the batches are copied to.
        training: True if the network is trained on the batches, so that they need training targets. `train=True`
            implies it; with `trainer.overfit_batches` the network is trained on batches without shuffling.
        teacher: adds its outputs to the targets of training batches.
        options: fields of `LoaderOptions` that differ from the settings, such as `train=True` to shuffle and augment.
    """
    dataset, task = description.dataset, description.task
    training = training or bool(options.get("train"))
    collate = task.build_collate(description, signature, training)
    settings = {
        "batch_size": dataset.eval_batch_size,
        "prefetch": dataset.prefetch,
        "device": device,
        "seed": description.trainer.seed,
        "num_classes": task.num_classes(signature),
        "collate": teacher.after(collate) if teacher is not None and training else collate,
        "encode": task.build_encode(description, signature, training),
        "scales": [
            Scale(other, task.build_encode(description, sign, training))  # type: ignore[arg-type]  # of images
            for other, sign in (dataset.scaled(source, signature) if training else ())
        ],
    }
    return dataset.build_loader(source, signature, LoaderOptions(**{**settings, **options}))


def build_sampler(dataset: BaseDataset, splits: Splits, seed: int) -> Optional[Sampler]:
    """Returns the sampler of training epochs; None = each sample once.

    Args:
        dataset: the dataset.
        splits: opened splits of the dataset.
        seed: seed of the run.

    Raises:
        ConfigError: a weight is given for an unknown class, or a batch cannot hold a whole number of classes.
        DataError: the samples have no classes.
    """
    if dataset.sampler == "shuffle":
        return None
    if dataset.sampler == "grouped":
        label_N = checked_labels(splits.train, splits.class_names)
        return GroupSampler(label_N, samples_per_step(dataset), dataset.samples_per_class, seed)
    return build_class_sampler(splits.train, splits.class_names, dataset.class_weights, seed)


def build_data(
    description: Description,
    splits: Splits,
    signature: Signature,
    device: Context,
    world: World = ALONE,
    teacher: Optional[Teacher] = None,
) -> RunData:
    """Builds the loaders of all splits. With `trainer.overfit_batches` training sees only the first samples.

    All workers share the batches of the training and validation splits; one worker evaluates the test split.
    """
    dataset, trainer = description.dataset, description.trainer
    shared: Dict[str, Any] = {
        "batch_size": samples_per_step(dataset),
        "limit_batches": trainer.limit_train_batches,
        "world": world,
        "teacher": teacher,
    }
    if trainer.overfit_batches is None:
        sampler = build_sampler(dataset, splits, trainer.seed)
        train = build_loader(description, splits.train, signature, device, train=True, sampler=sampler, **shared)
    else:
        first = range(min(trainer.overfit_batches * samples_per_step(dataset), len(splits.train)))
        train = build_loader(description, take(splits.train, first), signature, device, training=True, **shared)
    return RunData(
        train=train,
        val=build_loader(
            description, splits.val, signature, device, world=world, limit_batches=trainer.limit_val_batches
        ),
        test=build_loader(description, splits.test, signature, device, limit_batches=trainer.limit_test_batches)
        if splits.test and trainer.test
        else None,
        samples=build_samples(description, splits, signature, device),
    )


def take(source: Samples, indices: Sequence[int]) -> Samples:
    """Returns the samples of a split at these indices; indices beyond its end are ignored."""
    if isinstance(source, SelectableSamples):
        return source.take(indices)
    kept = np.array([index for index in indices if index < len(source)], np.int64)
    return Subset(source, kept)  # type: ignore[arg-type]  # whatever cannot `take` is a `Source`


def build_samples(
    description: Description, splits: Splits, signature: Signature, device: Context
) -> Optional[ShownSamples]:
    """Builds the loader of a few validation samples that are shown with their predictions; None if none are shown."""
    task = description.task
    if not task.can_show(description):
        return None
    shown = take(
        splits.val, np.linspace(0, len(splits.val) - 1, min(NUM_SHOWN_SAMPLES, len(splits.val))).astype(int).tolist()
    )
    return ShownSamples(
        # In order, because `task.show` pairs predictions and samples by position.
        build_loader(description, shown, signature, device, prefetch=0, in_order=True),
        lambda predictions, targets: task.show(signature, shown, predictions, targets),
    )


def open_data(description: Description) -> Tuple[Splits, Signature]:
    """Opens the dataset; returns its splits and the signature of the network's inputs and classes."""
    splits = open_splits(description.dataset)
    signature = description.dataset.infer_signature(splits, description.model)
    remark = description.dataset.remark(signature, splits)
    if remark:
        log.info("%s", remark)
    return splits, signature


def with_batch_size(description: Description, num_samples: int) -> Description:
    """Returns the description with a batch size chosen by the number of training samples, if `dataset.batch_size` is
    auto."""
    divisor = math.prod(batch_divisions(description).values())
    dataset = choose_batch_size(description.dataset, num_samples, divisor)
    if dataset is not description.dataset and dataset.batch_unit[0] == "batch_size":
        log.info("dataset.batch_size=%d for %s training samples (auto)", samples_per_step(dataset), f"{num_samples:,}")
    return replace(description, dataset=dataset)
