"""The loaders of a run: of its splits, and of the few samples that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

import numpy as np

from mxtrain.dataset.base import Samples, Splits
from mxtrain.dataset.loading.loader import BatchLoader, Scale
from mxtrain.dataset.loading.sources import Subset
from mxtrain.dataset.signature import Signature
from mxtrain.description.groups import Description
from mxtrain.kvstore.world import ALONE, World
from mxtrain.trainer.evaluate import ShownSamples
from mxtrain.trainer.plan import RunData

if TYPE_CHECKING:
    from mxnet import Context


NUM_SHOWN_SAMPLES = 16


def build_loader(
    description: Description, source: Samples, signature: Signature, device: Context, training: bool = False,
    **options: Any,
) -> BatchLoader:  # fmt: skip
    """A loader of one split; evaluation order and no augmentation unless `train=True`.

    Args:
        training: whether batches are trained on; they are with `train=True` anyway.
    """
    dataset, trainer = description.dataset, description.trainer
    settings = {
        "batch_size": dataset.eval_batch_size, "prefetch": dataset.prefetch, "device": device, "seed": trainer.seed,
        **options,
    }  # fmt: skip
    task, training = description.task, training or bool(options.get("train"))
    collate = task.build_collate(description, signature, training)
    encode = task.build_encode(description, signature, training)
    if encode is not None:
        settings["encode"] = encode
    scaled = dataset.scaled(source, signature) if training else ()
    if scaled:
        settings["scales"] = [
            Scale(other, task.build_encode(description, sign, training))  # type: ignore[arg-type]  # of images
            for other, sign in scaled
        ]
    return dataset.build_loader(
        source, signature, num_classes=task.num_classes(signature), collate=collate, **settings
    )  # fmt: skip


def build_data(
    description: Description, splits: Splits, signature: Signature, device: Context, world: World = ALONE
) -> RunData:  # fmt: skip
    """The loaders of all splits; with `trainer.overfit_batches` training sees only the first samples.

    Workers share the batches of training and validation; the test split is measured by one.
    """
    dataset, trainer = description.dataset, description.trainer
    trained: Dict[str, Any] = {
        "batch_size": dataset.samples_per_step, "limit_batches": trainer.limit_train_batches, "world": world,
    }  # fmt: skip
    if trainer.overfit_batches is None:
        sampler = dataset.build_sampler(splits, trainer.seed)
        # A loader of a user's own may know none.
        chosen: Dict[str, Any] = {"sampler": sampler} if sampler is not None else {}
        train = build_loader(description, splits.train, signature, device, train=True, **chosen, **trained)
    else:
        first = range(min(trainer.overfit_batches * dataset.samples_per_step, len(splits.train)))
        train = build_loader(description, take(splits.train, first), signature, device, training=True, **trained)
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
    """Some samples of a split, those that it has."""
    if hasattr(source, "take"):
        return source.take(indices)
    kept = np.array([index for index in indices if index < len(source)], np.int64)
    return Subset(source, kept)  # type: ignore[arg-type]  # whatever cannot `take` is a `Source`


def build_samples(
    description: Description, splits: Splits, signature: Signature, device: Context
) -> Optional[ShownSamples]:  # fmt: skip
    """A few validation samples to show with what the network says of them; None where there is nothing to show."""
    task = description.task
    if not task.can_show(description):
        return None
    shown = take(
        splits.val, np.linspace(0, len(splits.val) - 1, min(NUM_SHOWN_SAMPLES, len(splits.val))).astype(int).tolist()
    )
    return ShownSamples(
        build_loader(description, shown, signature, device, prefetch=0, in_order=True),
        lambda predictions, targets: task.show(signature, shown, predictions, targets),
    )  # fmt: skip
