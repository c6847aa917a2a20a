"""Base classes of models for rows of a table, and the networks of any model for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence

from mxtrain.model.spec import Model, missing_method
from mxtrain.types.kinds import IndexedFeatures, TableFeatures, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class FeatureModel(Model):
    """Base of networks for categories and numbers."""

    takes: ClassVar[Takes] = Takes(TableFeatures)

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes ids (B, F) int32 and numbers (B, N) float32; where F or N is 0,
        only the other.

        Args:
            num_classes: length of the output vector.
            field_sizes: number of ids of each of the F fields. All fields share one table, in which the ids of a field
                begin at the sum of the sizes of the fields before it.
            num_numbers: N.
        """
        raise missing_method(self, "build_features")


class IndexedModel(Model):
    """Base of networks for features by index, as in libsvm's files."""

    takes: ClassVar[Takes] = Takes(IndexedFeatures)

    def build_indexed(self, num_classes: int, num_indices: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes ids (B, L) int32 and their values (B, L) float32, which are 0
        behind a row's last one.

        Args:
            num_classes: length of the output vector.
            num_indices: ids are from 0 to this.
        """
        raise missing_method(self, "build_indexed")


def build_features(model: Model, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.Block:
    """Returns the network of any model for categories and numbers; see `FeatureModel.build_features`."""
    if isinstance(model, FeatureModel):
        return model.build_features(num_classes, field_sizes, num_numbers)
    return model.build_filled(num_classes, field_sizes=list(field_sizes), num_numbers=num_numbers)


def build_indexed(model: Model, num_classes: int, num_indices: int) -> gluon.Block:
    """Returns the network of any model for features by index; see `IndexedModel.build_indexed`."""
    if isinstance(model, IndexedModel):
        return model.build_indexed(num_classes, num_indices)
    return model.build_filled(num_classes, num_indices=num_indices)
