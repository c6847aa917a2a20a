"""Predicts for texts with an exported network. Exported folders contain a copy of this module.

    text -> tokenizer.json -> ids -> the network -> classes, tags, a continuation or a translation

Legend: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Dict, Generator, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, UnseenWarning, decoded_text, require_length, targets_in
from mxtrain.data.features.exported_rows import FORMS, predicted_row, read_table
from mxtrain.data.table.cell_text import text_of
from mxtrain.text.language_modeling.sampling import Sampling
from mxtrain.text.token_classification.tags import TagCodes, find_entities, is_plain
from mxtrain.text.translation.networks.decoding import Beam, BeamSteps, LengthLimits

TOKENIZERS = ("tokenizer", "target_tokenizer")
_SINGLE_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Vocabulary:
    """Converts texts to token ids and back.

    Args:
        folder: exported folder with the tokenizer's file.
        name: one of `TOKENIZERS`.
    """

    def __init__(self, folder: ExportedFolder, name: str = "tokenizer"):
        self.facts: Dict[str, Any] = folder.signature["facts"][name]
        self._library: Any
        if self.facts["file"].endswith(".model"):
            import sentencepiece  # type: ignore[import-untyped]  # it has no stubs

            self._library = sentencepiece.SentencePieceProcessor(model_proto=folder.read(self.facts["file"]))
        else:
            import tokenizers

            self._library = tokenizers.Tokenizer.from_str(folder.read(self.facts["file"]).decode())
            self._library.no_truncation()
            self._library.no_padding()

    def encode(self, text: str) -> List[int]:
        """Returns the token ids of a text, without special tokens."""
        text = text.lower() if self.facts["lowercase"] else text
        if self.facts["file"].endswith(".model"):
            return list(self._library.encode(text, out_type=int))
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the token ids (T,) of a text, and their positions in it (T, 2): [first character, end)."""
        lowered = text.lower() if self.facts["lowercase"] else text
        if self.facts["file"].endswith(".model"):
            pieces = self._library.encode(lowered, out_type="immutable_proto").pieces
            ids, spans = [piece.id for piece in pieces], [(piece.begin, piece.end) for piece in pieces]
        else:
            encoding = self._library.encode(lowered, add_special_tokens=False)
            ids, spans = encoding.ids, encoding.offsets
        span_T2 = np.array(spans, np.int64).reshape(-1, 2)
        if len(lowered) != len(text):  # a few letters have two characters in lower case
            origin = np.repeat(np.arange(len(text)), [len(character.lower()) for character in text])
            span_T2 = np.stack([origin[span_T2[:, 0]], origin[np.maximum(span_T2[:, 1] - 1, 0)] + 1], axis=1)
        return np.array(ids, np.int32), span_T2

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids; special tokens are dropped."""
        kept = [int(token) for token in tokens if int(token) not in self.facts["special"]]
        if self.facts["file"].endswith(".model"):
            return str(self._library.decode(kept))
        return str(self._library.decode(kept, skip_special_tokens=False))

    def decode_certain(self, tokens: Sequence[int]) -> str:
        """Returns the beginning of the text of token ids that no further token changes.

        A token may end within the bytes of a character, which are decoded as U+FFFD until they are complete.
        """
        kept = [int(token) for token in tokens if int(token) not in self.facts["special"]]
        if not self.facts["file"].endswith(".model"):
            # The library decodes consecutive tokens for single bytes together: a further byte may change all of them.
            while kept and _SINGLE_BYTE.fullmatch(self._library.id_to_token(kept[-1]) or ""):
                kept.pop()
        return self.decode(kept).rstrip("\ufffd")


MAX_TEXTS = 10_000
"""Number of texts at the beginning of a file in which unknown tokens are counted."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    columns = signature["facts"].get("columns") or []
    pair = " (the two texts of a pair with a tab between them)" * (len(columns) > 1)
    forms = ", or a .csv, .tsv, .jsonl or .parquet file with the columns "
    table_format = forms + ", ".join(columns) if columns and all(columns) else ""
    return f"a text file in UTF-8, a text in each line{pair}{table_format}"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for a file.

    Args:
        folder: exported folder.
        content: content of the file: lines, or a table with a header if its name ends in .csv or .tsv.
        name: name of the file.

    Raises:
        ValueError: the file cannot be read, or a text is too long.
    """
    targets = targets_in(folder.signature)
    predictors = {
        "NextTokens": predict_continuations,
        "Translations": predict_translations,
        "TokenTags": predict_tags,
    }
    predict_rows = next((predictors[target] for target in targets if target in predictors), predict_classes)
    lines = numbered_texts(folder, content, name, keeps_empty="Translations" in targets)
    for line, texts in lines:
        for text in texts:
            require_length(text, f"{name}:{line}")
    for (line, _), row in zip(lines, predict_rows(folder, [texts for _, texts in lines])):
        yield {"file": f"{name}:{line}", **row}
    _warn_unknown(folder, [text for _, texts in lines for text in texts], name)


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a text file for the proof of an export."""
    mark = "\t" if len(signature["facts"].get("columns") or []) > 1 else " "
    return [("proof.txt", f"One two 3,{mark}\u00dcber \u00df!\n".encode())]


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Optional[Dict[str, np.ndarray]]:
    """Returns the inputs of the network for the first text of a table, (1, ...) each; None for other files and tasks.

    Args:
        folder: exported folder.
        content: content of the file.
        name: name of the file.

    Raises:
        ValueError: the file cannot be read.
    """
    columns = folder.signature["facts"].get("columns") or [""]
    if not {"ClassIndex", "ClassSet", "Number"} & set(targets_in(folder.signature)) or not all(columns):
        return None
    if not name.lower().endswith(FORMS):
        return None
    samples = numbered_texts(folder, content, name, keeps_empty=False)
    if not samples:
        return None
    return named_inputs(folder, *encode_sample(Vocabulary(folder), samples[0][1]))


def _warn_unknown(folder: ExportedFolder, texts: Sequence[str], name: str) -> None:
    """Warns of the share of tokens that the vocabulary does not contain."""
    unknown = (folder.signature["facts"].get("tokenizer") or {}).get("unknown_token")
    if unknown is None:
        return
    vocabulary = Vocabulary(folder)
    tokens = [token for text in texts[:MAX_TEXTS] for token in vocabulary.encode(text)]
    count = tokens.count(unknown)
    if count:
        share = f"{count / len(tokens):.3g} of the tokens ({count:,} of {len(tokens):,})"
        warnings.warn(
            f"{name}: {share} are unknown from training. All unknown tokens enter the network alike.",
            UnseenWarning,
            stacklevel=2,
        )


def numbered_texts(
    folder: ExportedFolder, content: bytes, name: str, keeps_empty: bool
) -> List[Tuple[int, Tuple[str, ...]]]:
    """Returns the line number and the texts of each sample; the two texts of a pair are separated by a tab. Rows of
    Parquet are numbered from 0.

    Args:
        folder: exported folder, which knows the columns of tables.
        content: content of the file.
        name: name of the file.
        keeps_empty: True to keep empty lines, so that line numbers of inputs and outputs agree.

    Raises:
        ValueError: the file cannot be read, or a cell of a table is null.
    """
    columns = folder.signature["facts"].get("columns") or []
    form = next((form for form in FORMS if name.lower().endswith(form)), "")
    if form and columns and all(isinstance(column, str) for column in columns):
        rows = read_table(content, name, form, columns)
        return [
            (int(location.rpartition(":")[2]), tuple(_text_in(cells, column, location) for column in columns))
            for location, cells in rows
        ]
    # Not splitlines, which also cuts at U+2028, form feeds and other characters inside of texts.
    lines = decoded_text(content, name).split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    numbered = [(number, line.rstrip("\r")) for number, line in enumerate(lines, start=1)]
    is_pair = len(columns) > 1
    return [
        (number, tuple(line.split("\t")) if is_pair else (line,))
        for number, line in numbered
        if keeps_empty or line.strip()
    ]


def _text_in(cells: Mapping[str, Any], column: str, location: str) -> str:
    text = text_of(cells[column])
    if text is None:
        raise ValueError(f"{location}: '{column}' is null, which is no text")
    return str(text)


def predict_classes(folder: ExportedFolder, samples: Sequence[Tuple[str, ...]]) -> Iterator[Dict[str, Any]]:
    """Yields the predicted classes of texts, or the predicted numbers of a regression."""
    vocabulary = Vocabulary(folder)
    for texts in samples:
        yield predicted_row(folder.signature, folder.run(named_inputs(folder, *encode_sample(vocabulary, texts))))


def predict_tags(folder: ExportedFolder, samples: Sequence[Tuple[str, ...]]) -> Iterator[Dict[str, Any]]:
    """Yields words and their predicted tags. Sentences that are too long are split into several samples."""
    vocabulary, names = Vocabulary(folder), folder.signature["class_names"]
    for (text,) in samples:
        sentence = text.split()
        pieces = [vocabulary.encode(word) or [vocabulary.facts["unknown"]] for word in sentence]
        room = vocabulary.facts["max_length"] - _num_special(vocabulary.facts, 1)
        tags: List[str] = []
        while len(tags) < len(sentence):  # one iteration per sample
            count, size = 0, 0
            while len(tags) + count < len(sentence) and (not count or size + len(pieces[len(tags) + count]) <= room):
                size += len(pieces[len(tags) + count])
                count += 1
            sample = pieces[len(tags) : len(tags) + count]
            token_T = [token for word in sample for token in word][:room]
            begins = np.cumsum([0, *map(len, sample)])[:-1] + (vocabulary.facts["first"] is not None)
            score_TK = folder.run(named_inputs(folder, *joined_sample(vocabulary.facts, [token_T])))["output"][0]
            tags += [names[int(score_TK[min(begin, len(score_TK) - 1)].argmax())] for begin in begins]
        entities = {} if is_plain(names) else {"entities": _entities(names, sentence, tags)}
        yield {"words": sentence, "tags": tags, **entities}


def _entities(names: Sequence[str], words: Sequence[str], tags: Sequence[str]) -> List[Dict[str, Any]]:
    """Returns the entities that the tags describe: type, text, and the range of their words."""
    codes, number = TagCodes(names), {name: k for k, name in enumerate(names)}
    code_W = codes.code_K[[number[tag] for tag in tags]]
    entities = find_entities(code_W, np.zeros(len(code_W), np.int64))
    return [
        {"type": codes.types[kind], "text": " ".join(words[begin:end]), "begin": begin, "end": end}
        for kind, begin, end in zip(entities.type_E.tolist(), entities.begin_E.tolist(), entities.end_E.tolist())
    ]


def _num_special(facts: Dict[str, Any], num_texts: int) -> int:
    return (facts["first"] is not None) + num_texts * (facts["last"] is not None)


def encode_sample(vocabulary: Vocabulary, texts: Sequence[str]) -> Tuple[List[int], List[int]]:
    """Returns tokens and token types of a text or of a pair of texts, see `joined_sample`."""
    return joined_sample(vocabulary.facts, [vocabulary.encode(text) for text in texts])


def joined_sample(facts: Dict[str, Any], texts: Sequence[List[int]]) -> Tuple[List[int], List[int]]:
    """Returns tokens and token types with special tokens. If a pair is too long, the longer text is truncated first."""
    room = facts["max_length"] - _num_special(facts, len(texts))
    counts = [min(len(texts[0]), room)]
    if len(texts) > 1:
        first, second = map(len, texts)
        short, long = min(first, second), max(first, second)
        long = min(long, max(short, room - short))
        if short + long > room:
            short, long = room // 2, room - room // 2
        counts = [long, short] if first > second else [short, long]
    tokens: List[int] = [] if facts["first"] is None else [facts["first"]]
    kinds: List[int] = []
    for number, (text, count) in enumerate(zip(texts, counts)):
        tokens += [*text[:count], *([] if facts["last"] is None else [facts["last"]])]
        kinds += [number] * (len(tokens) - len(kinds))
    return tokens, kinds


def named_inputs(
    folder: ExportedFolder, tokens: List[int], kinds: List[int], multiple: int = 1
) -> Dict[str, np.ndarray]:
    """Returns the network inputs for one sample, padded if the exported network has a fixed length.

    Args:
        folder: exported folder.
        tokens, kinds: tokens and token types of the sample.
        multiple: if the length is open, the sample is padded to a multiple of this, up to the length of training.
    """
    facts, shapes = folder.signature["facts"]["tokenizer"], {}
    for spec in folder.signature["inputs"]:
        shapes[spec["name"]] = (spec["shape"], spec["dtype"])
    length = shapes["input0"][0][1]
    if isinstance(length, str):
        length = min(-(-len(tokens) // multiple) * multiple, facts["max_length"])
    padding = max(length - len(tokens), 0)
    arrays = {
        "input0": [tokens + [facts["pad"]] * padding],
        "input1": [kinds + [0] * padding],
        "input2": [len(tokens)],
    }
    return {name: np.array(arrays[name], dtype) for name, (_, dtype) in shapes.items()}


def predict_continuations(folder: ExportedFolder, samples: Sequence[Tuple[str, ...]]) -> Iterator[Dict[str, Any]]:
    """Yields the continuation of each text by a language model."""
    vocabulary, facts = Vocabulary(folder), folder.signature["facts"]
    sampling = Sampling(*(facts[name] for name in ("temperature", "top_k", "top_p", "sampling_seed")))
    for number, (text,) in enumerate(samples):
        token_N = list(continue_tokens(folder, vocabulary.encode(text), sampling, number, facts["new_tokens"]))
        yield {"continuation": vocabulary.decode(token_N)}


def continue_tokens(
    folder: ExportedFolder, prompt: Sequence[int], sampling: Sampling, number: int, count: int
) -> Iterator[int]:
    """Yields the tokens that follow a prompt, each as soon as it is drawn, up to and without `<eos>`.

    Args:
        folder: exported folder with the part `step`.
        prompt: tokens of the prompt; only the last `max_prompt` ones are used.
        sampling: settings of sampling.
        number: index of the text, which seeds the random numbers.
        count: largest number of tokens.
    """
    facts = folder.signature["facts"]
    tokens = list(prompt[-facts["max_prompt"] :]) or [0]
    moving = initial_moving_state(folder, 1)
    length = len(tokens)
    for position in range(length + count - 1):
        inputs = {"token": np.array([tokens[position]], np.int32), "place": np.array([position], np.float32), **moving}
        score_BV, moving = step(folder, inputs)
        if position + 1 >= length:
            token = int(sampling.choose(score_BV, np.array([number]), np.array([position + 1 - length]))[0])
            if token == facts["tokenizer"]["eos"]:
                return
            tokens.append(token)
            yield token


def initial_moving_state(folder: ExportedFolder, rows: int) -> Dict[str, np.ndarray]:
    """Returns the moving state before the first token: arrays with 0 past positions."""
    sizes = {"batch": rows, "past": 0}
    return {
        spec["name"]: np.zeros([sizes.get(size, size) for size in spec["shape"]], spec["dtype"])
        for spec in folder.signature["parts"]["step"]["inputs"]
        if spec["name"].startswith("moving")
    }


def step(folder: ExportedFolder, inputs: Dict[str, np.ndarray]) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Runs one decoding step; returns scores (B, V) of the next token and the new moving state."""
    input_names = {spec["name"] for spec in folder.signature["parts"]["step"]["inputs"]}
    outputs = folder.run({name: array for name, array in inputs.items() if name in input_names}, "step")
    after = {name[len("next_") :]: array for name, array in outputs.items() if name.startswith("next_")}
    return outputs["scores"], after


def predict_translations(folder: ExportedFolder, samples: Sequence[Tuple[str, ...]]) -> Iterator[Dict[str, Any]]:
    """Yields translations by beam search."""
    source, target = Vocabulary(folder), target_vocabulary(folder)
    beam_size, max_tokens = (folder.signature["facts"][name] for name in ("beam_size", "max_tokens"))
    name = folder.signature["facts"].get("text_name", "translation")
    for (text,) in samples:
        if not text.strip():
            yield {"source": text, name: "", "score": 0.0}
            continue
        tokens, is_cut = source_tokens(source, text)
        search = translate_tokens(folder, tokens, target.facts, beam_size, max_tokens)
        (best, score), *others = final_translations(search)
        row: Dict[str, Any] = {"source": text, name: target.decode(best), "score": round(score, 4)}
        if others:
            row["others"] = [
                {name: target.decode(other_tokens), "score": round(log_p, 4)} for other_tokens, log_p in others
            ]
        yield {**row, "is_cut": True} if is_cut else row


def target_vocabulary(folder: ExportedFolder) -> Vocabulary:
    """Returns the vocabulary of translations, which may be that of the sources."""
    return Vocabulary(folder, "target_tokenizer" if "target_tokenizer" in folder.signature["facts"] else "tokenizer")


def source_tokens(source: Vocabulary, text: str) -> Tuple[List[int], bool]:
    """Returns the tokens of a source sentence with `<eos>`, and True if it was too long and was cut."""
    tokens, room = source.encode(text), source.facts["max_length"] - 1
    return [*tokens[:room], source.facts["eos"]], len(tokens) > room


Translations = List[Tuple[List[int], float]]
"""(tokens, log p over the length penalty) of translations, best first."""


def final_translations(search: Generator[List[int], None, Translations]) -> Translations:
    """Runs `translate_tokens` to its end and returns the translations."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            return list(end.value)


def longest_translation(folder: ExportedFolder, num_source: int, max_tokens: int) -> int:
    """Returns the largest number of tokens of a translation.

    Args:
        folder: exported folder.
        num_source: number of tokens of the source.
        max_tokens: largest number for a source of any length.
    """
    facts = folder.signature["facts"]
    limits = LengthLimits(facts["max_length_ratio"], facts["max_length_offset"], max_tokens, facts["longest"])
    return int(limits.max_lengths(np.array([num_source]))[0])


def translate_tokens(
    folder: ExportedFolder, source: Sequence[int], target: Dict[str, Any], beam_size: int, max_tokens: int
) -> Generator[List[int], None, Translations]:
    """Translates a source sentence by beam search.

    Args:
        folder: exported folder with the parts `encoder` and `step`.
        source: tokens, including `<eos>`.
        target: facts of the target vocabulary.
        beam_size: number of beams.
        max_tokens: largest number of tokens; the length of the source may allow fewer.

    Yields:
        The next tokens of the best translation as soon as they are certain: with one beam mostly one after each step,
        with several beams all of them at the end. Empty lists are steps that settle nothing.

    Returns:
        The best translations.
    """
    facts = folder.signature["facts"]
    types = {value["name"]: value["dtype"] for value in folder.signature["parts"]["encoder"]["inputs"]}
    lengths = np.array([len(source)], types.get("lengths"))
    encoder_inputs = {"source": np.array([source], types["source"]), "lengths": lengths}
    fixed = folder.run({name: encoder_inputs[name] for name in types}, "encoder")
    forbidden = [token for token in target["special"] if token != target["eos"]]
    beam = Beam(target["bos"], target["eos"], beam_size, facts["length_penalty"], forbidden)
    limit_B = np.array([longest_translation(folder, len(source), max_tokens)])
    search = BeamSteps(limit_B, beam, min(facts["num_best"], beam_size))
    token, moving, position, sent = np.array([beam.bos], np.int32), initial_moving_state(folder, 1), 0, 0
    while True:
        # In the graph of a step, beams are rows of a batch, so the arrays of the source are repeated for them.
        rows = {name: np.repeat(array, len(token) // len(array), axis=0) for name, array in fixed.items()}
        log_p, moving = step(folder, {"token": token, "place": np.array([position], np.float32), **rows, **moving})
        row = search.advance(log_p)
        if not len(row):
            break
        certain = search.certain_tokens()
        yield certain[sent:]
        sent = max(sent, len(certain))
        token, position = search.last_tokens().astype(np.int32), position + 1
        moving = {name: array[row] for name, array in moving.items()}
    hypotheses = search.found()
    results = [
        ([int(value) for value in token[:length]], float(score))
        for token, length, score in zip(hypotheses.token_SNT[0], hypotheses.length_SN[0], hypotheses.score_SN[0])
    ]
    yield results[0][0][sent:]
    # Results with the score -inf are padding. The first result is always kept.
    return [value for number, value in enumerate(results) if not number or value[1] > -np.inf]
