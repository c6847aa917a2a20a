"""The signature of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping

from mxtrain.data.corruption import Corruption
from mxtrain.data.loading.samples import Splits
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.files.json_form import NUMBER
from mxtrain.vision.images.settings import Decoding

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class ImageSplits(Splits):
    """Splits of images that are decoded from files. Images in memory are plain `Splits`.

    Attributes:
        decoding: decoding of the files.
    """

    decoding: Decoding = REQUIRED

    def counts(self) -> Dict[str, int]:
        counts = super().counts()
        return {"images": counts.pop("samples"), **counts}


@dataclass(frozen=True)
class ImageSignature(Signature):
    """Signature of images of one size.

    Attributes:
        decoding: decoding of image files to samples.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **Signature.form,
        "decoding": {
            "shape": [int],
            "central_crop": NUMBER,
            "frame?": [int],
            "window?": [(str, *NUMBER)],
            "fit?": str,
        },
    }

    exported_reader: ClassVar[str] = "mxtrain.vision.exported_images"

    decoding: Decoding = REQUIRED

    @classmethod
    def corruptions(cls) -> Mapping[str, Corruption]:
        from mxtrain.vision.images.corruptions import SEVERITIES, STRENGTHS, Corrupted

        def corruption(name: str) -> Corruption:
            return Corruption(SEVERITIES, lambda source, severity: Corrupted(source, name, severity))  # type: ignore[arg-type]  # a source of images

        return {name: corruption(name) for name in STRENGTHS}

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "decoding": self.decoding.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "decoding": Decoding.from_json(values["decoding"])}
