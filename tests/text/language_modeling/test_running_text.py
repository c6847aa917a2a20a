"""Running text: how files become records and tokens, windows of batches, and prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.errors import DataError
from mxtrain.kvstore.world import World
from mxtrain.text import python_documentation
from mxtrain.text.language_modeling import running_text
from mxtrain.text.language_modeling.running_loader import IGNORED_LABEL, PromptLoader, RunningLoader
from mxtrain.text.language_modeling.running_text import InMemoryTexts, RunningText, TextLayout, read_running_text
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.plain import train_characters, train_words

pytestmark = pytest.mark.usefixtures("own_cache")


def characters(*texts: str) -> TokenizerConfig:
    return TokenizerConfig(train_characters(texts, 200, False), 8)


def shown(config: TokenizerConfig, token_N: np.ndarray) -> str:
    return "".join(config.tokenizer.piece(token) for token in token_N.tolist())


def test_documents_keep_their_white_space_and_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_text, "PIECE_CHARACTERS", 10)
    monkeypatch.setattr(running_text, "MIN_PIECES", 1)
    texts = ["a  b\n\n\tc of some length\n\nthe\n  rest", "another file\n"]
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file, text in zip(files, texts):
        file.write_text(text)
    config = characters(*texts)
    found = read_running_text(files, TextLayout(), STRICT)
    assert len(found) == 3, "the first file is cut at an empty line"
    whole = found.encode(config)
    assert shown(config, whole.token_N) == f"{texts[0]}<eos>{texts[1]}<eos>"
    assert whole.num_bytes == sum(map(len, texts))
    last = found.part(2, 3).encode(config)
    assert shown(config, last.token_N) == f"{texts[1]}<eos>" and last.num_bytes == len(texts[1])


@pytest.mark.parametrize(
    "keeps_empty, wanted", [(False, "a <unk> <eos> b <eos>"), (True, "a <unk> <eos> <eos> b <eos>")]
)
def test_each_line_ends_in_eos_as_in_ptb(tmp_path: Path, keeps_empty: bool, wanted: str) -> None:
    file = tmp_path / "wiki.train.tokens"
    file.write_text(" a <unk> \n \n b \n")
    config = TokenizerConfig(train_words(["a b"], 100, False), 8)
    whole = read_running_text([file], TextLayout(True, keeps_empty), STRICT).encode(config)
    assert config.tokenizer.decode(whole.token_N.tolist(), with_special=True) == wanted


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_each_row_is_a_document_that_ends_in_eos(tmp_path: Path, ending: str) -> None:
    rows = [{"text": "a b\n\nc", "n": 1}, {"text": " ", "n": 2}, {"text": "d", "n": 3}]
    file = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), file)
    config = characters("a b\n\ncd")
    found = read_running_text([file], TextLayout(), STRICT)
    assert shown(config, found.encode(config).token_N) == "a b\n\nc<eos>d<eos>" and len(found) == 2
    assert str(found.checks().location(1)) == (f"{file}, line 3" if ending == "jsonl" else f"record 2 of '{file}'")
    words = TokenizerConfig(train_words(["a b c d"], 100, False), 16)
    for keeps_empty, wanted in ((False, "a b <eos> c <eos> d <eos>"), (True, "a b <eos> <eos> c <eos> <eos> d <eos>")):
        token_N = read_running_text([file], TextLayout(True, keeps_empty), STRICT).encode(words).token_N
        assert " ".join(words.tokenizer.vocab[token] for token in token_N) == wanted
    assert (
        shown(config, read_running_text([file], TextLayout(), STRICT, "n").encode(config).token_N).count("<eos>") == 3
    )
    with pytest.raises(DataError, match="there is no column 'body'"):
        read_running_text([file], TextLayout(), STRICT, "body")
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(DataError, match="has a document per row, and .*b.txt is one document"):
        read_running_text([file, tmp_path / "b.txt"], TextLayout(), STRICT)
    file = file.with_name("c.jsonl")
    file.write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="c.jsonl: there is no text in 'text'"):
        read_running_text([file], TextLayout(), STRICT)


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(DataError, match="there is no text"):
        read_running_text([tmp_path / "a.txt"], TextLayout(), STRICT)


def loader(count: int = 50, **options: Any) -> RunningLoader:
    own = {name: options.pop(name, default) for name, default in (("length", 4), ("continues_previous", True))}
    settings = LoaderOptions(**{"batch_size": 3, "prefetch": 0, **options})
    return RunningLoader(RunningText(np.arange(count, dtype=np.uint16), 2 * (count - 1)), settings, **own)


def labels_of(found: RunningLoader, epoch: int = 0) -> List[List[int]]:
    return [batch.targets[0].asnumpy().astype(int).tolist() for batch in found.epoch(epoch)]


@pytest.mark.parametrize("continues_previous", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("count", [50, 49, 13, 4, 2])
def test_each_token_but_the_first_is_predicted_once_from_the_one_before(
    continues_previous: bool, train: bool, count: int
) -> None:
    found, seen = loader(count, continues_previous=continues_previous, train=train), []
    total = 0.0
    for batch in found.epoch(1):
        token_BT, (label_BT, bytes_B) = batch.inputs[0].asnumpy(), (one.asnumpy() for one in batch.targets)
        assert np.array_equal(label_BT, batch.inputs[1].asnumpy())
        counts = label_BT != IGNORED_LABEL
        assert (token_BT[counts] + 1 == label_BT[counts]).all()
        seen += label_BT[counts].astype(int).tolist()
        total += float(bytes_B.sum())
    assert sorted(seen) == list(range(1, count))
    assert total == pytest.approx(2 * (count - 1))


def test_rows_continue_at_their_last_token() -> None:
    found = loader(50)
    batches = list(found.epoch(0))
    assert [batch.continues_previous for batch in batches] == [False, *[True] * (len(batches) - 1)]
    for before, after in zip(batches, batches[1:]):
        ended_B, begins_B = before.targets[0].asnumpy()[:, -1], after.inputs[0].asnumpy()[:, 0]
        has_more_B = after.targets[0].asnumpy()[:, 0] != IGNORED_LABEL
        assert has_more_B.any() and (begins_B == ended_B)[has_more_B].all()
    assert not any(batch.continues_previous for batch in loader(50, continues_previous=False).epoch(0))


def test_epoch_starts_at_any_batch_and_epochs_differ() -> None:
    found = loader(50, train=True)
    whole = labels_of(found, 3)
    rest = list(found.epoch(3, start=2))
    assert [batch.targets[0].asnumpy().astype(int).tolist() for batch in rest] == whole[2:]
    assert rest[0].continues_previous
    assert labels_of(found, 3) == whole and labels_of(found, 4) != whole
    assert labels_of(loader(50, train=True, seed=1), 3) != whole
    assert labels_of(loader(50), 3) == labels_of(loader(50), 4)


def test_workers_have_the_rows_of_their_share() -> None:
    whole = labels_of(loader(50, train=True))
    parts = [labels_of(loader(50, train=True, world=World(rank, 2))) for rank in range(2)]
    assert [first + second for first, second in zip(*parts)] == whole


def test_less_than_two_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="at least 2 are needed"):
        loader(1)


def test_prompts_are_the_ends_of_texts_and_those_of_a_split_their_beginnings() -> None:
    config = characters("abcdefghijklmnopqrstuvwxyz")
    source = InMemoryTexts(["abcdefghijkl", "xyz"])
    (batch,) = PromptLoader(source.prompts(config), LoaderOptions(batch_size=4, prefetch=0), length=8).epoch(0)
    rows = [shown(config, row[:count]) for row, (count,) in zip(batch.inputs[0].asnumpy(), batch.meta)]
    assert rows == ["efghijkl", "xyz"]
    assert (batch.targets[0].asnumpy() == IGNORED_LABEL).all()
    split = InMemoryTexts(["abcdefghijklmnopqrstuvwxyz", "x", "yz"]).take([0, 2, 9])
    found = split.prompts(config)
    assert found.length.tolist() == [running_text.SHOWN_TOKENS, 2]
    assert shown(config, found.value) == "abcdefghijklmnopyz"


def test_no_two_documents_of_python_share_a_text() -> None:
    found = python_documentation.documents()
    texts = [text for own in found.values() for text in own]
    assert len(texts) == len(set(texts)) and sum(map(len, texts)) > 1_000_000
    assert any("Counter" in text for text in found["collections/__init__.py"])
    topics = python_documentation.topics()
    assert len(found) == 651 and len(topics) == 79 and list(topics) == sorted(topics)
    assert found["help('with')"] == [topics["with"].strip("\n") + "\n"]
