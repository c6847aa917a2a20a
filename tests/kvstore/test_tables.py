"""Tables on servers, without processes: what is trained is what workers with tables of their own train."""

from __future__ import annotations

import time
from typing import Any, Dict, List

import numpy as np
import pytest
from id_networks import ROWS, TABLES, batch, build_network, build_step, train_shares, values
from in_threads import Rendezvous, ThreadStore
from table_threads import ServedStore, Servers

from mxtrain.engine.backend import mx, nd
from mxtrain.engine.sampled_rows import normal_rows
from mxtrain.errors import ConfigError, DataError
from mxtrain.kvstore import table_wire
from mxtrain.kvstore.table_client import ServedArray, TableClient
from mxtrain.kvstore.table_link import answer_call, call_servers, connect
from mxtrain.kvstore.table_wire import Connection, Header, TableServerLost, TableShare
from mxtrain.kvstore.world import World
from mxtrain.optimizer import optimizers
from mxtrain.optimizer.spec import RowwiseOptimizer
from mxtrain.parallel.spec import Data
from mxtrain.training import snapshot

ROWWISE = [
    kind for kind in vars(optimizers).values() if getattr(kind, "rowwise", False) and kind is not RowwiseOptimizer
]
SIZES = (8, 5, 1, 8)
pytestmark = pytest.mark.usefixtures("close_table_servers")


@pytest.mark.parametrize("shape", [(5, 3), (70_001, 3), (66_000, 1), (100_000, 16)])
@pytest.mark.parametrize("piece", [64, 1 << 11])
def test_rows_match_mxnets_initializer(shape: Any, piece: int) -> None:
    whole = nd.zeros(shape)
    mx.random.seed(7, ctx=mx.cpu(0))
    mx.init.Normal(0.3)(mx.init.InitDesc("weight"), whole)
    for first in range(3):
        found = normal_rows(7, 0.3, shape, first, 3, piece)
        np.testing.assert_array_equal(found, whole.asnumpy()[first::3])


def served_step(servers: Servers, store: Any = None, **options: Any) -> Any:
    network = options.pop("network", None) or build_network(True, remote_rows=True)
    return build_step(options.pop("spec"), network=network, store=store or ServedStore(servers), **options)


def train(step: Any, ahead: bool = False) -> Dict[str, np.ndarray]:
    given = [batch(number, size) for number, size in enumerate(SIZES, 1)]
    if ahead:
        given = [step.strategy.look_ahead(one) for one in given]
    for number, one in enumerate(given, 1):
        step(one, 0.1 / number, number)
    return values(step)


def assert_equal(found: Dict[str, np.ndarray], wanted: Dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ROWWISE, ids=lambda kind: kind.__name__)
def test_every_optimizer_updates_served_tables_bit_for_bit(kind: Any, lazy: bool) -> None:
    """And they are the dense run's where updates are exact: tests/parallel/test_row_tables.py."""
    spec = kind(wd=0.0 if kind is optimizers.GroupAdaGrad else 0.01)
    networks = [build_network(True), build_network(True, remote_rows=True)]
    if kind is optimizers.GroupAdaGrad:  # matrices only
        for network in networks:
            for name, parameter in network.collect_params().items():
                if name.endswith("bias"):
                    parameter.lr_mult, parameter.grad_req = 0.0, "null"
    wanted = train(build_step(spec, lazy=lazy, network=networks[0]))
    assert_equal(train(served_step(Servers(spec, 2, lazy), spec=spec, lazy=lazy, network=networks[1])), wanted)


@pytest.mark.parametrize("lazy, clip", [(False, None), (True, None), (True, 0.05)])
def test_rows_requested_early_are_updated_before_use(lazy: bool, clip: Any) -> None:
    """All batches are looked ahead at before the first step, and each changes rows of the others."""
    spec, servers = optimizers.Adam(wd=0.01), Servers(optimizers.Adam(wd=0.01), 3, lazy)
    step = served_step(servers, spec=spec, lazy=lazy, clip=clip)
    assert (step.strategy.look_ahead(batch(1)).rows is None) == (not lazy)
    found, wanted = train(step, ahead=True), train(build_step(spec, lazy=lazy, clip=clip))
    if clip is None:
        assert_equal(found, wanted)
        return
    for name, array in wanted.items():  # the norm is summed up in another order
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_several_workers_make_the_bits_of_workers_with_tables_of_their_own(workers: int, lazy: bool) -> None:
    """One of them has no sample of the third batch. Both ways add up in the order of the ranks."""
    spec = optimizers.Adam(wd=0.01)

    def run(build: Any) -> List[Dict[str, np.ndarray]]:
        rendezvous = Rendezvous(workers)

        def work(world: World) -> Any:
            step = build(world, rendezvous)
            train_shares(step, world, SIZES)
            return values(step)

        return rendezvous.run(work)

    servers = Servers(spec, 2, lazy)
    wanted = run(lambda world, meet: build_step(spec, lazy=lazy, store=ThreadStore(world, meet)))
    found = run(lambda world, meet: served_step(servers, ServedStore(servers, world, meet), spec=spec, lazy=lazy))
    assert not servers.raised
    for one in found:
        assert_equal(one, wanted[0])


@pytest.mark.slow
def test_servers_drop_tables_after_all_workers_are_done(monkeypatch: Any) -> None:
    """`verify` trains twice in this way: worker 1 asks for its last gradients late."""
    monkeypatch.setattr("in_threads.PATIENCE_S", 5)
    spec, rendezvous = optimizers.Adam(), Rendezvous(2)
    servers = Servers(spec, 2, True)

    def work(world: World) -> Any:
        store = ServedStore(servers, world, rendezvous)
        step = served_step(servers, store, spec=spec, lazy=True)
        train_shares(step, world, SIZES[:2])
        time.sleep(0.3 * world.rank)
        found = step.strategy.remote.summed_gradients()
        served_step(servers, store, spec=spec, lazy=True)
        return found

    own, other = rendezvous.run(work)
    assert_equal(own, other)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_replicas_and_accumulated_parts_send_one_gradient(parts: int) -> None:
    spec, given = optimizers.Adam(wd=0.01), {"placement": Data(devices="cpu:2"), "parts": parts, "lazy": True}
    assert_equal(train(served_step(Servers(spec, 2, True), spec=spec, **given)), train(build_step(spec, **given)))


def test_no_worker_holds_a_table_and_a_frozen_one_stays() -> None:
    network = build_network(True, remote_rows=True)
    network.first.weight.lr_mult = 0.0
    spec = optimizers.Adam()
    step = served_step(Servers(spec), spec=spec, network=network)
    before = values(step)
    train(step)
    held = [array for one in network.collect_params().values() for array in one.list_data()]
    held += [array for one in step.strategy.reductions for array in one.replicas]
    assert len(held) > 8 and all(len(array) < ROWS for array in held)
    after = values(step)
    np.testing.assert_array_equal(after["first.weight"], before["first.weight"])
    assert (after["second.weight"] != before["second.weight"]).any() and "state first.weight:0" not in after
    assert set(step.strategy.trainable).isdisjoint(TABLES)


def test_predictions_match_a_table_at_the_worker() -> None:
    spec = optimizers.SGD()
    inputs = batch(3, 11).inputs
    found, wanted = (
        build(spec, network=network, store=store, batch_size=2).strategy.predict(inputs)[0].asnumpy()
        for build, network, store in (
            (build_step, build_network(True, remote_rows=True), ServedStore(Servers(spec))),
            (build_step, build_network(True), None),
        )
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("to_servers", [False, True])
def test_a_state_continues_with_and_without_servers(to_servers: bool) -> None:
    """The state has a checkpoint's form: pieces of rows, of tables and of the optimizer."""
    spec = optimizers.Adam(wd=0.01)
    steps = [build_step(spec), served_step(Servers(spec, 3), spec=spec)]
    before, after = steps if to_servers else steps[::-1]
    train(before)
    arrays, numbers = before.states["optimizer"].save_state()
    held = snapshot.held_parameters(before.strategy)
    whole = {
        name: array if isinstance(array, np.ndarray) else np.concatenate(list(array.pieces()))
        for name, array in held.items()
    }
    snapshot.set_parameters(after.strategy, whole, "a test")
    after.states["optimizer"].load_state({n: array[:].asnumpy() for n, array in arrays.items()}, numbers, "a test")
    assert after.states["optimizer"].save_state()[1]["update_counts"] == numbers["update_counts"]
    for step in steps:
        step(batch(9), 0.1, 9)
    assert_equal(values(after), values(before))


def test_an_asynchronous_worker_sees_its_own_updates_and_each_is_applied_at_once() -> None:
    """SGD, so that the order of two workers' updates does not matter."""
    spec = optimizers.SGD(momentum=0.0)
    servers = Servers(spec, 2)
    clients = [servers.client(rank) for rank in range(2)]
    given = {
        "optimizer": spec.model_dump(),
        "workers": 2,
        "waits": False,
        "steps_per_epoch": 1,
        "dtype": "float32",
        "groups": [{"num_rows": 9, "tables": [share("one", 2), share("two", 1)]}],
    }
    for rank, client in enumerate(clients):
        client.set_up(given, is_first=rank == 0)
        client.read_server_notes()
    assert not clients[0].moves_all  # without momentum and decay nothing else does
    own, others = np.array([1, 2, 5]), np.array([2, 8])
    start = clients[0].pull(0, np.arange(9)).row_KS
    pulled = clients[0].pull(0, own, ahead=True)
    clients[0].push(0, own, np.ones((3, 3), np.float32), 0.5, 1.0)
    clients[0].refresh(0, own, pulled)
    np.testing.assert_array_equal(pulled.row_KS, start[own] - np.float32(0.5))
    clients[1].push(0, others, np.full((2, 3), 2, np.float32), 0.5, 0.25)  # 2 * 0.25 * 0.5
    clients[1].synchronize()
    found = clients[0].pull(0, np.arange(9)).row_KS
    np.testing.assert_allclose(
        start - found,
        [[0] * 3, [0.5] * 3, [0.75] * 3, [0] * 3, [0] * 3, [0.5] * 3, [0] * 3, [0] * 3, [0.25] * 3],
        atol=1e-6,
    )
    # A message to each of two servers for what `begin` asks, for two rows of three numbers, and for the wait.
    asked = len(Header(table_wire.OK).pack()) * 2 * 3 + 2 * (4 + 3 * 4)
    assert clients[1].summary()["perf/tables_sent_MB"] == pytest.approx(asked / 1e6)


def share(name: str, units: int) -> Dict[str, Any]:
    return TableShare(name=name, units=units, scale=0.5, seed=3, lr_mult=1.0, wd_mult=1.0).model_dump()


def test_worker_reports_invalid_ids_of_a_batch() -> None:
    spec = optimizers.SGD()
    step = served_step(Servers(spec), spec=spec)
    given = batch(1)
    given.inputs[0][2, 1] = ROWS
    with pytest.raises(DataError, match=f"holds the id {ROWS}, and the table has {ROWS} rows"):
        step(step.strategy.look_ahead(given), 0.1, 1)


def test_a_table_that_became_infinite_is_named() -> None:
    spec = optimizers.SGD()
    step = served_step(Servers(spec), spec=spec)
    assert snapshot.first_nonfinite_parameter(step) == ""
    step.strategy.values["second.weight"][30:31] = np.full((1, 4), np.inf, np.float32)
    assert snapshot.first_nonfinite_parameter(step) == "second.weight"


def test_another_optimizer_than_the_servers_is_refused(monkeypatch: Any) -> None:
    servers = Servers(optimizers.SGD(momentum=0.5))
    monkeypatch.setattr("mxtrain.kvstore.table_client.LOST_WAIT_S", 0.0)
    with pytest.raises(TableServerLost, match="has gone: .*goes on from the last checkpoint"):
        served_step(servers, spec=optimizers.SGD(momentum=0.9))
    assert isinstance(servers.raised[0], ConfigError) and "optimizer.momentum is 0.5 here" in str(servers.raised[0])


@pytest.mark.parametrize(
    "header, payload, said",
    [
        (Header(table_wire.PULL, count=1), np.array([99], "<i4"), "ids that are no rows"),
        (Header(table_wire.PULL, count=2), np.array([3, 3], "<i4"), "not in order"),
        (Header(table_wire.PULL, count=1 << 40), np.zeros(0, "<i4"), "ids of 20 rows"),
        (Header(table_wire.COUNT, count=1 << 40), np.zeros(0, "<i4"), "bytes of JSON"),
        (Header(table_wire.WRITE, count=9, version=15), np.zeros(0, "<i4"), "rows up to 24 of an array of 20"),
    ],
)
def test_server_validates_all_received_numbers(header: Header, payload: np.ndarray, said: str) -> None:
    spec = optimizers.SGD()
    servers = Servers(spec)
    served_step(servers, spec=spec)
    connection = servers.connection(servers.servers[0], 0)
    connection.send(header, payload)
    with pytest.raises(TableServerLost):
        connection.receive()
    assert said in str(servers.raised[0])


def test_connections_without_the_token_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("mxtrain.kvstore.table_wire.HELLO_TIMEOUT_S", 0.2)
    served: List[int] = []
    ends: List[Any] = []

    def serve(connection: Connection, rank: int) -> None:
        served.append(rank)
        connection.send(Header(table_wire.OK))
        connection.close()

    token, (address,) = call_servers(lambda call: ends.append(answer_call(call, serve)), 1)
    for said in (b"\0" * 40, b"GET / HTTP/1.1\r\n\r\n", bytes(32 - len(token)) + token[::-1] + b"\0" * 8):
        with connect(address) as stranger:
            stranger.sendall(said)
            stranger.settimeout(10)
            assert stranger.recv(1) == b""
    friend = Connection(connect(address))
    friend.greet(token, 4)
    assert friend.receive().kind == table_wire.OK and served == [4]
    friend.close()
    ends[0]()


def test_pieces_of_an_array_are_sent_to_their_servers() -> None:
    spec = optimizers.SGD()
    step = served_step(Servers(spec, 3), spec=spec)
    array = step.strategy.values["second.weight"]
    assert isinstance(array, ServedArray) and isinstance(step.strategy.remote.client, TableClient)
    wanted = array.asnumpy()
    for begin, end in ((0, 1), (5, 7), (7, 19), (38, 40)):
        wanted[begin:end] += begin
        array[begin:end] = wanted[begin:end]
        np.testing.assert_array_equal(array[begin:end].asnumpy(), wanted[begin:end])
    np.testing.assert_array_equal(array.asnumpy(), wanted)
