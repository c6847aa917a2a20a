"""Which option of conf/model/ a name of GluonCV's is meant for."""

from __future__ import annotations

from mxtrain.model.gluoncv_detection import BY_NAME
from mxtrain.model.gluoncv_segmentation import ARCHITECTURES


def option_of(name: str, task: str) -> str:
    """Which option of conf/model/ a name of GluonCV's, perhaps misspelt, is meant for.

    Args:
        name: as `model.name`.
        task: the option of conf/task/ that was typed, or "".
    """
    for beginning, option in BY_NAME.items():
        if name.startswith(beginning):
            return option
    if task == "detection":
        return "ssd"  # whose message lists the names
    for_pixels = task == "segmentation" or name.startswith((*ARCHITECTURES, "fastscnn"))
    return "gluoncv_segmentation" if for_pixels else "gluoncv"
