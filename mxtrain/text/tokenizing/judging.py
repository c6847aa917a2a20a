"""Validates untrusted tokenizer files before a library loads them in this process.

The libraries `tokenizers` and sentencepiece abort, panic or never return for some files. A file is used only if its
settings are bounded (`require_harmless`), and if a child process with time and memory limits has encoded sample texts
with it (`require_tried`). The result is cached by the SHA-256 of the file. Regular expressions are not analyzed: the
trial refuses those that are slow for its texts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Dict, Iterator, Tuple

import numpy as np

from mxtrain.config.search_path import module_command
from mxtrain.errors import DataError
from mxtrain.files.cache import read_cached, write_cached
from mxtrain.files.json_text import JsonTextError, parse_json

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

MAX_WORD_CHARACTERS = 1_000
"""Maximum number of characters of a word in WordPiece, whose time grows with their square."""
MAX_GROWTH = 1_000
"""Maximum number of characters that a normalizer may produce from one."""
MAX_GAPS = 1 << 16
"""Maximum number of ids without a token, in addition to the number of tokens."""
_TRIAL = "mxtrain.text.tokenizing.trial"
TRIAL_S = 120.0
"""Timeout of the child process that tries a tokenizer."""
_KIND = "tokenizers"


def require_harmless(text: str) -> None:
    """Checks that a tokenizer.json needs bounded time and memory.

    Raises:
        DataError: the text is no tokenizer.json, or may need unbounded time or memory.
    """
    try:
        content = parse_json(text)
    except JsonTextError as error:
        raise DataError(f"no tokenizer.json: it {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise DataError("no tokenizer.json: it has no model")
    for part in _parts_of(content):
        if "precompiled_charsmap" in part:
            _require_charsmap_text(part["precompiled_charsmap"])
    _require_model(content["model"])
    _require_growth(content.get("normalizer"))


def _parts_of(value: Any) -> Iterator[Dict[str, Any]]:
    """Yields all JSON objects except those of the vocabulary. The recursion is bounded, because `parse_json` limits
    depth."""
    if isinstance(value, dict):
        yield value
        for name, item in value.items():
            if name not in ("vocab", "merges", "added_tokens"):
                yield from _parts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from _parts_of(item)


def _require_model(model: JsonObject) -> None:
    vocab, kind = model.get("vocab"), model.get("type")
    if isinstance(vocab, dict):
        ids = [index for index in vocab.values() if isinstance(index, int)]
        # The size of a vocabulary is its highest id + 1, so a gap adds unused rows to an embedding.
        if ids and max(ids) > 2 * len(ids) + MAX_GAPS:
            raise DataError(f"its highest id is {max(ids):,}, and it has only {len(ids):,} tokens")
        unknown = model.get("unk_token", "[UNK]")
        if kind == "WordPiece" and unknown not in vocab:
            raise DataError(f"its unknown token, {unknown!r:.60}, is not in its vocabulary")
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, (int, float)) and longest > MAX_WORD_CHARACTERS:
        raise DataError(f"max_input_chars_per_word is {longest:,}; at most {MAX_WORD_CHARACTERS:,} are allowed")


def _require_growth(normalizer: Any) -> None:
    """Checks the growth of texts by a normalizer: the factors of consecutive replacements multiply."""
    growth = 1
    for part in _parts_of(normalizer):
        pattern, content = part.get("pattern"), part.get("content")
        if isinstance(pattern, dict) and isinstance(content, str):
            old = pattern.get("String")
            size = 1 + len(content) if not isinstance(old, str) else -(-len(content) // max(len(old), 1))
            growth *= max(size, 1)
            if growth > MAX_GROWTH:
                raise DataError(f"its normalizer makes more than {MAX_GROWTH:,} characters of one")


def _require_charsmap_text(text: Any) -> None:
    try:
        content = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise DataError(f"its precompiled_charsmap is no base64: {error}") from error
    if text:
        require_charsmap(content)


def require_charsmap(content: bytes) -> None:
    """Checks a character map as compiled by sentencepiece: the size of a trie, its double array, and texts.

    Raises:
        DataError: an index of the trie is out of range.
    """
    size = int.from_bytes(content[:4], "little")
    texts = content[4 + size :]
    if len(content) < 4 or not size or size % 4 or len(content) < 4 + size or not texts.endswith(b"\0"):
        raise DataError("its map of characters (precompiled_charsmap) is damaged")
    unit_U = np.frombuffer(content[4 : 4 + size], "<u4").astype(np.int64)
    offset_U = (unit_U >> 10) << ((unit_U & (1 << 9)) >> 6)
    label_U = unit_U & (1 << 31 | 0xFF)
    base_B = offset_U[:1]
    seen_U = np.zeros(len(unit_U), bool)
    key_K = np.arange(1, 256)
    while len(base_B):
        if (base_B | 0xFF).max() >= len(unit_U):
            raise DataError("its map of characters (precompiled_charsmap) leads out of its array")
        # Visited positions are skipped, so that the walk ends if a damaged trie has a cycle.
        base_B = np.unique(base_B[~seen_U[base_B]])
        seen_U[base_B] = True
        child_BK = base_B[:, None] ^ key_K
        child_C = child_BK[label_U[child_BK] == key_K]
        base_B = child_C ^ offset_U[child_C]
        has_leaf_C = (unit_U[child_C] >> 8 & 1).astype(bool)
        leaf_C = base_B[has_leaf_C]
        if len(leaf_C) and (leaf_C.max() >= len(unit_U) or (unit_U[leaf_C] & 0x7FFFFFFF).max() >= len(texts)):
            raise DataError("its map of characters (precompiled_charsmap) leads to no text")


def require_harmless_model(model: bytes) -> None:
    """Checks the content of a sentencepiece model.

    Raises:
        DataError: the content is no model, or its character maps are damaged.
    """
    for number, value in _fields(model):
        if number in (3, 5):  # ModelProto.normalizer_spec, denormalizer_spec
            for inner, charsmap in _fields(value):
                if inner == 2 and charsmap:  # NormalizerSpec.precompiled_charsmap
                    require_charsmap(charsmap)


def _fields(content: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yields number and content of the length-delimited fields of a serialized protocol buffer."""
    offset = 0
    while offset < len(content):
        tag, offset = _varint(content, offset)
        wire = tag & 7
        if wire == 0:
            _, offset = _varint(content, offset)
        elif wire in (1, 5):
            offset += 8 if wire == 1 else 4
        elif wire == 2:
            size, offset = _varint(content, offset)
            if offset + size > len(content):
                raise DataError("no model of sentencepiece: it is cut off")
            yield tag >> 3, content[offset : offset + size]
            offset += size
        else:
            raise DataError("no model of sentencepiece: it is no protocol buffer")


def _varint(content: bytes, offset: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if offset >= len(content):
            break
        byte = content[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise DataError("no model of sentencepiece: it is no protocol buffer")


def require_tried(library: str, content: bytes) -> None:
    """Loads a file and encodes sample texts in a child process, unless the cache says that this succeeded before.

    Args:
        library: tokenizers or sentencepiece.
        content: content of the file.

    Raises:
        DataError: the process failed, was killed, or took too long.
    """
    name = _verdict_name(library, content)
    if read_cached(_KIND, name) is not None:
        return
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "OMP_NUM_THREADS": "1"}
    try:
        # The content is piped, not named: the file cannot change between the trial and its use.
        done = subprocess.run(
            [*module_command(_TRIAL), library], input=content, capture_output=True, timeout=TRIAL_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"loading it and encoding sample texts takes more than {TRIAL_S:.0f} s") from None
    if done.returncode < 0:
        signal_name = signal.Signals(-done.returncode).name
        raise DataError(f"the library {library} ends with {signal_name} when it loads the file or encodes sample texts")
    try:
        reason = json.loads(done.stdout.splitlines()[-1])["reason"]
    except (ValueError, IndexError, KeyError, TypeError):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reason = f"the library {library} fails: {lines[-1]:.200}"
    if reason:
        raise DataError(str(reason))
    remember_tried(library, content)


def remember_tried(library: str, content: bytes) -> None:
    """Records in the cache that a file can be used, e.g. because mxtrain trained it."""
    write_cached(_KIND, _verdict_name(library, content), b"usable")


def _verdict_name(library: str, content: bytes) -> str:
    from importlib.metadata import version

    # Another version of the library may fail for the same file, so it needs a verdict of its own.
    digest = hashlib.sha256(f"{library} {version(library)} 1\0".encode() + content)
    return f"{digest.hexdigest()[:32]}.txt"
