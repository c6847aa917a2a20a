"""Word vectors: files of GloVe, word2vec, gensim and fastText, damaged ones, and runs that start from them."""

from __future__ import annotations

import base64
import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

from mxtrain.errors import ConfigError, DataError, MxtrainError
from mxtrain.text.bilstm import BiLSTM
from mxtrain.text.model import TextModel
from mxtrain.text.tokenizing.kinds import TextsInMemory, TokenizerSettings, train_tokenizer
from mxtrain.text.tokenizing.library import TokenizerFile
from mxtrain.text.tokenizing.plain import Words
from mxtrain.text.word_vectors.reading import open_vectors, words_of
from mxtrain.text.word_vectors.vector_stream import open_streams
from mxtrain.text.word_vectors.word_table import Match, WordTable

VECTORS: Dict[str, List[float]] = {"the": [1.5, -2.25, 0.1], "Paris": [3e-5, 4, 5], "naïve": [-6, 7.125, 8]}
GENSIM_TEXT = "3 3\nthe 1.5 -2.25 0.1\nParis 3e-05 4.0 5.0\nnaïve -6.0 7.125 8.0\n".encode()
GENSIM_BINARY = (
    b"3 3\nthe \x00\x00\xc0?\x00\x00\x10\xc0\xcd\xcc\xcc=Paris \x82\xa8\xfb7\x00\x00\x80@\x00\x00\xa0@"
    b"na\xc3\xafve \x00\x00\xc0\xc0\x00\x00\xe4@\x00\x00\x00A"
)
"""Files of gensim 4.4.0, `KeyedVectors.save_word2vec_format`."""
GLOVE = GENSIM_TEXT.partition(b"\n")[2]
FASTTEXT = zlib.decompress(
    base64.b64decode(
        "eNrbJeavz8PAwMAExKxAzAjFMDYTFItA+cxAnALEus4yrx+ZSdmzAdkgDAKXoPR/KCjJSGWwgYox5OaXZaYyyMG4eYmH15ch8QMSizKL"
        "EdwCVK6NfrEdgscgBaWZoPSCsiv73BpP2P1+MG/frwcX9oZEV9phE3N8u2JfD9NEuzvs3/c290+3a5gasufw8ap9S9iN7cxLem33rJizj+l7"
        "5z6Wrcr74kU6bIVqWuzEavbYrtj2ya7TZeZewbPae8VnP7U7/uyX3ZITcXbL2NVtdnyQ3PfUdee++65P9yoUyO8tZjtsK1besu+Ar8E+r7JJ"
        "dlEO0/f9nGphd+Hr7n1uTf02Xw8u3BeQ+9Qu5kq7XVfJ531BeiF2RuIrbL+YutjBPciG5kFSAQCbkIKP"
    )
)
"""A model of fastText 0.9.2: train_unsupervised(dim=2, bucket=20, minn=1, maxn=3)."""
BY_FASTTEXT = {
    "the": [-0.10184137523174286, 0.07406351715326309],
    "naïve": [-0.07837636023759842, -0.15079262852668762],
    "unseen": [0.024324314668774605, 0.010205910541117191],
    "東": [-0.3247288763523102, 0.1483505368232727],
    "</s>": [-0.32993510365486145, 0.2832225561141968],
}
"""Its `get_word_vector`."""
# Positions in that file: of the version, of kind and buckets among the settings, of the dictionary, of the flag.
VERSION, KIND, BUCKETS, MAXN, PRUNED = 4, 36, 40, 48, 84


def table_of(words: List[str], width: int = 3) -> WordTable:
    return WordTable(dict(enumerate(words)), len(words), width)


def read(path: Path, words: List[str], width: int = 3) -> WordTable:
    table = table_of(words, width)
    open_vectors(str(path), width, "model.units").fill(table)
    return table


def zipped(content: bytes, name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(f"__MACOSX/{name}", b"no vectors")
            file.writestr("vectors/README.md", b"no vectors")
            file.writestr("vectors/small.txt", b"the 1\n")
            file.writestr(f"vectors/{name}", content)

    return write


@pytest.mark.parametrize(
    "write",
    [
        GLOVE,
        GLOVE.rstrip(b"\n"),
        GLOVE.replace(b"\n", b" \r\n"),
        GENSIM_TEXT,
        GENSIM_TEXT.replace(b"\n", b" \n"),
        GENSIM_BINARY,
        # As the program of word2vec, with a line end after each vector.
        b"3 3\n" + b"".join(f"{word} ".encode() + np.float32(row).tobytes() + b"\n" for word, row in VECTORS.items()),
        gzip.compress(GLOVE),
        gzip.compress(GENSIM_BINARY),
        zipped(GLOVE, "glove.3d.txt"),
        zipped(GENSIM_BINARY, "w2v.bin"),
    ],
    ids=[f"form{number}" for number in range(11)],  # a packed file holds the time
)
def test_vectors_of_words_are_those_of_the_file(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    write(path) if callable(write) else path.write_bytes(write)
    table = read(path, ["naïve", "missing", "Paris", "NAÏVE", "The"])
    assert table.match_V.tolist() == [Match.EXACT, Match.NONE, Match.EXACT, Match.LOWER, Match.LOWER]
    wanted = np.array([VECTORS["naïve"], [0, 0, 0], VECTORS["Paris"], VECTORS["naïve"], VECTORS["the"]], np.float32)
    np.testing.assert_array_equal(table.vector_VE, wanted)
    assert table.describe("FILE") == (
        "word vectors: 4 of 5 words (80.0%) are in FILE, of which 2 by lower case; the other 1 start from random "
        "values, such as 'missing'"
    )


def test_equal_spelling_is_preferred_to_lower_case_and_the_first_vector_counts(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("PARIS 1\nparis 2\nParis 3\nParis 4\nÉTÉ 5\n")
    table = read(path, ["Paris", "paris", "pariS", "été"], 1)
    assert table.vector_VE.ravel().tolist() == [3, 2, 1, 5]
    assert table.match_V.tolist() == [Match.EXACT, Match.EXACT, Match.LOWER, Match.LOWER]


def test_words_with_spaces_are_words_of_glove(tmp_path: Path) -> None:
    path = tmp_path / "glove.840B.txt"
    path.write_text(". . . 9 8 7\nthe 1 2 3\na 1 2 3\non 1 2 3\nat name@domain.com 4 5 6\nroom 101 4 5 6\n")
    table = read(path, ["the", "name@domain.com", "at", "room 101", ". . ."])
    assert table.match_V.tolist() == [Match.EXACT, 0, 0, Match.EXACT, Match.EXACT]
    assert table.vector_VE[4].tolist() == [9, 8, 7]


def test_first_line_of_two_numbers_is_a_word_if_one_number_follows_each_word(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("1000 5\nthe 1\n")
    assert read(path, ["1000", "the"], 1).vector_VE.ravel().tolist() == [5, 1]
    path.write_text("2 1\nthe 5\n3 4\n")
    assert read(path, ["the", "2", "3"], 1).vector_VE.ravel().tolist() == [5, 0, 4]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_model_of_fasttext_makes_vectors_of_subwords(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(pack(FASTTEXT))
    table = read(path, list(BY_FASTTEXT), 2)
    np.testing.assert_allclose(table.vector_VE, list(BY_FASTTEXT.values()), rtol=2e-6)
    assert table.match_V.tolist() == [Match.EXACT, Match.EXACT, Match.COMPOSED, Match.COMPOSED, Match.EXACT]
    assert "5 of 5 words (100.0%) are in FILE, of which 2 made of subwords" in table.describe("FILE")
    assert table.describe("FILE").endswith("subwords")


def test_old_classifier_of_fasttext_has_no_subwords(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(patched(VERSION, 11, KIND, 3))
    table = read(path, ["the", "unseen"], 2)
    assert table.match_V.tolist() == [Match.EXACT, Match.NONE]
    np.testing.assert_array_equal(table.vector_VE[0], np.frombuffer(FASTTEXT, "<f4", 2, matrix_of(FASTTEXT)))


def matrix_of(model: bytes) -> int:
    """Position of the first row of the matrix, whose 26 rows of 2 numbers are followed by those of the output."""
    return model.index(np.array([26, 2], "<i8").tobytes()) + 16


def patched(*positions: int) -> bytes:
    """The model with other values at some positions."""
    content = bytearray(FASTTEXT)
    for position, value in zip(positions[::2], positions[1::2]):
        content[position : position + 4] = int(value).to_bytes(4, "little", signed=True)
    return bytes(content)


def with_flag() -> bytes:
    position = matrix_of(FASTTEXT) - 17
    return FASTTEXT[:position] + b"\1" + FASTTEXT[position + 1 :]


def with_nan() -> bytes:
    position = matrix_of(FASTTEXT)
    return FASTTEXT[:position] + np.float32([np.nan] * 52).tobytes() + FASTTEXT[position + 208 :]


REFUSED: List[Tuple[bytes, str]] = [
    (b"", "vectors is empty"),
    (b"some text\nof a book\n", "is no file of word vectors. It can be GloVe's .txt"),
    (b"the\t1\t2\t3\n", "is no file of word vectors"),
    (b"\x80\x04\x95pickle", "is a pickle, as gensim saves its objects, and pickles are never loaded. Write it with"),
    (GLOVE + b"a 1 2\n", "vectors, line 4 has 2 numbers, and the vectors before have 3"),
    (GLOVE + b"\n", "vectors, line 4 has 0 numbers"),
    (GLOVE + b"a 1.5 1 2 3\n", "vectors, line 4 has 4 numbers, and the vectors before have 3"),
    (b"the 1 nan 3\n" + GLOVE, "line 1 has a value that is no finite number of float32"),
    (GLOVE + b"cat 1 nan 3\n", "line 4 has a value that is no finite number of float32"),
    (GLOVE + b"cat 1 1e39 3\n", "line 4 has a value that is no finite number of float32"),
    (GLOVE + b"cat 1 1_0 3\n", "line 4 has a value that is no finite number of float32"),
    (GLOVE + b"cat 1 1e 3\n", "line 4 has a value that is no finite number of float32"),
    (b"\n".join(GENSIM_TEXT.split(b"\n")[:3]), "vectors has 2 vectors, and 3 by its first line"),
    (GENSIM_TEXT + GLOVE, "vectors has 6 vectors, and 3 by its first line"),
    (b"3 3\n", "vectors has 0 vectors, and 3 by its first line"),
    (b"0 3\n", "has 0 vectors of 3 numbers by its first line; at least one vector of 1 to 20,000"),
    (b"3 99999\n" + GENSIM_BINARY[4:], "has 3 vectors of 99,999 numbers by its first line"),
    (GENSIM_BINARY[:-1], "ends in vector 3, or is damaged there; by its first line it has 3"),
    (GENSIM_BINARY[:25], "ends in vector 2, or is damaged there"),
    (b"1 3\ncat " + np.float32([1, np.inf, 3]).tobytes(), "vector 1 has a value that is not finite"),
    (b"1 3\n" + b"\x01" * 20_000, "ends in vector 1, or is damaged there"),
    (GLOVE.replace(b"the 1.5", b"x" * (1 << 20) + b" 1.5"), "has a line of more than 1,048,576 bytes"),
    (gzip.compress(GLOVE * 1000, mtime=0)[:-30], "is damaged: it cannot be unpacked"),
    (b"PK\x03\x04" + bytes(200), "is a damaged archive"),
    (FASTTEXT[:30], "vectors ends early. Copy or download it again."),
    (FASTTEXT[:100], "vectors ends early"),
    (FASTTEXT[: matrix_of(FASTTEXT) + 20], "vectors ends early"),
    (patched(VERSION, 13), "has version 13 of fastText's format, and versions up to 12 are read"),
    (patched(BUCKETS, -5), "has vectors of 2 numbers and -5 subwords of 1 to 3 characters: it is damaged"),
    (patched(MAXN, 101), "subwords of 1 to 101 characters: it is damaged"),
    (patched(BUCKETS, 21), "has a matrix of 26 x 2 numbers for 6 words and 21 subwords of 2. It is damaged"),
    (patched(64, 5), "has a damaged dictionary"),
    (
        patched(PRUNED, 1, PRUNED + 4, 0),
        "has been pruned by `quantize`. Write the vectors of your words as text: fasttext",
    ),
    (with_flag(), "is quantised. Write the vectors of your words as text: fasttext print-word-vectors MODEL.bin"),
    (with_nan(), "has a value that is not finite in row "),
]


@pytest.mark.parametrize("content, said", REFUSED, ids=[said for _, said in REFUSED])
def test_damaged_files_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    width = 2 if content[:4] == FASTTEXT[:4] else 3
    with pytest.raises(MxtrainError) as caught:
        read(path, ["the", "cat", "paris"], width).describe(str(path))
    assert said in str(caught.value) and caught.value.exit_code == 2


def test_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(GLOVE)
    with pytest.raises(ConfigError, match=r"has vectors of 3 numbers, and model.units=4. Type model.units=3, or give"):
        open_vectors(str(path), 4, "model.units")
    with pytest.raises(DataError, match=r"there is no such file. Did you mean 'glove.txt'\?"):
        open_vectors(str(tmp_path / "glov.txt"), 3, "model.units")
    with pytest.raises(
        DataError, match="has a vector for none of the 2 words of the vocabulary, such as 'x', 'y'. Give"
    ):
        read(path, ["x", "y"]).describe("FILE")
    archive = tmp_path / "glove.zip"
    zipped(GLOVE, "a.txt")(archive)
    with pytest.raises(ConfigError, match="has vectors of 1 or 3 numbers, and model.units=2. Type model.units=1"):
        open_vectors(str(archive), 2, "model.units")
    zipped(b"the 1\n", "a.txt")(archive)
    with pytest.raises(DataError, match="2 files with vectors of 1 numbers: vectors/a.txt, vectors/small.txt. Unpack"):
        open_vectors(str(archive), 1, "model.units")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.json", "{}")
    with pytest.raises(DataError, match="is an archive without a file of word vectors"):
        open_streams(str(archive))


def test_vocabulary_must_have_whole_words() -> None:
    texts = TextsInMemory(["the cat sat on the mat"] * 3)
    words = train_tokenizer(TokenizerSettings("words"), texts)
    assert sorted(words_of(words).values()) == ["cat", "mat", "on", "sat", "the"]
    for kind in ("characters", "wordpiece"):
        with pytest.raises(ConfigError, match="belong to whole words.*Type dataset.tokenizer=words"):
            words_of(train_tokenizer(TokenizerSettings(kind, size=100), texts))
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "the": 1, "cat": 2}
    file = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    assert words_of(TokenizerFile(file.to_str())) == {1: "the", 2: "cat"}
    other = tokenizers.Tokenizer(tokenizers.models.BPE())
    with pytest.raises(ConfigError, match="whole words"):
        words_of(TokenizerFile(other.to_str()))


def test_settings_that_exclude_each_other_are_refused() -> None:
    class Unnamed(TextModel):
        """A network of a user's own."""

    with pytest.raises(ValueError, match="Unnamed does not say which parameter its embedding is"):
        Unnamed(embeddings="glove.txt")
    with pytest.raises(ValueError, match="both give the first values of the embedding"):
        BiLSTM(embeddings="glove.txt", weights="a.params")


@pytest.mark.parametrize(
    "model, name, others",
    [
        ("bilstm", "word_embed.weight", "token_type_embed.weight"),
        ("bert", "bert.word_embed.0.weight", "bert.token_type_embed.0.weight"),
        ("lstm", "embedding.weight", "output.bias"),
        ("gpt", "embedding.weight", "positions.weight"),
    ],
)
def test_other_parameters_and_words_keep_their_values(
    describe_run: Any, tmp_path: Path, model: str, name: str, others: str
) -> None:
    from mxtrain.engine.backend import mx
    from mxtrain.training.network import build_network

    path = tmp_path / "vectors.txt"
    path.write_text("the 1 2 3 4\ncat 5 6 7 8\n")
    words = [f"model={model}", "dataset.tokenizer=words", "dataset.max_length=8"]
    words += ["model.embed_size=4"] if model == "bilstm" else ["model.units=4"]
    words += ["model.num_heads=2"] if model in ("bert", "gpt") else []
    description = describe_run(*words, f"model.embeddings={path}")
    vocabulary = Words(("<pad>", "<unk>", "<bos>", "<eos>", "<mask>", "Cat", "dog"), False)
    signature = signature_for(description, vocabulary)
    found = build_network(description, signature, mx.cpu())._collect_params_with_prefix()
    plain = build_network(describe_run(*words), signature, mx.cpu())._collect_params_with_prefix()
    value_VE, plain_VE = (one[name].data().asnumpy() for one in (found, plain))
    assert value_VE[5].tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(np.delete(value_VE, 5, 0), np.delete(plain_VE, 5, 0))
    np.testing.assert_array_equal(found[others].data().asnumpy(), plain[others].data().asnumpy())


def signature_for(description: Any, vocabulary: Words) -> Any:
    from mxtrain.text.signature import TextSignature
    from mxtrain.text.tokenizing.config import TokenizerConfig

    names = [] if "language" in description.config["task"]["_target_"] else ["a", "b"]
    shape = ((8,), (8,), *description.model.state_shapes) if not names else ((8,), (8,), ())
    return TextSignature(shape, class_names=names, tokenizer_config=TokenizerConfig(vocabulary, 8))


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_run_continues_without_the_file(
    train_run: Any, describe_run: Any, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mxtrain.kvstore.world import World
    from mxtrain.training import build

    rows = [f"{'good' if number % 2 else 'bad'} film {number % 5},{number % 2}" for number in range(24)]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    path = tmp_path / "vectors.txt"
    path.write_text("good 1 1 1\nbad -1 -1 -1\nthe 2 2 2\n")
    words = (
        "dataset=text",
        "model=bilstm",
        "model.embed_size=3",
        "model.units=4",
        f"dataset.train={tmp_path}/train.csv",
        "dataset.sentence=text",
        "dataset.tokenizer=words",
        "dataset.batch_size=4",
        "trainer.max_epochs=2",
        f"model.embeddings={path}",
        "model.freeze=[word_embed.*]",
    )
    caplog.set_level("INFO", "mxtrain")
    whole = train_run(*words, run_dir=tmp_path / "whole")[1]
    assert "word vectors: 2 of 8 words" in caplog.text
    part = train_run(*words, "trainer.max_steps=3", run_dir=tmp_path / "parts")[1]
    path.unlink()
    continued = train_run(*words, run_dir=tmp_path / "parts")[1]
    assert part.step == 3 < continued.step and continued.weights_sha256 == whole.weights_sha256
    with pytest.raises(DataError, match="there is no such file"):
        train_run(*words, run_dir=tmp_path / "other")
    # Only rank 0 knows whether there is a checkpoint, so another worker raises the error when it has been told.
    inputs = build.open_inputs(describe_run(*words), World(1, 2))
    assert "there is no such file" in str(inputs.missing)
    monkeypatch.setattr(build, "open_inputs", lambda *arguments: inputs)
    with pytest.raises(DataError, match="there is no such file"):
        train_run(*words, run_dir=tmp_path / "other")
