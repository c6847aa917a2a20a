"""What descriptions of earlier versions mean, which say no task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Mapping

if TYPE_CHECKING:
    from mxtrain.annotations import Config


def task_of_earlier(config: Config) -> Dict[str, str]:
    """The task of a description that was made before there were tasks: then the data said what was learned."""
    dataset = config.get("dataset")
    if isinstance(dataset, Mapping) and dataset.get("mask_fraction"):
        return {"_target_": "mxtrain.task.masked_language_modeling.MaskedLanguageModeling"}
    return {"_target_": "mxtrain.task.classification.Classification"}
