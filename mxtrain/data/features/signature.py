"""The signature of features of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Protocol, Sequence, Tuple, runtime_checkable

from mxtrain.data.features.feature_columns import FEATURE_COLUMNS_STATE, FeatureColumns
from mxtrain.data.loading.samples import Splits
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.model.features import build_features, build_indexed
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.loading.samples import Samples
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json, JsonForm


@runtime_checkable
class RowsOfTables(Protocol):
    """Samples that were read from tables."""

    def unseen_sentences(self, columns: FeatureColumns) -> Sequence[str]:
        """Returns a sentence for each column with values that are in no vocabulary."""


@dataclass(frozen=True)
class FeatureSplits(Splits):
    """Rows of categories and numbers.

    Attributes:
        build_columns: counts values and measures numbers of the training rows.
    """

    build_columns: Callable[[], FeatureColumns] = REQUIRED


@dataclass(frozen=True)
class FeatureSignature(Signature):
    """Rows of categories and numbers.

    Attributes:
        columns: what each column is, and how its cells become ids and numbers.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**Signature.form, "columns": FEATURE_COLUMNS_STATE}
    known_names: ClassVar[Tuple[str, ...]] = ("field_sizes", "num_numbers", "num_indices")

    exported_reader: ClassVar[str] = "mxtrain.data.features.exported_rows"

    columns: FeatureColumns = REQUIRED

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.Block:
        if self.columns.num_indices is not None:
            return build_indexed(model, num_classes, self.columns.num_indices)
        return build_features(model, num_classes, self.columns.field_sizes, self.columns.num_numbers)

    def unseen_values(self, source: Samples) -> Sequence[str]:
        return source.unseen_sentences(self.columns) if isinstance(source, RowsOfTables) else ()

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "columns": self.columns.to_json()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "columns": FeatureColumns.from_json(values["columns"])}
