"""The program of a process that loads a tokenizer file from its standard input and encodes sample texts with it.

It prints a JSON object with the reason why the file cannot be used, empty if it can. It may be ended by a limit or by
the library itself; nothing else runs in it.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any, Iterable, List

MEMORY_BYTES = 8 << 30
MAX_CPU_S = 60
"""Processor time of the whole trial, in seconds; a file of 64 MB takes a tenth of it."""
MAX_ENCODING_S = 8.0
"""Time for encoding the sample texts, in seconds; usual tokenizers take less than 0.5 s."""
# Long runs are the worst case of patterns that backtrack, and of WordPiece, whose time grows with their square.
_RUN = 1_500
_CHARACTERS = "aAzZ1 .\n\t-_'\"!(\u00a0\u00e9\u00df\u0627\u0e01\u4e2d\u3042\uac00\u0301\u2581\U0001f600"
_SENTENCE = "The quick brown fox, (17 of them) jumps over 3,141 lazy dogs; it's Caf\u00e9 \u4e2d\u6587 x_1! "


def sample_texts() -> List[str]:
    """Returns long repetitions of one and two characters, with and without another character after them; a sentence;
    and every character."""
    runs = [character * _RUN for character in _CHARACTERS]
    pairs = [pair * (_RUN // 2) for pair in ("ab", "a ", "aA", "1a", "1.", " \n", "a.", "'s", "\u4e2d1")]
    # Surrogates (U+D800 to U+DFFF) are left out: they are no characters of UTF-8.
    codes = [*range(1, 0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x30000, 7)]
    every = list(map(chr, codes))
    lines = ["".join(every[begin : begin + 500]) for begin in range(0, len(every), 500)]
    return ["", *runs, *(run + "!" for run in runs), *pairs, *(pair + "?" for pair in pairs), _SENTENCE * 30, *lines]


def try_tokenizers(content: bytes) -> str:
    """Loads a tokenizer.json, encodes and decodes sample texts, and returns why it cannot be used; empty if it can."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except BaseException as error:
        return f"no tokenizer.json: {error}"
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    if not ids:
        return "it has no tokens"
    try:
        began_s = time.process_time()
        reason = _encode(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, began_s)
        if not reason:
            _decode(lambda some: tokenizer.decode(some, skip_special_tokens=False), ids)
        return reason
    except BaseException as error:
        return f"it cannot encode or decode: {error}"


def try_sentencepiece(content: bytes) -> str:
    """Does the same for a sentencepiece model."""
    processor = importlib.import_module("sentencepiece").SentencePieceProcessor()
    try:
        if not processor.LoadFromSerializedProto(content) or processor.get_piece_size() < 1:
            return "no model of sentencepiece: it has no pieces"
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        return f"no model of sentencepiece: {error}"
    ids = range(processor.get_piece_size())
    try:
        reason = _encode(processor.encode, time.process_time())
        if not reason:
            _decode(processor.decode, ids)
        return reason
    except Exception as error:
        return f"it cannot encode or decode: {error}"


def _encode(encode: Any, began_s: float) -> str:
    for text in sample_texts():
        encode(text)
        if time.process_time() - began_s > MAX_ENCODING_S:
            return f"encoding {len(text):,} characters takes too long: it may never end"
    return ""


def _decode(decode: Any, ids: Iterable[int]) -> None:
    ids = list(ids)
    sample = ids[:300] + ids[:: max(len(ids) // 300, 1)]
    decode(sample)
    for token in sample:
        decode([token])


def main() -> int:
    """Reads a tokenizer file from standard input, tries it, and prints the result."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_S),
        # A library that aborts must not write gigabytes of memory into a core file.
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    content = sys.stdin.buffer.read()
    reason = {"tokenizers": try_tokenizers, "sentencepiece": try_sentencepiece}[sys.argv[1]](content)
    print(json.dumps({"reason": reason}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
