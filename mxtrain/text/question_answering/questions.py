"""Questions about contexts whose answers are parts of them: SQuAD's files, and lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Set

from mxtrain.data.checking.problems import STRICT, UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import read_text
from mxtrain.data.table.columns import PARQUET, require_same_columns, stream_objects
from mxtrain.errors import DataError
from mxtrain.files.json_text import parse_json
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_flag, parse_integer
from mxtrain.text.question_answering.question_entries import (
    id_of,
    parse_questions,
    question_entries,
    reason_of,
    require_text,
)

ANSWER_OFFSET = "answer_offset"
"""Kind of problem: the answer is not at its given position."""
NO_ANSWER = "no_answer"
"""Kind of problem: a question has no answer, and is not marked as unanswerable."""
REPEATED_ID = "repeated_id"
"""Kind of problem: a question has the id of an earlier one in its split."""
_COLUMNS = ("id", "context", "question", "answers", "is_impossible")
"""Columns of Hugging Face's form that are read."""


class Answer(NamedTuple):
    """A part of a context.

    Attributes:
        text: text of the part.
        begin: position of its first character in the context.
    """

    text: str
    begin: int


@dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
        id: id in the file.
        text: text of the question.
        context: index of its context.
        answers: reference answers; empty if it has no answer, or if they are unknown.
        location: source location, for messages.
    """

    id: str
    text: str
    context: int
    answers: Sequence[Answer] = ()
    location: DataLocation = DataLocation()


@dataclass
class Questions:
    """Questions and their contexts."""

    contexts: List[str] = field(default_factory=list)
    questions: List[Question] = field(default_factory=list)

    def __len__(self) -> int:
        """Returns the number of questions."""
        return len(self.questions)

    def take(self, indices: Sequence[int]) -> Questions:
        """Returns the questions with these indices; indices beyond the end are ignored."""
        return Questions(self.contexts, [self.questions[index] for index in indices if index < len(self)])

    def add(self, other: Questions) -> None:
        """Appends the questions of another file."""
        begin = len(self.contexts)
        self.contexts += other.contexts
        self.questions += [replace(question, context=question.context + begin) for question in other.questions]


def read_squad(
    path: str, findings: Findings = STRICT, with_answers: bool = True, known_ids: Optional[Set[str]] = None
) -> Questions:
    """Returns the questions of a file of SQuAD 1.1 or 2.0, or of one in Hugging Face's form, JSON or Parquet.

    Args:
        path: path of the file.
        findings: collects answers that are not at their given position, and duplicate ids.
        with_answers: True if answers are required.
        known_ids: ids of earlier files of the split; those of this file are added.

    Raises:
        DataError: the file cannot be read, or has another format.
    """
    at = ""
    try:
        is_parquet = path.endswith(PARQUET)
        content = (row for _, row in stream_objects(path, _COLUMNS)) if is_parquet else parse_questions(read_text(path))
        questions = Questions()
        ids: Set[str] = set() if known_ids is None else known_ids
        for number, (line, context, entry) in enumerate(question_entries(content)):
            if not questions.contexts or questions.contexts[-1] is not context:
                questions.contexts.append(context)
            location = DataLocation(path, record=number) if line is None else DataLocation(path, line)
            at = f", in record {number}" if line is None else f", in line {line}"
            question = _question(entry, len(questions.contexts) - 1, location)
            if question.id in ids:
                fact = f"{location} has the id '{question.id}' of an earlier question."
                findings.remark(Problem(REPEATED_ID, location, fact, "Give each question an id of its own."))
            ids.add(question.id)
            if not with_answers or _has_valid_answers(question, context, _is_impossible(entry), findings):
                questions.questions.append(question)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no file of SQuAD ({reason_of(error)}{at}): it must be JSON with data, paragraphs, context, "
            "qas, id, question and answers with text and answer_start; or a line of JSON (a row of Parquet) for each "
            'question with id, context, question and answers {"text": [...], "answer_start": [...]}, as Hugging Face '
            "writes it."
        ) from error
    if not len(questions) and not findings.keeps_going:
        raise DataError(f"{path}: there is no question.")
    return questions


def read_squad_files(paths: Sequence[str], findings: Findings = STRICT) -> Questions:
    """Returns the questions of several files, in order; see `read_squad`.

    Raises:
        DataError: a file cannot be read, or the columns of Parquet differ.
    """
    if any(path.endswith(PARQUET) for path in paths):
        require_same_columns(paths)
    questions = Questions()
    ids: Set[str] = set()
    for path in paths:
        questions.add(read_squad(path, findings, known_ids=ids))
    return questions


def _is_impossible(entry: Any) -> bool:
    """Returns True if a question has no answer. Hugging Face's SQuAD 2.0 has two empty lists then, and no mark."""
    answers, mark = entry.get("answers"), entry.get("is_impossible")
    # Booleans of Parquet are read as texts.
    return bool(parse_flag(mark)) or (isinstance(answers, dict) and not answers.get("text"))


def _question(entry: Any, context: int, location: DataLocation) -> Question:
    answers_json = entry.get("answers") or ()
    if isinstance(answers_json, dict):  # as Hugging Face writes them: a list of texts and a list of positions
        texts, begins = answers_json["text"], answers_json["answer_start"]
        if not isinstance(texts, list) or not isinstance(begins, list) or len(texts) != len(begins):
            raise ValueError("answers must have a list of texts and as long a list in answer_start")
        answers_json = [{"text": text, "answer_start": begin} for text, begin in zip(texts, begins)]
    answers = [Answer(require_text(answer["text"]), _integer(answer["answer_start"])) for answer in answers_json]
    return Question(id_of(entry["id"]), require_text(entry["question"]), context, tuple(answers), location)


def _integer(value: Any) -> int:
    number: Any = parse_integer(value) if isinstance(value, str) else value
    if type(number) not in (int, float) or (isinstance(number, float) and not number.is_integer()):
        raise ValueError(f"a whole number was expected, not {value!r:.60}")
    return int(number)


def _has_valid_answers(question: Question, context: str, is_impossible: bool, findings: Findings) -> bool:
    """Returns True if all answers are at their positions in the context; otherwise adds a problem to the findings."""
    subject, location = f"{question.location} (question '{question.id}')", question.location
    if is_impossible and question.answers:
        fact = f"{subject} is marked as impossible, and has an answer."
        remedy = "Remove one of them; other answers are plausible_answers."
        findings.refuse(Problem(NO_ANSWER, location, fact, remedy))
        return False
    if not is_impossible and not question.answers:
        fact = f"{subject} has no answer."
        findings.refuse(Problem(NO_ANSWER, location, fact, 'Remove it, or mark it by "is_impossible": true.'))
        return False
    for text, begin in question.answers:
        if begin < 0 or not text.strip() or context[begin : begin + len(text)] != text:
            actual = context[max(begin, 0) : max(begin, 0) + max(len(text), 1)]
            position = context.find(text) if text.strip() else -1
            hint = f"It is at {position}." if position >= 0 else "The context does not contain it."
            fact = f"{subject}: the answer '{text:.60}' is not at {begin}; '{actual:.60}' is there."
            findings.refuse(Problem(ANSWER_OFFSET, location, fact, hint))
            return False
    return True


def read_question_lines(path: str) -> Questions:
    """Reads questions to answer from a file of SQuAD (.json), from Parquet, or from JSON Lines with question, context
    and optional id.

    Raises:
        DataError: the file cannot be read, or a line is no such object.
    """
    if path.endswith((".json", PARQUET)):
        return read_squad(path, with_answers=False)
    questions = Questions()
    for number, line in enumerate(split_lines(read_text(path)), start=1):
        if not line.strip():
            continue
        location = DataLocation(path, number)
        try:
            _add(questions, parse_json(line, allow_nan=True), number, location)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            fact = f"{location} is no line of JSON with question and context ({reason_of(error)})."
            raise DataError(Problem(UNREADABLE_ROW, location, fact).sentence) from error
    if not len(questions):
        raise DataError(f"{path}: there is no question.")
    return questions


def questions_from(rows: Sequence[Mapping[str, Any]]) -> Questions:
    """Returns the questions of dicts with question, context and optional id, which is the number from 1 by default.

    Raises:
        DataError: a dict lacks one of them, or it is no text.
    """
    questions = Questions()
    for number, row in enumerate(rows):
        try:
            _add(questions, row, number + 1, DataLocation(record=number))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"predict: input {number} has no question and context ({reason_of(error)}).") from error
    return questions


def _add(questions: Questions, row: Mapping[str, Any], number: int, location: DataLocation) -> None:
    question, context = require_text(row["question"]), require_text(row["context"])
    question_id = id_of(row.get("id", number))
    if not questions.contexts or questions.contexts[-1] != context:
        questions.contexts.append(context)
    questions.questions.append(Question(question_id, question, len(questions.contexts) - 1, (), location))


def find_location(question: Question) -> Optional[str]:
    """Returns the location of a question, for a column of predictions."""
    location = question.location
    return f"{location.file}:{location.line}" if location.line is not None else location.file
