"""Parses lists of transforms, and applies them to images and their annotations.

The list is applied where samples leave their source, to images in the size in which they were read, so sources need not
know it. Affine maps that follow each other are composed and drawn once. Entries that need the pixels of a file or other
samples (crop, mosaic, mixup) set the dataset's own settings and must be first or last. A random number is a hash
of (seed, epoch, index of the sample, position in the list).

Legend: B batch, C channels, H height, W width, T transforms.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic

from mxtrain.config.specs import import_target, name_of, shown, validate
from mxtrain.errors import ConfigError, LoaderError, did_you_mean
from mxtrain.types import Spec
from mxtrain.vision.images import transforms
from mxtrain.vision.images.transforms.base import MAX_TRANSFORMS, DatasetTransform, RandomStream, Transform
from mxtrain.vision.images.transforms.geometry import resized
from mxtrain.vision.images.transforms.lazy_image import GeometryStep, LazyImage

PATH = "dataset.augment.transforms"
Entry = Union[Transform, DatasetTransform]


def find_transforms() -> Dict[str, Type[Transform]]:
    """Returns the transforms of all image datasets by name: the classes with a name in the modules of this package."""
    found = {}
    for info in pkgutil.iter_modules(transforms.__path__, f"{transforms.__name__}."):
        if info.name != __name__:
            classes = [kind for kind in vars(importlib.import_module(info.name)).values() if inspect.isclass(kind)]
            found.update({kind.name: kind for kind in classes if issubclass(kind, Transform) and kind.name})
    return found


TRANSFORMS: Mapping[str, Type[Transform]] = find_transforms()
"""Transforms of all image datasets, by the names that users type."""


class AugmentSettings(Spec):
    """Base class of `dataset.augment`: fixed settings, or a list of transforms instead."""

    disabled: ClassVar[Mapping[str, object]] = {}
    """Values that disable the fixed settings, for those whose defaults do not."""
    kept_settings: ClassVar[Tuple[str, ...]] = ()
    """Settings that also apply if a list is given."""
    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {}
    """Further transforms by name that a list may contain, in the order in which the dataset applies them."""

    transforms: Optional[Tuple[Transform, ...]] = None
    """Transforms of training images, in order, instead of the other settings: names, or {NAME: settings}, or
    {_target_: CLASS} for your own; null = the other settings."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _replace_settings(cls, values: Any) -> Any:
        """If a list of transforms is given, sets the fixed settings to the values that the list implies."""
        items = values.get("transforms") if isinstance(values, Mapping) else None
        if items is None:
            return values
        entries = read_list(items, cls.dataset_transforms)
        implied: Dict[str, object] = {}
        for entry in entries:
            for name, value in entry.settings().items() if isinstance(entry, DatasetTransform) else ():
                if implied.setdefault(name, value) != value:
                    raise ConfigError(f"{PATH}: two transforms differ in {name}, which they share. Give both the same.")
        # Unknown names are kept, so that pydantic rejects them.
        replaced = set(cls.model_fields).difference(cls.kept_settings)
        kept = {name: value for name, value in values.items() if name not in replaced}
        transforms = tuple(entry for entry in entries if isinstance(entry, Transform))
        return {**kept, **cls.disabled, **implied, "transforms": transforms}

    @property
    def mixes(self) -> bool:
        """Returns True if two samples are mixed, so that labels are probabilities."""
        return False


def read_list(items: object, extra: Mapping[str, Type[DatasetTransform]]) -> List[Entry]:
    """Parses the list of a setting to transforms.

    Args:
        items: names, mappings of a name to its settings, mappings with a `_target_`, or transforms.
        extra: further transforms of the dataset, by name.

    Raises:
        ConfigError: a transform is invalid, or cannot be applied at its position.
    """
    if not isinstance(items, (list, tuple)):
        raise ConfigError(f"{PATH}={shown(items)}: this is a list, e.g. [flip,{{rotation:{{degrees:10}}}}].")
    if len(items) > MAX_TRANSFORMS:
        raise ConfigError(f"{PATH}: a list has at most {MAX_TRANSFORMS} transforms, and {len(items)} were given.")
    entries: List[Entry] = []
    for number, item in enumerate(items):
        is_leading = all(isinstance(entry, DatasetTransform) for entry in entries)
        entries.append(_read_entry(item, f"{PATH}.{number}", extra, is_leading))
    _check_order(entries, extra)
    return entries


def _read_entry(item: object, path: str, extra: Mapping[str, Type[DatasetTransform]], is_leading: bool) -> Entry:
    """Parses an entry of the list.

    Args:
        item: the entry, see `read_list`.
        path: setting of the entry, for messages.
        extra: further transforms of the dataset, by name.
        is_leading: True if all entries before it are applied by the dataset. Then a name that both have means the
            dataset's transform.
    """
    if isinstance(item, (Transform, DatasetTransform)):
        return item
    if isinstance(item, Mapping) and "_target_" in item:
        target = import_target(str(item["_target_"]), path)
        if not (inspect.isclass(target) and issubclass(target, Transform)) or inspect.isabstract(target):
            raise ConfigError(
                f"{path}._target_={item['_target_']}: must be a subclass of {name_of(Transform)} with a method "
                "__call__(image, draw)."
            )
        return validate(target, {name: value for name, value in item.items() if name != "_target_"}, path, _where)
    name, settings = (item, None) if isinstance(item, str) else (None, None)
    if isinstance(item, Mapping) and len(item) == 1:
        name, settings = next(iter(item.items()))
    if not isinstance(name, str) or not isinstance(settings, (Mapping, type(None))):
        raise ConfigError(
            f"{path}={shown(item)}: a transform is a name, or a name with its settings, e.g. "
            "{rotation:{degrees:10}}, or {_target_: package.Class} for one of your own."
        )
    known = {**TRANSFORMS, **extra}
    if name not in known:
        raise ConfigError(
            f"{path}={name}: this dataset has no such transform.{did_you_mean(name, known)} It takes: "
            f"{', '.join(sorted(known))}, and classes of your own by _target_ ({_where(path)})."
        )
    is_general = name in TRANSFORMS and (name not in extra or not is_leading)
    kind: Type[Entry] = TRANSFORMS[name] if is_general else extra[name]
    for field_name, field_info in kind.model_fields.items():
        if field_info.is_required() and field_name not in (settings or {}):
            raise ConfigError(f"{path}={shown(item)}: {field_name} must be given: {{{name}: {{{field_name}: ...}}}}.")
    return validate(kind, settings or {}, f"{path}.{name}", _where)


def _check_order(entries: Sequence[Entry], extra: Mapping[str, Type[DatasetTransform]]) -> None:
    """Rejects entries that the dataset applies at another position than they have in the list."""
    rank_of = {kind: rank for rank, kind in enumerate(extra.values())}
    name_of = {kind: name for name, kind in (*TRANSFORMS.items(), *extra.items())}

    def order(entry: Entry) -> Tuple[int, int]:
        """Returns a key by which entries must be sorted."""
        if isinstance(entry, DatasetTransform):
            return (2, 0) if entry.is_last else (0, rank_of[type(entry)])
        return 1, 0

    for number, (first, second) in enumerate(zip(entries, entries[1:])):
        names = [name_of.get(type(entry), type(entry).__name__) for entry in (first, second)]
        if order(first) > order(second):
            when = "when samples are mixed, after all others" if order(first)[0] == 2 else "while an image is read"
            raise ConfigError(
                f"{PATH}.{number + 1}: {names[1]} cannot come after {names[0]}, as "
                f"{names[0] if order(first)[0] == 2 else names[1]} is carried out {when}. Change their order."
            )
    kinds = [type(entry) for entry in entries if isinstance(entry, DatasetTransform)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ConfigError(f"{PATH}: {name_of[kind]} is given more than once. Give it once.")


def _where(path: str) -> str:
    """Returns a hint for messages of invalid settings."""
    return "docs/data/images.md lists transforms and their settings"


class Annotations:
    """Rules by which annotations follow the transforms of their image. This base class is for labels of whole images,
    which do not change."""

    def follow(self, label: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Returns the annotations of one sample after a map.

        Args:
            label: annotations of the sample, as the source returns them.
            step: the map.

        Returns:
            The annotations, in the shape of `label`.

        Raises:
            LoaderError: these annotations have no rule.
        """
        if np.ndim(label) >= 2:
            raise LoaderError(
                "A geometric transform of dataset.augment.transforms moves an image whose target is an array, and the "
                "dataset does not define how the array follows.",
                "Leave the transform out, or override `annotations` of the dataset's class.",
            )
        return label


@dataclass(frozen=True)
class TransformChain:
    """Applies a list of transforms to batches of training images.

    Attributes:
        transforms: the transforms, in order.
        annotations: rules by which labels follow.
    """

    transforms: Tuple[Transform, ...] = ()
    annotations: Annotations = field(default_factory=Annotations)

    def apply(
        self,
        image_BCHW: np.ndarray,
        label_B: np.ndarray,
        index_B: np.ndarray,
        fill_C: np.ndarray,
        *,
        seed: int,
        epoch: int,
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Applies the transforms to images and labels; shapes and types stay the same.

        Args:
            image_BCHW: uint8, or float32 from 0 to 255.
            label_B: labels (B, ...), as `annotations` expects them.
            index_B: indices of the samples.
            fill_C: colour outside of the image.
            seed: seed of the run.
            epoch: number of the epoch, from 0.
        """
        if not self.transforms:
            return image_BCHW, label_B
        size = image_BCHW.shape[2:]
        images, labels = [], []
        keys_TB = [RandomStream.keys(seed, epoch, index_B, position) for position in range(len(self.transforms))]
        for image_CHW, label, keys_T in zip(image_BCHW, label_B, zip(*keys_TB)):
            image = LazyImage(image_CHW, fill_C)
            for transform, key in zip(self.transforms, keys_T):
                draw = RandomStream(key)
                if draw.chance(transform.share):
                    image = self._call(transform, image, draw)
            # Geometric steps are composed and sampled once: each resampling would blur the image again.
            image = resized(image, (size[0], size[1])).rendered()
            for step in image.steps:
                label = self.annotations.follow(label, step)
            images.append(image.pixels)
            labels.append(label)
        return np.stack(images), np.stack(labels)

    @staticmethod
    def _call(transform: Transform, image: LazyImage, draw: RandomStream) -> LazyImage:
        """Applies a transform.

        Raises:
            ConfigError: the transform raises a `ValueError`, or does not return an image.
        """
        try:
            result = transform(image, draw)
        except ValueError as error:
            raise ConfigError(f"{PATH}: {name_of(type(transform))}: {error}.") from error
        if not isinstance(result, LazyImage):
            raise ConfigError(
                f"{PATH}: {name_of(type(transform))} returned {type(result).__name__}: a transform must return the "
                "result of image.with_pixels or image.moved."
            )
        return result
