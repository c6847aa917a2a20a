"""Reads the vectors of a vocabulary's words from a file of any form, and sets the embeddings of a network."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Dict, List, Union

from mxtrain.data.loading.dataset_files import exists, suggest_existing
from mxtrain.errors import ConfigError, DataError
from mxtrain.text.tokenizing.base import BaseTokenizer
from mxtrain.text.tokenizing.library import TokenizerFile
from mxtrain.text.tokenizing.plain import Words
from mxtrain.text.word_vectors.fasttext_model import MAGIC, FastTextModel, recognise_fasttext
from mxtrain.text.word_vectors.plain_vectors import PlainVectors, recognise_vectors
from mxtrain.text.word_vectors.vector_stream import VectorStream, open_streams
from mxtrain.text.word_vectors.word_table import Match, WordTable

if TYPE_CHECKING:
    from mxnet import gluon

VectorFile = Union[PlainVectors, FastTextModel]
log = logging.getLogger("mxtrain")


def open_vectors(path: str, width: int, setting: str) -> VectorFile:
    """Opens a file of word vectors, and checks the length of its vectors. Reads its beginning only.

    Args:
        path: path of the file; of several files in a ZIP archive, the one with vectors of this length is chosen.
        width: length of the network's embeddings.
        setting: setting of this length, for messages.

    Raises:
        DataError: the file cannot be read, or is no file of word vectors.
        ConfigError: its vectors have another length.
    """
    if not exists(path):
        raise DataError(f"model.embeddings={path}: there is no such file.{suggest_existing(path)}")
    files = [_recognise(stream) for stream in open_streams(path)]
    fitting = [file for file in files if file.width == width]
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        raise DataError(
            f"model.embeddings: {path} has {len(fitting)} files with vectors of {width} numbers: "
            f"{', '.join(str(file.stream.member) for file in fitting)}. Unpack it, and name one of them."
        )
    widths = sorted({file.width for file in files})
    raise ConfigError(
        f"model.embeddings: {path} has vectors of {' or '.join(map(str, widths))} numbers, and {setting}={width}. Type "
        f"{setting}={widths[0]}, or give another file."
    )


def _recognise(stream: VectorStream) -> VectorFile:
    with stream.open() as file:
        begin = file.read(len(MAGIC))
    return recognise_fasttext(stream) if begin == MAGIC else recognise_vectors(stream)


def words_of(tokenizer: BaseTokenizer) -> Dict[int, str]:
    """Returns token -> word of a vocabulary of whole words, without padding and other tokens that are no words.

    Raises:
        ConfigError: its tokens are parts of words, or characters.
    """
    if isinstance(tokenizer, Words):
        tokens: List[int] = list(range(tokenizer.size))
    elif isinstance(tokenizer, TokenizerFile) and json.loads(tokenizer.text)["model"].get("type") == "WordLevel":
        tokens = sorted(tokenizer.library.get_vocab(with_added_tokens=True).values())
    else:
        raise ConfigError(
            f"model.embeddings: word vectors belong to whole words, and the tokens of this vocabulary "
            f"({tokenizer.kind}) are characters or parts of words. Type dataset.tokenizer=words, or give a "
            "tokenizer.json of whole words (WordLevel) by dataset.vocab."
        )
    special = set(tokenizer.special.ids)
    return {token: tokenizer.piece(token) for token in tokens if token not in special}


def set_embeddings(network: gluon.Block, name: str, path: str, setting: str, tokenizer: BaseTokenizer) -> None:
    """Sets the embeddings of the words that a file has vectors for; others keep their initial values.

    Args:
        network: initialised network.
        name: last parts of the structural name of the embedding.
        path, setting: see `open_vectors`.
        tokenizer: vocabulary, of whole words.

    Raises:
        ConfigError, DataError: see `open_vectors` and `words_of`; or the file has none of the words.
    """
    from mxtrain.engine.backend import nd

    words = words_of(tokenizer)
    (parameter,) = [
        one for full_name, one in network._collect_params_with_prefix().items() if f".{full_name}".endswith(f".{name}")
    ]
    size, width = parameter.shape
    file = open_vectors(path, width, setting)
    table = WordTable(words, size, width)
    file.fill(table)
    log.info("%s", table.describe(str(file.stream)))
    value_VE = parameter.list_data()[0].asnumpy()
    is_found_V = table.match_V != Match.NONE
    value_VE[is_found_V] = table.vector_VE[is_found_V]
    parameter.set_data(nd.array(value_VE, dtype=parameter.dtype))
