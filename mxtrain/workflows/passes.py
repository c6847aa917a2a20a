"""Settings of `eval` and `predict` with several passes for a sample: test-time augmentation, and tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.config.groups import Description
from mxtrain.config.specs import validate_arguments
from mxtrain.data.passes import Variant
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.text_numbers import parse_number
from mxtrain.task.fit import title_of
from mxtrain.task.merging import ComputesVariants, MergesTiles, MergesVariants
from mxtrain.types import PositiveFloat, Spec

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.task.merging import MergeOutputs, MergeTiles
    from mxtrain.task.spec import Task
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Json

MAX_SCALE = 8.0
"""Largest factor of the sides of samples."""
MIN_TILE, MAX_TILE = 16, 8192
"""Smallest and largest side of a tile, in pixels."""
AUTO = "auto"


def words_of(value: str) -> List[str]:
    """Returns the words of text such as `flip`, `flip,vflip` or `[flip, vflip]`."""
    return [stripped for word in value.strip("[] ").split(",") if (stripped := word.strip(" '\""))]


def read_names(value: object) -> object:
    """Splits text into unique words. Other values are returned as is.

    Raises:
        ValueError: there is no word, or it is a truth value, as other tools take.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false")):
        raise ValueError("names variants, not true or false: flip, vflip, scales, or several, e.g. [flip,scales]")
    if isinstance(value, str):
        value = words_of(value)
    if value == []:
        raise ValueError("names no variant: type flip, vflip, scales, or several, e.g. [flip,scales]")
    return list(dict.fromkeys(value)) if isinstance(value, list) else value


def read_numbers(value: object) -> object:
    """Converts text such as `0.5` or `[0.5, 1.5]`, or a number, to a list of numbers. Other values are returned as
    is."""
    if isinstance(value, str):
        words = words_of(value)
        return [word if parse_number(word) is None else parse_number(word) for word in words]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def read_scales(value: object) -> object:
    """Does the same as `read_numbers`, with integers as floats."""
    value = read_numbers(value)
    return [float(scale) if type(scale) is int else scale for scale in value] if isinstance(value, list) else value


def read_tile(value: object) -> object:
    """Converts one side to two, and text such as `[512,640]` to numbers; `auto` is returned as is."""
    if value == AUTO:
        return value
    sides = read_numbers(value)
    if isinstance(sides, list):
        sides = [int(side) if isinstance(side, float) and side.is_integer() else side for side in sides]
    return sides * 2 if isinstance(sides, list) and len(sides) == 1 else sides


Scale = Annotated[PositiveFloat, pydantic.Field(le=MAX_SCALE)]
Side = Annotated[int, pydantic.Field(ge=MIN_TILE, le=MAX_TILE)]
TileSize = Annotated[List[Side], pydantic.Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class MergedVariants:
    """Variants of samples, and the function that merges their outputs."""

    variants: Sequence[Variant]
    merge: MergeOutputs

    def apply(self, trained: Trained) -> Trained:
        """Returns a trained network that predicts for all variants."""
        return replace(trained, evaluator=trained.evaluator.merging(self.variants, self.merge))


@dataclass(frozen=True)
class MergedTiles:
    """Tiles of samples, and the functions that merge their predictions.

    Attributes:
        size: (height, width) of a tile; None: those of the network's input.
        overlap: share of a tile that overlaps the next one.
        merger: merges the predictions.
    """

    size: Optional[Sequence[int]]
    overlap: float
    merger: MergeTiles

    def predictions(self, trained: Trained, source: Samples, count: Optional[int] = None) -> Iterator[np.ndarray]:
        """Returns an iterator over the predictions for samples, in order. Reads the sizes of these samples at once, and
        nothing else before it is used.

        Args:
            trained: the network.
            source: the samples.
            count: number of samples, the first ones; None: all.

        Raises:
            ConfigError: the network does not take tiles of this size.
            LoaderError: a sample cannot be read.
        """
        from mxtrain.training.loaders import take
        from mxtrain.training.tiled import predict_tiles

        if count is not None and count < len(source):
            source = take(source, range(count))
        tiled = trained.signature.tiled(source, self.size, self.overlap)
        assert tiled is not None
        return predict_tiles(trained, tiled, self.merger)

    def apply(self, trained: Trained, source: Samples, limit_batches: Optional[int]) -> Trained:
        """Returns a trained network whose evaluator measures samples once, tile by tile; see `Passes.for_samples`.

        Raises:
            DataError: a sample cannot be read.
        """
        from mxtrain.training.tiled import TiledEvaluator

        count = None if limit_batches is None else limit_batches * trained.description.dataset.eval_batch_size
        try:
            evaluator = TiledEvaluator(trained.evaluator, self.predictions(trained, source, count))
        except LoaderError as error:
            raise DataError(str(error)) from error
        return replace(trained, evaluator=evaluator)


@dataclass(frozen=True)
class Passes:
    """The passes for each sample.

    Attributes:
        variants: None: only the sample itself.
        tiles: None: the whole sample.
        task: task whose network computes the variants itself; None: that of the run.
    """

    variants: Optional[MergedVariants] = None
    tiles: Optional[MergedTiles] = None
    task: Optional[Task] = None

    def for_run(self, run: RestoredRun) -> RestoredRun:
        """Returns a run with the network that these passes need."""
        if self.task is None:
            return run
        return replace(run, description=replace(run.description, task=self.task))

    def for_samples(self, trained: Trained, source: Samples, limit_batches: Optional[int] = None) -> Trained:
        """Returns a trained network whose evaluator measures the samples in these passes; with tiles only once.

        Args:
            trained: the network.
            source: the samples.
            limit_batches: number of batches that are measured; None: all.
        """
        trained = self.for_batches(trained)
        return trained if self.tiles is None else self.tiles.apply(trained, source, limit_batches)

    def for_batches(self, trained: Trained) -> Trained:
        """Returns a trained network that predicts for all variants of a batch, of samples or of tiles."""
        return trained if self.variants is None else self.variants.apply(trained)


WHOLE: Passes = Passes()
"""One pass over whole samples."""


class PassSettings(Spec):
    """Settings of passes that `eval` and `predict` share."""

    augment: Annotated[Optional[List[str]], pydantic.BeforeValidator(read_names)] = None
    """Test-time augmentation of images: merges the predictions for variants of each image. flip = mirrored left-right,
    vflip = top-bottom, scales = of other sizes, or several, e.g. [flip,scales]; null = none."""
    augment_scales: Annotated[
        List[Scale], pydantic.BeforeValidator(read_scales), pydantic.Field(min_length=1, max_length=8)
    ] = [0.75, 1.25]
    """Factors of the sides of images for augment=scales, besides 1."""
    tile: Annotated[Union[Literal["auto"], TileSize, None], pydantic.BeforeValidator(read_tile)] = None
    """Predicts images in their original size, tile by tile: side of a tile in pixels, or [height, width]; auto = the
    size of training images; null = whole images, which are resized."""
    tile_overlap: Annotated[float, pydantic.Field(ge=0, le=0.9)] = 0.25
    """Share of a tile that overlaps the next one."""
    tile_blend: Optional[Literal["gaussian", "constant", "crop"]] = None
    """Weights of overlapping tiles in segmentation: gaussian = less towards the border of a tile; constant = all alike;
    crop = each pixel from the tile in which it is deepest; null = gaussian."""

    @pydantic.model_validator(mode="after")
    def _check_passes(self) -> PassSettings:
        typed = self.model_fields_set
        if "augment_scales" in typed and "scales" not in (self.augment or ()):
            raise ValueError("augment_scales is for augment=scales: type that, too, or leave augment_scales out")
        unused = sorted(typed & {"tile_overlap", "tile_blend"})
        if self.tile is None and unused:
            raise ValueError(f"{unused[0]} is for tiles: type tile=auto, too, or leave {unused[0]} out")
        return self

    def facts(self) -> Dict[str, Json]:
        """Returns the settings that change results, for `metrics.json`; empty if there is one pass."""
        facts: Dict[str, Json] = {}
        if self.augment is not None:
            facts["augment"] = list(self.augment)
            if "scales" in self.augment:
                facts["augment_scales"] = list(self.augment_scales)
        if self.tile is not None:
            facts["tile"] = self.tile if isinstance(self.tile, str) else list(self.tile)
            facts["tile_overlap"] = self.tile_overlap
            if self.tile_blend is not None:
                facts["tile_blend"] = self.tile_blend
        return facts

    @property
    def text(self) -> str:
        """Returns the settings that change results as they are typed, for titles; empty if there is one pass."""
        return " ".join(f"{name}={_typed(value)}" for name, value in self.facts().items())

    def passes(self, description: Description, signature: Signature) -> Passes:
        """Returns the passes for each sample. Does not import MXNet.

        Raises:
            ConfigError: samples, task or network do not allow them.
        """
        return replace(self._augmented(description, signature), tiles=self._tiles(description, signature))

    def _augmented(self, description: Description, signature: Signature) -> Passes:
        if self.augment is None:
            return Passes()
        variants = signature.variants(self.augment, self.augment_scales)
        words, task = _typed(self.augment), description.task
        if not variants:
            raise ConfigError(
                f"augment={words}: it mirrors and resizes images, and the dataset gives {_sample_name(description)}. "
                "Leave augment out."
            )
        if isinstance(task, ComputesVariants):
            return Passes(task=task.with_variants(variants))
        if not isinstance(task, MergesVariants):
            raise ConfigError(
                f"augment={words}: {title_of(task)} does not merge predictions for variants of a sample. Leave augment "
                "out."
            )
        return Passes(MergedVariants(variants, task.merge_variants(description, signature, variants)))

    def _tiles(self, description: Description, signature: Signature) -> Optional[MergedTiles]:
        if self.tile is None:
            return None
        task = description.task
        if not isinstance(task, MergesTiles):
            raise ConfigError(
                f"tile={_typed(self.tile)}: {title_of(task)} predicts one result for a whole sample, which its tiles "
                "do not show. Tiles are for segmentation, detection and instance segmentation. Leave tile out."
            )
        size = None if isinstance(self.tile, str) else self.tile
        signature.require_tile(size)
        return MergedTiles(size, self.tile_overlap, task.merge_tiles(description, signature, self.tile_blend))


def _typed(value: Json) -> str:
    """Returns the value of a setting as it is typed."""
    words = [
        f"{word:g}" if isinstance(word, float) else str(word)
        for word in (value if isinstance(value, list) else [value])
    ]
    return words[0] if len(words) == 1 else f"[{','.join(words)}]"


def _sample_name(description: Description) -> str:
    return description.dataset.gives.sample.name or "something else"


ONE_PASS = PassSettings()
"""Default of functions in Python."""


def read_passes(function: str, settings: Mapping[str, Any]) -> PassSettings:
    """Reads the settings of passes that a function of Python was given; None is the default.

    Args:
        function: name of the function, for messages.
        settings: the settings.

    Raises:
        ConfigError: one is wrong.
    """
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value is not None
    }
    return validate_arguments(PassSettings, given, function)
