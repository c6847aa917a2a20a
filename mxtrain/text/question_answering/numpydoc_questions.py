"""Questions about the documentation of NumPy 1.23.5 and SciPy 1.15.3 as default data: what type has a parameter?

The context is a part of a section "Parameters" with at most 110 words, on one line; the question is the name of a
parameter, and the answer the text after its colon.
"""

from __future__ import annotations

import re
import zlib
from typing import List

from mxtrain.files.bundled import read_bundled
from mxtrain.text.question_answering.questions import Answer, Question, Questions


def numpydoc_questions(val_fraction: float, test_fraction: float, seed: int) -> List[Questions]:
    """Returns the questions of the training, validation and test split. Splits share no file, and files no context."""
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
