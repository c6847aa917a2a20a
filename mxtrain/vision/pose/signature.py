"""The signature of images with key points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict

from mxtrain.data.signature import REQUIRED
from mxtrain.files.json_form import NUMBER
from mxtrain.vision.detection.signature import BoxSignature, BoxSplits
from mxtrain.vision.pose.key_points import KeyPointSet

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class KeyPointSplits(BoxSplits):
    """Splits of objects with key points, whose names are `class_names`.

    Attributes:
        key_points: relations of the key points.
    """

    key_points: KeyPointSet = REQUIRED

    def counts(self) -> Dict[str, int]:
        """Returns the number of objects, and of key points of each; see `Splits.counts`."""
        objects = sum(len(part) for part in (self.train, self.val, self.test) if part is not None)
        return {"objects": objects, "key points": len(self.class_names)}


@dataclass(frozen=True)
class KeyPointSignature(BoxSignature):
    """Signature of objects with key points, whose names are `class_names`.

    Attributes:
        key_points: relations of the key points.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **BoxSignature.form,
        "key_points": {"flip_pairs": [[int]], "skeleton": [[int]], "sigmas": [NUMBER], "thing_names": [str]},
    }

    key_points: KeyPointSet = REQUIRED

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "key_points": self.key_points.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        points = KeyPointSet.from_json(values["key_points"], len(values["class_names"]))
        return {**super()._arguments(values), "key_points": points}
