"""GluonNLP's own networks of language, trained as its scripts do, to compare with: see gluonnlp_loop.py.

The Transformer is that of scripts/machine_translation/train_transformer.py, the LSTM that of
scripts/language_model/word_language_model.py, without penalties of activations and with windows of one length.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence

from gluonnlp.loss import LabelSmoothing, MaskedSoftmaxCELoss
from gluonnlp.model.train import StandardRNN
from gluonnlp.model.transformer import get_transformer_encoder_decoder
from gluonnlp.model.translation import NMTModel

from bench_parts.language_sizes import BETA2, CLIP_NORM, EPSILON, LABEL_SMOOTHING, LR, LSTMS, SGD_LR, TRANSFORMERS
from mxtrain.engine.backend import gluon, mx, nd

LONGEST = 500
"""Tokens for which the script makes tables of places where no text has more."""


class Training(NamedTuple):
    """What is trained.

    Attributes:
        loss_of: the loss of a batch, recorded.
        trainer: of its weights.
        batches: on the device.
        clipped: weights whose gradients are clipped together, to `CLIP_NORM`.
    """

    loss_of: Callable[..., Any]
    trainer: Any
    batches: Sequence[Sequence[Any]]
    clipped: Sequence[Any] = ()

    def step(self) -> None:
        """Updates the weights."""
        if self.clipped:
            gluon.utils.clip_global_norm([weight.grad() for weight in self.clipped], CLIP_NORM)
        self.trainer.step(1)


def tokens_of(vocab_size: int, *shape: int) -> Any:
    """Random tokens."""
    return nd.random.randint(0, vocab_size, shape).astype("float32")


def prepare_transformer(name: str, length: int, batch_size: int) -> Training:
    """Translation."""
    sizes = TRANSFORMERS[name]
    encoder, decoder, stepwise = get_transformer_encoder_decoder(
        units=sizes.units, hidden_size=sizes.hidden_size, dropout=sizes.dropout, num_layers=sizes.num_layers,
        num_heads=sizes.num_heads, max_src_length=LONGEST, max_tgt_length=LONGEST, scaled=True,
    )  # fmt: skip
    words = range(sizes.vocab_size)
    network = NMTModel(
        src_vocab=words, tgt_vocab=words, encoder=encoder, decoder=decoder, one_step_ahead_decoder=stepwise,
        share_embed=True, embed_size=sizes.units, tie_weights=True, embed_initializer=None, prefix="transformer_",
    )  # fmt: skip
    network.initialize(mx.init.Xavier(magnitude=3.0))
    smooth = LabelSmoothing(epsilon=LABEL_SMOOTHING, units=sizes.vocab_size)
    loss_of_scores = MaskedSoftmaxCELoss(sparse_label=False)
    for block in (network, smooth, loss_of_scores):
        block.hybridize(static_alloc=True)
    given = {"learning_rate": LR, "beta2": BETA2, "epsilon": EPSILON}
    trainer = gluon.Trainer(network.collect_params(), "adam", given, kvstore=None)

    def loss_of(source: Any, target: Any, label: Any, lengths: Any) -> Any:
        scores, _ = network(source, target, lengths, lengths)
        return loss_of_scores(scores, smooth(label), lengths).mean()

    batches = [
        [*(tokens_of(sizes.vocab_size, batch_size, length) for _ in range(3)), nd.full((batch_size,), length)]
        for _ in range(8)
    ]
    return Training(loss_of, trainer, batches)


def prepare_lstm(name: str, length: int, batch_size: int) -> Training:
    """Language modeling; the states of a window are those that the one before ended with."""
    sizes = LSTMS[name]
    network = StandardRNN(
        "lstm", sizes.vocab_size, sizes.units, sizes.hidden_size, sizes.num_layers, sizes.dropout, tie_weights=True
    )
    network.initialize(mx.init.Xavier())
    loss_of_scores = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (network, loss_of_scores):
        block.hybridize(static_alloc=True)
    trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": SGD_LR}, kvstore=None)
    states: List[Any] = network.begin_state(batch_size, func=nd.zeros)

    def loss_of(token_TB: Any, label_TB: Any) -> Any:
        scores, after, *_ = network(token_TB, [state.detach() for state in states])
        states[:] = after
        return loss_of_scores(scores, label_TB).mean()

    batches = [[tokens_of(sizes.vocab_size, length, batch_size) for _ in range(2)] for _ in range(8)]
    return Training(loss_of, trainer, batches, list(network.collect_params().values()))
