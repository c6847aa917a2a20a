"""Translations in files: aligned ones and tables, vocabularies, and what `data check` finds in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pydantic
import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings, check_dataset
from mxtrain.data.spec import Splits
from mxtrain.errors import CheckpointError, DataError
from mxtrain.text.translation.parallel_text import ParallelText
from mxtrain.text.translation.transformer import Transformer
from mxtrain.text.translation.translation import configs_of

pytestmark = pytest.mark.usefixtures("own_cache")
ENGLISH = ["one house", "two houses", "three  green houses", "the end", "a b c d", "it is"]
GERMAN = ["ein Haus", "zwei Häuser", "drei  grüne Häuser", "das Ende", "a b c", "es ist"]
PAIRS = list(zip(ENGLISH, GERMAN))


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(name: str, source: List[str], target: List[str], packed: bool = False) -> str:
        for ending, lines in (("en", source), ("de", target)):
            content = "".join(f"{line}\n" for line in lines).encode()
            path = tmp_path / f"{name}.{ending}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
        return str(tmp_path / name)

    return make


def described(train: Any, **settings: Any) -> ParallelText:
    return ParallelText(train=train, **{"tokenizer": "characters", "vocab_size": 200, "val_fraction": 0.34, **settings})


def all_pairs(splits: Splits) -> List[Tuple[str, str]]:
    return [tuple(pair) for part in (splits.train, splits.val) for pair in part.pairs]  # type: ignore[attr-defined]


@pytest.mark.parametrize("packed", [False, True])
def test_two_aligned_files(write: Any, packed: bool) -> None:
    splits = described(write("train", ENGLISH, GERMAN, packed)).open()
    assert len(splits.train) == 4 and len(splits.val) == 2 and splits.test is None
    assert sorted(all_pairs(splits)) == sorted(PAIRS)


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_tables_with_two_columns(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps({"de": de, "x": 1, "en": en}) + "\n" for en, de in PAIRS))
    elif ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"de": GERMAN, "en": ENGLISH}), path)
    else:
        mark = "\t" if ending == "tsv" else ","
        path.write_text("".join(f"{de}{mark}{en}\n" for en, de in [("en", "de"), *PAIRS]))
    assert sorted(all_pairs(described(str(path)).open())) == sorted(PAIRS)


def test_several_files_are_joined_and_others_held_out(write: Any) -> None:
    names = [write("a", ENGLISH[:3], GERMAN[:3]), write("b", ENGLISH[3:4], GERMAN[3:4])]
    splits = described(names, val=write("v", ENGLISH[4:], GERMAN[4:]), test=write("t", ["x"], ["y"])).open()
    assert (
        [list(part.pairs) for part in (splits.train, splits.val, splits.test)]
        == [  # type: ignore[union-attr]
            PAIRS[:4],
            PAIRS[4:],
            [("x", "y")],
        ]
    )
    with pytest.raises(DataError, match="are the same file"):
        described(names, val=names[0]).open()


def test_a_carriage_return_within_a_line_ends_none(tmp_path: Path) -> None:
    (tmp_path / "t.en").write_bytes(b"one\rhouse\r\ntwo\r\n" + b"x\r\n" * 4)
    (tmp_path / "t.de").write_bytes(b"ein Haus\nzwei\n" + b"y\n" * 4)
    found = all_pairs(described(str(tmp_path / "t")).open())
    assert set(found) == {("one\rhouse", "ein Haus"), ("two", "zwei"), ("x", "y")}


def test_pairs_with_an_empty_side_are_left_out(write: Any) -> None:
    splits = described(write("t", [*ENGLISH, "", "x"], [*GERMAN, "y", " "])).open()
    assert sorted(all_pairs(splits)) == sorted(PAIRS)


@pytest.mark.parametrize(
    "source, target, said",
    [
        (["a", "b", "c"], ["a", "b"], "t.en, line 3 has no counterpart: .*t.de has fewer lines"),
        (["a"], ["a", "b"], "t.de, line 2 has no counterpart: .*t.en has fewer lines"),
        ([""], ["a"], "t.en and .*t.de: there is no pair of texts"),
    ],
)
def test_untrainable_pairs_are_refused(write: Any, source: Any, target: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        described(write("t", source, target)).open()


def test_missing_files_name_the_setting(write: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no .*t.en, nor with .gz: .*here dataset.source=en"):
        described(str(tmp_path / "t")).open()
    write("t", ENGLISH, GERMAN)
    with pytest.raises(DataError, match="there is no .*t.fr, nor with .gz. Type dataset.target=de for .*t.de[.]"):
        described(str(tmp_path / "t"), target="fr").open()
    with pytest.raises(DataError, match="Did you mean 't'.* holds t.de, t.en"):
        described(str(tmp_path / "tt")).open()
    with pytest.raises(DataError, match="t.en is one of two files, type .*/t[.]$"):
        described(str(tmp_path / "t.en")).open()
    with pytest.raises(DataError, match="name the training pairs"):
        ParallelText().open()


def test_invalid_utf_8_is_refused_with_its_line(write: Any, tmp_path: Path) -> None:
    name = write("t", ENGLISH, GERMAN)
    (tmp_path / "t.de").write_bytes("zwei Häuser\n".encode() + "H\xe4user\n".encode("latin-1") * 5)
    with pytest.raises(DataError, match="t.de, line 2 is no UTF-8"):
        described(name).open()


def test_data_check_names_the_file_and_the_line_of_each_problem(write: Any, tmp_path: Path) -> None:
    name = write("t", [*ENGLISH, "", "one house", "l" * 30, "x", "y"], [*GERMAN, "leer", "ein Haus", "kurz", "x"])
    (tmp_path / "t.de").write_bytes((tmp_path / "t.de").read_bytes().replace("Häuser".encode(), b"H\xe4user", 1))
    found: List[Any] = []
    findings = CollectedFindings((), found.append)
    census = check_dataset(described(name, max_length=20, val_fraction=0.2), findings, CheckProgress(), 2)
    lines = {(one.kind, one.location.file[-4:], one.location.line) for one in found}
    assert {
        ("undecodable_text", "t.de", 2),
        ("empty_text", "t.en", 7),
        ("long_text", "t.en", 9),
        ("missing_counterpart", "t.en", 11),
    } <= lines
    assert sum(kind.startswith("duplicate") for kind, *_ in lines) == 1 and len(lines) == 5
    assert sum(census.num_samples.values()) == 9


class CheckProgress:
    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass


@pytest.mark.parametrize("joint", [True, False])
def test_vocabularies_are_one_or_two_and_a_checkpoint_carries_both(write: Any, joint: bool) -> None:
    dataset = described(write("t", ENGLISH, GERMAN), joint_vocabulary=joint)
    splits = dataset.open()
    signature = dataset.infer_signature(splits, Transformer())
    source, target = configs_of(signature)
    texts = [pair for pair in all_pairs(splits)[: len(splits.train)]]
    letters = [{letter for pair in texts for letter in pair[side]} for side in (0, 1)]
    wanted = [letters[0] | letters[1]] * 2 if joint else letters
    for config, expected in zip((source, target), wanted):
        assert all(config.tokenizer.find(letter) is not None for letter in expected)
        assert config.size == len(expected) + 5, "and special ones"
    assert signature.is_joint == joint == (source == target)
    restored = type(signature).from_json(json.loads(json.dumps(signature.to_json())))
    assert configs_of(restored) == (source, target) and restored.is_joint == joint
    assert ("target_tokenizer_config" in signature.to_json()) == (not joint), "one is not written twice"
    dataset.check_compatible(signature, restored, "here")
    other = described(write("o", ENGLISH, [line.upper() for line in GERMAN]), joint_vocabulary=joint)
    with pytest.raises(CheckpointError, match="was made with another vocabulary"):
        dataset.check_compatible(signature, other.infer_signature(other.open(), Transformer()), "here")


@pytest.mark.parametrize("joint", [True, False])
def test_tokens_in_files_match_the_texts(write: Any, joint: bool) -> None:
    """Reads a part of the records, in their order."""
    dataset = described(write("t", ENGLISH, GERMAN), joint_vocabulary=joint)
    splits = dataset.open()
    configs = dataset.configs(splits.train)  # type: ignore[arg-type]
    for part in (splits.train, splits.val):
        tokens = part.tokens(configs)  # type: ignore[attr-defined]
        for index, (source, target) in enumerate(part.pairs):  # type: ignore[attr-defined]
            token_BS, length_B = tokens.source(np.array([index]), 40)
            assert token_BS[0, : length_B[0] - 1].tolist() == configs[0].tokenizer.tokens(source)
            label_BT = tokens.target(np.array([index]), 40)[1]
            assert label_BT[0][label_BT[0] >= 0][:-1].tolist() == configs[1].tokenizer.tokens(target)
            assert tokens.bytes_N[index] == len(target.encode())


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"source": "en", "target": "en"}, "source=en and target=en must differ"),
        ({"target_vocab": "x"}, "target_vocab is for joint_vocabulary=false"),
        ({"vocab": "x", "joint_vocabulary": False, "tokenizer": "auto"}, "give target_vocab, too"),
        ({"batch_tokens": 50}, "batch_tokens=50 has no room for a pair of max_length=100"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        described("x", **settings)


def test_wordpiece_has_no_end_of_a_text(write: Any) -> None:
    dataset = described(write("t", ENGLISH * 20, GERMAN * 20), tokenizer="wordpiece")
    with pytest.raises(DataError, match="translation needs a special token 'bos'.*dataset.tokenizer=bpe"):
        dataset.infer_signature(dataset.open(), Transformer())


def test_too_long_pairs_are_reported(write: Any) -> None:
    name, val = write("t", [*ENGLISH, "l" * 30], [*GERMAN, "k"]), write("v", ["a"], ["b" * 30])
    dataset = described(name, max_length=20, val=val)
    splits = dataset.open()
    remark = dataset.remark(dataset.infer_signature(splits, Transformer()), splits)
    assert remark.endswith("; 1 longer ones of train are left out; 1 longer ones of val are cut")
