"""GluonNLP's own Transformer with the weights of ours, and its translator: the other side of the beam search benchmark.

The translator is that of GluonNLP's scripts/machine_translation/translation.py. Its decoder remembers the embeddings of
the tokens that were read, and reads all of them again at each step.

Ours must have norms behind each part (model.norm_first=false), as GluonNLP's has. Four things of GluonNLP's are changed
so that both are one network: its dense layers of attention get biases, its norms the epsilon of ours, its places our
sinusoids, and there is no norm of the embeddings.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.model.networks.transformer import EPSILON, LONGEST_WAVE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from gluonnlp.model import BeamSearchSampler, BeamSearchScorer
    from gluonnlp.model.transformer import TransformerDecoder, TransformerEncoder, TransformerOneStepDecoder
    from gluonnlp.model.translation import NMTModel

LONGEST = 500
"""Tokens of the tables of places, as in GluonNLP's script."""


class SameNetwork:
    """GluonNLP's network with the weights of ours.

    Args:
        network: ours, a `TransformerNetwork`.
    """

    def __init__(self, network: Any) -> None:
        self._sizes, ours = network._sizes, network._collect_params_with_prefix()
        if self._sizes.norm_first:
            raise ValueError("GluonNLP's Transformer has norms behind each part: train with model.norm_first=false")
        self._given: Dict[str, np.ndarray] = {name: one.data().asnumpy() for name, one in ours.items()}
        sizes = self._sizes
        options = {
            "num_layers": sizes.num_layers, "units": sizes.units, "hidden_size": sizes.hidden_size,
            "num_heads": sizes.num_heads, "max_length": LONGEST, "scaled": True, "norm_inputs": False,
        }  # fmt: skip
        encoder, decoder = TransformerEncoder(**options, prefix="enc_"), TransformerDecoder(**options, prefix="dec_")
        self._with_biases(encoder, decoder)
        stepwise = TransformerOneStepDecoder(**options, prefix="dec_", params=decoder.collect_params())
        stepwise.transformer_cells = decoder.transformer_cells
        self.model = NMTModel(
            src_vocab=range(len(self._given["embedding.weight"])), tgt_vocab=range(network._target_size),
            encoder=encoder, decoder=decoder, one_step_ahead_decoder=stepwise, embed_size=sizes.units,
            prefix="transformer_",
        )  # fmt: skip
        self.model.initialize()
        self._fill()
        self.model.hybridize(static_alloc=True)

    def _with_biases(self, encoder: Any, decoder: Any) -> None:
        for cell in encoder.transformer_cells:
            self._replace(cell, ("proj",))
            self._replace(cell.attention_cell, ("proj_query", "proj_key", "proj_value"))
            cell.layer_norm._epsilon = cell.ffn.layer_norm._epsilon = EPSILON
        for cell in decoder.transformer_cells:
            self._replace(cell, ("proj_in", "proj_inter"))
            for attention in (cell.attention_cell_in, cell.attention_cell_inter):
                self._replace(attention, ("proj_query", "proj_key", "proj_value"))
            for norm in (cell.layer_norm_in, cell.layer_norm_inter, cell.ffn.layer_norm):
                norm._epsilon = EPSILON

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
            for part, ours in (("in", "self"), ("inter", "cross")):
                self._dense(getattr(cell, f"proj_{part}"), f"{name}.{ours}_projection")
                self._norm(getattr(cell, f"layer_norm_{part}"), f"{name}.{ours}_norm")
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
    """Those of `TransformerNetwork`: sines at even places, cosines of the same angles at odd ones."""
    even_U = np.arange(units) // 2 * 2
    angle_TU = np.arange(length)[:, None] * LONGEST_WAVE ** (-even_U / units)
    return np.where(np.arange(units) % 2, np.cos(angle_TU), np.sin(angle_TU))


def translator(network: Any, beam: Any) -> Callable[[Any], List[np.ndarray]]:
    """Tokens of each sentence of a batch, as GluonNLP's script searches them.

    Args:
        network: ours.
        beam: how to search.
    """
    model = SameNetwork(network).model
    scorer = BeamSearchScorer(alpha=beam.length_penalty, K=5)

    def decode(token_R: Any, states: List[Any]) -> Tuple[Any, List[Any]]:
        scores, states, _ = model.decode_step(token_R, states)
        return nd.log_softmax(scores), states

    def translate(batch: Any) -> List[np.ndarray]:
        token_BS, length_B, limit_B = batch
        with autograd.pause(train_mode=False):
            encoded, _ = model.encode(token_BS.astype("float32"), valid_length=length_B)
            states = model.decoder.init_state_from_encoder(encoded, length_B)
            sampler = BeamSearchSampler(beam.size, decode, beam.eos, scorer, max_length=int(limit_B.max()))
            samples, _, lengths = sampler(nd.full((len(limit_B),), beam.bos), states)
        return [row[0, 1 : length[0] - 1] for row, length in zip(samples.asnumpy(), lengths.asnumpy())]

    return translate
