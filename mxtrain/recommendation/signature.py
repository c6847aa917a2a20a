"""The signature of users, items and what they have to do with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Optional, Sequence, Tuple

from mxtrain.data.features.feature_columns import FEATURE_COLUMNS_STATE, FeatureColumns
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.recommendation.catalog import CATALOG_STATE, Catalog
from mxtrain.recommendation.fields import RecommenderFields
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm

_COLUMNS = ("user_columns", "item_columns")


@dataclass(frozen=True)
class RecommendationSignature(Signature):
    """Users and candidates. `mean` is the mean of the ratings, if these are predicted.

    Attributes:
        catalog: users and items.
        user_columns, item_columns: further features of users and of items.
        item_titles: title of each item, which answers repeat; "" for an item without one. Empty: there are none.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **Signature.form,
        "catalog": CATALOG_STATE,
        "user_columns?": FEATURE_COLUMNS_STATE,
        "item_columns?": FEATURE_COLUMNS_STATE,
        "item_titles?": [str],
    }

    known_names: ClassVar[Tuple[str, ...]] = ("field_sizes", "num_numbers")

    exported_reader: ClassVar[str] = "mxtrain.recommendation.exported_users"

    catalog: Catalog = REQUIRED
    user_columns: Optional[FeatureColumns] = None
    item_columns: Optional[FeatureColumns] = None
    item_titles: Sequence[str] = ()

    @property
    def recommender_fields(self) -> RecommenderFields:
        """Returns the numbers of users and items, and their features."""
        users, items = self.user_columns, self.item_columns
        return RecommenderFields(
            (len(self.catalog.users), *(users.field_sizes if users else ())),
            (len(self.catalog.items), *(items.field_sizes if items else ())),
            users.num_numbers if users else 0,
            items.num_numbers if items else 0,
        )

    @property
    def num_candidates(self) -> int:
        """Returns the number of candidates of a sample in evaluations."""
        fields, shapes = self.recommender_fields, shapes_of(self.shape)
        if shapes[0] == ():  # users, then candidates
            return shapes[1][0]
        return (shapes[0][0] - len(fields.user_sizes)) // len(fields.item_sizes)

    @property
    def has_ratings(self) -> bool:
        """Returns True if ratings are to be predicted."""
        return len(self.mean) > 0

    def to_json(self) -> Dict[str, Json]:
        columns = {name: getattr(self, name) for name in _COLUMNS}
        titles: Dict[str, Json] = {"item_titles": list(self.item_titles)} if self.item_titles else {}
        return {
            **super().to_json(),
            **titles,
            **{name: features.to_json() for name, features in columns.items() if features is not None},
            "catalog": self.catalog.to_json(),
        }

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        catalog, titles = Catalog.from_json(values["catalog"]), tuple(values.get("item_titles", ()))
        if titles and len(titles) != len(catalog.items):
            raise DamagedCheckpoint(
                f"The checkpoint cannot be used: it has {len(titles):,} titles for {len(catalog.items):,} items."
            )
        return {
            **super()._arguments(values),
            "catalog": catalog,
            "item_titles": titles,
            **{name: FeatureColumns.from_json(values[name]) for name in _COLUMNS if values.get(name)},
        }
