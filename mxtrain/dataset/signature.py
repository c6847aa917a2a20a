"""The signature of a network: what enters and leaves it, kept in checkpoints, so that it runs without its data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Mapping, Optional, Sequence

from mxtrain.dataset.acting.policy import Actions
from mxtrain.dataset.image.key_points import KeyPointSet
from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.language.tokenizing.base import TOKENIZER_STATE
from mxtrain.dataset.language.tokenizing.config import TokenizerConfig
from mxtrain.dataset.recommendation.catalog import CATALOG_STATE, Catalog
from mxtrain.dataset.recommendation.fields import RecommenderFields
from mxtrain.dataset.speech.features import Features
from mxtrain.dataset.table.feature_columns import FEATURE_COLUMNS_STATE, FeatureColumns
from mxtrain.errors import DamagedCheckpoint
from mxtrain.types import Shapes, shapes_of

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject, Wanted


_NUMBER = (int, float)
_COLUMNS = ("columns", "user_columns", "item_columns")
_TOKENIZER_CONFIG: Wanted = {**TOKENIZER_STATE, "max_length": int, "mask_fraction?": _NUMBER}
SIGNATURE_STATE: Wanted = {
    "shape": [(int, list)], "mean": [_NUMBER], "std": [_NUMBER], "class_names": [str], "mask_values?": [int],
    "category_ids?": [int],
    "tokenizer_config?": _TOKENIZER_CONFIG,
    "reading?": _TOKENIZER_CONFIG,  # its name in checkpoints of earlier versions
    "joint_vocabulary?": bool, "target_tokenizer_config?": _TOKENIZER_CONFIG,
    "decoding?": {
        "shape": [int], "central_crop": _NUMBER, "frame?": [int], "window?": [(str, *_NUMBER)], "fit?": str,
    },
    "audio?": {
        "sample_rate": int, "window_ms": _NUMBER, "step_ms": _NUMBER, "num_mels": int, "low_hz": _NUMBER,
        "high_hz": _NUMBER, "preemphasis": _NUMBER, "normalize": str,
    },
    "symbols?": [str],
    "target_mean?": _NUMBER, "target_std?": _NUMBER,
    "catalog?": CATALOG_STATE,
    "columns?": FEATURE_COLUMNS_STATE, "user_columns?": FEATURE_COLUMNS_STATE, "item_columns?": FEATURE_COLUMNS_STATE,
    "target_language?": str,
    "actions?": {"count": int, "size": int},
    "key_points?": {"flip_pairs": [[int]], "skeleton": [[int]], "sigmas": [_NUMBER], "thing_names": [str]},
}  # fmt: skip
"""The form of a signature in a checkpoint, which may come from anybody."""


@dataclass(frozen=True)
class Signature:
    """Shapes of the inputs, how samples become inputs, and the names of what is predicted.

    Attributes:
        shape: of one sample as it enters the network, or of each of several inputs.
        mean, std: per channel of images, in units where white is 1; empty for text.
        class_names: of what is predicted, where it has names.
        tokenizer_config: for text: how it becomes tokens.
        target_tokenizer_config: for translations: the same of the target; equal where both have one vocabulary.
        target_language: for translations: of the training targets, where words have no spaces between them; see
            `writing.language_without_spaces`.
        actions: for who acts: what it may do.
        symbols: for what is to be spoken: the characters or phonemes whose numbers enter the network.
        mask_values: for masks: the value of each class in a mask's file.
        category_ids: for things in pictures: the number of each class in the dataset's own files.
        key_points: for key points, whose names are `class_names`: what they have to do with each other.
        audio: for recordings: how they become frames.
        columns: for features of a table: what each column is, and how its cells become ids and numbers.
        catalog: for recommendation: users and items; `mean` is then that of ratings, where these are to be predicted.
        user_columns, item_columns: for recommendation: further features of users and of items.
        target_mean, target_std: of a number to predict, over the training samples: networks learn it standardised.
        decoding: for images: how files are read; None in checkpoints that were made before mxtrain kept it.
    """

    shape: Shapes
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    class_names: Sequence[str] = ()
    tokenizer_config: Optional[TokenizerConfig] = None
    decoding: Optional[Decoding] = None
    mask_values: Sequence[int] = ()
    category_ids: Sequence[int] = ()
    key_points: Optional[KeyPointSet] = None
    audio: Optional[Features] = None
    target_tokenizer_config: Optional[TokenizerConfig] = None
    symbols: Sequence[str] = ()
    columns: Optional[FeatureColumns] = None
    catalog: Optional[Catalog] = None
    user_columns: Optional[FeatureColumns] = None
    item_columns: Optional[FeatureColumns] = None
    actions: Optional[Actions] = None
    target_language: str = ""
    target_mean: float = 0.0
    target_std: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.target_mean) and 0 < self.target_std < math.inf):
            raise DamagedCheckpoint(
                f"The checkpoint cannot be used: its targets have mean {self.target_mean} and deviation "
                f"{self.target_std}."
            )

    @property
    def scales_targets(self) -> bool:
        """True if the number to predict is learned standardised."""
        return (self.target_mean, self.target_std) != (0.0, 1.0)

    @property
    def recommender_fields(self) -> Optional[RecommenderFields]:
        """How many users and items there are, for recommendation, and what their features are."""
        if self.catalog is None:
            return None
        users, items = self.user_columns, self.item_columns
        return RecommenderFields(
            (len(self.catalog.users), *(users.field_sizes if users else ())),
            (len(self.catalog.items), *(items.field_sizes if items else ())),
            users.num_numbers if users else 0, items.num_numbers if items else 0,
        )  # fmt: skip

    @property
    def num_candidates(self) -> int:
        """How many items a sample has in evaluations, for recommendation."""
        fields, shapes = self.recommender_fields, shapes_of(self.shape)
        assert fields is not None
        if shapes[0] == ():  # users, then candidates
            return shapes[1][0]
        return (shapes[0][0] - len(fields.user_sizes)) // len(fields.item_sizes)

    @property
    def has_ratings(self) -> bool:
        """True if ratings are to be predicted."""
        return self.catalog is not None and len(self.mean) > 0

    @property
    def vocab_size(self) -> Optional[int]:
        """Number of tokens, for text, or of symbols."""
        return self.tokenizer_config.size if self.tokenizer_config else len(self.symbols) or None

    @property
    def field_sizes(self) -> Optional[Sequence[int]]:
        """Number of ids of each field of a table of features; None if there are no features."""
        return None if self.columns is None else self.columns.field_sizes

    @property
    def num_indices(self) -> Optional[int]:
        """Number of ids, for rows of ids and values; else None."""
        return None if self.columns is None else self.columns.num_indices

    @property
    def num_numbers(self) -> int:
        """Number of numeric inputs beside the ids, for features of a table."""
        return 0 if self.columns is None else self.columns.num_numbers

    @property
    def is_joint(self) -> Optional[bool]:
        """True if source and target share a vocabulary; None if nothing is translated."""
        target = self.target_tokenizer_config
        return None if target is None else target == self.tokenizer_config

    def to_json(self) -> Mapping[str, Json]:
        """The plain values that a checkpoint holds."""
        lists: Dict[str, Json] = {name: list(getattr(self, name)) for name in ("shape", "mean", "std", "class_names")}
        for name in ("mask_values", "category_ids", "symbols"):
            if getattr(self, name):
                lists[name] = list(getattr(self, name))
        if self.scales_targets:
            lists.update(target_mean=self.target_mean, target_std=self.target_std)
        parts = {
            "tokenizer_config": self.tokenizer_config, "decoding": self.decoding, "key_points": self.key_points,
            "actions": self.actions,
        }  # fmt: skip
        for name in _COLUMNS:
            columns: Optional[FeatureColumns] = getattr(self, name)
            if columns is not None:
                lists[name] = columns.to_json()
        if self.target_language:
            lists["target_language"] = self.target_language
        if self.catalog is not None:
            lists["catalog"] = self.catalog.to_json()
        if self.audio is not None:
            lists["audio"] = self.audio.model_dump()
        if self.is_joint:
            lists["joint_vocabulary"] = True
        else:
            parts["target_tokenizer_config"] = self.target_tokenizer_config
        return {**lists, **{name: part.to_json() for name, part in parts.items() if part is not None}}

    @classmethod
    def from_json(cls, values: JsonObject) -> Signature:
        """The inverse of `to_json`; checkpoints of earlier versions call the tokenizer's settings `reading`."""
        shape = tuple(tuple(size) if isinstance(size, (list, tuple)) else size for size in values["shape"])
        given = dict(values)
        tokenizer, decoding = given.pop("reading", None) or given.get("tokenizer_config"), given.get("decoding")
        points, source = given.get("key_points"), TokenizerConfig.from_json(tokenizer) if tokenizer else None
        is_joint, target = given.pop("joint_vocabulary", False), given.get("target_tokenizer_config")
        return cls(**{
            **given, "shape": shape, "tokenizer_config": source,
            "target_tokenizer_config": source if is_joint else TokenizerConfig.from_json(target) if target else None,
            **{name: FeatureColumns.from_json(given[name]) for name in _COLUMNS if given.get(name)},
            "catalog": Catalog.from_json(given["catalog"]) if given.get("catalog") else None,
            "audio": features_from(given["audio"]) if given.get("audio") else None,
            "decoding": Decoding.from_json(decoding) if decoding else None,
            "actions": Actions.from_json(given["actions"]) if given.get("actions") else None,
            "key_points": KeyPointSet.from_json(points, len(values["class_names"])) if points else None,
        })  # fmt: skip


def features_from(values: JsonObject) -> Features:
    """Raises: DamagedCheckpoint: no features can be computed so."""
    try:
        return Features(**values)
    except ValueError as error:
        reason = str(error).splitlines()[-2].strip() if str(error).count("\n") > 1 else str(error)
        raise DamagedCheckpoint(f"The checkpoint cannot be used: in its audio, {reason}.") from error
