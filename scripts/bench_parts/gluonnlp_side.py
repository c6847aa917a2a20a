"""Trains and searches with GluonNLP's own networks, like its scripts.

`train` follows scripts/bert/finetune_classifier.py for BERT, scripts/machine_translation/train_transformer.py for the
Transformer, and scripts/language_model/word_language_model.py for the LSTM, without penalties of activations and with
windows of one length.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from bench_parts.sizes import (
    BERT_SIZES,
    BERT_VOCAB_SIZE,
    BETA2,
    CLIP_NORM,
    EPSILON,
    LABEL_SMOOTHING,
    LR,
    LSTMS,
    NUM_CLASSES,
    SGD_LR,
    TRANSFORMERS,
)
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.text.translation.networks import transformer as ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from gluonnlp.loss import LabelSmoothing, MaskedSoftmaxCELoss
    from gluonnlp.model import BeamSearchSampler, BeamSearchScorer
    from gluonnlp.model.bert import BERTClassifier, BERTEncoder, BERTModel
    from gluonnlp.model.train import StandardRNN
    from gluonnlp.model.transformer import (
        TransformerDecoder,
        TransformerEncoder,
        TransformerOneStepDecoder,
        get_transformer_encoder_decoder,
    )
    from gluonnlp.model.translation import NMTModel

LONGEST = 500
"""Tokens for which the script makes tables of places where no text has more."""


class Training(NamedTuple):
    """Parts of a training run.

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
        units=sizes.units,
        hidden_size=sizes.hidden_size,
        dropout=sizes.dropout,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        max_src_length=LONGEST,
        max_tgt_length=LONGEST,
        scaled=True,
    )
    words = range(sizes.vocab_size)
    network = NMTModel(
        src_vocab=words,
        tgt_vocab=words,
        encoder=encoder,
        decoder=decoder,
        one_step_ahead_decoder=stepwise,
        share_embed=True,
        embed_size=sizes.units,
        tie_weights=True,
        embed_initializer=None,
        prefix="transformer_",
    )
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


def build_bert(name: str, tokens: int) -> Any:
    layers, units, hidden, heads = BERT_SIZES[name]
    encoder = BERTEncoder(
        num_layers=layers, units=units, hidden_size=hidden, num_heads=heads, max_length=tokens, dropout=0.1
    )
    bert = BERTModel(
        encoder,
        vocab_size=BERT_VOCAB_SIZE,
        token_type_vocab_size=2,
        units=units,
        embed_size=units,
        use_pooler=True,
        use_decoder=False,
        use_classifier=False,
    )
    return BERTClassifier(bert, NUM_CLASSES, dropout=0.1)


def prepare_bert(name: str, tokens: int, batch_size: int) -> Training:
    """Classification."""
    network = build_bert(name, tokens)
    network.initialize(mx.init.Normal(0.02))
    network.hybridize(static_alloc=True)
    loss_of_scores = gluon.loss.SoftmaxCELoss()
    loss_of_scores.hybridize(static_alloc=True)
    trainer = gluon.Trainer(network.collect_params(), "bertadam", {"learning_rate": 2e-5, "wd": 0.01}, kvstore=None)

    def loss_of(words: Any, types: Any, lengths: Any, label: Any) -> Any:
        return loss_of_scores(network(words, types, lengths), label).mean()

    batches = []
    for _ in range(8):
        words = tokens_of(BERT_VOCAB_SIZE, batch_size, tokens)
        label = tokens_of(NUM_CLASSES, batch_size)
        batches.append([words, nd.zeros_like(words), nd.full((batch_size,), tokens), label])
    return Training(loss_of, trainer, batches)


def train(name: str, tokens: int, batch_size: int) -> Tuple[Callable, Callable]:
    """Blocks of training, with batches that are on the device already."""
    warnings.simplefilter("ignore")
    prepare = prepare_transformer if name in TRANSFORMERS else prepare_lstm if name in LSTMS else prepare_bert
    training = prepare(name, tokens, batch_size)
    stream, losses = itertools.cycle(training.batches), list[Any]()

    def step() -> None:
        with autograd.record():
            loss = training.loss_of(*next(stream))
        loss.backward()
        training.step()
        losses.append(loss)

    def end() -> None:
        print(nd.stack(*losses).mean().asscalar(), flush=True)
        losses.clear()
        nd.waitall()

    return step, end


# Beam search.


class SameNetwork:
    """GluonNLP's Transformer with the weights of ours.

    Ours must have norms behind each part (model.norm_first=false), as GluonNLP's has. Four parts of GluonNLP's are
    changed so that both are one network: its dense layers of attention get biases, its norms the epsilon of ours, its
    places our sinusoids, and there is no norm of the embeddings.

    Args:
        network: ours, a `TransformerNetwork`.
    """

    def __init__(self, network: Any) -> None:
        self._sizes, weights = network._sizes, network._collect_params_with_prefix()
        if self._sizes.norm_first:
            raise ValueError("GluonNLP's Transformer has norms behind each part: train with model.norm_first=false")
        self._given: Dict[str, np.ndarray] = {name: one.data().asnumpy() for name, one in weights.items()}
        sizes = self._sizes
        options = {
            "num_layers": sizes.num_layers,
            "units": sizes.units,
            "hidden_size": sizes.hidden_size,
            "num_heads": sizes.num_heads,
            "max_length": LONGEST,
            "scaled": True,
            "norm_inputs": False,
        }
        encoder, decoder = TransformerEncoder(**options, prefix="enc_"), TransformerDecoder(**options, prefix="dec_")
        self._with_biases(encoder, decoder)
        stepwise = TransformerOneStepDecoder(**options, prefix="dec_", params=decoder.collect_params())
        stepwise.transformer_cells = decoder.transformer_cells
        self.model = NMTModel(
            src_vocab=range(len(self._given["embedding.weight"])),
            tgt_vocab=range(network._target_size),
            encoder=encoder,
            decoder=decoder,
            one_step_ahead_decoder=stepwise,
            embed_size=sizes.units,
            prefix="transformer_",
        )
        self.model.initialize()
        self._fill()
        self.model.hybridize(static_alloc=True)

    def _with_biases(self, encoder: Any, decoder: Any) -> None:
        for cell in encoder.transformer_cells:
            self._replace(cell, ("proj",))
            self._replace(cell.attention_cell, ("proj_query", "proj_key", "proj_value"))
            cell.layer_norm._epsilon = cell.ffn.layer_norm._epsilon = ours.EPSILON
        for cell in decoder.transformer_cells:
            self._replace(cell, ("proj_in", "proj_inter"))
            for attention in (cell.attention_cell_in, cell.attention_cell_inter):
                self._replace(attention, ("proj_query", "proj_key", "proj_value"))
            for norm in (cell.layer_norm_in, cell.layer_norm_inter, cell.ffn.layer_norm):
                norm._epsilon = ours.EPSILON

    def _replace(self, block: Any, names: Sequence[str]) -> None:
        units = self._sizes.units
        for name in names:
            setattr(block, name, gluon.nn.Dense(units, flatten=False, in_units=units, prefix=f"{block.prefix}{name}_"))

    def _fill(self) -> None:
        model, given, units = self.model, self._given, self._sizes.units
        places = _sinusoids(LONGEST, units)
        for number, cell in enumerate(model.encoder.transformer_cells):
            name = f"encoder.{number}"
            self._attention(cell.attention_cell, self._packed(f"{name}.qkv", 3))
            self._dense(cell.proj, f"{name}.self_projection")
            self._norm(cell.layer_norm, f"{name}.self_norm")
            self._feed_forward(cell.ffn, name)
        for number, cell in enumerate(model.decoder.transformer_cells):
            name = f"decoder.{number}"
            self._attention(cell.attention_cell_in, self._packed(f"{name}.qkv", 3))
            cross = [*self._packed(f"{name}.query", 1), *self._packed(f"{name}.key_value", 2)]
            self._attention(cell.attention_cell_inter, cross)
            for part, own in (("in", "self"), ("inter", "cross")):
                self._dense(getattr(cell, f"proj_{part}"), f"{name}.{own}_projection")
                self._norm(getattr(cell, f"layer_norm_{part}"), f"{name}.{own}_norm")
            self._feed_forward(cell.ffn, name)
        for block in (model.encoder, model.decoder, model.one_step_ahead_decoder):
            _set(block.position_weight, places)
        source = given["embedding.weight"]
        target = given.get("target_embedding.weight", source)
        _set(model.src_embed[0].weight, source)
        _set(model.tgt_embed[0].weight, target)
        _set(model.tgt_proj.weight, given.get("table", target))
        _set(model.tgt_proj.bias, np.zeros(len(target)))

    def _packed(self, name: str, count: int) -> List[Tuple[np.ndarray, np.ndarray]]:
        weights, biases = (np.split(self._given[f"{name}.{kind}"], count) for kind in ("weight", "bias"))
        return list(zip(weights, biases))

    @staticmethod
    def _attention(attention: Any, given: Sequence[Tuple[np.ndarray, np.ndarray]]) -> None:
        for block, (weight, bias) in zip((attention.proj_query, attention.proj_key, attention.proj_value), given):
            _set(block.weight, weight)
            _set(block.bias, bias)

    def _dense(self, block: Any, name: str) -> None:
        _set(block.weight, self._given[f"{name}.weight"])
        _set(block.bias, self._given[f"{name}.bias"])

    def _norm(self, block: Any, name: str) -> None:
        _set(block.gamma, self._given[f"{name}.gamma"])
        _set(block.beta, self._given[f"{name}.beta"])

    def _feed_forward(self, block: Any, name: str) -> None:
        self._dense(block.ffn_1, f"{name}.ffn_1")
        self._dense(block.ffn_2, f"{name}.ffn_2")
        self._norm(block.layer_norm, f"{name}.ffn_norm")


def _set(parameter: Any, value: np.ndarray) -> None:
    """A constant, too; shapes that are not known yet become known."""
    parameter.shape = value.shape
    parameter._finish_deferred_init()
    assert parameter.data().shape == value.shape
    parameter.data()[:] = nd.array(value)


def _sinusoids(length: int, units: int) -> np.ndarray:
    """Returns the position codes of `TransformerNetwork`: sines at even places, cosines of the same angles at odd
    ones."""
    even_U = np.arange(units) // 2 * 2
    angle_TU = np.arange(length)[:, None] * ours.MAX_WAVELENGTH ** (-even_U / units)
    return np.where(np.arange(units) % 2, np.cos(angle_TU), np.sin(angle_TU))


def searches(searching: Any) -> Dict[str, Callable[[Any], List[np.ndarray]]]:
    """GluonNLP's sampler with the step of our network, which remembers keys and values, and with its own network, whose
    decoder reads all tokens again at each step, as in its scripts/machine_translation/translation.py. Batch (sources,
    their lengths, the most tokens of each translation) -> tokens of each sentence.

    Args:
        searching: how ours searches. GluonNLP's sampler knows one limit for all sentences.
    """
    network, beam = searching.network.current(), searching.beam
    scorer = BeamSearchScorer(alpha=beam.length_penalty, K=5)

    def sample(decode: Callable, states: Any, limit_B: np.ndarray) -> List[np.ndarray]:
        sampler = BeamSearchSampler(beam.size, decode, beam.eos, scorer, max_length=int(limit_B.max()))
        samples, _, lengths = (one.asnumpy() for one in sampler(nd.full((len(limit_B),), beam.bos), states))
        return [token_NT[0, 1 : length_N[0] - 1] for token_NT, length_N in zip(samples, lengths)]

    def with_our_network(batch: Any) -> List[np.ndarray]:
        with autograd.pause(train_mode=False):
            fixed, moving = network.initial_state(*batch[:2])
            place = itertools.count()

            def decode(token_R: Any, states: List[Any]) -> Tuple[Any, List[Any]]:
                own, others = states[: len(fixed)], states[len(fixed) :]
                log_p, others = network.step(token_R.astype("int32"), next(place), own, others)
                return log_p, [*own, *others]

            return sample(decode, [*fixed, *moving], batch[2])

    model = SameNetwork(network).model

    def decode_alone(token_R: Any, states: List[Any]) -> Tuple[Any, List[Any]]:
        scores, states, _ = model.decode_step(token_R, states)
        return nd.log_softmax(scores), states

    def alone(batch: Any) -> List[np.ndarray]:
        with autograd.pause(train_mode=False):
            encoded, _ = model.encode(batch[0].astype("float32"), valid_length=batch[1])
            return sample(decode_alone, model.decoder.init_state_from_encoder(encoded, batch[1]), batch[2])

    return {"gluonnlp": with_our_network, "gluonnlp_network": alone}
