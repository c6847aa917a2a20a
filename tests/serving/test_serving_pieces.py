"""Streamed texts: the same pieces as if all tokens were decoded again, with work that grows linearly."""

from __future__ import annotations

import io
import json
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import pytest

from mxtrain.text.exported_texts import Vocabulary
from mxtrain.text.generating import PieceDecoder, decodes_locally, pieces_of

TEXTS = [
    "the quick brown fox isn't lazy, is it? Don't ask. déjà vu",
    "naïve 你好 世界 🙂🙃 straße",
    "a  b   c\n\nd\te",
    "123 4567, 8.9 (x) [y] re-use",
] * 8
BYTES = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
Content = Callable[[], bytes]


def byte_level() -> bytes:
    from mxtrain.text.tokenizing.library import train_bpe

    return train_bpe(TEXTS, 320, False, False).text.encode()


def library_file(model: Any, decoder: Any) -> bytes:
    import tokenizers

    made = tokenizers.Tokenizer(model)
    if decoder is not None:
        made.decoder = decoder
    return str(made.to_str()).encode()


def like_llama() -> bytes:
    """Pieces with spaces as U+2581, and tokens for the bytes of other characters."""
    from tokenizers import decoders, models

    words = ["▁", "▁the", "▁quick", "s", "'", "▁▁", ".", "�", "é", "▁a"]
    vocab = {"<unk>": 0, **BYTES, **{word: 257 + number for number, word in enumerate(words)}}
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library_file(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True), decoder)


def word_pieces() -> bytes:
    from tokenizers import decoders, models

    words = ["[UNK]", "the", "##s", "n", "'", "t", ".", "do", "##n't", ",", "n't", "re", "##use", "##é", "'s", "?"]
    return library_file(models.WordPiece({word: number for number, word in enumerate(words)}), decoders.WordPiece())


def with_decoder(make: Callable[[Any], Any]) -> Content:
    def build() -> bytes:
        from tokenizers import decoders, models

        words = ["the</w>", "qu", "ick</w>", "a", "▁b", "▁", "|", "ab", "▁▁c"]
        return library_file(models.WordLevel({word: number for number, word in enumerate(words)}, "a"), make(decoders))

    return build


def sentence_piece() -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=written,
        vocab_size=340,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
    )
    return written.getvalue()


FILES: Dict[str, Content] = {
    "byte level": byte_level,
    "like Llama": like_llama,
    "word pieces": word_pieces,
    "no decoder": with_decoder(lambda decoders: None),
    "metaspace": with_decoder(lambda made: made.Metaspace()),
    "ends of words": with_decoder(lambda made: made.BPEDecoder(suffix="</w>")),
    "sentencepiece": sentence_piece,
}
OTHERS: Dict[str, Content] = {
    "repeated tokens": with_decoder(lambda made: made.CTC(pad_token="|")),
    "spaces at the end": with_decoder(lambda made: made.Sequence([made.Fuse(), made.Strip("b", 0, 1)])),
    "several characters": with_decoder(lambda made: made.Sequence([made.Fuse(), made.Replace("ab", "x")])),
}


class File:
    """A folder that holds only a tokenizer."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        facts = {"file": name, "special": [3], "lowercase": False}
        self.signature: Dict[str, Any] = {"facts": {"tokenizer": facts}}

    def read(self, name: str) -> bytes:
        return self._content

    def run(self, inputs: Any, part: str = "") -> Any:
        raise NotImplementedError


class CountedVocabulary(Vocabulary):
    """Counts the tokens that are decoded."""

    num_decoded = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.num_decoded += len(tokens)
        return super().decode(tokens)


def vocabulary_of(name: str, content: bytes) -> CountedVocabulary:
    return CountedVocabulary(File(content, "t.model" if name == "sentencepiece" else "tokenizer.json"))


def size_of(words: Vocabulary) -> int:
    library = words._library
    return int(library.get_vocab_size() if hasattr(library, "get_vocab_size") else library.get_piece_size())


def sequences(words: Vocabulary, count: int) -> Iterator[List[int]]:
    """Tokens of texts, of these mixed with any, and any."""
    rng = np.random.default_rng(0)
    size = size_of(words)
    for number in range(count):
        length = int(rng.integers(1, 40))
        drawn = rng.integers(0, size, length)
        text = np.array(words.encode(TEXTS[number % 4]) or [0])
        if number % 3 == 0:
            yield [int(token) for token in text]
        elif number % 3 == 1:
            yield [int(token) for token in np.where(rng.random(length) < 0.2, drawn, np.resize(text, length))]
        else:
            yield [int(token) for token in drawn]


def pieces(words: Vocabulary, tokens: Sequence[int], is_local: bool) -> List[str]:
    return [piece.text for piece in pieces_of(words, ([token] for token in tokens), 1 << 20, is_local)]


@pytest.mark.parametrize("name", FILES)
def test_joined_pieces_equal_the_whole_text(name: str) -> None:
    if name == "sentencepiece":
        pytest.importorskip("sentencepiece")
    content = FILES[name]()
    words = vocabulary_of(name, content)
    assert decodes_locally(content, words.facts["file"])
    held = 0
    for tokens in sequences(words, 150):
        found = pieces(words, tokens, True)
        assert "".join(found) == words.decode(tokens)
        assert found == pieces(words, tokens, False), tokens
        held += "" in found[:-1]
    assert held or name not in ("byte level", "like Llama", "sentencepiece")


@pytest.mark.parametrize("name", OTHERS)
def test_other_decoders_decode_all_tokens_again(name: str) -> None:
    content = OTHERS[name]()
    assert not decodes_locally(content, "tokenizer.json")
    words = vocabulary_of(name, content)
    assert not words.encode("") and json.loads(content)["decoder"]


@pytest.mark.parametrize("name", ["byte level", "like Llama"])
def test_work_grows_linearly(name: str) -> None:
    words = vocabulary_of(name, FILES[name]())
    text = [257 + number % 2 + 1 for number in range(64)] if name == "like Llama" else words.encode(" ".join(TEXTS[:4]))
    decoded = []
    for times in (4, 8):
        decoder = PieceDecoder(words, True)
        words.num_decoded = 0
        for token in text * times:
            decoder.add([token])
        decoded.append(words.num_decoded)
    assert decoded[1] < 2.1 * decoded[0] and decoded[1] < 16 * len(text) * 8
