"""Questions about contexts, as SQuAD 1.1 and 2.0 have them, or about the documentation of NumPy and SciPy."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import DataLocation, Findings, NoUsableSamples, call_or_report
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import exists, files_in, refuse_shared
from mxtrain.data.loading.described_paths import with_current_folder
from mxtrain.data.loading.file_patterns import files_in_root
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.predict_inputs import rows_from
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.data.table.columns import PARQUET
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.bundled import read_bundled
from mxtrain.text.base import TextDataset
from mxtrain.text.kinds import AnswerSpan, Texts
from mxtrain.text.model import TextModel
from mxtrain.text.question_answering.answer_window import WindowSettings
from mxtrain.text.question_answering.questions import (
    ANSWER_OFFSET,
    NO_ANSWER,
    REPEATED_ID,
    Answer,
    Question,
    Questions,
    find_location,
    questions_from,
    read_question_lines,
    read_squad_files,
)
from mxtrain.text.signature import TextSignature, TextSplits
from mxtrain.text.text_files import name_of
from mxtrain.text.windows import QuestionSource
from mxtrain.types import FilesInRoot, OpenFraction, PathText, Positive
from mxtrain.types.kinds import Gives, TargetKind

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

_HAS_NONE = re.compile(r'"is_impossible": true|"text": ?\[\]')
"""Text of JSON with a question that has no answer."""
OUTPUTS = ("start", "end")
"""Tags scored for each token."""


class Squad(TextDataset):
    """Questions whose answers are parts of a context: from SQuAD's files, or about the documentation of NumPy and
    SciPy."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = [
            name for name in files.find(".json") if '"paragraphs"' in files.text(name) and '"qas"' in files.text(name)
        ]
        form = "SQuAD's JSON"
        if not names:
            names = [name for name in files.find(".jsonl", PARQUET) if _has_questions(files.columns(name))]
            form = "questions with contexts and answers, as Hugging Face has SQuAD"
        splits = files.by_split(names, shards=True)
        if not splits:
            return None
        settings: Dict[str, Setting] = {"root": files.folder, **splits}
        settings.setdefault("val", "null")
        if any(_HAS_NONE.search(files.text(name)) for name in names):
            settings["null_answers"] = True
        return Recognised(form, settings, "question_answering", Certainty.SURE)

    @property
    def folds_by(self) -> Literal["", "samples", "columns"]:  # type: ignore[override]  # a class variable in others
        """See `BaseDataset.folds_by`: generated questions are not divided."""
        return "samples" if self.root is not None else ""

    gives: ClassVar[Gives] = Gives(Texts, AnswerSpan)
    data_checks: ClassVar[DataChecks] = TextDataset.data_checks.with_kinds(ANSWER_OFFSET, NO_ANSWER, REPEATED_ID)

    root: Optional[PathText] = None
    """Folder of the files; null = the current folder if a file is named, otherwise questions about the types of
    parameters in the documentation of NumPy and SciPy."""
    train: FilesInRoot = "train-v1.1.json"
    """File of training questions, in root; or a list of files or a pattern (train-*.parquet), which are one split."""
    val: Optional[FilesInRoot] = "dev-v1.1.json"
    """File of validation questions, in root; null = val_fraction of the contexts."""
    test: Optional[FilesInRoot] = None
    """File of test questions, in root; null = test_fraction of the contexts."""
    null_answers: bool = False
    """If true, questions may have no answer, as in SQuAD 2.0."""
    null_threshold: float = 0.0
    """Difference by which the score of no answer must exceed that of the best answer for no answer to be predicted."""
    max_length: Annotated[int, pydantic.Field(ge=8)] = 384
    """Maximum number of tokens of a sample: the question, a window of its context, and three special tokens."""
    doc_stride: Positive = 128
    """Stride of the windows of a long context, in tokens."""
    max_question: Positive = 64
    """Maximum number of tokens of a question; longer questions are cut."""
    max_answer: Positive = 30
    """Maximum number of tokens of a predicted answer."""
    exact_match: Union[Literal["auto"], bool] = "auto"
    """Give context words that occur in the question a token type of their own; auto = if the model supports it
    (bilstm)."""
    val_fraction: OpenFraction = 0.1
    """Share of the training contexts (of the documentation's files) held out for validation where there is no file of
    them."""
    test_fraction: OpenFraction = 0.0
    """Share of the training contexts (of the documentation's files) held out for testing where there is no file of
    them."""

    @pydantic.model_validator(mode="after")
    def _check_windows(self) -> Squad:
        if self.max_question + 3 >= self.max_length:
            raise ValueError(
                f"max_question={self.max_question} with max_length={self.max_length} leaves no room for a context; "
                f"choose a max_question below {self.max_length - 3}"
            )
        return self

    def for_run(self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None) -> Squad:
        """See `BaseDataset.for_run`. Resolves exact_match=auto: true if the model has a token type for it."""
        if self.exact_match != "auto":
            return self
        return self.model_copy(update={"exact_match": isinstance(model, TextModel) and model.num_token_types > 2})

    @property
    def window_settings(self) -> WindowSettings:
        """Returns the settings of windows over contexts, and of the answers in them."""
        return WindowSettings(
            self.doc_stride,
            self.max_question,
            self.max_answer,
            self.exact_match is True,
            self.null_answers,
            self.null_threshold,
        )

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`."""
        facts = {**super().exported(signature).facts, "windows": self.window_settings._asdict()}
        return DatasetExport("mxtrain.text.question_answering.exported_questions", facts)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _take_files_without_root(cls, values: Any) -> Any:
        return with_current_folder(cls.model_fields, values)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        if self.root is None:
            name = "The documentation of NumPy and SciPy"
            parts = numpydoc_questions(self.val_fraction, self.test_fraction, self.split_seed)
        else:
            name, parts = self._of_files(self.root, findings)
        refuse_empty(name, len(parts[0]), len(parts[1]), self.val_fraction)
        for part in parts:
            self._require_answers(part)
        baseline = pattern_answer if self.root is None else None
        train, val, test = (QuestionSource(part, self.window_settings, baseline) for part in parts)
        return TextSplits(
            train,
            val,
            test if len(test) else None,
            class_names=list(OUTPUTS),
            build_tokenizer_config=lambda: self.tokenizer_config(train.training_texts()),
        )

    def _require_answers(self, questions: Questions) -> None:
        if self.null_answers:
            return
        empty = [question for question in questions.questions if not question.answers]
        if empty:
            others = len(empty) - 1
            verb = "has" if not others else f"and {others} other{'s' if others > 1 else ''} have"
            raise DataError(
                f"{find_location(empty[0])}: the question '{empty[0].id}' {verb} no answer, as in SQuAD 2.0. Type "
                "dataset.null_answers=true."
            )

    def _of_files(self, root: str, findings: Findings) -> Tuple[str, List[Questions]]:
        paths_of = files_in_root(root, {"train": self.train, "val": self.val, "test": self.test})
        for name, path in [(name, Path(path)) for name, paths in paths_of.items() for path in paths]:
            if not exists(path):
                files = [name for name in files_in(root) if name.endswith((".json", ".jsonl", PARQUET))]
                raise DataError(
                    f"{path} is not there. {did_you_mean(path.name, files)} Name the file by "
                    f"dataset.{name}=FILE, and its folder by dataset.root=FOLDER.".replace("  ", " ")
                )
        refuse_shared(paths_of, findings)
        splits = {
            name: call_or_report(findings, DataLocation(paths[0]), partial(read_squad_files, paths, findings))
            for name, paths in paths_of.items()
        }
        if None in splits.values():
            raise NoUsableSamples(f"{root}: a file cannot be read.")
        train = splits["train"]
        assert train is not None
        # Files may name a context more than once, and its questions stay in one split.
        number_of: Dict[str, int] = {}  # distinct context -> its number
        number_C = [number_of.setdefault(context, len(number_of)) for context in train.contexts]
        context_N = np.array([number_C[question.context] for question in train.questions], np.int64)
        parts = self.division.divide(np.zeros(len(number_of), np.int32), "val" in splits, bool(self.test))
        val = self.division.own_validation(splits.get("val"))
        held_out = [train.take(np.flatnonzero(np.isin(context_N, part)).tolist()) for part in parts]
        return name_of(paths_of["train"]), [held_out[0], val or held_out[1], splits.get("test") or held_out[2]]

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: QuestionSource, signature: Signature, options: LoaderOptions
    ) -> Any:
        from mxtrain.text.windows import WindowLoader

        config = TextSignature.cast(signature).tokenizer_config
        return WindowLoader(source, config, options, self.batches_per_pool)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the questions of files, JSON Lines or Parquet with question and context, or SQuAD's JSON; a source
        location is `file:line`, or the file."""
        questions, locations = Questions(), []
        for name, file_questions in read_each(names, read_question_lines, skip_unreadable, unreadable):
            first_context = len(questions.contexts)
            questions.contexts += file_questions.contexts
            questions.questions += [
                replace(question, context=question.context + first_context, answers=())
                for question in file_questions.questions
            ]
            locations += [find_location(question) or name for question in file_questions.questions]
        return QuestionSource(questions, self.window_settings), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns questions, in memory: dicts with question, context and optional id, or a data frame of pandas."""
        readable = "dicts with question and context, and paths (pathlib.Path)"
        return QuestionSource(questions_from(rows_from(value, readable)), self.window_settings)


def _has_questions(columns: Sequence[str]) -> bool:
    """Returns True if a table has the columns of questions with answers; `answers.text` is a part of one."""
    return {"context", "question", "answers"}.issubset(column.partition(".")[0] for column in columns)


def numpydoc_questions(val_fraction: float, test_fraction: float, seed: int) -> List[Questions]:
    """Returns questions about the documentation of NumPy 1.23.5 and SciPy 1.15.3, the default data: what type has a
    parameter?

    The context is a part of a section "Parameters" with at most 110 words, on one line; the question is the name of a
    parameter, and the answer the text after its colon. The training, validation and test split share no file, and files
    no context.
    """
    parts = [Questions(), Questions(), Questions()]
    for file, contexts in read_bundled("text/corpora/numpydoc_questions.json.gz").items():
        # The file decides, so that questions about one page are never in two splits.
        position = zlib.crc32(f"{seed}:{file}".encode()) / 2**32
        part = parts[1 if position < val_fraction else 2 if position < val_fraction + test_fraction else 0]
        for context, context_questions in contexts:
            part.contexts.append(context)
            for name, answer, begin in context_questions:
                number = f"{file}:{len(part.contexts)}:{name}"
                part.questions.append(Question(number, name, len(part.contexts) - 1, (Answer(answer, begin),)))
    return parts


def pattern_answer(question: str, context: str) -> str:
    """Returns the answer of a fixed pattern, as a baseline: the text after the name and a colon, up to the likely
    beginning of a sentence."""
    match = re.search(rf"(?<!\w){re.escape(question)} ?: ?(.+?)(?= [A-Z][a-z']*\s[a-z]| \w+ : |$)", context)
    return match.group(1) if match else ""
