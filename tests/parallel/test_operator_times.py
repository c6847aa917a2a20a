"""Times of a step by operator: work is counted by the formulas, and times are summed per operator."""

from io import StringIO

import pytest
from rich.console import Console

from mxtrain.engine.backend import gluon, mx
from mxtrain.engine.limits import Limits, measure_limits
from mxtrain.engine.trace import Operation
from mxtrain.model.graph.trace import Node, Trace, trace
from mxtrain.model.graph.work import Work, node_flops, update_work, work_by_operator
from mxtrain.parallel.operator_times import measure_operators

nn = gluon.nn


def test_work_of_a_convolution_and_a_dense_layer():
    network = nn.HybridSequential()
    network.add(nn.Conv2D(8, 3, padding=1, groups=2, use_bias=False, in_channels=4), nn.Flatten(), nn.Dense(5))
    work = work_by_operator(trace(network, (4, 6, 6), batch_size=2, training=True))
    convolution, dense = 2 * (2 * 8 * 6 * 6) * (2 * 3 * 3), 2 * 2 * 5 * 288
    x, weight, y = 2 * 4 * 36, 8 * 2 * 9, 2 * 8 * 36
    assert work["Convolution"] == Work(convolution, 4 * (x + weight + y))
    # Images need no gradient; the dense layer's input does.
    assert work["_backward_Convolution"] == Work(convolution, 4 * (2 * (x + weight) + y))
    assert work["FullyConnected"].flops == dense and work["_backward_FullyConnected"].flops == 2 * dense
    half = work_by_operator(trace(network, (4, 6, 6), batch_size=2), ["Convolution"])
    assert half["Convolution"].moved == work["Convolution"].moved / 2


class Product(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(2, 4, 5))

    def hybrid_forward(self, F, x, weight):
        return F.transpose(F.batch_dot(x, weight), axes=(0, 2, 1))


def test_operator_used_as_its_own_gradient_counts_twice():
    work = work_by_operator(trace(Product(), (3, 4), batch_size=2, training=True))
    assert set(work) == {"batch_dot", "transpose"}
    assert work["batch_dot"].flops == 2 * (2 * 2 * 3 * 4 * 5)
    assert work["transpose"].moved == 4 * 5 * (2 * 3 * 5)


@pytest.mark.parametrize(
    "op, given, made, flops",
    [
        ("dot", [(3, 4), (4, 5)], (3, 5), 2 * 3 * 4 * 5),
        ("dot", [(4, 3), (4, 1)], (3, 1), 2 * 3 * 4),
        ("batch_dot", [(7, 3, 4), (7, 4, 5)], (7, 3, 5), 7 * 2 * 3 * 4 * 5),
        ("Deconvolution", [(2, 3, 4, 4), (3, 6, 2, 2)], (2, 6, 8, 8), 2 * (2 * 3 * 16) * (6 * 4)),
        ("_contrib_interleaved_matmul_selfatt_qk", [(10, 2, 36)], (8, 10, 10), 2 * 8 * 10 * 10 * 3),
        ("_contrib_interleaved_matmul_selfatt_valatt", [(10, 2, 36), (8, 10, 10)], (10, 2, 12), 2 * 8 * 10 * 10 * 3),
        ("_mxtrain_attention", [(10, 2, 36), (2,), (64,)], (10, 2, 12), 2 * 2 * 8 * 10 * 10 * 3),
        ("_mxtrain_cross_attention", [(10, 2, 12), (7, 2, 24), (2,)], (10, 2, 12), 2 * 2 * 8 * 10 * 7 * 3),
        ("Activation", [(2, 3)], (2, 3), 0),
    ],
)
def test_formulas(op, given, made, flops):
    attrs = {"heads": "4", "transpose_a": str(given[0] == (4, 3))}
    nodes = [Node(f"x{number}", "null", "", (), {}, shape) for number, shape in enumerate(given)]
    nodes.append(Node("y", op, "", tuple(range(len(given))), attrs, made))
    assert node_flops(nodes[-1], Trace(nodes, {}, [made], {})) == flops


def test_times_are_added_up_and_set_against_limits():
    ran = [
        Operation("cpu(0)", "dot", 0.0, 0.1),
        Operation("cpu(1)", "dot", 0.1, 0.4),
        Operation("cpu(0)", "_backward_dot", 0.4, 0.5),
        Operation("cpu(0)", "sgd_mom_update", 0.5, 0.6),
        Operation("cpu(0)", "Cast", 0.6, 0.61),
    ]
    works = [{"dot": Work(1e9, 2e8)}, {"dot": Work(1e9, 2e8), "_backward_dot": Work(1e9, 1e8)}]
    found = measure_operators(ran, works, 10**7, Limits(1e10, 4e10, 1e10), ["dot"], first_step=5)
    dot, *others = found.rows
    assert (dot.name, dot.calls, dot.seconds) == ("dot", 2, pytest.approx(0.4))
    assert dot.flops_per_s == pytest.approx(5e9) and dot.share_of_limit == pytest.approx(5e9 / 4e10)
    by_name = {row.name: row for row in others}
    assert by_name["_backward_dot"].share_of_limit == pytest.approx(1e10 / 4e10)
    assert by_name["sgd_mom_update"].moved_per_s == pytest.approx(2 * 5 * 4 * 10**7 / 0.1)
    assert by_name["Cast"].work is None and "operator_limit/Cast" not in found.scalars()
    assert found.scalars()["operator_ms/dot"] == pytest.approx(200)
    assert update_work("multi_lamb_phase1", 3) is None and update_work("_multi_adamw_update", 3).moved == 84
    assert update_work("_mxtrain_adamw", 3).moved == 84


def test_table_names_the_limit_of_a_share_and_explains_excess():
    def shown(moved):
        ran = [Operation("cpu(0)", "dot", 0.0, 0.1), Operation("cpu(0)", "relu", 0.1, 0.2)]
        works = [{"dot": Work(5e8, 1e6), "relu": Work(0, moved)}]
        console = Console(width=200, file=StringIO())
        console.print(measure_operators(ran, works, 10, Limits(1e10, 1e10, 1e10), [], first_step=1).table())
        return console.file.getvalue()

    assert "50% arithmetic" in shown(2.5e8) and "25% memory" in shown(2.5e8) and "above 100%" not in shown(2.5e8)
    assert "230% memory" in shown(2.3e9) and "above 100%: arrays that stay in caches" in shown(2.3e9)


@pytest.mark.zoo
def test_limits_are_plausible():
    limits = measure_limits([mx.cpu()], "float32")
    assert 1e9 < limits.flops == limits.low_flops < 1e14 and 1e8 < limits.bytes_per_s < 1e12
