"""A recurrent language model as Gluon blocks. Imports MXNet: settings import this module only when they build.

Each layer is a separate operator, with dropout between layers, because MXNet's multi-layer operator silently ignores
dropout between layers on a CPU.

Legend: B batch, T tokens, E units of an embedding, H hidden units of a layer, U units, V vocabulary. Inside the
network, the time axis comes first: (T, B, E).

Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", https://arxiv.org/abs/1708.02182 (AWD-LSTM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Tuple

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.graph.mxnet_workarounds import dropout
from mxtrain.model.networks.lstm_layer import run_lstm
from mxtrain.model.networks.traced_step import StepNetwork, read
from mxtrain.text.networks.language import TokenScores

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

EMBEDDING_RANGE = 0.1
"""Embeddings are initialized uniformly from -0.1 to 0.1, as in the paper."""


class LstmSizes(NamedTuple):
    """The sizes of a network, and the probabilities of its dropouts, see `mxtrain.text.language_modeling.lstm.Lstm`."""

    units: int
    hidden_size: int
    num_layers: int
    tied: bool
    embedding_dropout: float
    input_dropout: float
    hidden_dropout: float
    output_dropout: float
    weight_dropout: float

    @property
    def widths(self) -> List[Tuple[int, int]]:
        """Returns the input and output width of each layer; with tied weights the last output is as wide as an
        embedding."""
        hidden = [self.hidden_size] * (self.num_layers - 1) + [self.units if self.tied else self.hidden_size]
        return list(zip([self.units, *hidden], hidden))


class LockedDropout(gluon.HybridBlock):
    """Dropout of (T, B, U) with the same mask for all time steps. Source: https://arxiv.org/abs/1512.05287."""

    drops = True

    def __init__(self, rate: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._rate = rate

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array) -> Array:
        return dropout(F, x_TBU, self._rate, axes=(0,))


class WordEmbedding(gluon.HybridBlock):
    """Embedding with word dropout: tokens (T, B) to embeddings (T, B, E); also returns the table (V, E).

    Dropout removes a token of the vocabulary from all positions of a batch. The mask is looked up like the embedding,
    so that the table is not copied. For `copies_table` see `mxtrain.model.networks.bert.Embed`.
    """

    copies_table = True

    drops = True

    def __init__(self, vocab_size: int, units: int, rate: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._vocab_size, self._units, self._rate = vocab_size, units, rate
        self.weight = self.params.get("weight", shape=(vocab_size, units), init=mx.init.Uniform(EMBEDDING_RANGE))

    def hybrid_forward(self, F: OperatorModule, token_TB: Array, weight: Array) -> Any:
        # One operator reads the parameter, so that a pipeline may be cut before a tied output layer.
        table_VE = F.identity(weight) if self.copies_table else weight
        x_TBE = F.Embedding(token_TB, table_VE, self._vocab_size, self._units)
        if self._rate:
            one_V1 = F.BlockGrad(F.ones_like(F.slice_axis(weight, axis=1, begin=0, end=1)))
            # The mask has one entry per word of the vocabulary, which drops all occurrences of a word, as in AWD-LSTM.
            mask_V1 = dropout(F, one_V1, self._rate)
            x_TBE = F.broadcast_mul(x_TBE, F.BlockGrad(F.Embedding(token_TB, mask_V1, self._vocab_size, 1)))
        return x_TBE, table_VE


class LstmLayer(gluon.HybridBlock):
    """LSTM layer with weight dropout.

    Inputs are (T, B, E), states (B, H) and cells (B, H); outputs are (T, B, H), and the states and cells after the last
    token. Dropout sets weights between hidden states to 0 for a whole batch.

    Args:
        width: E.
        hidden_size: H.
        rate: probability of a dropped weight.
    """

    drops = True

    def __init__(self, width: int, hidden_size: int, rate: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._hidden_size, self._rate = hidden_size, rate
        init = mx.init.Uniform(hidden_size**-0.5)
        for name, shape, initializer in (
            ("i2h_weight", (4 * hidden_size, width), init),
            ("h2h_weight", (4 * hidden_size, hidden_size), init),
            ("i2h_bias", (4 * hidden_size,), "zeros"),
            ("h2h_bias", (4 * hidden_size,), "zeros"),
        ):
            setattr(self, name, self.params.get(name, shape=shape, init=initializer))

    def hybrid_forward(
        self,
        F: OperatorModule,
        x_TBE: Array,
        state_BH: Array,
        cell_BH: Array,
        i2h_weight: Array,
        h2h_weight: Array,
        i2h_bias: Array,
        h2h_bias: Array,
    ) -> Any:
        h2h_weight = dropout(F, h2h_weight, self._rate)
        parameters = (i2h_weight, h2h_weight, i2h_bias, h2h_bias)
        return run_lstm(F, x_TBE, state_BH, cell_BH, parameters, self._hidden_size)


class LstmNetwork(StepNetwork, gluon.HybridBlock):
    """LSTM language model.

    Inputs are tokens (B, T), the next tokens (B, T), and the state and cell of each layer (B, H); outputs are -log p of
    each next token, (B, T), and the new states and cells.

    Args:
        vocab_size: V.
        length: T.
        sizes: sizes of the layers.
        chunks: number of chunks of the output layer, see `TokenScores`.
    """

    def __init__(self, vocab_size: int, length: int, sizes: LstmSizes, chunks: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes = sizes
        with self.name_scope():
            self.embedding = WordEmbedding(vocab_size, sizes.units, sizes.embedding_dropout)
            self.dropout = LockedDropout(sizes.input_dropout)
            self.layers, self.dropouts = nn.HybridSequential(prefix="layers_"), nn.HybridSequential(prefix="")
            for number, (width, hidden_size) in enumerate(sizes.widths):
                is_last = number == sizes.num_layers - 1
                self.layers.add(LstmLayer(width, hidden_size, sizes.weight_dropout, prefix=f"{number}_"))
                self.dropouts.add(LockedDropout(sizes.output_dropout if is_last else sizes.hidden_dropout))
            if not sizes.tied:
                shape = (vocab_size, sizes.hidden_size)
                self.table = self.params.get("table", shape=shape, init=mx.init.Uniform(EMBEDDING_RANGE))
            self.output = TokenScores(vocab_size, length, chunks)

    def hybrid_forward(
        self, F: OperatorModule, token_BT: Array, label_BT: Array, *states: Array, table: Any = None
    ) -> Any:
        x_TBU, table_VE = self.embedding(F.transpose(token_BT))
        x_TBU, after = self.dropout(x_TBU), []
        for number, (layer, drop) in enumerate(zip(self.layers, self.dropouts)):
            x_TBU, *state = layer(x_TBU, *states[2 * number : 2 * number + 2])
            after += state
            x_TBU = drop(x_TBU)
        return (self.output(x_TBU, label_BT, table_VE if table is None else table), *after)

    # One token after the other.

    def initial_state(self, batch_size: int, device: Context) -> List[NDArray]:
        """See `Stepwise`."""
        return [nd.zeros((batch_size, size), ctx=device) for _, size in self._sizes.widths for _ in range(2)]

    def step(self, token_B: NDArray, position: int, memory: List[NDArray]) -> Tuple[NDArray, List[NDArray]]:
        """See `Stepwise`."""
        return self.trace_step(nd, token_B, None, [], memory, 1)

    def trace_step(
        self, F: OperatorModule, token_B: Array, position: object, fixed: Any, memory: Any, beams: Any
    ) -> Any:
        """See `StepNetwork`."""
        x_1BU, table_VE = self.embedding(F.reshape(token_B, shape=(1, -1)))
        after: List[Any] = []
        for number, layer in enumerate(self.layers):
            x_1BU, *state = layer(x_1BU, *memory[2 * number : 2 * number + 2])
            after += state
        table = table_VE if self._sizes.tied else read(F, self.table, token_B)
        return self.output.scores(F, F.reshape(x_1BU, shape=(-3, 0)), table), after
