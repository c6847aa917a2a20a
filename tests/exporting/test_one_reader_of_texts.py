"""Texts in tables are read alike by training, `predict` and exported folders, and unknown tokens are reported."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence

import pytest

from mxtrain.data.exported_folder import UnseenWarning
from mxtrain.data.table.columns import stream_rows
from mxtrain.errors import DataError
from mxtrain.serving.readers import BodyLimits
from mxtrain.text import exported_texts, served
from mxtrain.text.exported_texts import numbered_texts, predict

TABLES: Dict[str, str] = {
    "commas.csv": 'label,text\n1,"x, y"\n2,"two\nlines"\n\n0,  spaces \n',
    "semicolons.csv": 'label;text\n1;"x; ""y"""\n2;z\n',
    "excel.csv": "sep=;\r\nlabel;text\r\n1;x\r\n",
    "tabs.tsv": 'text\tlabel\nsay "x"\t1\n',
    "quoted.tsv": '"text"\t"label"\n"a\tb"\t"1"\n"c"\t"2"\n',
    "lines.jsonl": '{"text": "hi", "label": 1}\n\n{"label": 2, "text": "\\u00fc"}\n',
    "numbers.jsonl": '{"text": 5}\n',
    "bars.csv": "text|label\nx, y|1\n",
}


class Folder:
    """The part of an exported folder that says how texts are read."""

    signature: Dict[str, Any] = {
        "task": "classification",
        "class_names": ["a"],
        "facts": {"columns": ["text"], "tokenizer": {"unknown_token": 1}},
    }


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_texts_have_the_same_lines_and_texts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TABLES[name].encode())
    trained = [(line, texts) for line, texts in stream_rows(path, ["text"], True)]
    folder: Any = Folder()
    assert numbered_texts(folder, TABLES[name].encode(), name, False) == trained


def test_null_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "null.jsonl"
    path.write_text('{"text": "a"}\n{"text": null}\n')
    with pytest.raises(DataError, match="'text' is null, which is no text"):
        list(stream_rows(path, ["text"], True))
    folder: Any = Folder()
    with pytest.raises(ValueError, match="null.jsonl:2: 'text' is null, which is no text"):
        numbered_texts(folder, path.read_bytes(), "null.jsonl", False)


class Words:
    """A vocabulary of one word."""

    def __init__(self, folder: Any) -> None:
        self.facts = folder.signature["facts"]["tokenizer"]

    def encode(self, text: str) -> List[int]:
        return [0 if word == "known" else 1 for word in text.split()]


def test_share_of_unknown_tokens_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_texts, "Vocabulary", Words)

    def predict_classes(folder: Any, samples: Sequence[Any]) -> List[Dict[str, Any]]:
        return [{"class": "a"} for _ in samples]

    monkeypatch.setattr(exported_texts, "predict_classes", predict_classes)
    folder: Any = Folder()
    with pytest.warns(UnseenWarning) as caught:
        assert len(list(predict(folder, b"known new\nknown known\n", "x.txt"))) == 2
    assert str(caught[0].message).startswith("x.txt: 0.25 of the tokens (1 of 4) are unknown from training.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(predict(folder, b"known\n", "x.txt"))
        monkeypatch.setitem(folder.signature["facts"], "tokenizer", {"unknown": 1})
        list(predict(folder, b"new\n", "x.txt"))  # the folder does not say that there is such a token


@pytest.mark.parametrize("unknown, counts", [(1, {"tokens": 2}), (0, {"tokens": 1}), (None, {})])
def test_server_counts_unknown_tokens(unknown: Any, counts: Dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "Vocabulary", Words)
    facts = {"max_length": 8, "first": None, "last": None, "pad": 0, "unknown_token": unknown}
    inputs = [
        {"name": f"input{number}", "dtype": "int32", "shape": ["batch", "length"][: 2 - number // 2]}
        for number in range(3)
    ]
    folder = SimpleNamespace(signature={"facts": {"tokenizer": facts}, "inputs": inputs})
    body = served.TextReader(folder).read(b"known new\tnew", "text/tab-separated-values", BodyLimits(1, 1))  # type: ignore
    assert body.unseen == counts and body.inputs["input2"].tolist() == [3]
