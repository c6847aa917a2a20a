"""Networks for tabular features: linear terms, pairwise interactions and dense layers.

Inputs are `id_BF`, categorical ids in one joint embedding table, and `number_BN`; an input without columns is omitted.
As in "Factorization Machines", a number is a feature whose value is the number, and an id is a feature with value 1.

Legend: B batch, F fields, N numbers, C = F + N features, L ids of a sparse row, U units, H hidden units, K outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.networks.classifier import build_activation
from mxtrain.model.networks.embedding_table import EmbeddingTable

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn


class FeatureBlock(gluon.HybridBlock):
    """Base class of blocks with the inputs `id_BF`, `number_BN` or both, in this order.

    Args:
        field_sizes: number of ids of each field.
        num_numbers: N.
    """

    def __init__(self, field_sizes: Sequence[int], num_numbers: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_ids, self.num_fields, self.num_numbers = sum(field_sizes), len(field_sizes), num_numbers

    def split_inputs(self, inputs: Sequence[Array]) -> Tuple[List[Array], List[Array]]:
        """Splits inputs into [id_BF] and [number_BN]; a list is empty if there are no such columns."""
        # Inputs without columns are left out, because MXNet takes a size of 0 for an unknown one.
        count = int(bool(self.num_fields))
        return list(inputs[:count]), list(inputs[count:])


class LinearTerms(FeatureBlock):
    """Linear model: the sum of w x over all features plus a bias, (B, K)."""

    def __init__(self, num_outputs: int, field_sizes: Sequence[int], num_numbers: int, **kwargs: Any):
        super().__init__(field_sizes, num_numbers, **kwargs)
        with self.name_scope():
            if field_sizes:
                self.table = EmbeddingTable(self.num_ids, num_outputs)
            if num_numbers:
                self.number = nn.Dense(num_outputs, use_bias=False, in_units=num_numbers)
            self.bias = self.params.get("bias", shape=(num_outputs,), init=mx.init.Zero())

    def hybrid_forward(self, F: OperatorModule, *inputs: Array, bias: Array) -> Array:
        ids, numbers = self.split_inputs(inputs)
        terms = [F.sum(self.table(id_BF), axis=1) for id_BF in ids] + [self.number(number_BN) for number_BN in numbers]
        return F.broadcast_add(sum(terms[1:], terms[0]), F.reshape(bias, shape=(1, -1)))


class FeatureVectors(FeatureBlock):
    """Embedding of features: value times vector of each feature, (B, C, U)."""

    def __init__(self, field_sizes: Sequence[int], num_numbers: int, units: int, **kwargs: Any):
        super().__init__(field_sizes, num_numbers, **kwargs)
        with self.name_scope():
            if field_sizes:
                # One table for all fields: its gradient can be sparse as a whole.
                self.table = EmbeddingTable(self.num_ids, units)
            if num_numbers:
                self.number = self.params.get("number", shape=(num_numbers, units), init=mx.init.Normal())

    def hybrid_forward(self, F: OperatorModule, *inputs: Array, **weights: Array) -> Any:
        ids, numbers = self.split_inputs(inputs)
        vectors = [self.table(id_BF) for id_BF in ids]
        for number_BN in numbers:
            number_1NU = F.expand_dims(weights["number"], axis=0)
            vectors.append(F.broadcast_mul(F.expand_dims(number_BN, axis=2), number_1NU))
        return vectors[0] if len(vectors) == 1 else F.concat(*vectors, dim=1)


def pairwise(F: OperatorModule, vector_BCU: Array, num_outputs: int) -> Array:
    """Returns the sum over all pairs of features of the dot products of their vectors, (B, K).

    Computed in linear time as half of (square of the sum - sum of the squares). Source: Rendle, "Factorization
    Machines" (2010), lemma 3.1.

    Args:
        F: mx.nd or mx.sym.
        vector_BCU: vectors of all features; those of the K outputs are concatenated along the last axis.
        num_outputs: K.
    """
    of_sum_BU = F.square(F.sum(vector_BCU, axis=1))
    of_each_BU = F.sum(F.square(vector_BCU), axis=1)
    return 0.5 * F.sum(F.reshape(of_sum_BU - of_each_BU, shape=(0, num_outputs, -1)), axis=2)


def dense_layers(hidden: Sequence[int], activation: str, dropout: float) -> gluon.HybridBlock:
    """Builds dense layers on flattened inputs, each with activation and dropout."""
    layers = nn.HybridSequential(prefix="")
    layers.add(nn.Flatten())
    for units in hidden:
        layers.add(nn.Dense(units), build_activation(activation))
        if dropout:
            layers.add(nn.Dropout(dropout))
    return layers


class FactorizationMachineNetwork(gluon.HybridBlock):
    """Factorization machine: linear terms and pairwise interactions, (B, K), with vectors of its own for each output.
    With 0 units only linear terms."""

    def __init__(self, num_outputs: int, field_sizes: Sequence[int], num_numbers: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_outputs = num_outputs
        with self.name_scope():
            self.linear = LinearTerms(num_outputs, field_sizes, num_numbers)
            self.vectors = FeatureVectors(field_sizes, num_numbers, num_outputs * units) if units else None

    def hybrid_forward(self, F: OperatorModule, *inputs: Array) -> Array:
        linear_BK = self.linear(*inputs)
        if self.vectors is None:
            return linear_BK
        return linear_BK + pairwise(F, self.vectors(*inputs), self._num_outputs)


class IndexedMachineNetwork(gluon.HybridBlock):
    """Factorization machine of sparse rows: ids (B, L) and values (B, L) to (B, K). With 0 units only linear terms."""

    def __init__(self, num_outputs: int, num_ids: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_outputs = num_outputs
        with self.name_scope():
            self.linear = EmbeddingTable(num_ids, num_outputs)
            self.vectors = EmbeddingTable(num_ids, num_outputs * units) if units else None
            self.bias = self.params.get("bias", shape=(num_outputs,), init=mx.init.Zero())

    def hybrid_forward(self, F: OperatorModule, id_BL: Array, value_BL: Array, bias: Array) -> Array:
        value_BL1 = F.expand_dims(value_BL, axis=2)
        linear_BK = F.sum(F.broadcast_mul(self.linear(id_BL), value_BL1), axis=1)
        score_BK = F.broadcast_add(linear_BK, F.reshape(bias, shape=(1, -1)))
        if self.vectors is None:
            return score_BK
        return score_BK + pairwise(F, F.broadcast_mul(self.vectors(id_BL), value_BL1), self._num_outputs)


class DeepFMNetwork(gluon.HybridBlock):
    """DeepFM: the sum of a factorization machine and of dense layers on the same vectors, (B, K)."""

    def __init__(
        self,
        num_outputs: int,
        field_sizes: Sequence[int],
        num_numbers: int,
        units: int,
        hidden: Sequence[int],
        activation: str,
        dropout: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._num_outputs = num_outputs
        with self.name_scope():
            self.linear = LinearTerms(num_outputs, field_sizes, num_numbers)
            self.vectors = FeatureVectors(field_sizes, num_numbers, num_outputs * units)
            self.deep = dense_layers(hidden, activation, dropout)
            self.output = nn.Dense(num_outputs, use_bias=False)  # the linear terms have a bias

    def hybrid_forward(self, F: OperatorModule, *inputs: Array) -> Array:
        vector_BCU = self.vectors(*inputs)
        return self.linear(*inputs) + pairwise(F, vector_BCU, self._num_outputs) + self.output(self.deep(vector_BCU))


class WideDeepNetwork(FeatureBlock):
    """Wide & Deep: the sum of linear terms and of dense layers on embedded ids and plain numbers, (B, K)."""

    def __init__(
        self,
        num_outputs: int,
        field_sizes: Sequence[int],
        num_numbers: int,
        units: int,
        hidden: Sequence[int],
        activation: str,
        dropout: float,
        **kwargs: Any,
    ):
        super().__init__(field_sizes, num_numbers, **kwargs)
        with self.name_scope():
            self.linear = LinearTerms(num_outputs, field_sizes, num_numbers)
            if field_sizes:
                self.vectors = FeatureVectors(field_sizes, 0, units)
            self.deep = dense_layers(hidden, activation, dropout)
            self.output = nn.Dense(num_outputs, use_bias=False)  # the linear terms have a bias

    def hybrid_forward(self, F: OperatorModule, *inputs: Array) -> Array:
        ids, numbers = self.split_inputs(inputs)
        parts = [F.flatten(self.vectors(id_BF)) for id_BF in ids] + numbers
        deep_BH = self.deep(parts[0] if len(parts) == 1 else F.concat(*parts, dim=1))
        return self.linear(*inputs) + self.output(deep_BH)
