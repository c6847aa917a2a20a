"""Limit of the length of a text for exported folders."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from mxtrain.data.exported_folder import MAX_CHARACTERS
from mxtrain.text import exported_texts
from mxtrain.text.question_answering import exported_questions
from mxtrain.text.question_answering.answer_window import WindowSettings

Predict = Callable[..., Iterator[Dict[str, Any]]]


class Folder:
    """A network with a tokenizer of words, which has one class, and answers with the first token."""

    def __init__(self) -> None:
        import tokenizers

        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "w": 1}, unk_token="[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        self._tokenizer = made.to_str().encode()
        self.lengths: List[int] = []
        inputs = [
            ("input0", "int32", ["batch", "length"]),
            ("input1", "int32", ["batch", "length"]),
            ("input2", "float32", ["batch"]),
        ]
        self.signature: Dict[str, Any] = {
            "task": "classification",
            "signature": {},
            "class_names": ["only"],
            "facts": {
                "tokenizer": {
                    "file": "tokenizer.json",
                    "lowercase": True,
                    "first": 2,
                    "last": 3,
                    "pad": 0,
                    "max_length": 16,
                },
                "windows": WindowSettings(4, 3, 5, True, False, 0.0)._asdict(),
            },
            "inputs": [dict(zip(("name", "dtype", "shape"), one)) for one in inputs],
        }

    def read(self, name: str) -> bytes:
        return self._tokenizer

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        return {}

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        self.lengths.append(inputs["input0"].shape[1])
        return {"output": np.zeros((1, self.lengths[-1], 2), np.float32), "probabilities": np.ones((1, 1))}


def asked(question: str, context: str) -> bytes:
    return json.dumps({"question": question, "context": context}).encode()


LONGEST = "w".ljust(MAX_CHARACTERS)
TOO_LONG = "w".ljust(MAX_CHARACTERS + 1)
CASES = {
    "context": (exported_questions.predict, asked("w", LONGEST), asked("w", TOO_LONG), "x:2: the context"),
    "question": (exported_questions.predict, asked(LONGEST, "w"), asked(TOO_LONG, "w"), "x:2: the question"),
    "line": (exported_texts.predict, LONGEST.encode(), TOO_LONG.encode(), "x:2: the text"),
}


@pytest.mark.parametrize("name", CASES)
def test_longer_texts_are_refused_before_the_network_runs(name: str) -> None:
    predict, content, too_long, said = CASES[name]
    folder = Folder()
    assert len(list(predict(folder, content, "x"))) == 1 and len(folder.lengths) == 1
    with pytest.raises(ValueError, match=f"^{said} has 1,000,001 characters; at most 1,000,000 are read"):
        list(predict(folder, b"\n".join([content, too_long]), "x"))
    assert len(folder.lengths) == 1
