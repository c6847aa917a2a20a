"""Summarization: documents are cut, lengths of both sides differ, tables are read, and a run summarizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recognised import recognised

from mxtrain.cli.dispatch import run
from mxtrain.data.recognition import FileTree
from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError
from mxtrain.files.json_form import problems_of
from mxtrain.text.summarization.match_reports import MatchReports, report
from mxtrain.text.summarization.summary_text import SummaryText
from mxtrain.text.translation.signature import TranslationSignature

pytestmark = pytest.mark.usefixtures("own_cache")
SMALL = (
    "task=summarization",
    "dataset.max_length=24",
    "dataset.max_summary_length=12",
    "model.units=16",
    "model.hidden_size=16",
    "model.num_heads=2",
    "model.num_layers=1",
)


def write_pairs(path: Path, count: int = 30) -> Path:
    rows = [
        {"id": number, "article": f"first {number} second third {'more ' * 40}end", "highlights": f"short {number}"}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words_dataset(path: Path, **settings: Any) -> SummaryText:
    given = {"max_length": 10, "max_summary_length": 8, "tokenizer": "words", "vocab_size": 100, **settings}
    return SummaryText(train=str(path), source="article", target="highlights", batch_tokens=None, **given)


def test_documents_are_cut_at_their_end_and_kept_in_training(tmp_path: Path) -> None:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.engine.backend import mx
    from mxtrain.text.translation.transformer import Transformer

    dataset = words_dataset(write_pairs(tmp_path / "train.jsonl"))
    splits = open_splits(dataset)
    signature = dataset.infer_signature(splits, Transformer())
    assert signature.shape == ((10,), (), (8,), (8,))
    assert "longer ones of train are cut" in dataset.remark(signature, splits)
    options = LoaderOptions(batch_size=4, device=mx.cpu(), train=True, seed=0)
    loader = dataset.build_loader(splits.train, signature, options)
    assert loader.num_samples == len(splits.train)
    batch = next(iter(loader.epoch(0)))
    source_BS, length_B, token_BT, label_BT = (array.asnumpy() for array in batch.inputs)
    assert source_BS.shape == (4, 10) and (length_B == 10).all() and token_BT.shape == label_BT.shape == (4, 3)
    text = TranslationSignature.cast(signature).tokenizer_config.decode(source_BS[0])
    assert text.startswith("first ") and text.endswith("more <eos>") and len(text.split()) == 10


def test_checkpoint_keeps_the_length_of_summaries(tmp_path: Path) -> None:
    from mxtrain.text.translation.transformer import Transformer

    dataset = words_dataset(write_pairs(tmp_path / "train.jsonl"))
    signature = TranslationSignature.cast(dataset.infer_signature(open_splits(dataset), Transformer()))
    values = json.loads(json.dumps(signature.to_json()))
    assert signature.is_joint and values["target_max_length"] == 8
    assert not list(problems_of(values, TranslationSignature.form))
    restored = TranslationSignature.from_json(values)
    assert (
        restored.target_tokenizer_config == signature.target_tokenizer_config
        and json.loads(json.dumps(restored.to_json())) == values
    )
    del values["target_max_length"]
    assert TranslationSignature.from_json(values).target_tokenizer_config.max_length == 10


def test_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match="train.jsonl.*'document'"):
        open_splits(SummaryText(train=str(path)))
    path.write_text('{"article": "a b", "highlights": null}\n')
    with pytest.raises(DataError, match="line 1: 'highlights' is null, which is no text"):
        open_splits(words_dataset(path))
    path.write_text("")
    with pytest.raises(DataError, match="train.jsonl"):
        open_splits(words_dataset(path))


def test_data_check_lists_texts_that_are_cut(tmp_path: Path, capsys: Any) -> None:
    path = write_pairs(tmp_path / "train.jsonl")
    words = ["task=summarization", "dataset=summary_text", f"dataset.train={path}", "dataset.tokenizer=words"]
    words += ["dataset.source=article", "dataset.target=highlights", "dataset.max_length=10"]
    assert run(["data", "check", *words, "dataset.batch_tokens=null"]) == 2
    said = capsys.readouterr().out
    assert "train.jsonl, line 1: the source has 46 tokens, and dataset.max_length=10." in said
    assert "It is cut at its end." in said


@pytest.mark.parametrize("names", [("document", "summary"), ("article", "highlights"), ("dialogue", "summary")])
def test_tables_of_known_columns_are_recognised(tmp_path: Path, names: Any) -> None:
    (tmp_path / "train.csv").write_text(f"id,{names[0]},{names[1]}\n1,a long text,short\n")
    form, overrides = recognised(SummaryText, tmp_path, "summary_text")
    assert form == "documents with summaries"
    assert f"dataset.source={names[0]} dataset.target={names[1]}" in overrides and "train.csv" in overrides
    (tmp_path / "train.csv").write_text("id,text,label\n1,a long text,short\n")
    assert SummaryText.recognise(FileTree(tmp_path)) is None


def test_summaries_of_reports_follow_from_them() -> None:
    splits = open_splits(MatchReports(num_train=200, num_val=20, num_test=20))
    pairs = [pair for split in (splits.train, splits.val, splits.test) for pair in split.pairs]
    assert len({document for document, _ in pairs}) == 240
    goals = ("into the net", "scored in minute", "went in .")
    for document, summary in pairs:
        sentences = [f"{sentence} ." for sentence in document[:-2].split(" . ")]
        count = sum(any(words in sentence for words in goals) for sentence in sentences)
        assert summary.count("scored") == count and ("no goals ." in summary) == (not count)
        minutes = [int(word) for word in summary.split() if word.isdigit()]
        assert minutes == sorted(minutes) and all(f"minute {minute}" in document for minute in minutes)
        home, _, away = document.split()[:3]
        assert summary.split()[0] == home and summary.split()[2] == away != home
    assert {summary.split()[1] for _, summary in pairs} == {"against", "and"}
    assert report([0] * 40) == report([0] * 24)


@pytest.mark.slow
def test_a_run_summarizes_files(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    small = ("dataset.num_train=64", "dataset.num_val=8", "dataset.num_test=8", "trainer.max_epochs=1")
    made, result = train_run(*SMALL, *small)
    assert result.exit_code == 0 and 0 <= result.metrics["val/rouge_l"] <= 1
    assert made.info.metric_signatures["rouge_l"] == "rougeL|F1|stem:no|tok:latin|decoding:greedy"
    document = "Oslo met Riga . Anna scored in minute 7 after a long pass ."
    (tmp_path / "new.txt").write_text(document + "\n")
    (tmp_path / "new.jsonl").write_text(json.dumps({"document": document, "title": "x"}) + "\n")
    rows = []
    for name in ("new.txt", "new.jsonl"):
        capsys.readouterr()
        assert run(["predict", str(tmp_path / "run"), str(tmp_path / name)]) == 0
        rows.append(json.loads(capsys.readouterr().out))
    assert rows[0]["summary"] == rows[1]["summary"] and rows[0]["source"] == document
    assert [row["file"] for row in rows] == [f"{tmp_path}/new.txt:1", f"{tmp_path}/new.jsonl:1"]
    assert run(["eval", str(tmp_path / "run"), "split=test"]) == 0
    assert (tmp_path / "run" / "eval" / "test" / "summaries.csv").is_file()
    assert np.isfinite(json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())["rouge_2"])


def test_pattern_names_all_tables_of_a_split(tmp_path: Path) -> None:
    for number in (1, 0):
        row = {"article": f"document {number} here", "highlights": f"short {number}"}
        (tmp_path / f"train-0000{number}-of-00002.jsonl").write_text((json.dumps(row) + "\n") * 20)
    pattern = tmp_path / "train-*-of-*.jsonl"
    splits = open_splits(words_dataset(pattern, val_fraction=0.1))
    pairs = [pair for split in (splits.train, splits.val, splits.test) if split is not None for pair in split.pairs]
    assert len(pairs) == 40 and {summary for _, summary in pairs} == {"short 0", "short 1"}
    with pytest.raises(DataError, match="test-.*no file matches.*holds train-00000-of-00002.jsonl, train-00001"):
        open_splits(words_dataset(pattern, test=str(tmp_path / "test-*.jsonl")))
    # Brackets are characters of a name that exists.
    odd = write_pairs(tmp_path / "odd[1].jsonl")
    assert open_splits(words_dataset(odd)).train.pairs
