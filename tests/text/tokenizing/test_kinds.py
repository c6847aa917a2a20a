"""Every kind of tokenizer: there and back, ids, special tokens, files, and what a checkpoint carries of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import List

import numpy as np
import pydantic
import pytest

from mxtrain.errors import CheckpointError, DataError
from mxtrain.text.classification.text import MaskedText, Text
from mxtrain.text.encoded import EncodedPairs, encode_texts
from mxtrain.text.tokenizing import kinds
from mxtrain.text.tokenizing.base import OWN_SPECIAL
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.kinds import (
    TextsInMemory,
    TokenizerSettings,
    build_tokenizer,
    tokenizer_from_json,
    train_tokenizer,
)
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("own_cache")
LINES = [f"The {n} quick brown foxes jump over {n * 7} lazy dogs." for n in range(400)]
TEXTS = TextsInMemory([*LINES, "Caf\xe9 nights."])
ALL = ("wordpiece", "bpe", "unigram", "sentencepiece_bpe", "words", "characters")
TEXT = "the 17 quick foxes jump"


def build_trained(kind, **options):
    if "unigram" in kind or "sentencepiece" in kind:
        pytest.importorskip("sentencepiece")
    return train_tokenizer(TokenizerSettings(kind, size=options.pop("size", 300), **options), TEXTS)


@pytest.mark.parametrize("kind", ALL)
def test_tokenizer_is_restored_from_a_checkpoint(kind):
    tokenizer = build_trained(kind)
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again == tokenizer and again.digest == tokenizer.digest and again.special == tokenizer.special
    token, length = again.encode([TEXT, "", "jump over"])
    assert token.dtype == np.int32 and len(token) == length.sum() and length[1] == 0
    assert 0 <= token.min() and token.max() < again.size <= 300
    first = token[: length[0]]
    assert again.decode(first) == TEXT and again.tokens("jump over") == token[length[0] :].tolist()
    assert [again.find(again.piece(t)) for t in first] == first.tolist()
    framed = [again.special.pad, *([again.special.last] if again.special.last is not None else []), *first]
    assert again.decode(framed) == TEXT and again.special.pad == 0 and again.special.mask is not None


@pytest.mark.parametrize("kind", ALL)
def test_offsets_are_spans_of_tokens(kind):
    tokenizer = build_trained(kind)
    token_T, span_T2 = tokenizer.offsets(TEXT)
    assert token_T.tolist() == tokenizer.tokens(TEXT) and span_T2.shape == (len(token_T), 2)
    end = TEXT.index("quick") + 5
    covered = "".join(TEXT[begin:stop] for begin, stop in span_T2 if stop <= end)
    assert covered.replace(" ", "") == TEXT[:end].replace(" ", "")


def test_unknown_characters():
    for kind in ("words", "characters", "wordpiece"):
        tokenizer = build_trained(kind)
        assert tokenizer.tokens("\u4e2d") == [tokenizer.special.unknown]
    tokenizer = build_trained("bpe")
    assert tokenizer.decode(tokenizer.tokens("\u4e2d \U0001f600")) == "\u4e2d \U0001f600"  # bytes
    assert build_trained("words").tokens("<unk> the <eos>")[::2] == [1, 3]  # as PTB's files have them


def test_digits_by_themselves():
    for kind in ("bpe", "unigram"):
        tokenizer = build_trained(kind, individual_digits=True)
        pieces = [tokenizer.piece(t).strip("\u2581\u0120") for t in tokenizer.tokens("2800 dogs")]
        assert [p for p in pieces if p and p[0].isdigit()] == ["2", "8", "0", "0"]
    with pytest.raises(pydantic.ValidationError, match="tokenizer=bpe, unigram or"):
        Text(individual_digits=True)
    with pytest.raises(pydantic.ValidationError, match="need 261"):
        Text(tokenizer="bpe", vocab_size=200)


def test_only_some_of_much_text_is_learned_from(monkeypatch):
    everything = build_trained("bpe")
    monkeypatch.setattr(kinds, "MAX_TRAINED_BYTES", 4000)
    some = kinds.sample_texts(TEXTS, 4000)
    assert 3900 < sum(map(len, some)) <= 4000 and some == sorted(some, key=list(TEXTS.texts()).index)
    assert build_trained("bpe") != everything


@pytest.mark.slow
def test_trained_vocabularies_are_the_same_in_every_process():
    program = (
        "from mxtrain.text.tokenizing.kinds import *\n"
        "texts = TextsInMemory([f'the {n} caf\\xe9 of {n * 31} dogs {chr(97 + n % 26) * 3}' for n in range(2000)])\n"
        "for kind in KINDS:\n    print(train_tokenizer(TokenizerSettings(kind, size=400), texts).digest)\n"
    )
    known = list(ALL)
    try:
        import sentencepiece  # noqa: F401
    except ImportError:
        known = [kind for kind in ALL if "unigram" not in kind and "sentencepiece" not in kind]
    found = [
        subprocess.run(
            [sys.executable, "-c", program.replace("KINDS", repr(known))],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
        ).stdout
        for threads in ("1", "3")
    ]
    assert found[0] == found[1] and len(set(found[0].split())) == len(known)


def test_samples_are_cut_as_the_library_cuts_them():
    """The longer text first, then both to a half."""
    config = TokenizerConfig(WordPiece((*SPECIAL, "a"), True), 16)
    library = WordPiece((*SPECIAL, "a"), True).library
    from tokenizers.processors import BertProcessing

    library.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.enable_truncation(16)
    sizes = [(n, m) for n in range(0, 20, 1) for m in range(0, 20, 1)]
    pairs = [("a " * n, "a " * m) for n, m in sizes]
    for texts in ([first for first, _ in pairs], pairs):
        columns = list(zip(*texts)) if isinstance(texts[0], tuple) else [texts]
        encoded = EncodedPairs([encode_texts(config.tokenizer, some) for some in columns], np.zeros(len(texts)), config)
        token_NT, kind_NT, length_N = encoded.padded(np.arange(len(texts)), 16)
        for row, expected in enumerate(library.encode_batch(texts)):
            assert token_NT[row, : length_N[row]].tolist() == expected.ids
            assert kind_NT[row, : length_N[row]].tolist() == expected.type_ids


def test_words_without_end_are_divided_before_they_are_learned_from():
    """Without that, twice as long a word takes four times as long: 100,000 characters took six seconds."""
    from mxtrain.text.tokenizing.library import batches_of

    (pieces,) = batches_of(["a" * 2500, "b " + "c" * 1000 + " d", "e"])
    assert pieces == ["a" * 1000, "a" * 1000, "a" * 500, "b " + "c" * 1000 + " d", "e"]


# Files from elsewhere.


def test_tokenizer_kind_is_recognised_from_the_file(tmp_path):
    bpe = build_trained("bpe", lowercase=False)
    (tmp_path / "tokenizer.json").write_text(bpe.text, encoding="utf-8")
    found = Text(vocab=str(tmp_path / "tokenizer.json")).tokenizer_config(TextsInMemory([])).tokenizer
    assert found == bpe and found.tokens("The foxes") == bpe.tokens("The foxes")
    (tmp_path / "words.txt").write_text("<unk>\n<eos>\nthe\n")
    words = build_tokenizer(TokenizerSettings("words", str(tmp_path / "words.txt")), TEXTS)
    assert words.tokens("the cat") == [2, 0] and words.special.pad is None
    (tmp_path / "gluonnlp.json").write_text(json.dumps({"idx_to_token": SPECIAL}))
    assert build_tokenizer(TokenizerSettings(vocab=str(tmp_path / "gluonnlp.json")), TEXTS).size == 5
    with pytest.raises(DataError, match="a file of tokenizers, and dataset.tokenizer=unigram"):
        build_tokenizer(TokenizerSettings("unigram", str(tmp_path / "tokenizer.json")), TEXTS)
    with pytest.raises(DataError, match="needs a special token 'mask'"):
        MaskedText(vocab=str(tmp_path / "words.txt"), tokenizer="words").tokenizer_config(TEXTS, 0.15)
    sentencepiece = pytest.importorskip("sentencepiece")
    assert sentencepiece
    model = build_trained("unigram")
    (tmp_path / "a.model").write_bytes(model.model)
    assert build_tokenizer(TokenizerSettings(vocab=str(tmp_path / "a.model")), TEXTS) == model


@pytest.mark.slow
def test_sentencepiece_works_in_programs_whose_warnings_are_errors():
    pytest.importorskip("sentencepiece")
    program = (
        "import warnings\nfrom mxtrain.text.tokenizing.sentence_piece import require_sentencepiece\n"
        "warnings.simplefilter('error')\n"
        "print(require_sentencepiece().SentencePieceProcessor().get_piece_size(), warnings.filters[0][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0 error\n"), done.stderr


def test_padding_and_truncation_of_a_file_do_not_count(tmp_path):
    tokenizer = json.loads(build_trained("bpe").text)
    library = build_trained("bpe").library
    library.enable_truncation(2)
    library.enable_padding(length=50)
    tokenizer = tokenizer_from_json({**build_trained("bpe").to_json(), **_file_json(library.to_str())})
    assert len(tokenizer.tokens(TEXT)) > 2 and len(tokenizer.tokens(TEXT)) < 50


def _file_json(text):
    import hashlib

    return {"file": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}


EMPTY = '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'


@pytest.mark.parametrize("content", ["{", "[]", "{}", EMPTY, "\ud800"])
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"tokenizer.json is no vocabulary"):
        build_tokenizer(TokenizerSettings(vocab=str(path)), TEXTS)
    pytest.importorskip("sentencepiece")
    (tmp_path / "a.model").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"a.model is no vocabulary"):
        build_tokenizer(TokenizerSettings(vocab=str(tmp_path / "a.model")), TEXTS)


@pytest.mark.parametrize(
    "values, reason",
    [
        ({"kind": "pickle"}, "kind 'pickle', which this version does not know"),
        ({"kind": "tokenizers", "file": "{}", "sha256": "0"}, "not have the checksum that is stored"),
        ({"kind": "sentencepiece", "file": "no base64!", "sha256": "0"}, r"\(sentencepiece\) cannot be used"),
        ({"kind": "words", "lowercase": True}, "cannot be used: 'vocab'"),
        ({"kind": "tokenizers", **_file_json('{"model": 1}')}, "no tokenizer.json"),
    ],
)
def test_damaged_checkpoints_are_refused(values, reason):
    with pytest.raises(CheckpointError, match=reason):
        tokenizer_from_json(values)


def test_own_vocabularies_start_with_the_same_special_tokens():
    for kind in ALL[1:]:
        tokenizer = build_trained(kind)
        assert [tokenizer.find(name) for name in OWN_SPECIAL] == [0, 1, 2, 3, 4]
        assert (tokenizer.special.first, tokenizer.special.last, tokenizer.special.mask) == (2, 3, 4)


CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
"""Ranges of BERT's published tokenization.py whose characters are words; kana and hangul are not among them."""


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_divides_at_cjk_characters_as_multilingual_bert(lowercase: bool) -> None:
    ends = [point for first, last in CJK for point in (first, last)]
    others = [0x3042, 0x30AB]
    vocab = (*SPECIAL, "a", "##b", "b", *(f"{join}{chr(point)}" for point in ends + others for join in ("", "##")))
    tokenizer = WordPiece(tuple(dict.fromkeys(vocab)), lowercase)

    def pieces(text: str) -> List[str]:
        return [tokenizer.vocab[token] for token in tokenizer.encode([text])[0]]

    if not lowercase:  # with it, accents are removed from the normalized text
        assert [pieces(f"a{chr(point)}b") for point in ends] == [["a", chr(point), "b"] for point in ends]
    assert pieces("a\u4e00\u9fffb") == ["a", "\u4e00", "\u9fff", "b"]
    assert pieces("a\u3042b") == ["a", "##\u3042", "##b"] and pieces("\u30ab\u4e00") == ["\u30ab", "\u4e00"]
