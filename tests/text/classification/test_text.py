"""Texts as samples: files, vocabularies, order and masks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pydantic
import pytest

from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.loading.sized import order_by_length
from mxtrain.data.table.columns import read_columns
from mxtrain.errors import DataError
from mxtrain.kvstore.world import World
from mxtrain.text.classification.glue import LAYOUTS, Glue
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.sources import LabelledTexts, mask_tokens
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece, read_vocab

pytest.importorskip("tokenizers")
WORDS = ["the", "cat", "sat", "on", "mat", "##s", "dog", "ran", ".", "?"]
TOKENIZER = TokenizerConfig(WordPiece((*SPECIAL, *WORDS), lowercase=True), max_length=12)
VOCAB = TOKENIZER.tokenizer.vocab


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sample(*texts):
    """Tokens and token types of a sample of one text or two."""
    first, second = (*texts, None)[:2]
    token_1T, kind_1T, length_1 = LabelledTexts([(first, second)]).encode(TOKENIZER).padded(np.array([0]), 12)
    return token_1T[0, : length_1[0]].tolist(), kind_1T[0, : length_1[0]].tolist()


def test_tokens_equal_bert_tokenizer():
    one, kinds = sample("The cats SAT.")
    pair, pair_kinds = sample("the cat", "a dog")
    assert [VOCAB[t] for t in one] == ["[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]"] and set(kinds) == {0}
    assert [VOCAB[t] for t in pair] == ["[CLS]", "the", "cat", "[SEP]", "[UNK]", "dog", "[SEP]"]
    assert pair_kinds == [0, 0, 0, 0, 1, 1, 1]
    long, _ = sample("the cat " * 9, "on mat")
    assert len(long) == 12 and TOKENIZER.decode(long).endswith("[SEP] on mat [SEP]")  # the longer one is cut


@pytest.mark.slow
def test_a_trained_vocabulary_is_the_same_in_every_process():
    program = (
        "from mxtrain.text.classification.text import Text; import hashlib\n"
        "print(hashlib.sha256(repr(Text(vocab_size=600).open().build_tokenizer_config().tokenizer.vocab).encode()).hexdigest())"
    )

    def digest(folder: str) -> str:
        environment = {"XDG_CACHE_HOME": folder, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert digest("/dev/null/a") == digest("/dev/null/b")  # nothing can be kept there


def test_vocabulary_files(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (tmp_path / "gluonnlp.vocab").write_text(json.dumps({"idx_to_token": VOCAB, "padding_token": "[PAD]"}))
    assert read_vocab(str(tmp_path / "vocab.txt")) == read_vocab(str(tmp_path / "gluonnlp.vocab")) == VOCAB
    (tmp_path / "bad.txt").write_text("the\ncat\n")
    with pytest.raises(DataError, match=r"lacks \[PAD\]"):
        read_vocab(str(tmp_path / "bad.txt"))


def test_tables(tmp_path):
    tsv, csv_file, jsonl = (tmp_path / f"a.{end}" for end in ("tsv", "csv", "jsonl"))
    tsv.write_text('text\tlabel\nsay "hi\t1\nno, "\t0\n')  # quotes mean nothing here
    csv_file.write_text('text,label\n"one, ""two""\nand three",1\n')
    jsonl.write_text('{"text": "one", "label": 1}\n\n{"text": "two", "label": "0"}\n')
    assert read_columns(tsv, ["text", "label"], True).rows == [('say "hi', "1"), ('no, "', "0")]
    assert read_columns(tsv, [0, 1], False).rows[0] == ("text", "label")
    assert read_columns(tsv, [1], True).rows == [("1",), ("0",)]
    assert read_columns(csv_file, ["text", "label"], True).rows == [('one, "two"\nand three', "1")]
    assert read_columns(jsonl, ["text", "label"], True).rows == [("one", "1"), ("two", "0")]
    with pytest.raises(DataError, match=r"line 1: there is no column 'labels'. Did you mean 'label'"):
        read_columns(tsv, ["labels"], True)
    with pytest.raises(DataError, match="no such file"):
        read_columns(tmp_path / "b.tsv", ["text"], True)
    csv_file.write_text("id,text,label\n1,one,0\n2,two\n")
    with pytest.raises(DataError, match="line 3: it has 2 columns, so there is none for 'label'"):
        read_columns(csv_file, ["text", "label"], True)
    with pytest.raises(DataError, match="line 1: there is no column 'sentence'. It has id, text, label"):
        read_columns(csv_file, ["sentence"], True)
    with pytest.raises(DataError, match="line 1: it has 3 columns, so there is none for number 5, counted"):
        read_columns(csv_file, [5], False)


def test_classes_are_read_from_training_rows(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "the cat\tpet\nthe mat\tthing\n" * 10)
    (tmp_path / "val.tsv").write_text("sentence\tlabel\nthe dog\tpets\n")
    splits = Text(train=str(tmp_path / "train.tsv"), test_fraction=0.0).open()
    assert splits.class_names == ["pet", "thing"] and (len(splits.train), len(splits.val)) == (17, 3)
    with pytest.raises(DataError, match="'pets'. Did you mean 'pet'"):
        Text(train=str(tmp_path / "train.tsv"), val=str(tmp_path / "val.tsv")).open()


@pytest.mark.parametrize("task", [task for task, layout in LAYOUTS.items() if layout.classes])
def test_glue_layouts(tmp_path, task):
    layout = LAYOUTS[task]
    folder = tmp_path / layout.folder
    folder.mkdir()
    names = list(layout.columns) if task != "cola" else [0, 1, 2, 3]
    for split in filter(None, ("train", layout.val, layout.test)):
        rows = [] if task == "cola" else ["\t".join(map(str, ["index", *names]))]
        for label in layout.classes:
            cells = [f"the cat {name}" for name in layout.columns[:-1]] + [label]
            rows.append("\t".join(["x", label, "", "the cat 3"] if task == "cola" else ["0", *cells]))
        (folder / f"{split}.tsv").write_text("\n".join([*rows, "ends early"] if task == "qqp" else rows) + "\n")
    splits = Glue(root=str(tmp_path), task=task).open()
    assert splits.class_names == layout.classes and splits.train.label_N.tolist() == list(range(len(layout.classes)))
    assert (splits.train.pairs[0][1] is not None) == (len(layout.columns) == 3) and (splits.test is not None) == (
        task == "mnli"
    )


def test_unsupported_glue_tasks_and_layouts_are_refused(tmp_path):
    with pytest.raises(pydantic.ValidationError, match="'stsb'"):
        Glue(task="sts-b")
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n")
    with pytest.raises(DataError, match="leaves no training samples"):
        Glue(root=str(tmp_path), task="stsb").open()
    with pytest.raises(DataError, match="SST-2 lacks train.tsv, dev.tsv"):
        Glue(root=str(tmp_path)).open()


def test_the_default_is_real_text_with_no_sample_twice():
    splits = Text().open()
    pairs = [pair for part in (splits.train, splits.val, splits.test) for pair in part.pairs]
    assert len(set(pairs)) == len(pairs) > 1000 and len(splits.class_names) == 8
    majority = np.bincount(splits.val.label_N).max() / len(splits.val)
    assert 0.2 < majority < 0.35
    masked = MaskedText().open()
    assert not {t for d in masked.train.documents for t in d} & {t for d in masked.val.documents for t in d}


def test_batches_have_texts_of_like_length():
    length_N = np.random.RandomState(0).randint(3, 60, 1003)
    order = order_by_length(length_N, 10, seed=1, epoch=2, batches_per_pool=20)
    assert sorted(order) == list(range(1003))
    np.testing.assert_array_equal(order, order_by_length(length_N, 10, seed=1, epoch=2, batches_per_pool=20))
    batches = length_N[order[:1000]].reshape(100, 10)
    plain = length_N[order_by_length(length_N, 10, seed=1, epoch=2, batches_per_pool=1)[:1000]].reshape(100, 10)
    padded = [(part.max(axis=1) * 10).sum() / part.sum() - 1 for part in (batches, plain)]
    assert padded[0] < 0.1 < 0.5 < padded[1]  # the share of what is computed for nothing
    assert np.corrcoef(batches.mean(axis=1), np.arange(100))[0, 1] < 0.3  # short ones don't come first
    assert (order != order_by_length(length_N, 10, seed=1, epoch=3, batches_per_pool=20)).any()


def test_masks_are_a_function_of_seed_epoch_and_sample():
    tokenizer_config = TokenizerConfig(TOKENIZER.tokenizer, 64, mask_fraction=0.2)
    rng = np.random.RandomState(0)
    texts = [" ".join(rng.choice(WORDS[:5], rng.randint(5, 40))) for _ in range(50)]
    encoded = LabelledTexts([(text, None) for text in texts]).encode(tokenizer_config)

    def masked(index, length, seed=3, epoch=1):
        index = np.array(index)
        token_BT, _, length_B = encoded.padded(index, length)
        return token_BT, *mask_tokens(token_BT, length_B, index, tokenizer_config, seed=seed, epoch=epoch)

    plain_BT, hidden_BT, position_BM, label_BM = masked(range(50), 48)
    counts = label_BM >= 0
    rows = np.broadcast_to(np.arange(50)[:, None], position_BM.shape)
    np.testing.assert_array_equal(plain_BT[rows, position_BM][counts], label_BM[counts])
    elsewhere = np.ones_like(plain_BT, bool)
    elsewhere[rows[counts], position_BM[counts]] = False
    np.testing.assert_array_equal(plain_BT[elsewhere], hidden_BT[elsewhere])
    assert not np.isin(label_BM[counts], range(len(SPECIAL))).any()
    assert counts.sum() == sum(max(1, int(n * 0.2 + 0.5)) for n in encoded.length_N)
    share = (hidden_BT[rows, position_BM][counts] == tokenizer_config.tokenizer.find("[MASK]")).mean()
    assert 0.7 < share < 0.9
    _, alone, *_ = masked([7], 64)  # in another batch, with other padding
    np.testing.assert_array_equal(alone[0, :48], hidden_BT[7])
    for other in ({"seed": 4}, {"epoch": 2}):
        assert (masked(range(50), 48, **other)[1] != hidden_BT).any()


def test_workers_share_a_batch_of_one_length():
    from mxtrain.text.loader import TextLoader

    texts = LabelledTexts([("the cat " * n, None) for n in (1, 5, 2, 4, 3, 1, 2)], [0, 1, 0, 1, 0, 1, 0])
    options = LoaderOptions(batch_size=4, train=True, seed=5, prefetch=0)
    whole = list(TextLoader(texts, TOKENIZER, options).epoch(1))
    shared = [replace(options, world=World(rank, 2)) for rank in (0, 1)]
    parts = [list(TextLoader(texts, TOKENIZER, one).epoch(1)) for one in shared]
    assert [batch.size for batch in whole] == [4, 3]
    for number, batch in enumerate(whole):
        for position, array in enumerate((*batch.inputs, batch.targets[0])):
            joined = [(*part[number].inputs, *part[number].targets)[position].asnumpy() for part in parts]
            np.testing.assert_array_equal(np.concatenate(joined), array.asnumpy())
    later = next(TextLoader(texts, TOKENIZER, options).epoch(1, start=1))
    np.testing.assert_array_equal(later.inputs[0].asnumpy(), whole[1].inputs[0].asnumpy())
    tokens, kinds, length = whole[0].inputs
    longest = int(length.asnumpy().max())
    assert (
        tokens.shape == kinds.shape == (4, min(-(-longest // 8) * 8, 12))
        and tokens.dtype == np.int32
        and length.shape == (4,)
    )


def test_encoded_samples_are_padded_at_the_end():
    encoded = LabelledTexts([("the", ""), ("cat", "sat")]).encode(TOKENIZER)
    token, kind, length = encoded.padded(np.array([1, 0]), 6)
    assert token.tolist() == [[2, 6, 3, 7, 3, 0], [2, 5, 3, 3, 0, 0]] and kind.tolist()[0] == [0, 0, 0, 1, 1, 0]
    assert length.tolist() == [5, 4]
