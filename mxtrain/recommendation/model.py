"""Base class of models for recommendation, and the network of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Mapping, Optional, Sequence, Tuple

from mxtrain.model.base import Model, missing_method
from mxtrain.model.features import build_features

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.recommendation.fields import RecommenderFields


class Recommender(Model):
    """Base of networks that know users and items by their ids. Models of features (`FeatureModel`) recommend
    without being one: users and items are rows of features then, see `build_feature_recommender`."""

    input_types: ClassVar[Tuple[str, ...]] = ("interactions",)
    dataset_hints: ClassVar[Mapping[str, str]] = {"": "dataset=imported_names"}
    tasks: ClassVar[Tuple[str, ...]] = ("recommendation",)
    reads_history: ClassVar[bool] = False
    """True if the network takes the items of each user and their number as its third and fourth input."""

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.Block:
        """Returns the network, uninitialized. It takes users (B,), candidates (B, C) and, where `reads_history`, the
        items that each user has, (B, H), all int32, and how many these are, (B,); it returns (B, C).

        Args:
            num_users: users are from 0 to this.
            num_items: items are from 0 to this.
            mean: of ratings in training; 0 where there are none.
        """
        raise missing_method(self, "build_recommender")

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """Returns the scores of all items for users, (B, I), where the network has a faster way to them than to score
        each as a candidate; None if it has not.

        Args:
            values: parameters by structural name, in float32.
            inputs: users (B,) and, where `reads_history`, the items that each has (B, H) and how many, (B,), on their
                device.
        """
        return None


def build_feature_recommender(model: Model, fields: RecommenderFields) -> gluon.Block:
    """Returns the network of a model of features where users and items are rows of features, uninitialized. It takes
    ids (B, K) int32 of one joined table: the user's, then those of each of C candidates; with numeric features also (B,
    C N) float32, for each candidate the user's and its own; and returns (B, C).

    Args:
        model: builds the network that scores one row of features.
        fields: of users and items, whose first are user and item themselves.
    """
    from mxtrain.recommendation.networks import FeatureScores

    return FeatureScores(build_features(model, 1, fields.sizes, fields.num_numbers), fields, prefix="")
