"""Base class of models for recommendation, and the network of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Mapping, Optional, Sequence

from mxtrain.model.features import build_features
from mxtrain.model.spec import Model, missing_method
from mxtrain.recommendation.kinds import UserHistories
from mxtrain.types.kinds import Preference, Takes

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.recommendation.fields import RecommenderFields


class Recommender(Model):
    """Base of networks that know users and items by their ids. Models of features (`FeatureModel`) recommend
    without being one: users and items are rows of features then, see `build_feature_recommender`."""

    takes: ClassVar[Takes] = Takes(UserHistories, Preference)
    reads_history: ClassVar[bool] = False
    """True if the network takes the items of each user and their number as its third and fourth input."""

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.Block:
        """Returns the network, uninitialized. It takes users (B,), candidates (B, C) and, if `reads_history`, the items
        of each user (B, H), all int32, and their numbers (B,); it returns scores (B, C).

        Args:
            num_users: number of users.
            num_items: number of items.
            mean: mean of the training ratings; 0 without ratings.
        """
        raise missing_method(self, "build_recommender")

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """Returns the scores of all items for users, (B, I), if the model can compute them faster than by scoring each
        item as a candidate; otherwise None.

        Args:
            values: parameters by structural name, in float32.
            inputs: users (B,) and, if `reads_history`, the items of each user (B, H) and their numbers (B,), on their
                device.
        """
        return None


def build_feature_recommender(model: Model, fields: RecommenderFields) -> gluon.Block:
    """Returns the recommendation network of a model for features, uninitialized.

    It takes ids (B, K) int32 of one joined table, those of the user and then those of each of C candidates, and with
    numeric features numbers (B, C N) float32, for each candidate those of the user and its own; it returns scores (B,
    C).

    Args:
        model: model that scores one row of features.
        fields: fields of users and items, of which the first are user and item themselves.
    """
    from mxtrain.recommendation.networks import FeatureScores

    return FeatureScores(build_features(model, 1, fields.sizes, fields.num_numbers), fields, prefix="")
