"""Times of the engine are added up correctly, also in a real run."""

import json

import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.engine.limits import Effort
from mxtrain.engine.trace import EngineTrace, Operation, parse_dump
from mxtrain.parallel.layout import Cut, Layout, StageCost
from mxtrain.parallel.schedule import timetable
from mxtrain.parallel.usage import COMPUTE, EXCHANGE, UPDATE, chrome_trace, kind_of, measure_usage


def operation(device, name, begin_ms, end_ms):
    return Operation(f"cpu({device})", name, begin_ms / 1000, end_ms / 1000)


def two_stages():
    stage = StageCost("a", "b", forward_s=0.001, backward_s=0.002, held=1, parameter_bytes=0, activation_bytes=0)
    return Cut([1], ["b"], [stage, stage], timetable("gpipe", 2, [1.0, 1.0], [2.0, 2.0]))


@pytest.mark.parametrize(
    "name, kind",
    [
        ("ImperativeBulk", COMPUTE),
        ("Convolution", COMPUTE),
        ("adam_update", UPDATE),
        ("multi_sgd_update", UPDATE),
        ("_mxtrain_adamw", UPDATE),
        ("_mxtrain_sgd", UPDATE),
        ("CopyCPU2CPU", EXCHANGE),
        ("CopyGPU2GPU", EXCHANGE),
        ("KVStoreReduce", EXCHANGE),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind


def test_shares_of_a_replica_and_two_stages():
    """Two steps of 10 ms each; the second device begins late and its operations overlap."""
    layout = Layout([[mx.cpu(0), mx.cpu(1)]], num_microbatches=2, num_parts=1, cut=two_stages())
    ran = [
        operation(0, "ImperativeBulk", 0, 12),
        operation(0, "adam_update", 12, 14),
        operation(0, "CopyCPU2CPU", 19, 20),
        operation(1, "CopyCPU2CPU", 5, 7),
        operation(1, "ImperativeBulk", 6, 10),
        operation(1, "Convolution", 8, 11),
        operation(1, "KVStoreReduce", 18, 19),
    ]
    usage = measure_usage(layout, ran, first_step=11, sizes=[30, 10])
    first, second = usage.devices
    assert (first.compute, first.update, first.exchange, first.waiting) == pytest.approx((0.6, 0.1, 0.05, 0.25))
    assert (second.compute, second.update, second.exchange, second.waiting) == pytest.approx((0.25, 0, 0.15, 0.65))
    assert first.microbatch_s == pytest.approx(0.013 / 4) and second.microbatch_s == pytest.approx(0.006 / 4)
    assert first.samples_per_s == second.samples_per_s == pytest.approx(40 / 0.020)
    assert usage.bubble == pytest.approx(0.45)
    scalars = usage.scalars()
    assert scalars["perf/bubble"] == pytest.approx(0.45) and scalars["perf/exchange"] == pytest.approx(0.1)
    assert scalars["perf/cpu1/busy"] == pytest.approx(0.35)


def test_replicas_share_the_samples():
    layout = Layout([[mx.cpu(0)], [mx.cpu(1)], [mx.cpu(2)]])
    usage = measure_usage(layout, [operation(0, "x", 0, 1000)], first_step=1, sizes=[8])
    assert [use.samples_per_s for use in usage.devices] == [3, 3, 2]
    assert [use.waiting for use in usage.devices] == [0, 1, 1]
    assert measure_usage(layout, [], first_step=1, sizes=[8]) is None


def test_the_timeline_has_a_process_per_device_and_no_overlap_on_a_line():
    layout = Layout([[mx.cpu(0), mx.cpu(1)]])
    ran = [
        operation(0, "a", 5, 9),
        operation(0, "b", 6, 7),
        operation(0, "c", 9, 10),
        operation(1, "adam_update", 5, 6),
    ]
    events = chrome_trace(layout, ran)["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == [
        "cpu(0): replica 0, stage 0",
        "cpu(1): replica 0, stage 1",
    ]
    found = {e["name"]: (e["pid"], e["tid"], e["ts"], e["dur"], e["cat"]) for e in events if e["ph"] == "X"}
    assert found == {
        "a": (0, 0, 0, 4000, "compute"),
        "b": (0, 1, 1000, 1000, "compute"),
        "c": (0, 0, 4000, 1000, "compute"),
        "adam_update": (1, 0, 0, 1000, "update"),
    }


def test_the_engine_can_be_looked_at_again_and_again():
    """Each look sees its own operations, and those of the devices that were asked for."""
    for size in (4, 5):
        data = nd.ones((size, size), ctx=mx.cpu(1))
        trace = EngineTrace()
        trace.start()
        for _ in range(size):
            nd.dot(data, data)
        data.as_in_context(mx.cpu(0))
        found = trace.stop([mx.cpu(1)])
        names = [o.name for o in found]
        assert names.count("dot") == size and {o.device for o in found} == {"cpu(1)"}
        assert all(o.begin_s <= o.end_s for o in found)


def test_a_dump_that_is_cut_off_is_refused():
    with pytest.raises(ValueError, match="not readable"):
        parse_dump('{\n    "traceEvents": [\n {"ph": "B", "na')
    assert parse_dump(',\n\n {"ph": "B"}\n,\n {"ph": "E"}\n') == [{"ph": "B"}, {"ph": "E"}]


@pytest.mark.slow
@pytest.mark.parametrize("num_steps, written", [(5, True), (4, False)])
def test_a_short_run_writes_a_timeline(tmp_path, capsys, monkeypatch, num_steps, written):
    from mxtrain.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mxtrain.engine.limits.THOROUGH", Effort(64, 1 << 16, 1, 1))
    run_dir = tmp_path / "run"
    settings = ["model=mlp", "trainer.profile=true", "debug=fast", f"trainer.limit_train_batches={num_steps}"]
    assert main([f"hydra.run.dir={run_dir}", *settings]) == 0
    shown = capsys.readouterr()
    assert (run_dir / "timeline.json").exists() is written
    assert ("operators in steps 2 to 4" in shown.out) is written
    assert ("no timeline was written: it takes 5 steps" in shown.out + shown.err) is not written


@pytest.mark.slow
def test_a_hybrid_run_measures_itself(tmp_path, capsys, monkeypatch):
    """About ten seconds: the table on the console, the scalars in TensorBoard's file and the timeline."""
    from mxtrain.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mxtrain.engine.limits.THOROUGH", Effort(512, 1 << 22, 4, 5))  # see test_operator_times.py
    monkeypatch.setattr("mxtrain.parallel.operator_times.SHOWN", 100)  # which are the longest varies on a busy machine
    run_dir = tmp_path / "run"
    code = main(
        [
            f"hydra.run.dir={run_dir}",
            "parallel=hybrid",
            "model=mlp",
            "trainer.max_epochs=1",
            "trainer.profile=true",
            "dataset.batch_size=64",
            "trainer.test=false",
        ]
    )
    assert code == 0
    shown = capsys.readouterr().out
    assert "measured in steps 11 to 13: devices wait" in shown and "(expected:" in shown
    assert "operators in steps 11 to 13; measured limits of a device" in shown and "_backward_FullyConnected" in shown
    timeline = json.loads((run_dir / "timeline.json").read_text())
    assert {e["pid"] for e in timeline["traceEvents"] if e["ph"] == "X"} == {0, 1, 2, 3}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir))
    events.Reload()
    tags = {tag for tag in events.Tags()["scalars"] if tag.startswith("perf/")}
    assert {"perf/bubble", "perf/exchange", "perf/cpu3/samples_per_s", "perf/cpu3/busy"} <= tags
    assert 0 < events.Scalars("operator_limit/FullyConnected")[0].value < 2
    assert events.Scalars("operator_ms/FullyConnected")[0].value > 0
    assert events.Scalars("perf/bubble")[0].step == 13
    assert 0 <= events.Scalars("perf/bubble")[0].value <= 1


def test_a_trace_that_did_not_start_is_not_stopped(monkeypatch) -> None:
    """Waiting for the engine raises the error of an earlier step, which must stay the cause of the failure."""
    from mxtrain.engine.trace import EngineTrace
    from mxtrain.parallel.layout import Layout
    from mxtrain.training.profiling import Computation, Profiling
    from mxtrain.types import Batch

    def fails(self, *devices):
        raise RuntimeError("the error of a step")

    layout = Layout([[mx.cpu(0)], [mx.cpu(1)]])
    profiling = Profiling(layout, Computation(None, "float32", ()), None, print, 100)
    profiling._next = 0
    monkeypatch.setattr(EngineTrace, "start", fails)
    with pytest.raises(RuntimeError, match="the error of a step"):
        profiling.before_step(1, Batch((), (), 0))
    monkeypatch.setattr(EngineTrace, "stop", fails)
    profiling.discard()
