"""Answers questions with an exported network. Exported folders have a copy of this module.

Legend: C tokens of a context, Q tokens of a question.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, decoded_text, json_lines_of, require_length
from mxtrain.text.exported_texts import Vocabulary, named_inputs
from mxtrain.text.question_answering.answer_window import Window, WindowSettings
from mxtrain.text.question_answering.best_answer import answer_of
from mxtrain.text.question_answering.context_windows import TokenizedContext, sample_windows
from mxtrain.text.question_answering.question_entries import (
    id_of,
    parse_questions,
    question_entries,
    reason_of,
    require_text,
)

READS_JSON = True
"""A file that ends in .json is one of SQuAD, and no inputs of the network."""


@dataclass(frozen=True)
class AskedQuestion:
    """A question whose answer is not known."""

    id: str
    text: str
    answers: Sequence[Any] = ()


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return 'lines of JSON such as {"question": "Who?", "context": "A passage."}, or a .json file in the form of SQuAD'


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a file for the proof of an export."""
    asked = {"question": "Which one?", "context": "One two 3, \u00dcber \u00df!"}
    return [("proof.jsonl", json.dumps(asked).encode())]


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for a file.

    Args:
        folder: exported folder.
        content: content of a file of SQuAD if the name ends in .json; otherwise lines of JSON with question, context
            and perhaps id.
        name: name of the file.

    Raises:
        ValueError: the file cannot be read, or a text is too long.
    """
    vocabulary, settings = Vocabulary(folder), WindowSettings(**folder.signature["facts"]["windows"])
    asked = (_squad_questions if name.lower().endswith(".json") else _question_lines)(content, name)
    for location, question, text in asked:
        require_length(question.text, location, "the question")
        require_length(text, location, "the context")
    context = TokenizedContext("", *vocabulary.offsets(""))
    for location, question, text in asked:
        if not context.text or context.text != text:  # questions about one context follow each other
            context = TokenizedContext(text, *vocabulary.offsets(text))
        yield {"file": location, **_answer(folder, vocabulary, settings, question, context)}


def _answer(
    folder: ExportedFolder,
    vocabulary: Vocabulary,
    settings: WindowSettings,
    question: AskedQuestion,
    context: TokenizedContext,
) -> Dict[str, Any]:
    """Returns the best answer over all windows of the context."""
    question_Q, facts = np.array(vocabulary.encode(question.text), np.int32), vocabulary.facts
    special = (facts["first"], facts["last"])
    scored_windows: List[Tuple[Window, np.ndarray]] = []
    samples = sample_windows(question_Q, question.text, context, special, settings, facts["max_length"])
    for first, tokens, types, begin in samples:
        span_C2 = context.span_C2[first : first + len(tokens) - begin - 1]
        score_T2 = folder.run(named_inputs(folder, tokens.tolist(), types.tolist()))["output"][0]
        scored_windows.append((Window(0, question, context.text, span_C2, begin, settings), score_T2))
    return answer_of(scored_windows)


Placed = Tuple[str, AskedQuestion, str]
"""Location, question and context."""


def _question_lines(content: bytes, name: str) -> List[Placed]:
    """Returns the questions of lines of JSON."""
    questions: List[Placed] = []
    for number, row in json_lines_of(content, name):
        location = f"{name}:{number}"
        try:
            question = AskedQuestion(id_of(row.get("id", number)), require_text(row["question"]))
            questions.append((location, question, require_text(row["context"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{location} is no line of JSON with question and context ({reason_of(error)})") from error
    return questions


def _squad_questions(content: bytes, name: str) -> List[Placed]:
    """Returns the questions of a file in the form of SQuAD."""
    questions: List[Placed] = []
    try:
        for line, context, entry in question_entries(parse_questions(decoded_text(content, name))):
            question = AskedQuestion(id_of(entry["id"]), require_text(entry["question"]))
            questions.append((name if line is None else f"{name}:{line}", question, context))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name} is no file of SQuAD ({reason_of(error)})") from error
    return questions
