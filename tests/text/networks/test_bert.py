"""BERT computes what it says, and exchanges weights with GluonNLP."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.amp.spec import BFloat16, Float16
from mxtrain.engine.backend import autograd, mx, native_operators, nd
from mxtrain.engine.native import Library
from mxtrain.errors import ConfigError
from mxtrain.model.graph.summary import summarize
from mxtrain.model.networks import bert as bert_network
from mxtrain.model.parameters import distinct_parameters, parameter_multipliers
from mxtrain.model.prepare import prepare_network
from mxtrain.parallel.cut import Graph
from mxtrain.text.bert import Bert
from mxtrain.training.nonfinite import first_nonfinite_layer

TOKENS, VOCAB, CLASSES, MASKED = 16, 50, 3, 4
SIZES = {"num_layers": 2, "units": 32, "hidden_size": 64, "max_length": 24, "num_heads": 4}
SHAPE = ((TOKENS,), (TOKENS,), ())


@pytest.fixture(params=["own", "mxnet"], autouse=True)
def operators(request, monkeypatch):
    """Our own operators, and MXNet's, which compute where there is no compiler."""
    if request.param == "mxnet":
        monkeypatch.setattr(bert_network, "native_operators", lambda: Library(None, "a test"))
    elif native_operators().path is None:
        pytest.skip(native_operators().why)
    return request.param


def build(masked=False, weights=None, **options):
    shape = (*SHAPE, (MASKED,)) if masked else SHAPE
    model = Bert(**{**SIZES, **options}, weights=weights)
    classes = VOCAB if masked else CLASSES
    outputs = [(*shape[3], classes)] if len(shape) > 3 else None  # a score for each hidden token
    return prepare_network(
        model,
        num_classes=classes,
        input_shape=shape,
        seed=0,
        network=model.build_text(classes, shape, VOCAB),
        output_shapes=outputs,
    ).network


def inputs(masked=False):
    rng = np.random.RandomState(0)
    tokens, kinds = (nd.array(rng.randint(0, high, (3, TOKENS)), dtype="int32") for high in (VOCAB, 2))
    positions = [nd.array(rng.randint(0, 5, (3, MASKED)), dtype="int32")] if masked else []
    return [tokens, kinds, nd.array([TOKENS, 5, 9]), *positions]


def spread(network, seed=1):
    """Weights so large that a mistake shows."""
    mx.random.seed(seed)
    for name, parameter in distinct_parameters(network).items():
        if not name.endswith("gamma"):
            parameter.set_data(mx.nd.random.normal(0, 0.3, shape=parameter.shape))


@pytest.mark.parametrize("masked", [False, True])
def test_padding_does_not_affect_outputs(masked):
    network = build(masked)
    spread(network)
    given = inputs(masked)
    before = network(*given).asnumpy()
    given[0][1, 5:], given[1][2, 9:] = 7, 1
    np.testing.assert_array_equal(network(*given).asnumpy(), before)
    given[0][1, 4] = (given[0][1, 4] + 1) % VOCAB  # the last one that is no padding
    assert (network(*given).asnumpy()[1] != before[1]).any()
    longer = [nd.concat(array, nd.ones((3, 8), dtype="int32"), dim=1) for array in given[:2]]
    np.testing.assert_allclose(network(*longer, *given[2:]).asnumpy(), network(*given).asnumpy(), atol=2e-5)


def test_float32_agrees_with_float64():
    """With gradients."""
    found = []
    for dtype in ("float32", "float64"):
        network = build(dropout=0.0)
        spread(network)
        network.cast(dtype)
        tokens, kinds, length = inputs()
        with autograd.record():
            loss = (network(tokens, kinds, length.astype(dtype)) ** 2).sum()
        loss.backward()
        gradients = {n: p.grad().asnumpy() for n, p in distinct_parameters(network).items()}
        found.append({"loss": loss.asnumpy(), **gradients})
    for name, wanted in found[1].items():
        np.testing.assert_allclose(
            found[0][name], wanted, rtol=1e-3, atol=2e-5 * max(1, abs(wanted).max()), err_msg=name
        )


def test_layer_norm_equals_mxnet():
    ours = bert_network.LayerNorm(12)
    ours.initialize()
    rng = np.random.RandomState(0)
    data, gamma, beta, head = (nd.array(rng.randn(*shape)) for shape in ((5, 3, 12), (12,), (12,), (5, 3, 12)))
    ours.gamma.set_data(gamma)
    ours.beta.set_data(beta)
    arrays = [data, gamma, beta]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        wanted = nd.LayerNorm(data, gamma, beta, axis=-1, eps=1e-12)
    wanted.backward(head)
    gradients = [array.grad.asnumpy() for array in arrays]
    with autograd.record():
        made = ours(data)
    made.backward(head)
    np.testing.assert_allclose(made.asnumpy(), wanted.asnumpy(), rtol=1e-4, atol=1e-5)
    for one, gradient in zip((data.grad, ours.gamma.grad(), ours.beta.grad()), gradients):
        np.testing.assert_allclose(one.asnumpy(), gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_own_operators_and_mxnets_give_the_same_gradients(operators, monkeypatch):
    if operators == "mxnet":
        pytest.skip("compares both")
    found = []
    for chosen in (bert_network.native_operators(), Library(None, "a test")):
        monkeypatch.setattr(bert_network, "native_operators", lambda chosen=chosen: chosen)
        network = build(masked=True, dropout=0.0)
        spread(network)
        network.cast("float64")
        parameters = network._collect_params_with_prefix()
        for parameter in parameters.values():
            parameter.grad_req = "add"
            parameter.zero_grad()
        network.hybridize(static_alloc=True)
        tokens, kinds, length, positions = inputs(masked=True)
        for _ in range(2):
            with autograd.record():
                loss = (network(tokens, kinds, length.astype("float64"), positions) ** 2).sum()
            loss.backward()
        found.append({"loss": loss.asnumpy(), **{name: one.grad().asnumpy() for name, one in parameters.items()}})
    for name, wanted in found[1].items():
        np.testing.assert_allclose(found[0][name], wanted, atol=1e-7 * max(1, abs(wanted).max()), err_msg=name)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("precision", [BFloat16(), Float16()])
def test_sums_stay_in_float32_at_any_precision(precision, masked, operators):
    """MXNet's layer norms are products with vectors of ones. Weights that are joined first count by their own size."""
    shape = (*SHAPE, (MASKED,)) if masked else SHAPE
    graph = Graph(build(masked), precision, shape)
    low = {True: set(), False: set()}
    for index in graph.operators:
        node = graph._nodes[index]
        low[any(key in node["attrs"] for key in ("__amp_all__", "__amp_first__"))].add(node["op"])
    sums = {"_mxtrain_norm"} if operators == "own" else {"dot", "softmax", "rsqrt"}
    sums |= {"elemwise_add"} & low[False]  # the residual's, and those of which a norm is made
    assert low[False] >= {*sums, "Embedding"}
    assert "FullyConnected" in low[True] and low[True].isdisjoint(sums)
    dense = [graph._nodes[i] for i in graph.operators if graph._nodes[i]["op"] == "FullyConnected"]
    attention = [node for node in dense if node["attrs"]["__layer__"].endswith("attention_cell")]
    assert [node["attrs"].get("__amp_all__") for node in attention] == [precision.dtype] * 2
    assert ("_mxtrain_attention" in low[True]) == (precision.dtype == "bfloat16" and operators == "own")
    assert ("batch_dot" in low[True]) == (precision.dtype == "float16" and operators == "mxnet")
    (piece,) = graph.cut([])
    kinds = {f"tensor{node}_{output}": "int32" for node, output in graph.inputs}
    arguments, outputs, _ = piece.symbol.infer_type(**{**kinds, f"tensor{graph.inputs[2][0]}_0": "float32"})
    assert {np.dtype(kind) for kind in arguments} == {np.dtype("int32"), np.dtype("float32")}
    assert [np.dtype(kind) for kind in outputs] == [np.float32]


def test_a_layer_that_makes_no_numbers_is_named():
    network = build()
    cells = network.bert.encoder.transformer_cells
    cells[1].layer_norm.gamma.data()[:] = float("nan")
    assert "'bert.encoder.transformer_cells.1.layer_norm' (LayerNorm)" in first_nonfinite_layer(network, *inputs())
    cells[0].attention_cell.query_weight.data()[:] = float("nan")
    assert "'bert.encoder.transformer_cells.0.attention_cell' (SelfAttention)" in first_nonfinite_layer(
        network, *inputs()
    )


def test_bias_and_norms_do_not_decay():
    network = build()
    decays = {name: wd for name, (_, wd) in parameter_multipliers(Bert(**SIZES), network).items()}
    assert decays["bert.encoder.transformer_cells.0.attention_cell.proj_query.weight"] == 1
    kept = {name.rpartition(".")[2] for name, wd in decays.items() if wd == 0}
    assert kept == {"bias", "gamma", "beta"} and decays["bert.word_embed.0.weight"] == 1


@pytest.mark.slow
def test_base_has_the_published_number_of_parameters():
    model, shape = Bert(size="base"), ((8,), (8,), ())
    network = prepare_network(
        model, num_classes=2, input_shape=shape, seed=0, network=model.build_text(2, shape, 30522)
    )
    found = summarize(network.network, shape)
    assert found.parameters == 109_482_240 + 2 * 768 + 2  # BERT-base with its pooler, and the classifier


def test_a_longer_text_than_fits_is_refused():
    with pytest.raises(ConfigError, match="dataset.max_length=24, or model.max_length=30"):
        Bert(**SIZES).build_text(2, ((30,), (30,), ()), VOCAB)


@pytest.mark.zoo
def test_weights_of_hidden_tokens_start_a_classifier(tmp_path):
    trained = build(masked=True)
    spread(trained)
    trained.save_parameters(str(tmp_path / "mlm.params"))
    network = build(weights=str(tmp_path / "mlm.params"))
    for name in ("word_embed.0.weight", "encoder.transformer_cells.1.ffn.ffn_2.weight"):
        ours = network._collect_params_with_prefix()[f"bert.{name}"].data().asnumpy()
        np.testing.assert_array_equal(ours, trained._collect_params_with_prefix()[name].data().asnumpy())


@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.zoo), True])
def test_gluonnlp_computes_the_same_from_the_same_file(tmp_path, masked):
    pytest.importorskip("gluonnlp", reason="gluonnlp 0.10 has no wheels: it is built from source, with Cython")
    from gluonnlp.model.bert import BERTClassifier, BERTEncoder, BERTModel

    def theirs():
        model = BERTModel(
            BERTEncoder(dropout=0.1, **SIZES),
            vocab_size=VOCAB,
            token_type_vocab_size=2,
            units=32,
            embed_size=32,
            use_pooler=not masked,
            use_decoder=masked,
            use_classifier=False,
        )
        return model if masked else BERTClassifier(model, CLASSES, dropout=0.1)

    def scores(network):
        found = network(*inputs(masked))
        return (found[-1] if isinstance(found, (list, tuple)) else found).asnumpy()

    one = theirs()
    one.initialize(mx.init.Normal(0.3))
    wanted = scores(one)
    one.save_parameters(str(tmp_path / "theirs.params"))
    network = build(masked, weights=str(tmp_path / "theirs.params"))
    layers = {"theirs": [], "ours": []}
    for block, found in ((one, layers["theirs"]), (network, layers["ours"])):
        for cell in (block if masked else block.bert).encoder.transformer_cells:
            cell.register_forward_hook(lambda _, given, output, found=found: found.append(output))
    np.testing.assert_allclose(scores(network), wanted, atol=1e-4)
    scores(one)
    assert len(layers["theirs"]) == len(layers["ours"]) == SIZES["num_layers"]
    for wanted_TBU, found_TBU in zip(layers["theirs"], layers["ours"]):
        wanted_TBU = wanted_TBU[0] if isinstance(wanted_TBU, (list, tuple)) else wanted_TBU
        np.testing.assert_allclose(found_TBU.asnumpy(), wanted_TBU.asnumpy(), atol=1e-5)
    network.save_parameters(str(tmp_path / "ours.params"))
    other = theirs()
    other.load_parameters(str(tmp_path / "ours.params"))
    np.testing.assert_array_equal(scores(other), wanted)


def test_a_score_for_each_token_starts_from_weights_with_a_pooler(tmp_path):
    pooled = build()
    path = str(tmp_path / "weights.params")
    pooled.save_parameters(path)
    model = Bert(**SIZES, dropout=0.0, weights=path)
    shapes = [(TOKENS, CLASSES)]
    made = prepare_network(
        model,
        num_classes=CLASSES,
        input_shape=SHAPE,
        seed=0,
        network=model.build_tagger(CLASSES, SHAPE, VOCAB),
        output_shapes=shapes,
    ).network
    found = made(*inputs())
    assert found.shape == (3, TOKENS, CLASSES)
    # The pooler is a dense layer with tanh on the first encoded token.
    hidden = made.bert(*inputs())[:, 0]
    np.testing.assert_allclose(pooled.bert.pooler(hidden).asnumpy(), pooled.bert(*inputs()).asnumpy(), atol=1e-5)
