"""Tokenizer files are refused if they need unbounded time or memory, or if a child process cannot use them."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import struct
import sys
from types import SimpleNamespace

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
    "normalizer map that is no text": (
        file_of(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}),
        "base64",
    ),
    "growing replacements": (
        file_of(normalizer={"type": "Sequence", "normalizers": [replace("q", "qq")] * 10}),
        "characters of one",
    ),
    "one huge id": (
        file_of(model__vocab={**{p: n for n, p in enumerate(PIECES)}, "zz": 66_000}),
        "highest id is 66,000",
    ),
    "word without end": (
        file_of(model__type="WordPiece", model__max_input_chars_per_word=1_001),
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


def test_own_character_map_is_read(monkeypatch):
    pytest.importorskip("sentencepiece")
    checked = []
    monkeypatch.setattr(judging, "require_charsmap", lambda content: checked.append(require_charsmap(content)))
    texts = TextsInMemory([f"The {n} quick brown foxes jump over {n * 7} lazy dogs." for n in range(400)])
    require_harmless_model(train_tokenizer(TokenizerSettings("unigram", size=300), texts).model)
    assert checked == [None]


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


STAND_INS = {
    "ends by a signal": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "ends with SIGTERM"),
    "sleeps": ("import time; time.sleep(60)", "takes more than"),
    "fails": ("import sys; sys.exit('no reason')", "fails: no reason"),
    "prints nothing": ("import sys; sys.exit(3)", "fails: exit code 3"),
    "says why not": ('print(\'{"reason": "it has no tokens"}\')', "it has no tokens"),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_file_that_a_child_process_cannot_use_is_refused_each_time(monkeypatch, name):
    """A program that sleeps or exits stands for a library that does so. Only success is kept in the cache."""
    code, said = STAND_INS[name]
    monkeypatch.setattr(judging, "TRIAL_S", 0.2 if name == "sleeps" else 60.0)
    monkeypatch.setattr(judging, "module_command", lambda _: [sys.executable, "-S", "-c", code])
    for _ in range(1 if name == "sleeps" else 2):
        with pytest.raises(DataError, match=said):
            judging.require_tried("tokenizers", b"content")


def test_limits_of_the_child_process(monkeypatch):
    """Memory and processor time are limited, and a dump of memory is not written."""
    limits = {}
    monkeypatch.setattr(trial.resource, "setrlimit", lambda limit, values: limits.update({limit: values}))
    monkeypatch.setattr(trial.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file_of().encode())))
    monkeypatch.setattr(trial.sys, "argv", ["trial", "tokenizers"])
    assert trial.main() == 0
    assert limits == {
        resource.RLIMIT_AS: (8 << 30, 8 << 30),
        resource.RLIMIT_CPU: (60, 60),
        resource.RLIMIT_CORE: (0, 0),
    }


def test_encoding_that_takes_too_long_is_noticed(monkeypatch):
    monkeypatch.setattr(trial, "MAX_ENCODING_S", -1.0)
    assert "takes too long" in trial.try_tokenizers(file_of().encode())


def test_harmless_file_is_read():
    require_harmless(file_of(pre_tokenizer=split(r"\s+")))
