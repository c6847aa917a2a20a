"""Operators and our own networks in float16: MXNet's inference of types accepts them, forward and backward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inferred import with_casts, without_own_operators, wrong_in_network, wrong_types

from mxtrain.amp.operators import BFLOAT16, FLOAT16, LOW_IN_ALL_OUTPUTS
from mxtrain.engine.backend import gluon, mx
from mxtrain.forecasting.forecasters import DeepAR, NBeats, TemporalConvolution
from mxtrain.forecasting.sampled_paths import lags_of
from mxtrain.forecasting.signature import SeriesSizes
from mxtrain.model.mlp import MLP
from mxtrain.recommendation.recommenders import ItemFactors, MatrixFactorization, NeuMF, SVDPlusPlus
from mxtrain.recommendation.sequence_models import GRU4Rec, SASRec
from mxtrain.reinforcement.dqn import DeepQLoss
from mxtrain.reinforcement.model import ActorCritic, QNetwork, SoftActorCritic
from mxtrain.reinforcement.policy import Actions
from mxtrain.speech.conformer import Conformer
from mxtrain.speech.deep_speech2 import DeepSpeech2
from mxtrain.speech.fastspeech import FastSpeech
from mxtrain.speech.keyword_cnn import KeywordCNN
from mxtrain.tables.feature_models import DeepFM, FactorizationMachine, WideDeep
from mxtrain.text.bert import Bert
from mxtrain.text.bilstm import BiLSTM
from mxtrain.text.language_modeling.gpt import Gpt
from mxtrain.text.language_modeling.lstm import Lstm
from mxtrain.text.translation.gnmt import Gnmt
from mxtrain.text.translation.transformer import Transformer
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet
from mxtrain.vision.detection.centernet_fpn import CenterNetFPN
from mxtrain.vision.instance_segmentation.yolact import Yolact
from mxtrain.vision.metric_learning.face_networks import IResNet, MobileFaceNet
from mxtrain.vision.pose.pose_fpn import PoseFPN
from mxtrain.vision.segmentation.fpn import FPN

CONF = Path(__file__).resolve().parents[2] / "conf/model"
IMAGE = (3, 64, 64)


def halves():
    """Two float16 tensors of one shape, and one with queries, keys and values of two heads."""
    data = mx.sym.var("data")
    one, other = (mx.sym.Convolution(data, name=name, kernel=(1, 1), num_filter=4) for name in ("one", "other"))
    return one, other, mx.sym.FullyConnected(mx.sym.reshape(data, shape=(0, 0, -1)), num_hidden=12, flatten=False)


def interleaved(name, values):
    """An operator of interleaved attention; (T, B, 12) of `data` has two heads."""

    def make(one, other, qkv):
        scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(qkv, heads=2)
        if "encdec" in name:
            keys, query = qkv, mx.sym.slice_axis(qkv, axis=2, begin=0, end=6)
            scores = mx.sym.contrib.interleaved_matmul_encdec_qk(query, keys, heads=2)
        return getattr(mx.sym.contrib, name[len("_contrib_") :])(qkv, scores, heads=2) if values else scores

    return make


def rnn(one, **options):
    """An LSTM over (T, B, features), with its last states where they are asked for."""
    made = mx.sym.RNN(
        one.reshape((0, 0, -1)),
        *map(mx.sym.var, ("flat", "state", "cell")),
        mode="lstm",
        state_size=5,
        num_layers=2,
        **options,
    )
    return mx.sym.Group(list(made))


MADE = {
    "Convolution": lambda a, b, c: a,
    "Deconvolution": lambda a, b, c: mx.sym.Deconvolution(a, kernel=(2, 2), num_filter=3),
    "FullyConnected": lambda a, b, c: mx.sym.FullyConnected(a, num_hidden=3),
    "batch_dot": lambda a, b, c: mx.sym.batch_dot(*(x.reshape((0, 4, -1)) for x in (a, b)), transpose_b=True),
    "RNN": lambda a, b, c: rnn(a, state_outputs=True),
    "RNN gru": lambda a, b, c: mx.sym.RNN(
        a.reshape((0, 0, -1)), mx.sym.var("flat"), mx.sym.var("state"), mode="gru", state_size=5, num_layers=1
    ),
    **{
        f"_contrib_interleaved_matmul_{kind}_{part}": interleaved(f"_contrib_interleaved_matmul_{kind}_{part}", values)
        for kind in ("selfatt", "encdec")
        for part, values in (("qk", False), ("valatt", True))
    },
    "BatchNorm": lambda a, b, c: mx.sym.Group(list(mx.sym.BatchNorm(a, fix_gamma=False, output_mean_var=True))),
    "Activation": lambda a, b, c: mx.sym.Activation(a, act_type="softrelu"),
    "Pooling": lambda a, b, c: mx.sym.Pooling(a, kernel=(2, 2), pool_type="avg"),
    "Flatten": lambda a, b, c: mx.sym.Flatten(a),
    "Reshape": lambda a, b, c: mx.sym.Reshape(a, shape=(0, -1)),
    "Dropout": lambda a, b, c: mx.sym.Dropout(a, p=0.5),
    "relu": lambda a, b, c: mx.sym.relu(a),
    "clip": lambda a, b, c: mx.sym.clip(a, 0, 6),
    "Pad": lambda a, b, c: mx.sym.Pad(a, mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
    "transpose": lambda a, b, c: mx.sym.transpose(a),
    "SwapAxis": lambda a, b, c: mx.sym.SwapAxis(a, dim1=0, dim2=1),
    "expand_dims": lambda a, b, c: mx.sym.expand_dims(a, axis=0),
    "squeeze": lambda a, b, c: mx.sym.squeeze(mx.sym.expand_dims(a, axis=0)),
    "slice": lambda a, b, c: mx.sym.slice(a, begin=(0, 1), end=(1, 3)),
    "slice_axis": lambda a, b, c: mx.sym.slice_axis(a, axis=1, begin=0, end=2),
    "SliceChannel": lambda a, b, c: mx.sym.Group(list(mx.sym.SliceChannel(a, num_outputs=2))),
    "LeakyReLU": lambda a, b, c: mx.sym.LeakyReLU(a, act_type="prelu"),
    "UpSampling": lambda a, b, c: mx.sym.UpSampling(a, b, scale=2, num_args=2, sample_type="nearest"),
    "UpSampling bilinear": lambda a, b, c: mx.sym.UpSampling(
        a, mx.sym.var("filters"), scale=2, num_args=2, num_filter=4, sample_type="bilinear"
    ),
    "elemwise_add": lambda a, b, c: a + b,
    "elemwise_mul": lambda a, b, c: a * b,
    "broadcast_add": lambda a, b, c: mx.sym.broadcast_add(a, b),
    "broadcast_mul": lambda a, b, c: mx.sym.broadcast_mul(a, b),
    "add_n": lambda a, b, c: mx.sym.add_n(a, b, a),
    "Concat": lambda a, b, c: mx.sym.Concat(a, b, dim=1),
    "stack": lambda a, b, c: mx.sym.stack(a, b),
    "where": lambda a, b, c: mx.sym.where(a, a, b),
}
"""Name, and perhaps a kind -> the operator of tensors that are in float16."""


def test_every_operator_of_the_lists_is_tried():
    listed = FLOAT16.low | FLOAT16.follow | FLOAT16.follow_whole | FLOAT16.follow_both | FLOAT16.join
    assert {name.split()[0] for name in MADE} == listed


@pytest.mark.parametrize("name", MADE)
def test_operators_of_the_lists_compute_in_float16_and_so_do_their_gradients(name):
    """MXNet infers the types of the whole graph, gradients too, when it makes an executor; nothing is computed."""
    symbol = MADE[name](*halves())
    assert wrong_types(symbol) == []
    graph = with_casts(symbol)
    (node,) = [node for node in graph["nodes"] if node["op"] == name.split()[0]][-1:]
    assert {"__amp_all__", "__amp_first__"} & set(node["attrs"])
    executor = mx.sym.load_json(json.dumps(graph)).simple_bind(mx.cpu(), grad_req="write", data=(2, 3, 4, 4))
    gradients = [array for array in executor.grad_dict.values() if array is not None]
    assert gradients and {array.dtype for array in [*gradients, *executor.outputs]} == {mx.np.float32}


def test_operators_after_a_split_know_its_precision():
    """All parts are in float16: what computes in it takes them as they are, and a softmax takes each in float32."""
    one, other, _ = halves()
    left, right = mx.sym.SliceChannel(one, num_outputs=2)
    graph = with_casts(mx.sym.Group([mx.sym.relu(right), mx.sym.softmax(right), left * right]))
    nodes = graph["nodes"]
    (relu,) = [node for node in nodes if node["op"] == "relu"]
    (softmax,) = [node for node in nodes if node["op"] == "softmax"]
    (product,) = [node for node in nodes if node["op"] == "elemwise_mul"]
    assert nodes[relu["inputs"][0][0]]["op"] == "SliceChannel" and relu["inputs"][0][1] == 1
    assert nodes[softmax["inputs"][0][0]]["attrs"]["dtype"] == "float32"
    assert [(nodes[index]["op"], output) for index, output, _ in product["inputs"]] == [
        ("SliceChannel", 0),
        ("SliceChannel", 1),
    ]


def test_the_mean_of_a_batch_norm_is_float32_in_any_precision():
    """So only operators whose outputs are all alike may be named as such."""
    assert LOW_IN_ALL_OUTPUTS <= FLOAT16.follow | FLOAT16.low and not LOW_IN_ALL_OUTPUTS & (
        BFLOAT16.low | BFLOAT16.follow | {"BatchNorm"}
    )
    one, _, _ = halves()
    normal, mean, _ = mx.sym.BatchNorm(one, output_mean_var=True)
    graph = with_casts(mx.sym.broadcast_add(normal, mean.reshape((1, -1, 1, 1))))
    (read,) = [node for node in graph["nodes"] if node["op"] == "Reshape"]
    assert graph["nodes"][read["inputs"][0][0]]["op"] == "BatchNorm"  # without a cast
    assert wrong_types(mx.sym.Group([normal, mean])) == []


def test_lengths_never_become_float16():
    """It counts to 2048 only. Such an RNN computes in float32."""
    one, _, _ = halves()
    made = rnn(one, sequence_length=mx.sym.var("length"), use_sequence_length=True)
    nodes = with_casts(made)["nodes"]
    (node,) = [node for node in nodes if node["op"] == "RNN"]
    casts = [nodes[index]["attrs"]["dtype"] for index, *_ in node["inputs"] if nodes[index]["op"] == "amp_cast"]
    assert casts == ["float32"]


class Gated(gluon.HybridBlock):
    """Gates, slopes, and maps that are made larger, as users write them."""

    def __init__(self):
        super().__init__(prefix="gated_")
        with self.name_scope():
            self.first, self.slopes = gluon.nn.Conv2D(8, 3), gluon.nn.PReLU()
            self.last = gluon.nn.Conv2D(2, 3)

    def hybrid_forward(self, F, x):
        value, gate = F.split(self.slopes(self.first(x)), num_outputs=2, axis=1)
        return self.last(F.UpSampling(value * F.sigmoid(gate), scale=2, sample_type="nearest"))


T = (16,)
VALUED = Actions(count=3, head="action_values")
SERIES = SeriesSizes(6 + lags_of(4)[-1], 3, 4, 3, 2, (4, 3))
TEXT, WINDOW, PAIR = (T, T, ()), (T, T), (T, (), T, T)
OWN = {
    "mlp": [(lambda: MLP(dropout=0.1).build(5, IMAGE), 1)],
    "lenet": [(lambda: LeNet(batch_norm=True).build(5, IMAGE), 1)],
    "resnet": [(lambda version=version: ResNet(version=version).build(5, IMAGE), 1) for version in (1, 2)],
    "fpn": [(lambda: FPN().build(5, IMAGE), 1)],
    "centernet_fpn": [(lambda: CenterNetFPN().build(5, IMAGE), 1)],
    "yolact": [(lambda: Yolact().build(5, IMAGE), 1)],
    "pose_fpn": [(lambda: PoseFPN().build(5, IMAGE), 1)],
    "bert": [
        (lambda: Bert().build_text(5, TEXT, 50), 3),
        (lambda: Bert().build_text(50, (*TEXT, (3,)), 50), 4),
        (lambda: Bert().build_tagger(5, TEXT, 50), 3),
    ],
    "bilstm": [(lambda: BiLSTM().build_tagger(5, TEXT, 50), 3)],
    "gpt": [
        (lambda settings=settings: Gpt(**settings).build_text(50, WINDOW, 50), 2)
        for settings in ({}, {"experts": 4}, {"experts": 4, "capacity_factor": 1.0})
    ],
    "lstm": [
        (lambda: Lstm().build_text(50, WINDOW, 50), 4),
        (lambda: Lstm(num_layers=2, weight_dropout=0.2, tied=False).build_text(50, WINDOW, 50), 6),
    ],
    "transformer": [(lambda: Transformer().build_translator(50, PAIR, 50, True), 4)],
    "gnmt": [
        (lambda kind=kind: Gnmt(attention=kind).build_translator(50, PAIR, 50, False), 4)
        for kind in ("luong", "bahdanau")
    ],
    "conformer": [(lambda: Conformer().build(5, (200, 80)), 2)],
    "deep_speech2": [(lambda: DeepSpeech2().build(5, (200, 80)), 2)],
    "keyword_cnn": [(lambda: KeywordCNN().build(5, (1, 40, 32)), 1)],
    "fastspeech": [(lambda: FastSpeech(dropout=0.1).build_symbols(20, ((12,), (), (40,), (40, 4)), 30), 4)],
    "actor_critic": [
        (lambda: ActorCritic().build_policy(Actions(count=3), (4,)), 1),
        (lambda: ActorCritic().build_policy(Actions(size=2), (4,)), 1),
    ],
    "q_network": [
        (
            lambda: DeepQLoss().build_network(
                lambda: QNetwork().build_policy(VALUED, (4,)),
                VALUED,
                (4,),
            ),
            1,
        )
    ],
    "soft_actor_critic": [(lambda: SoftActorCritic().build_policy(Actions(size=2, head="squashed_gaussian"), (4,)), 1)],
    "wide_deep": [(lambda: WideDeep().build_features(1, (5, 7), 3), 2)],
    "deepfm": [(lambda: DeepFM().build_features(1, (5, 7), 3), 2)],
    "factorization_machine": [
        (lambda: FactorizationMachine().build_features(1, (5, 7), 3), 2),
        (lambda: FactorizationMachine().build_indexed(1, 12), 2),
    ],
    "matrix_factorization": [(lambda: MatrixFactorization().build_recommender(6, 9, 0.0), 2)],
    "neumf": [(lambda: NeuMF().build_recommender(6, 9, 0.0), 2)],
    "fism": [(lambda: ItemFactors().build_recommender(6, 9, 0.0), 4)],
    "svd_pp": [(lambda: SVDPlusPlus().build_recommender(6, 9, 0.0), 4)],
    "sasrec": [(lambda: SASRec().build_sequence(9, 5), 2)],
    "gru4rec": [(lambda: GRU4Rec().build_sequence(9, 5), 2)],
    "tcn": [(lambda: TemporalConvolution(num_layers=2).build_quantiles(3, SERIES), 5)],
    "n_beats": [
        (lambda: NBeats(units=8).build_quantiles(3, SERIES), 5),
        (lambda: NBeats(units=8, stacks="interpretable").build_quantiles(3, SERIES), 5),
    ],
    "deepar": [(lambda: DeepAR().build_quantiles(3, SERIES), 7)],
    "iresnet": [(lambda: IResNet().build(16, (3, 112, 112)), 1)],
    "mobilefacenet": [(lambda: MobileFaceNet().build(16, (3, 112, 112)), 1)],
    "written by a user": [(Gated, 1)],
}
"""Option of conf/model/ -> networks with all that it can be made of, and the number of their inputs."""
ELSEWHERE = {
    "gluoncv",
    "gluoncv_segmentation",
    "gluoncv_video",
    "simple_pose",
    "ssd",
    "yolo3",
    "gluoncv_centernet",
    "faster_rcnn",
    "mask_rcnn",
}
"""GluonCV's, in test_float16_zoo.py."""
FROM_FILES = {"symbol", "symbol_ssd", "onnx"}
"""Their operators are those of a file."""


def test_every_network_is_tried():
    assert {path.stem for path in CONF.glob("*.yaml")} - FROM_FILES == {*OWN, *ELSEWHERE} - {"written by a user"}


@pytest.mark.parametrize("option", OWN)
def test_our_networks_pass_inference_of_types_in_float16(option, monkeypatch):
    without_own_operators(monkeypatch)
    assert [wrong_in_network(build(), num_inputs) for build, num_inputs in OWN[option]] == [[]] * len(OWN[option])
