"""Files with columns: what is read, refused, found by `data check`; Python's own lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest

from mxtrain.data.recognition import FileTree
from mxtrain.errors import DataError
from mxtrain.text.bilstm import BiLSTM
from mxtrain.text.token_classification.conll import Conll, python_lines
from mxtrain.text.token_classification.conll_file import ColumnLayout, read_conll
from mxtrain.text.token_classification.tagged_rows import ListColumns, read_tagged_rows

pytestmark = pytest.mark.usefixtures("own_cache")
GOOD = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\nBlackburn NNP I-PER\n"


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[..., Conll]:
    def make_dataset(train: str, val: str = GOOD, **settings: Any) -> Conll:
        (tmp_path / "train.txt").write_text(train)
        (tmp_path / "valid.txt").write_text(val)
        return Conll(root=str(tmp_path), **{"test": None, "test_fraction": 0.0, **settings})

    return make_dataset


def test_sentences_tags_and_lines(write_dataset: Any) -> None:
    splits = write_dataset(GOOD).open()
    assert splits.class_names == ["O", "B-ORG", "B-PER", "I-PER"]
    assert splits.train.words.sentences == [["EU", "rejects"], ["Peter", "Blackburn"]]
    assert splits.train.words.lines == [[3, 4], [6, 7]] and splits.test is None


def test_columns_by_number_comments_and_tabs(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("# text\n1\tNew York\tX\tB-LOC\n2\tis\tX\tO\n")
    found = read_conll(str(path), ColumnLayout(1, 3, "# "))
    assert found.sentences == [["New York", "is"]] and found.tags == [["B-LOC", "O"]]


def test_other_schemes_become_ours(write_dataset: Any) -> None:
    iob1 = "a I-PER\nb I-PER\nc B-PER\nd O\n"
    assert write_dataset(iob1, iob1).open().train.words.tags == [["B-PER", "I-PER", "B-PER", "O"]]
    bilou = "a U-PER\nb B-PER\nc L-PER\n"
    assert write_dataset(bilou, bilou).open().train.words.tags == [["S-PER", "B-PER", "E-PER"]]
    plain = "a NN\nb VB\n"
    assert write_dataset(plain, plain).open().class_names == ["NN", "VB"]


WRITTEN = {
    "bio": "O B-A I-A I-A B-A B-B O B-B",
    "iob1": "O I-A I-A I-A B-A I-B O I-B",
    "ioe1": "O I-A I-A E-A I-A I-B O I-B",
    "ioe2": "O I-A I-A E-A E-A E-B O E-B",
    "bioes": "O B-A I-A E-A S-A S-B O S-B",
    "bilou": "O B-A I-A L-A U-A U-B O U-B",
    "bmes": "O B-A M-A E-A S-A S-B O S-B",
}
"""One sentence in all schemes, as seqeval 1.2.2 reads them in its strict mode."""


def _columns(tags: str) -> str:
    return "".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split()))


@pytest.mark.parametrize("scheme", WRITTEN)
def test_all_schemes_describe_the_same_entities(write_dataset: Any, scheme: str, caplog: Any) -> None:
    caplog.set_level("INFO")
    text = _columns(WRITTEN[scheme])
    name = "bioes" if scheme in ("bilou", "bmes") else scheme
    expected = WRITTEN["bioes" if name == "bioes" else "bio"].split()
    for setting in ("auto", name):
        splits = write_dataset(text, text, scheme=setting).open()
        assert splits.train.words.tags == [expected] == splits.val.words.tags
    said = [message for message in caplog.messages if "dataset.scheme" in message]
    assert len(said) == (scheme != "bio") and all(f"dataset.scheme={name}" in message for message in said)
    assert all(("converted to bio" in message) == (name != "bioes") for message in said)


def test_letters_alone_are_words_of_one_type(write_dataset: Any) -> None:
    text = _columns("B E S B M M E")
    splits = write_dataset(text, text).open()
    assert splits.train.words.tags == [["B", "E", "S", "B", "I", "I", "E"]] and "E" in splits.class_names
    assert write_dataset(_columns("O I I O"), _columns("O I")).open().train.words.tags == [["O", "B", "I", "O"]]
    with pytest.raises(DataError, match="line 2: the tag 'S' follows 'B'"):
        write_dataset(text, _columns("B S")).open()
    with pytest.raises(DataError, match="line 2 has the tag 'B', which is no O"):
        write_dataset(_columns("B-A B"), text).open()


def test_sentences_with_mistakes_in_ioe2_are_named(write_dataset: Any) -> None:
    good = _columns("I-A E-A O E-B")
    for wrong, message in (("I-A O", "line 6: the tag 'I-A' is followed by 'O'"), ("I-A", "'I-A' ends a sentence")):
        text = f"{good}\n{_columns(wrong)}"
        with pytest.raises(DataError, match=f"{message}, which cannot be with dataset.scheme=ioe2"):
            write_dataset(text, good).open()
        repaired = write_dataset(text, good, repair_tags=True).open().train.words.tags
        assert repaired == [["B-A", "I-A", "O", "B-B"], wrong.replace("I", "B").split()]


ROWS = [
    {"id": "0", "tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"], "pos_tags": ["NNP", "VBZ"]},
    {"id": "1", "tokens": ["Peter", "New York"], "ner_tags": ["B-PER", "I-PER"], "pos_tags": ["NNP", "NNP"]},
]


def write_lists(path: Path, rows: Any) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return str(path)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_of_lists_are_the_sentences_of_columns(tmp_path: Path, write_dataset: Any, ending: str) -> None:
    columns = write_dataset("EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nNew York\tI-PER\n").open().train.words
    path = write_lists(tmp_path / f"train.{ending}", ROWS)
    with pytest.raises(DataError, match="ner_tags and pos_tags may be that of the tags. Type dataset.tag=NAME"):
        Conll(train=path, val_fraction=0.5, test_fraction=0.0).open()
    val = write_lists(tmp_path / f"val.{ending}", ROWS[:1])
    dataset = Conll(root=str(tmp_path), train=path, val=val, test=None, test_fraction=0.0, tag="ner_tags")
    words = dataset.open().train.words
    assert (words.sentences, words.tags) == (columns.sentences, columns.tags)
    assert words.lines == ([[1, 1], [2, 2]] if ending == "jsonl" else [[0, 0], [1, 1]])
    source, places = dataset.open_inputs([path], type("", (), {"class_names": ["O"]})(), False, {})
    assert source.words.sentences == columns.sentences and len(places) == 2
    guess = Conll.recognise(FileTree(path))
    assert guess is not None and guess.settings["train"] == f"train.{ending}"
    assert guess.asks == ("dataset.tag=COLUMN",)
    write_lists(tmp_path / f"train.{ending}", [{**row, "ner_tags": ["O", "I-X"]} for row in ROWS])
    place = "train.jsonl, line 1" if ending == "jsonl" else "record 0 of '.*train.parquet'"
    with pytest.raises(DataError, match=f"{place}.*: the tag 'I-X' follows 'O'"):
        dataset.model_copy(update={"scheme": "bio"}).open()


@pytest.mark.parametrize(
    "row, said",
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, "line 2: it has 1 words and 2 tags"),
        ({"tokens": ["a"], "tags": [3]}, "line 2: 'tags' holds 3, which is no text; write the name of each tag"),
        ({"tokens": ["a"], "tags": [None]}, "line 2: 'tags' holds None, which is no text"),
        ({"tokens": ["a"], "tags": "O"}, "line 2: 'tags' is no list of texts"),
        ({"tokens": [" "], "tags": ["O"]}, "line 2: 'tokens' holds an empty text"),
        ({"tokens": ["\ud800"], "tags": ["O"]}, "line 2: 'tokens' holds .*which is no text"),
        ({"tags": ["O"]}, "line 2: there is no 'tokens'"),
    ],
)
def test_wrong_rows_of_lists_are_named(tmp_path: Path, row: Any, said: str) -> None:
    path = write_lists(tmp_path / "a.jsonl", [{"tokens": ["a"], "tags": ["O"]}, row])
    with pytest.raises(DataError, match=said):
        read_tagged_rows(path, ListColumns())


def test_columns_of_lists_by_name(tmp_path: Path, write_dataset: Any) -> None:
    path = write_lists(tmp_path / "a.jsonl", [{"w": ["a"], "labels": ["B-X"]}, {"w": [], "labels": []}])
    assert read_tagged_rows(path, ListColumns("w")).sentences == [["a"]]
    with pytest.raises(DataError, match="none is called tokens or words. Type dataset.word=NAME. Columns: w, labels"):
        read_tagged_rows(path, ListColumns())
    for word in ("v", 1):
        with pytest.raises(DataError, match=f"dataset.word={word}: .*a.jsonl has no such column"):
            read_tagged_rows(path, ListColumns(word))
    with pytest.raises(DataError, match="dataset.tag=ner: columns of text files have numbers"):
        write_dataset(GOOD, tag="ner").open()


def test_mistakes_are_refused_or_repaired(write_dataset: Any) -> None:
    wrong = "a B-PER\nb O\nc I-PER\n"
    with pytest.raises(DataError, match=r"train.txt, line 3: the tag 'I-PER' follows 'O'.*dataset.repair_tags=true"):
        write_dataset(wrong, wrong).open()
    assert write_dataset(wrong, wrong, repair_tags=True).open().train.words.tags == [["B-PER", "O", "B-PER"]]
    with pytest.raises(DataError, match="line 2 has 1 column, and there must be 2"):
        write_dataset("a O\nb\n").open()
    with pytest.raises(DataError, match="line 2 has 2 columns, and there must be 3"):
        write_dataset("a X O\nb O\n").open()
    with pytest.raises(DataError, match=r"line 1 has the tag 'B-LOC', which is not in the training sent.*Tags: O"):
        write_dataset(GOOD, "a x B-LOC\n").open()
    with pytest.raises(DataError, match="there is no sentence with tags"):
        write_dataset("", "a O\n").open()
    with pytest.raises(DataError, match="no other tag than 'O'"):
        write_dataset("a O\n").open()
    with pytest.raises(DataError, match="line 1 has 1 column.*Spaces or tabs divide columns"):
        write_dataset("a,X,O\n").open()
    with pytest.raises(DataError, match="line 1 has the tag 'PER', which is no O"):
        write_dataset("a PER\nb B-X\n").open()


def test_document_line_ends_a_sentence_without_empty_lines(write_dataset: Any) -> None:
    text = "-DOCSTART- -X- O\na DT O\nb NN B-X\n-DOCSTART- -X- O\nc NN O\n"
    assert write_dataset(text, text).open().train.words.sentences == [["a", "b"], ["c"]]


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u3000", "\x0c", "\x0b", "\x85", "\u2028", "\x1c"])
def test_only_spaces_and_tabs_divide_columns(write_dataset: Any, space: str, tmp_path: Path) -> None:
    for divider in (" ", "\t", "  "):
        text = f"1{space}000{divider}B-SUM\n\nx{divider}O\n"
        words = write_dataset(text, text).open().train.words
        assert words.sentences == [[f"1{space}000"], ["x"]] and words.tags == [["B-SUM"], ["O"]]
    (tmp_path / "new.txt").write_text(f"a 1{space}000\tb\n")
    signature = type("", (), {"class_names": ["O"]})()
    source, places = write_dataset(text).open_inputs([str(tmp_path / "new.txt")], signature, False, {})
    assert source.words.sentences == [["a", f"1{space}000", "b"]] and places == [f"{tmp_path}/new.txt:1"]


@pytest.mark.parametrize(
    "text, is_refused",
    [
        ("a O\nb M-X\n\na O\n", True),
        ("a NN O\nb NN I-X\nb NN B-X\n", True),
        ("a O\nb B-X\n", False),
        ("a O\nb O\na b O\n", False),
        ("a O\nb O\nb a\n", False),
        ("O\nO\nO\n", False),
        ("a O\nb O\nb NO\n", False),
    ],
)
def test_columns_are_not_tagged_as_sentences(text: str, is_refused: bool, write_dataset: Any, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(text)
    signature = type("", (), {"class_names": ["O", "B-X", "I-X"]})()
    dataset = write_dataset("a O\n\nb O\n")
    if not is_refused:
        source, _ = dataset.open_inputs([str(tmp_path / "test.txt")], signature, False, {})
        assert source.words.sentences == [line.split() for line in text.splitlines()]
        return
    with pytest.raises(DataError, match="each line ends with a tag, such as 'O'.* Call it test.conll"):
        dataset.open_inputs([str(tmp_path / "test.txt")], signature, False, {})


CONLLU = (
    "# text = va al parque\n1\tva\tva\tVERB\t_\t_\t0\tdep\t_\t_\n2-3\tal\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\ta\ta\tADP\t_\t_\t0\tdep\t_\t_\n3\tel\tel\tDET\t_\t_\t0\tdep\t_\t_\n"
    "3.1\tx\tx\t_\t_\t_\t_\t_\t3:dep\t_\n\n"
)


def test_conllu_tokens_of_several_words_and_empty_nodes_are_left_out(write_dataset: Any, tmp_path: Path) -> None:
    splits = write_dataset(CONLLU, CONLLU, word=1, tag=3, comment="# ").open()
    assert splits.train.words.sentences == [["va", "a", "el"]]
    assert splits.class_names == ["ADP", "DET", "VERB"]
    assert splits.train.words.lines == [[2, 4, 5]]


def test_conllu_files_need_no_setting_for_comments(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    assert read_conll(str(path), ColumnLayout(1, 3)).sentences == [["va", "a", "el"]]
    with pytest.raises(DataError, match="first column has ids of words.*dataset.word=1"):
        read_conll(str(path), ColumnLayout())
    (tmp_path / "b.txt").write_text(CONLLU)
    assert read_conll(str(tmp_path / "b.txt"), ColumnLayout(1, 3)).sentences == [["va", "a", "el"]]
    (tmp_path / "b.txt").write_text("# by hand\n" + CONLLU)
    with pytest.raises(DataError, match='b.txt, line 1 has .*dataset.comment="#"'):
        read_conll(str(tmp_path / "b.txt"), ColumnLayout(1, 3))


BRACKETS = (
    "#begin document (a/b/0); part 000\nAda NNP (PERSON)\nruns VBZ *\n\nNew X (GPE*\nYork X *\nCity X *)\n. . *\n"
    "\n#end document\n"
)


def test_brackets_of_conll_2012_are_spans(write_dataset: Any, check: Any) -> None:
    splits = write_dataset(BRACKETS, BRACKETS).open()
    assert splits.train.words.tags == [["B-PERSON", "O"], ["B-GPE", "I-GPE", "I-GPE", "O"]]
    assert splits.class_names == ["O", "B-GPE", "B-PERSON", "I-GPE"]
    plain = write_dataset(BRACKETS, BRACKETS, scheme="plain").open()
    assert "(PERSON)" in plain.class_names


@pytest.mark.parametrize(
    "tags", ["(TOP(S*) *", "(A* (B*)", "(A* *", "* *)", "(A* *))"], ids=["two", "inside", "open", "end", "twice"]
)
def test_brackets_that_do_not_fit_are_refused(write_dataset: Any, tags: str) -> None:
    wrong = "x (X)\n\n" + "".join(f"w {tag}\n" for tag in tags.split())
    with pytest.raises(DataError, match=r"train.txt, line [34] has the tag .* does not fit.*dataset.scheme=plain"):
        write_dataset(wrong, wrong).open()


def test_coreference_brackets_stay_names(write_dataset: Any) -> None:
    text = "a (0)\nb -\n"
    assert write_dataset(text, text).open().class_names == ["(0)", "-"]


@pytest.mark.parametrize("settings", [{"word": -3}, {"tag": -3}, {"word": -9}, {"word": 5}])
def test_column_outside_of_the_row_is_refused(write_dataset: Any, settings: Any) -> None:
    text = "runs O\n\nJohn NNP B-PER\n"
    with pytest.raises(DataError, match=r"train.txt, line 1 has 2 columns, and there must be [369]"):
        write_dataset(text, text, **settings).open()


def test_missing_files_are_named(write_dataset: Any) -> None:
    with pytest.raises(DataError, match=r"has no dev.txt.*dataset.val=null.*There: train.txt, valid.txt"):
        write_dataset(GOOD, val=GOOD).model_copy(update={"val": "dev.txt"}).open()


def test_data_check_lists_all_of_it(write_dataset: Any, check: Any) -> None:
    train = "a O\n\n\nb B-X\nc\n\nd O\ne I-X\n\nf B-X\n"
    found = check(write_dataset(train, "a B-Y\n\na O\n"))
    assert sorted(found) == [
        ("empty_text", "train.txt", 3),
        ("short_row", "train.txt", 5),
        ("tag_order", "train.txt", 8),
        ("unknown_class", "valid.txt", 1),
    ]


def test_file_without_empty_lines_is_one_sentence_with_a_remark(write_dataset: Any, check: Any, tmp_path: Path) -> None:
    words = [f"w{n} {'B-X' if n % 5 else 'O'}" for n in range(201)]
    dataset = write_dataset("\n".join(words), "\n".join(["-DOCSTART- O", *words]))
    splits = dataset.open()
    said = dataset.remark(dataset.infer_signature(splits, BiLSTM()), splits).split("\n")
    fact = "has no empty line between words: its 201 words are one sentence."
    assert len(said) == 3 and all(fact in line and "put an empty line between sentences" in line for line in said[1:])
    assert str(tmp_path / "train.txt") in said[1] and str(tmp_path / "valid.txt") in said[2]
    assert check(dataset)[:2] == [("endless_sentence", name, None) for name in ("train.txt", "valid.txt")]
    for fine in (words[:200], [*words, "", "a O"]):
        dataset = write_dataset("\n".join(fine), "\n".join(fine[:9]))
        splits = dataset.open()
        assert "\n" not in dataset.remark(dataset.infer_signature(splits, BiLSTM()), splits)


def test_python_lines_have_a_tag_for_each_word() -> None:
    lines = dict(python_lines())
    words, tags = lines["ast.py"].sentences, lines["ast.py"].tags
    found = [list(zip(*pair)) for pair in zip(words, tags)]
    assert [("def", "O"), ("literal_eval", "B-FUNC"), ("(", "O"), ("node_or_string", "B-PARAM")] in [
        line[:4] for line in found
    ]
    assert [("from", "O"), ("_ast", "B-MODULE"), ("import", "O"), ("*", "O")] in found
    all_lines = [pair for own in lines.values() for pair in zip(own.sentences, own.tags)]
    assert len(all_lines) == 37_210 and all(3 <= len(words) == len(tags) <= 60 for words, tags in all_lines)
    kinds = {"O", "I-MODULE", *(f"B-{kind}" for kind in ("FUNC", "CLASS", "PARAM", "CALL", "ATTR", "MODULE", "VAR"))}
    assert {tag for _, tags in all_lines for tag in tags} == kinds


def test_a_file_that_is_named_without_a_root_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the bundled lines, which `root=null` alone means."""
    (tmp_path / "mine.txt").write_text(GOOD * 9)
    monkeypatch.chdir(tmp_path)
    for name in ("mine.txt", str(tmp_path / "mine.txt")):
        splits = Conll(train=name, val_fraction=0.5, test_fraction=0.0).open()
        assert splits.class_names == ["O", "B-ORG", "B-PER", "I-PER"]
        assert len(splits.train.words.sentences) == len(splits.val.words.sentences) == 9 and splits.test is None
    with pytest.raises(DataError, match="train.txt"):
        Conll(val="mine.txt").open()
