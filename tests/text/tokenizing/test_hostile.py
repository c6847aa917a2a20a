"""Tokenizer files that would abort the process, compute without end or panic are refused before they are used."""

from __future__ import annotations

import base64
import hashlib
import json
import struct

import pytest

from mxtrain.errors import CheckpointError, DataError
from mxtrain.text.tokenizing import judging, trial
from mxtrain.text.tokenizing.judging import require_charsmap, require_harmless, require_harmless_model
from mxtrain.text.tokenizing.kinds import (
    TextsInMemory,
    TokenizerSettings,
    build_tokenizer,
    read_tokenizer,
    tokenizer_from_json,
    train_tokenizer,
)
from mxtrain.text.tokenizing.library import TokenizerFile
from mxtrain.text.tokenizing.patterns import require_bounded

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("own_cache")
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz ", "th"]


def file_of(**changes):
    """A tokenizer.json; `model__x` changes a value of the model."""
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {piece: n for n, piece in enumerate(PIECES)},
        "merges": ["t h"],
    }
    model.update({name[7:]: value for name, value in changes.items() if name.startswith("model__")})
    rest = {name: value for name, value in changes.items() if not name.startswith("model__")}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **rest})


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


NESTED: dict = {"type": "Lowercase"}
for _ in range(120):
    NESTED = {"type": "Sequence", "normalizers": [NESTED]}
HOSTILE = {
    "normalizer map of zeros": (
        file_of(normalizer={"type": "Precompiled", "precompiled_charsmap": "A" * 24}),
        "damaged",
    ),
    "normalizer map that is no text": (
        file_of(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}),
        "base64",
    ),
    "repetition in a repetition": (file_of(pre_tokenizer=split("(a+)+$")), "may take endless time"),
    "pattern in a decoder": (
        file_of(decoder={"type": "Replace", "pattern": {"Regex": "(x|x)*y"}, "content": ""}),
        "may take endless time",
    ),
    "polynomial of the whole line": (file_of(pre_tokenizer=split(r".*.*.*(?!.|$|\n)")), "cannot encode"),
    "growing replacements": (
        file_of(normalizer={"type": "Sequence", "normalizers": [replace("q", "qq")] * 40}),
        "characters of one",
    ),
    "one huge id": (
        file_of(model__vocab={**{p: n for n, p in enumerate(PIECES)}, "zz": 16_000_000}),
        "highest id is 16,000,000",
    ),
    "word without end": (
        file_of(model__type="WordPiece", model__max_input_chars_per_word=10**9),
        "max_input_chars_per_word",
    ),
    "WordPiece without its unknown token": (
        file_of(model__type="WordPiece", model__unk_token="[NOPE]"),
        "'\\[NOPE\\]', is not in",
    ),
    "BPE without its unknown token": (file_of(model__unk_token="<nope>"), "<nope>"),
    "nested too deep": (file_of(normalizer=NESTED), "nested deeper"),
    "unknown kind": (file_of(normalizer={"type": "Evil"}), "no tokenizer.json"),
    "no model": ('{"version": "1.0"}', "has no model"),
    "repeated key": ('{"model": {"vocab": {}, "vocab": {}}}', "twice"),
    "id beyond int64": (file_of(model__vocab={"a": 10**30}), "64-bit"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizer_json_is_refused(tmp_path, name):
    text, said = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"is no vocabulary \(.*({said})"):
        read_tokenizer(TokenizerSettings(), str(tmp_path / "tokenizer.json"))
    values = {"kind": "tokenizers", "file": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    with pytest.raises(CheckpointError, match=said):
        tokenizer_from_json(values)


def test_dropout_of_a_file_does_not_count():
    found = TokenizerFile(file_of(model__dropout=0.9))
    assert {tuple(found.tokens("that thing")) for _ in range(20)} == {tuple(found.tokens("that thing"))}


def test_text_that_cannot_be_encoded_is_an_error_with_a_sentence():
    found = TokenizerFile(file_of(model__unk_token="<nope>"))
    with pytest.raises(DataError, match="a text cannot be encoded: .*<nope>"):
        found.encode(["that thing", "\u4e2d"])
    with pytest.raises(DataError, match="a text cannot be encoded"):
        found.offsets("\u4e2d")


PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"(?=(\d{3})+(?!\d))",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    r"[一-龥ࠀ-一가-퟿]+",
    " {2,}",
    r"\s+",
    r"(?:\r\n|\n)+",
    r"[[:space:]]+[]a]",
    r"(?i)abc|d",
]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_patterns_of_published_tokenizers_are_read(pattern):
    require_bounded(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*",
        "(a|a)*b",
        "(a|ab|b)*c",
        "(?:a?)+",
        "a{1,3}+b",
        "(a{1,9}){30}",
        "((a{99}){99}){99}",
        r"(a)\1",
        "a*a*a*a*b",
        "(?<n>a)\\k<n>",
        "(?~ab)",
        "(?x)a",
        "(?(1)a)",
        "(",
        ")",
        "[a",
        "\\Q",
        "(" * 100 + ")" * 100,
        "(?=(a|a)*b)",
        "(?i:'s|'t)*",
        "a" * 30_000,
    ],
)
def test_patterns_that_may_take_endless_time_are_refused(pattern):
    with pytest.raises(DataError, match="regular expression"):
        require_bounded(pattern)


# Models of sentencepiece.


def model_of(*pieces, charsmap=None):
    """A serialized unigram model of pieces (text, score, type)."""

    def field(number, content):
        size = len(content)
        assert size < 1 << 14
        return bytes([number << 3 | 2]) + bytes([size] if size < 128 else [size & 127 | 128, size >> 7]) + content

    made = b""
    for text, score, kind in pieces:
        made += field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
    return made + (field(3, field(2, charsmap)) if charsmap is not None else b"")


USUAL = ((b"<unk>", 0, 2), (b"a", -1, 1), (b"b", -2, 1))


def test_piece_of_a_zero_byte_does_not_abort(tmp_path):
    pytest.importorskip("sentencepiece")
    (tmp_path / "x.model").write_bytes(model_of(*USUAL, (b"\0", -3, 1)))
    with pytest.raises(DataError, match="the library sentencepiece ends with SIGABRT"):
        read_tokenizer(TokenizerSettings(), str(tmp_path / "x.model"))
    content = (tmp_path / "x.model").read_bytes()
    values = {"kind": "sentencepiece", "file": base64.b64encode(content).decode()}
    with pytest.raises(CheckpointError, match="SIGABRT"):
        tokenizer_from_json({**values, "sha256": hashlib.sha256(content).hexdigest()})
    (tmp_path / "x.model").write_bytes(model_of(*USUAL))
    assert read_tokenizer(TokenizerSettings(), str(tmp_path / "x.model")).size == 3


@pytest.mark.parametrize("content", [b"\xff" * 40, b"\x0a\xff\xff\xff\x0f", b"\x0f", model_of(*USUAL, charsmap=b"abc")])
def test_damaged_model_is_refused_without_the_library(content):
    with pytest.raises(DataError):
        require_harmless_model(content)


def test_character_maps_that_lead_out_of_their_array_are_refused():
    def charsmap(units, texts=b"x\0"):
        return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts

    usual = [0] * 512
    usual[0] = 1 << 10  # offset 1
    usual[1 ^ 97] = 97 | 1 << 8 | 256 << 10  # a: it has a leaf, 256 units away
    usual[1 ^ 97 ^ 256] = 1 << 31  # the text 0
    require_charsmap(charsmap(usual))
    for at, unit in ((0, 600 << 10), (1 ^ 97, 97 | 1 << 8 | 4096 << 10), (1 ^ 97 ^ 256, 1 << 31 | 900)):
        with pytest.raises(DataError, match="precompiled_charsmap"):
            require_charsmap(charsmap([*usual[:at], unit, *usual[at + 1 :]]))
    with pytest.raises(DataError, match="damaged"):
        require_charsmap(charsmap(usual, b"no end"))


def test_own_character_map_is_read():
    pytest.importorskip("sentencepiece")
    texts = TextsInMemory([f"The {n} quick brown foxes jump over {n * 7} lazy dogs." for n in range(400)])
    require_harmless_model(train_tokenizer(TokenizerSettings("unigram", size=300), texts).model)


# The trial.


def test_file_is_tried_once_and_own_vocabularies_never(monkeypatch):
    tried = []
    run = judging.subprocess.run
    monkeypatch.setattr(judging.subprocess, "run", lambda *args, **options: tried.append(1) or run(*args, **options))
    TokenizerFile(file_of()).require_usable()
    TokenizerFile(file_of()).require_usable()
    assert len(tried) == 1
    texts = TextsInMemory(["the quick brown fox"] * 9)
    made = build_tokenizer(TokenizerSettings("bpe", size=300), texts)
    made.require_usable()
    assert build_tokenizer(TokenizerSettings("bpe", size=300), texts) == made and len(tried) == 1


def test_encoding_that_takes_too_long_is_noticed(monkeypatch):
    monkeypatch.setattr(trial, "MOST_ENCODING_S", -1.0)
    assert "takes too long" in trial.try_tokenizers(file_of().encode())


def test_harmless_file_is_read():
    require_harmless(file_of(pre_tokenizer=split(r"\s+")))
