"""Files of GluonNLP's translation networks: the Transformer computes what theirs computes, layer by layer."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import mx, native_operators, nd
from mxtrain.engine.native import Library
from mxtrain.errors import WeightsError
from mxtrain.model.networks import attention as attention_network
from mxtrain.model.networks import bert as bert_network
from mxtrain.model.prepare import Prepared, prepare_network
from mxtrain.text.networks import language as language_network
from mxtrain.text.translation.networks.gluonnlp_arrays import arrays_of_gluonnlp
from mxtrain.text.translation.transformer import Transformer

SOURCE, TARGET, LENGTH = 23, 19, 7
SIZES: Dict[str, Any] = {"num_layers": 2, "units": 32, "hidden_size": 48, "num_heads": 4}
SHAPE = ((LENGTH,), (), (LENGTH,), (LENGTH,))


@pytest.fixture(params=["own", "mxnet"])
def operators(request, monkeypatch):
    """Our own operators, and MXNet's, which compute where there is no compiler."""
    if request.param == "mxnet":
        for module in (attention_network, bert_network, language_network):
            monkeypatch.setattr(module, "native_operators", lambda: Library(None, "a test"))
    elif native_operators().path is None:
        pytest.skip(native_operators().why)


def theirs(tied: str, path: str) -> Any:
    """Builds GluonNLP's network with random weights, and saves it as GluonNLP does."""
    pytest.importorskip("gluonnlp", reason="gluonnlp 0.10 has no wheels: it is built from source, with Cython")
    from gluonnlp.model.transformer import get_transformer_encoder_decoder
    from gluonnlp.model.translation import NMTModel

    encoder, decoder, one_step = get_transformer_encoder_decoder(
        **SIZES, dropout=0.1, max_src_length=30, max_tgt_length=30
    )
    source, target = (range(TARGET if tied == "all" else size) for size in (SOURCE, TARGET))
    network = NMTModel(
        src_vocab=source,
        tgt_vocab=target,
        encoder=encoder,
        decoder=decoder,
        one_step_ahead_decoder=one_step,
        share_embed=tied == "all",
        embed_size=SIZES["units"],
        tie_weights=tied != "none",
        prefix="transformer_",
    )
    network.initialize(mx.init.Normal(0.2))
    source_BS, length_B, token_BT, _ = inputs()
    network(source_BS, token_BT, length_B, None)
    rng = np.random.RandomState(3)
    for name, parameter in network.collect_params().items():
        if name.endswith(("gamma", "beta", "bias")):
            parameter.set_data(nd.array(rng.normal(float(name.endswith("gamma")), 0.3, parameter.shape)))
    network.save_parameters(path)
    return network


def ours(tied: str, path: str) -> Prepared:
    model = Transformer(size="base", **SIZES, variant="gluonnlp", weights=path, tied=tied)
    is_joint = tied == "all"
    built = model.build_translator(TARGET, SHAPE, TARGET if is_joint else SOURCE, is_joint)
    return prepare_network(
        model, num_classes=TARGET, input_shape=SHAPE, seed=0, network=built, output_shapes=[(LENGTH,)] * 2
    )


def inputs() -> Tuple[Any, Any, Any, Any]:
    rng = np.random.RandomState(0)
    source_BS, token_BT, label_BT = (nd.array(rng.randint(0, TARGET, (3, LENGTH)), dtype="int32") for _ in range(3))
    return source_BS, nd.array([LENGTH, 3, 5]), token_BT, label_BT.astype("float32")


def outputs_of(layers: Any, found: List[np.ndarray]) -> None:
    for layer in layers:
        layer.register_forward_hook(
            lambda block, given, output: found.append((output[0] if isinstance(output, tuple) else output).asnumpy())
        )


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["all", "target", "none"])
def test_transformer_computes_what_gluonnlp_computes(tmp_path, operators, tied: str) -> None:
    path = str(tmp_path / "theirs.params")
    other, prepared = theirs(tied, path), ours(tied, path)
    report, network = prepared.weights_report, prepared.network
    assert report.left == report.replaced == report.unused == []
    source_BS, length_B, token_BT, label_BT = inputs()
    layers: Dict[str, List[np.ndarray]] = {"theirs": [], "ours": []}
    for block, found in ((other, layers["theirs"]), (network, layers["ours"])):
        encoder, decoder = (getattr(half, "transformer_cells", half) for half in (block.encoder, block.decoder))
        outputs_of([*encoder, *decoder], found)
    score_BTV = other(source_BS, token_BT, length_B, None)[0]
    loss_BT, mean_BT = network(source_BS, length_B, token_BT, label_BT)
    # Theirs (B, T, U), ours (T, B, U); what stands in the padding of a source differs, and nothing reads it.
    is_token_BS = np.arange(LENGTH) < length_B.asnumpy()[:, None]
    assert len(layers["theirs"]) == len(layers["ours"]) == 4
    for number, (wanted, found) in enumerate(zip(layers["theirs"], layers["ours"])):
        counts = is_token_BS if number < 2 else np.ones_like(is_token_BS)
        np.testing.assert_allclose(found.transpose(1, 0, 2)[counts], wanted[counts], atol=1e-5)
    log_p_BTV = nd.log_softmax(score_BTV)
    np.testing.assert_allclose(loss_BT.asnumpy(), -nd.pick(log_p_BTV, label_BT).asnumpy(), atol=1e-5)
    np.testing.assert_allclose(mean_BT.asnumpy(), -log_p_BTV.mean(axis=-1).asnumpy(), atol=1e-5)
    fixed, moving = network.initial_state(source_BS, length_B)
    for position in range(LENGTH):
        step_BV, moving = network.step(token_BT[:, position], position, fixed, moving)
        np.testing.assert_allclose(step_BV.asnumpy(), log_p_BTV[:, position].asnumpy(), atol=1e-5)


def test_arrays_are_named_and_joined_without_the_library() -> None:
    query, key, value = (np.full((2, 2), number, np.float32) for number in range(3))
    cell = "decoder.transformer_cells.1.attention_cell_inter.proj_"
    found = arrays_of_gluonnlp({
        "src_embed.0.weight": query,
        f"{cell}query.weight": query,
        f"{cell}key.weight": key,
        f"{cell}value.weight": value,
        "decoder.transformer_cells.1.proj_inter.weight": key,
        "decoder.transformer_cells.1.layer_norm_inter.gamma": query[0],
        "decoder.transformer_cells.1.extra.weight": value,
        "decoder.position_weight": value,
        "one_step_ahead_decoder.layer_norm.gamma": query[0],
        "else": value,
    })  # fmt: skip
    assert set(found) == {
        "embedding.weight",
        *(f"decoder.1.{name}.weight" for name in ("query", "key_value", "cross_projection")),
        *(f"decoder.1.{name}.bias" for name in ("query", "key_value", "cross_projection")),
        "decoder.1.cross_norm.gamma",
        "decoder.transformer_cells.1.extra.weight",
        "else",
    }  # fmt: skip
    np.testing.assert_array_equal(found["decoder.1.key_value.weight"], np.concatenate([key, value]))
    np.testing.assert_array_equal(found["decoder.1.key_value.bias"], np.zeros(4))
    tables = {"src_embed.0.weight": query, "tgt_embed.0.weight": query + 1, "tgt_proj.weight": query + 1}
    assert set(arrays_of_gluonnlp(tables)) == {"embedding.weight", "target_embedding.weight"}
    unchanged = {"encoder.0.qkv.weight": query}
    assert arrays_of_gluonnlp(unchanged) is unchanged


def test_file_of_gluonnlp_is_refused_without_its_variant(tmp_path) -> None:
    path = str(tmp_path / "theirs.params")
    nd.save(path, {"src_embed.0.weight": nd.ones((SOURCE, 32)), "encoder.layer_norm.gamma": nd.ones(32)})
    model = Transformer(size="base", **SIZES, weights=path)
    with pytest.raises(WeightsError, match="Nothing in the weights file"):
        prepare_network(
            model, num_classes=TARGET, input_shape=SHAPE, seed=0,
            network=model.build_translator(TARGET, SHAPE, SOURCE, False), output_shapes=[(LENGTH,)] * 2,
        )  # fmt: skip


def test_variant_needs_layer_norms_after_each_sum() -> None:
    with pytest.raises(ValueError, match="size=base, or norm_first=false"):
        Transformer(variant="gluonnlp")
    assert Transformer(variant="gluonnlp", norm_first=False).sizes["units"] == 128


def test_published_weights_are_those_of_the_base_sizes() -> None:
    published = Transformer(variant="gluonnlp", size="base", weights="pretrained").published_name
    assert published == "gluonnlp:transformer_en_de_512_WMT2014"
    for options in ({"variant": "paper"}, {"units": 256}):
        with pytest.raises(ValueError, match="GluonCV and GluonNLP publish no weights of this network"):
            Transformer(**{"variant": "gluonnlp", "size": "base", **options}, weights="pretrained")
