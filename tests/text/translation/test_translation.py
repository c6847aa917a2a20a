"""Translation: batches of as many tokens under every placement, exact weights, what is written, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, Threads
from low_precision import needs_bfloat16

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import samples_per_step
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import World
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.library import train_bpe
from mxtrain.text.translation.parallel import InMemoryPairs
from mxtrain.text.translation.signature import TranslationSignature
from mxtrain.text.translation.task import Translation
from mxtrain.training.build import build_run, build_step
from mxtrain.training.loaders import build_loader, open_data
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_objective
from mxtrain.training.verification import verify

pytestmark = pytest.mark.usefixtures("own_cache")
SMALL = (
    "task=translation",
    "dataset=parallel_text",
    "dataset.tokenizer=characters",
    "dataset.max_length=16",
    "dataset.batch_tokens=48",
    "dataset.eval_batch_size=7",
    "dataset.val_fraction=0.2",
    "trainer.max_epochs=1",
    "task.beam_size=2",
    "task.max_length_offset=2",
    "loss.label_smoothing=0.1",
)
TRANSFORMER = ("model.num_layers=1", "model.units=16", "model.num_heads=2", "model.hidden_size=24")
GNMT = ("model=gnmt", "model.units=12", "dataset=parallel_text")
MODELS = [TRANSFORMER, GNMT]


@pytest.fixture
def pairs(tmp_path: Path) -> Tuple[str]:
    """Words, and the same from behind."""
    rng = np.random.RandomState(0)
    words = ["".join(rng.choice(list("abcde"), rng.randint(1, 13))) for _ in range(60)]
    (tmp_path / "words.en").write_text("".join(f"{word}\n" for word in words))
    (tmp_path / "words.de").write_text("".join(f"{word[::-1]}\n" for word in words))
    return (f"dataset.train={tmp_path}/words",)


@pytest.mark.zoo_except("parallel=pipeline parallel.microbatches=2-transformer")
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=["transformer", "gnmt"])
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data",),
        ("parallel=pipeline", "parallel.microbatches=2"),
        ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2"),
    ],
    ids=" ".join,
)
def test_batches_of_as_many_tokens_are_the_same_under_every_placement(
    describe_run: Any, pairs: Any, model: Any, placement: Any
) -> None:
    """Batches of other sizes and shapes each time, some of fewer pairs than shards."""
    found = verify(describe_run(*SMALL, *model, *pairs, *placement), steps=5, tolerance=1e-6)
    assert found.passed and found.bits, found


@pytest.mark.slow  # a kernel is made for each shape
@needs_bfloat16
def test_bfloat16_is_the_same_under_a_placement(describe_run: Any, pairs: Any) -> None:
    words = ("model.num_layers=1", "model.units=32", "model.num_heads=2", "amp=bfloat16", "parallel=data")
    found = verify(describe_run(*SMALL, *words, *pairs), steps=3, tolerance=1e-6)
    assert found.passed and found.low is not None, found


@pytest.mark.slow
def test_the_loss_is_the_mean_over_the_tokens_of_the_batch(describe_run: Any, pairs: Any) -> None:
    """Gradients and sums of two replicas are those of the whole batch, token by token, not the mean of two means."""
    description = describe_run(*SMALL, *TRANSFORMER, *pairs, "parallel=data", "optimizer=sgd", "lr_scheduler=constant")
    splits, signature = open_data(description)
    device = mx.cpu(0)
    batches = list(
        build_loader(
            description, splits.train, signature, device, train=True, batch_size=samples_per_step(description.dataset)
        ).epoch()
    )
    counts = [(batch.targets[0].asnumpy() >= 0).sum(1) for batch in batches]
    number = next(n for n, count_B in enumerate(counts) if len(set(count_B.tolist())) > 1 and len(count_B) > 2)
    batch, count = batches[number], int(counts[number].sum())
    network = build_network(description, signature, device)
    own, mean = (array.asnumpy().astype(np.float64) for array in network(*batch.inputs))
    wanted = (0.9 * own + 0.1 * mean).sum() / count
    before = {name: p.data().asnumpy() for name, p in network._collect_params_with_prefix().items()}
    objective = build_objective(description, network, signature)
    strategy = description.parallel.build(objective, 1)
    step = build_step(description, network, signature, 1, strategy, description.kvstore.build())
    sums = step(batch, 1.0, 1).asnumpy()
    assert sums[1] == count and sums[0] / sums[1] == pytest.approx(wanted, rel=1e-5)
    # Along the gradient that the step went, the loss of the whole batch changes by its squared length.
    after = {name: value.asnumpy() for name, value in strategy.values.items()}
    moved = {name: after[name].astype(np.float64) - value for name, value in before.items()}
    squared = sum(float((one**2).sum()) for one in moved.values())

    def loss_at(share: float) -> float:
        strategy.gather()
        for name, parameter in network._collect_params_with_prefix().items():
            parameter.set_data(nd.array(before[name] + share * moved[name]))
        own, mean = (array.asnumpy().astype(np.float64) for array in network(*batch.inputs))
        return float((0.9 * own + 0.1 * mean).sum() / count)

    slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
    assert slope == pytest.approx(-squared, rel=2e-2)


@pytest.mark.slow
def test_two_workers_train_as_one(
    describe_run: Any, train_run: Any, pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one and two pairs of a batch for each, and none for one of them."""
    words = (*SMALL, *TRANSFORMER, *pairs, "optimizer=sgd", "optimizer.lr=0.1", "dataset.batch_tokens=16")
    alone = train_run(*words)[1]
    monkeypatch.setattr(Threads, "rendezvous", Rendezvous(2), raising=False)
    description = describe_run("logger=[]", *words, "kvstore._target_=in_threads.Threads")

    def work(world: World) -> Any:
        made = build_run(description, tmp_path / "shared", world=world)
        return made.runner.train(made.info)

    for found in Threads.rendezvous.run(work):
        assert found.step == alone.step > 20
    assert found.metrics["val/loss"] == pytest.approx(alone.metrics["val/loss"], rel=1e-4)


@pytest.mark.zoo_cases("gnmt")
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=["transformer", "gnmt"])
def test_a_run_is_stopped_in_an_epoch_and_continues_with_the_same_bits(
    train_run: Any, pairs: Any, tmp_path: Path, model: Any
) -> None:
    words = (*SMALL, *model, *pairs, "trainer.max_epochs=2", "model.dropout=0.2")
    whole = train_run(*words, run_dir=tmp_path / "whole")[1]
    assert train_run(*words, "trainer.max_steps=4", run_dir=tmp_path / "parts")[1].step == 4 < whole.step
    rest = train_run(*words, run_dir=tmp_path / "parts")[1]
    assert rest.step == whole.step and rest.weights_sha256 == whole.weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, pytest.param(True, marks=pytest.mark.zoo)])
def test_a_run_is_measured_and_translates(
    train_run: Any, pairs: Any, tmp_path: Path, capsys: Any, separate: bool
) -> None:
    words = (*SMALL, *TRANSFORMER, *pairs, f"dataset.joint_vocabulary={str(not separate).lower()}")
    made, result = train_run(*words)
    assert result.exit_code == 0
    metrics = result.metrics
    assert metrics["val/perplexity"] == pytest.approx(math.exp(metrics["val/loss"]), rel=1e-6), "without smoothing"
    signatures = made.info.metric_signatures
    assert signatures["perplexity"].startswith("vocabulary=characters,")
    assert run(["eval", str(tmp_path / "run"), "split=val", "task.beam_size=1"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    measured = json.loads((folder / "metrics.json").read_text())
    for name in ("bleu", "sentence_accuracy", "perplexity"):
        assert measured[name] == pytest.approx(metrics[f"val/{name}"], rel=1e-5)
    header, *rows = csv.reader((folder / "translations.csv").read_text().splitlines())
    assert header == ["translation is", "count"] and sum(int(row[1]) for row in rows) == measured["samples"] == 12
    assert int(rows[0][1]) / 12 == pytest.approx(measured["sentence_accuracy"])
    source = tmp_path / "to_translate.txt"
    source.write_text(f"abc\n\n{'ab' * 20}\n")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(source), "task.num_best=2"]) == 0
    first, empty, cut = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["file"] == f"{source}:1" and first["source"] == "abc" and len(first["others"]) == 1
    assert empty["translation"] == "" and empty["file"] == f"{source}:2"
    assert cut["is_cut"] and "is_cut" not in first
    assert run(["predict", str(tmp_path / "run"), str(source), "format=text"]) == 0
    assert capsys.readouterr().out.split("\n") == [first["translation"], "", cut["translation"], ""]
    source.write_text("")
    for words, said in (
        ([str(source)], "there is nothing in these files"),
        (["-"], "predict reads files, not standard input"),
        ([str(source), "dataset.vocab_size=900"], "dataset.vocab_size: how texts become tokens"),
    ):
        assert run(["predict", str(tmp_path / "run"), *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_only_the_end_token_is_generated(describe_run: Any, pairs: Any) -> None:
    description = describe_run(*SMALL, *TRANSFORMER, *pairs)
    _, signature = open_data(description)
    network = build_network(description, signature, mx.cpu(0))
    strategy = description.parallel.build(build_objective(description, network, signature), 1)
    searching = description.task.build_decode(description, signature, strategy)
    special = signature.target_tokenizer_config.tokenizer.special
    assert (searching.beam.bos, searching.beam.eos) == (special.bos, special.eos)
    assert {*searching.beam.never} == {*special.ids} - {special.eos} >= {special.pad, special.bos, special.unknown}


def test_source_is_cut_by_tokens() -> None:
    config = TokenizerConfig(train_bpe(["abc"], 300, False, False), 16)
    signature = TranslationSignature(((16,), (), (16,), (16,)), tokenizer_config=config, target_tokenizer_config=config)
    sources = InMemoryPairs([("abcabc", None), ("\u7ffb\u8bd1\u7ffb\u8bd1\u7ffb\u8bd1", None)])
    found = Translation().prediction_format().rows(signature, sources, enumerate([np.array([[-1.0, -1]])] * 2), 1)
    assert [row.get("is_cut", False) for _, row in found] == [False, True], "18 bytes in UTF-8"


@pytest.mark.slow
def test_examples_are_shown_beside_their_references(train_run: Any, pairs: Any) -> None:
    made, _ = train_run(*SMALL, *TRANSFORMER, *pairs, "trainer.limit_train_batches=1")
    (table,) = made.runner.context.data.samples.artifacts(made.runner.context.evaluator)
    assert list(table.header) == ["source", "reference", "translation"] and len(table.rows) == 12
    assert all(reference == source[::-1] for source, reference, _ in table.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (("model.tied=all", "dataset.joint_vocabulary=false"), "model.tied=target, or dataset.joint_vocabulary=true."),
        (("loss=token_cross_entropy",), "Type loss=label_smoothed_cross_entropy."),
        (("loss._target_=mxnet.gluon.loss.L2Loss",), "Type loss=label_smoothed_cross_entropy."),
        (("model=gpt", "dataset=number_and_date_phrases"), "task=translation and the model Gpt do not fit"),
        (("metric=[accuracy]", "trainer.monitor=val/accuracy"), "Type metric=[bleu]."),
        (("dataset.batch_tokens=10",), "batch_tokens=10 has no room"),
        (("dataset.sampler=balanced",), "Type dataset.sampler=shuffle."),
    ],
)
def test_wrong_settings_are_refused(describe_run: Any, words: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run("task=translation", *words)
    assert said in str(refused.value)


@pytest.mark.slow
def test_shards_of_a_batch_of_tokens_need_not_be_equal(describe_run: Any) -> None:
    """Shards of a batch of pairs must be equal."""
    words = ("task=translation", "parallel=pipeline", "parallel.microbatches=4", "dataset.batch_size=30")
    assert describe_run(*words).dataset.batch_unit == ("batch_tokens", 1000)
    with pytest.raises(ConfigError, match="microbatches must be equal"):
        describe_run(*words, "dataset.batch_tokens=null")


@pytest.mark.slow
def test_the_rate_of_a_reference_batch_is_scaled_by_tokens(describe_run: Any) -> None:
    description = describe_run("task=translation", "trainer.reference_batch_size=4000", "optimizer.lr=0.004")
    assert description.rates.lr == pytest.approx(0.002), "Adam's by the square root"
