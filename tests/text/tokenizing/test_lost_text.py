"""Byte-level vocabularies that lack bytes: what of texts they lose, said when data is prepared and by `data check`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Callable

import pytest

from mxtrain.text.classification.text import Text
from mxtrain.text.token_classification.conll import Conll
from mxtrain.text.tokenizing.kinds import TextsInMemory, TokenizerSettings, build_tokenizer
from mxtrain.text.tokenizing.library import TokenizerFile, byte_characters, train_bpe
from mxtrain.text.translation.parallel_text import ParallelText

pytestmark = pytest.mark.usefixtures("own_cache")
TEXTS = ["plain", "na\u00efve caf\u00e9", "no\u00ebl", "ZOO"]


@pytest.fixture
def vocab(tmp_path: Path) -> Callable[..., str]:
    """Bytes to leave out -> the path of a byte-level tokenizer.json without them."""

    def write(without: bytes = b"\xa9\xafZ", lowercase: bool = False, **model: Any) -> str:
        given = json.loads(train_bpe(["abc"], 300, lowercase, False).text)
        left_out = {byte_characters()[byte] for byte in without}
        own = given["model"]["vocab"]
        given["model"].update(vocab={token: number for token, number in own.items() if token not in left_out}, **model)
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(given))
        return str(path)

    return write


def test_lost_characters_are_the_ones_that_decoding_does_not_return(vocab: Any) -> None:
    for lowercase in (False, True):
        tokenizer = TokenizerFile(Path(vocab(lowercase=lowercase)).read_text())
        assert tokenizer.lost_bytes == b"Z\xa9\xaf"
        for text in TEXTS:
            decoded = tokenizer.decode(tokenizer.tokens(text))
            normalizer = tokenizer.library.normalizer
            normal = text if normalizer is None else normalizer.normalize_str(text)
            assert (decoded == normal) == (not tokenizer.lost(text)), text
            assert not set(tokenizer.lost(text)) & set(decoded)
    assert tokenizer.lost("\u00e9Z") == ""  # lowercased, and without accents
    tokenizer = TokenizerFile(Path(vocab(unk_token="<unk>")).read_text())
    assert not tokenizer.lost_bytes and tokenizer.find("<unk>") in tokenizer.tokens("Z")  # something stands for it
    assert not train_bpe(["abc"], 300, False, False).lost_bytes


@pytest.mark.slow
def test_preparation_warns_by_name(vocab: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = TokenizerSettings(vocab=vocab())
    with caplog.at_level(logging.WARNING):
        build_tokenizer(settings, TextsInMemory(TEXTS))
    (said,) = caplog.messages
    assert f"the vocabulary {settings.vocab} lacks 3 of the 256 bytes: 2 of the training texts lose" in said
    assert "3 different: '\u00ef', '\u00e9', 'Z'; `data check` lists them. Give a vocabulary with all bytes" in said
    build_tokenizer(settings, TextsInMemory(TEXTS[:1]))
    assert "the training texts have none" in caplog.messages[1]
    build_tokenizer(TokenizerSettings(vocab=vocab(b"")), TextsInMemory(TEXTS))
    assert len(caplog.messages) == 2


@pytest.mark.slow
def test_data_check_lists_each_text(vocab: Any, check: Any, tmp_path: Path) -> None:
    lines = ["sentence\tlabel", *(f"text {n} {TEXTS[1] if n == 5 else ''}\t{n % 2}" for n in range(20))]
    (tmp_path / "x.tsv").write_text("\n".join(lines))
    path = vocab()
    assert check(Text(train=str(tmp_path / "x.tsv"), vocab=path)) == [("lost_text", "x.tsv", 7)]
    fact = f"x.tsv, line 7: the vocabulary {path} loses characters of the text, 2 different: '\u00ef', '\u00e9'."
    assert check.problems[0].fact.endswith(fact)
    assert check(Text(train=str(tmp_path / "x.tsv"), vocab=vocab(b""))) == []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert check(Text(train=str(tmp_path / "x.tsv"), vocab=path)) == [("cannot_open", "tokenizer.json", None)]


@pytest.mark.slow
def test_each_side_of_a_pair_and_words_with_tags_have_their_own_vocabulary(
    vocab: Any, check: Any, tmp_path: Path
) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\n" + "".join(f"word {n} Z\tword {n} z\n" for n in range(10)))
    (tmp_path / "whole.json").write_text(Path(vocab(b"")).read_text())
    words = dict(train=str(tmp_path / "x.tsv"), source="a", target="b", val_fraction=0.2, joint_vocabulary=False)
    ours = dict(vocab=vocab(), target_vocab=str(tmp_path / "whole.json"))
    assert [kind for kind, *_ in check(ParallelText(**words, **ours))] == ["lost_text"] * 10
    turned = dict(vocab=ours["target_vocab"], target_vocab=ours["vocab"])
    assert check(ParallelText(**words, **turned)) == []
    (tmp_path / "train.txt").write_text("a O\n\nZ B-X\n")
    (tmp_path / "valid.txt").write_text("a O\n")
    dataset = Conll(root=str(tmp_path), test=None, test_fraction=0.0, vocab=vocab())
    assert check(dataset) == [("lost_text", "train.txt", 3)]
