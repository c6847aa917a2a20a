"""The signature of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Optional, Sequence

from mxtrain.data.corruption import Corruption
from mxtrain.data.loading.samples import Splits
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.errors import ConfigError
from mxtrain.files.json_form import NUMBER
from mxtrain.types import shapes_of
from mxtrain.vision.images.fitting import fill_of, fit_size
from mxtrain.vision.images.settings import Decoding

if TYPE_CHECKING:
    from mxtrain.data.loading.samples import Samples
    from mxtrain.data.passes import TiledSamples
    from mxtrain.types.annotations import Json, JsonForm
    from mxtrain.vision.images.variants import ImageVariant


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
            "slice_axis?": str,
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

    def variants(self, names: Sequence[str], scales: Sequence[float]) -> Sequence[ImageVariant]:
        from mxtrain.vision.images.variants import build_variants

        return build_variants(names, scales, shapes_of(self.shape)[0][1:])

    def tiled(self, source: Samples, tile: Optional[Sequence[int]], overlap: float) -> Optional[TiledSamples]:
        from mxtrain.vision.images.tiles import TiledImages

        channels, *size = shapes_of(self.shape)[0]
        height, width = tile_size = (size[0], size[1]) if tile is None else (tile[0], tile[1])
        fill_C = fill_of(self.mean, channels)
        if not self.decoding.fit:
            return TiledImages(source, tile_size, overlap, tile_size, tile_size, fill_C)
        content = fit_size(height, width, size, self.decoding.fit)
        return TiledImages(source, tile_size, overlap, (size[0], size[1]), content, fill_C)

    def require_tile(self, tile: Optional[Sequence[int]]) -> None:
        _, *size = shapes_of(self.shape)[0]
        if tile is not None and self.decoding.fit and (tile[0] > size[0] or tile[1] > size[1]):
            fitting = ",".join(str(min(sides)) for sides in zip(tile, size))
            raise ConfigError(
                f"tile=[{tile[0]},{tile[1]}]: the network's input is {size[0]}x{size[1]}, to which larger tiles would "
                f"be reduced. Type tile=[{fitting}] or less; smaller tiles are enlarged."
            )

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "decoding": self.decoding.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "decoding": Decoding.from_json(values["decoding"])}
