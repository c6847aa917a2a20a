"""`data guess`: each dataset recognises its own files, and the command that is printed reads them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pyarrow.parquet
import pytest
from boxed_files import draw, voc_xml, write_coco, write_list, write_voc
from PIL import Image

import mxtrain
from mxtrain.cli import main
from mxtrain.config.options import own_classes
from mxtrain.data.recognition import FileTree, best_first, recognise_all
from mxtrain.recommendation.interactions import InteractionTable

pytestmark = pytest.mark.usefixtures("own_cache")


def write(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def mask(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)


def coco_of(root: Path, **category: Any) -> str:
    """One annotated image as the file of a split, with the image in another folder."""
    draw(root / "pics" / "a.png", (20, 10))
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5], "keypoints": [2, 2, 2]}
    return json.dumps(
        {
            "images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}],
            "annotations": [box],
            "categories": [{"id": 1, "name": "cat", **category}],
        }
    )


def coco_with_stuff(root: Path) -> Path:
    write_coco(root)
    annotations = root / "annotations"
    for split in ("train2017", "val2017"):
        text = (annotations / f"instances_{split}.json").read_text()
        (annotations / f"stuff_{split}.json").write_text(text)
        (annotations / f"image_info_{split}.json").write_text(json.dumps({**json.loads(text), "categories": []}))
    return root


def masked(root: Path) -> Path:
    for name in "ab":
        draw(root / "images" / f"{name}.jpg", (8, 8))
        mask(root / "masks" / f"{name}.png")
    return write(root, **{"classes.txt": "background\ncat\n"})


def voc_masks(root: Path) -> Path:
    draw(root / "JPEGImages" / "a.jpg", (8, 8))
    mask(root / "SegmentationClass" / "a.png")
    return write(root, **{"ImageSets/Segmentation/train.txt": "a\n"})


def image_folder(root: Path) -> Path:
    for name in ("train/cat/a", "train/dog/b", "val/cat/c", "val/dog/d"):
        draw(root / f"{name}.jpg", (8, 8))
    return root


def roboflow(root: Path) -> Path:
    for split, name in (("train", "a"), ("valid", "b")):
        draw(root / split / f"{name}.jpg", (20, 20))
        (root / split / f"{name}.xml").write_text(voc_xml([("Helmet", 1, 1, 9, 9), ("vest", 1, 1, 9, 9)]))
    return root


def lines(line: str, count: int = 3) -> str:
    return f"{line}\n" * count


def squad(answer: str) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "is_impossible": answer}]}]}]})


FORMS: Dict[str, Callable[[Path], Any]] = {
    "coco dataset.root=./": coco_with_stuff,
    "coco dataset.root=./ dataset.train_annotations=labels.json dataset.train_images=pics "
    "dataset.val_annotations=null": lambda root: write(root, **{"labels.json": coco_of(root)}),
    "coco_key_points dataset.root=./ dataset.train_annotations=labels.json dataset.train_images=pics "
    "dataset.val_annotations=null": lambda root: write(root, **{"labels.json": coco_of(root, keypoints=["nose"])}),
    "voc 'dataset.root=\"./VOC2007\"'": lambda root: write_voc(root / "VOC2007"),
    "voc dataset.root=./ dataset.classes=[Helmet,vest]": roboflow,
    "voc_segmentation dataset.root=./ dataset.val_split=null": voc_masks,
    "image_list dataset.root=./": lambda root: write_list(root, train="abc"),
    "segmentation_folder dataset.root=./": masked,
    "image_folder dataset.root=./": image_folder,
    "mnist dataset.root=./": lambda root: write(root, **{"train-images-idx3-ubyte": "", "train-labels-idx1-ubyte": ""}),
    "cifar10 dataset.root=./": lambda root: write(root, **{"cifar-10-batches-bin/data_batch_1.bin": ""}),
    "cifar100 dataset.root=./": lambda root: write(root, **{"train.bin": "", "fine_label_names.txt": ""}),
    "face_record dataset.root=./": lambda root: write(root, **{"train.rec": "", "train.idx": "", "property": ""}),
    "cityscapes dataset.root=./": lambda root: write(
        root, **{"leftImg8bit/a.png": "", "gtFine/a_gtFine_labelIds.png": ""}
    ),
    "ade20k dataset.root=./": lambda root: write(
        root, **{"images/training/a.jpg": "", "annotations/training/a.png": ""}
    ),
    "librispeech dataset.root=./ 'dataset.train=[\"train-clean-100\"]' 'dataset.val=[\"dev-clean\"]' "
    "dataset.test=null": lambda root: write(
        root, **{f"{part}/1/2/1-2.trans.txt": "1-2-0 A" for part in ("train-clean-100", "dev-clean")}
    ),
    "kaldi dataset.train=./train": lambda root: write(root, **{"train/wav.scp": "", "train/text": ""}),
    "common_voice dataset.root=./cv/tr dataset.train=[validated] dataset.val=null dataset.test=null": (
        lambda root: write(root, **{"cv/tr/validated.tsv": "path\tsentence\n", "cv/tr/other.tsv": "path\tsentence\n"})
    ),
    "common_voice dataset.root=./ dataset.test=null": lambda root: write(
        root, **{f"{name}.tsv": "client_id\tpath\tsentence\n" for name in ("train", "dev", "validated")}
    ),
    "ljspeech dataset.root=./lj": lambda root: write(
        root, **{"lj/metadata.csv": "a|No. 1|number one\nb|1|one\n", "lj/wavs/a.wav": ""}
    ),
    "aishell dataset.root=./data_aishell": lambda root: write(
        root, **{"data_aishell/transcript/aishell_transcript_v0.8.txt": "", "data_aishell/wav/train/S1/a.wav": ""}
    ),
    "video_folder dataset.root=./": lambda root: write(root, **{"run/a.mp4": "", "walk/b.avi": "", "walk/c/1.jpg": ""}),
    "image_table dataset.train=./train.csv dataset.image=file": lambda root: write(
        root, **{"train.csv": "file,labels\na.jpg,x|y\n", "a.jpg": ""}
    ),
    "audio_folder dataset.root=./": lambda root: write(
        root, **{"yes/a_nohash_0.wav": "", "no/a_nohash_0.wav": "", "testing_list.txt": "yes/a_nohash_0.wav\n"}
    ),
    "speech_manifest dataset.train=./train.jsonl": lambda root: write(
        root, **{"train.jsonl": '{"audio_filepath": "a.wav", "text": "a"}\n'}
    ),
    "aligned_manifest dataset.train=./train.jsonl": lambda root: write(
        root, **{"train.jsonl": '{"audio_filepath": "a.wav", "text": "a", "durations_s": [1]}\n'}
    ),
    "criteo dataset.train=./train.txt": lambda root: write(root, **{"train.txt": lines("\t".join("1" * 40))}),
    "libsvm dataset.train=./a.libsvm": lambda root: write(root, **{"a.libsvm": lines("1 2:0.5 7:1")}),
    "feature_table dataset.train=./a.csv dataset.target=COLUMN": lambda root: write(
        root, **{"a.csv": "age,town\n1,a\n"}
    ),
    "recbole dataset.root=./a.inter": lambda root: write(root, **{"a.inter": "user_id:token\titem_id:token\nu\ti\n"}),
    "movielens dataset.root=./": lambda root: write(root, **{"ml/ratings.csv": "userId,movieId,rating,timestamp\n"}),
    "interactions dataset.path=./a.csv dataset.user=user_id": lambda root: write(
        root, **{"a.csv": "user_id,item\n1,2\n"}
    ),
    "time_series dataset.path=./a.csv": lambda root: write(
        root, **{"a.csv": "item_id,timestamp,target\na,2024-01-01,1\n"}
    ),
    "deepar_lines dataset.path=./a.jsonl dataset.frequency=FREQUENCY": lambda root: write(
        root, **{"a.jsonl": '{"start": "2024-01-01", "target": [1, 2]}\n'}
    ),
    "text dataset.train=./train.tsv dataset.val=./dev.tsv dataset.sentence=text": lambda root: write(
        root, **{"train.tsv": "text\tlabel\nx\t1\n", "dev.tsv": "text\tlabel\ny\t0\n"}
    ),
    "plain_text dataset.train=./book.txt": lambda root: write(root, **{"book.txt": "All is well. " * 100}),
    "wikitext dataset.root=./ dataset.version=2": lambda root: write(root, **{"wikitext-2/wiki.train.tokens": ""}),
    "parallel_text dataset.train=./train dataset.source=en dataset.target=de": lambda root: write(
        root, **{"train.en": "a\n", "train.de": "b\n"}
    ),
    "squad dataset.root=./ dataset.train=train.json dataset.val=null dataset.null_answers=true": lambda root: write(
        root, **{"train.json": squad(True)}
    ),
    "conll dataset.root=./ dataset.train=a.jsonl dataset.val=null dataset.test=null": lambda root: write(
        root, **{"a.jsonl": '{"tokens": ["a"], "tags": ["O"]}\n'}
    ),
    "conll dataset.root=./ dataset.train=train.txt dataset.val=null dataset.test=null": lambda root: write(
        root, **{"train.txt": lines("London NNP B-LOC\nis VBZ O\n")}
    ),
}


def table(head: str, *rows: str) -> str:
    return "\n".join([head, *rows]) + "\n"


TABLES: Dict[str, Tuple[str, Dict[str, str]]] = {
    "shares": ("regression dataset=image_table", {"a.csv": table("image,x", "a.jpg,0.5", "a.jpg,2"), "a.jpg": ""}),
    "many whole numbers": (
        "regression dataset=image_table",
        {"a.tsv": table("image\tx", *(f"a.jpg\t{row}" for row in range(21))), "a.jpg": ""},
    ),
    "few whole numbers": (
        "multi_label dataset=image_table",
        {"a.csv": table("image,x", *(f"a.jpg,{row % 20}" for row in range(60))), "a.jpg": ""},
    ),
    "lines": (
        "regression dataset=image_table",
        {"a.jsonl": table('{"image": "a.jpg", "x": 0.25}', '{"image": "a.jpg", "x": 1}'), "a.jpg": ""},
    ),
    "classes beside numbers": (
        "multi_label dataset=image_table",
        {"a.csv": table("image,label,x", "a.jpg,cat,0.5"), "a.jpg": ""},
    ),
    "several": (
        "regression dataset=image_table dataset.label=COLUMN",
        {"a.csv": table("image,x,y,z", "a.jpg,0.5,1.5,cat"), "a.jpg": ""},
    ),
    "a cell without a number": (
        "multi_label dataset=image_table",
        {"a.csv": table("image,x", "a.jpg,0.5", "a.jpg,old"), "a.jpg": ""},
    ),
    "pairs": (
        "regression dataset=text dataset.sentence=sentence1 dataset.sentence2=sentence2 dataset.label=score",
        {"a.csv": table("sentence1,sentence2,score", '"a, ""b""",c,3.8', "d,e,0")},
    ),
    "rating": (
        "regression dataset=text dataset.sentence=review dataset.label=rating",
        {"a.csv": table("review,rating", "a,4.5", "b,1")},
    ),
    "pairs of an entailment task": (
        "classification dataset=text dataset.sentence=premise dataset.sentence2=hypothesis",
        {"a.csv": table("premise,hypothesis,label", "a,b,entailment", "c,d,neutral")},
    ),
    "pairs of a question and a sentence": (
        "classification dataset=text dataset.sentence=question dataset.sentence2=sentence",
        {"a.csv": table("question,sentence,label,idx", "a,b,yes,0", "c,d,no,1")},
    ),
    "a sentence": ("classification dataset=text", {"a.csv": table("sentence,label", "a,good", "b,bad")}),
    "classes in lists": (
        "multi_label dataset=text dataset.sentence=text dataset.label=labels",
        {"a.jsonl": table('{"text": "a", "labels": []}', '{"text": "b", "labels": ["x", "y"]}')},
    ),
    "classes in lists of the usual name": (
        "multi_label dataset=text dataset.sentence=text",
        {"a.jsonl": table('{"text": "a", "label": ["z"]}', '{"text": "b", "label": ["x", "y"]}')},
    ),
    "names of classes in a text": (
        "multi_label dataset=text dataset.sentence=text dataset.label=tags",
        {"a.csv": table("text,tags", "a,x", "b,x|y")},
    ),
    "a name with a comma": (
        "classification dataset=text dataset.sentence=text",
        {"a.csv": table("text,label", 'a,"x, y"', "b,z")},
    ),
    "columns of 0 and 1": (
        "multi_label dataset=text dataset.sentence=comment_text dataset.label=[toxic,insult]",
        {"a.csv": table("id,comment_text,toxic,insult", "i,a,0,1", "j,b,1,1")},
    ),
    "a class beside columns of 0 and 1": (
        "classification dataset=text dataset.sentence=text",
        {"a.csv": table("text,label,seen", "a,0,1", "b,1,1")},
    ),
    "a column of 0 and 1 beside numbers": (
        "classification dataset=text dataset.sentence=text dataset.label=COLUMN",
        {"a.csv": table("text,toxic,length", "a,0,1", "b,1,2")},
    ),
    "one column of 0 and 1": (
        "classification dataset=text dataset.sentence=text dataset.label=COLUMN",
        {"a.csv": table("text,toxic", "a,0", "b,1")},
    ),
    "translations": (
        "translation dataset=parallel_text dataset.source=translation.en dataset.target=translation.de",
        {"a.jsonl": '{"translation": {"de": "a", "en": "b"}}\n'},
    ),
    "stars": (
        "classification dataset=text dataset.sentence=review dataset.label=score",
        {"a.csv": table("review,score", "a,5", "b,1")},
    ),
}


REMARKS = {
    "several": "COLUMN has the number to predict: x, y.",
    "one column of 0 and 1": "COLUMN has the classes: toxic.",
    "a column of 0 and 1 beside numbers": "COLUMN has the classes: toxic, length.",
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_decide_the_task_and_the_settings(name: str, here: Path) -> None:
    expected, files = TABLES[name]
    write(here, **files)
    (option, guess), *_ = best_first(recognise_all(own_classes("dataset"), FileTree(".")))
    words = [*guess.overrides(option), *guess.asks]
    assert " ".join(word for word in words if "=./" not in word) == f"task={expected}"
    assert guess.remark == REMARKS.get(name, "")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("expected", FORMS)
def test_each_dataset_recognises_its_files(expected: str, here: Path) -> None:
    FORMS[expected](here)
    (option, guess), *_ = best_first(recognise_all(own_classes("dataset"), FileTree(".")))
    words = [*guess.overrides(option), *guess.asks]
    assert " ".join(word for word in words if not word.startswith("task=")) == f"dataset={expected}"
    assert set(guess.settings) <= set(own_classes("dataset")[option].model_fields)


@pytest.mark.parametrize(
    "expected, ending, content",
    [
        ("text train=./train-*-of-2.csv test=./test-0-of-1.csv sentence=text", "csv", "text,label\nx,1\ny,0\n"),
        (
            "conll root=./ train=train-*-of-2.jsonl test=test-0-of-1.jsonl val=null",
            "jsonl",
            '{"tokens": ["a"], "tags": ["O"]}\n',
        ),
        ("squad root=./ train=train-*-of-2.json test=test-0-of-1.json val=null", "json", squad("a")),
        (
            "summary_text train=./train-*-of-2.jsonl test=./test-0-of-1.jsonl source=article target=highlights",
            "jsonl",
            '{"article": "a", "highlights": "b"}\n',
        ),
    ],
)
def test_shards_are_one_split(expected: str, ending: str, content: str, here: Path) -> None:
    write(here, **{f"{name}.{ending}": content for name in ("test-0-of-1", "train-0-of-2", "train-1-of-2")})
    (option, guess), *_ = best_first(recognise_all(own_classes("dataset"), FileTree(".")))
    settings = " ".join(f"{name}={value}" for name, value in guess.settings.items())
    assert f"{option} {settings}" == expected


def test_the_form_its_counts_and_the_command_are_printed(here: Path, capsys: pytest.CaptureFixture) -> None:
    write_coco(here / "pets")
    assert main(["data", "guess", "pets"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "'pets': COCO's JSON with boxes: 5 images, 6 boxes, 2 classes (Dog, cat); train 3, val 2",
        "  python -m mxtrain task=detection dataset=coco dataset.root=pets",
    ]


@pytest.mark.parametrize(
    "names, option",
    [
        (["images/a.jpg", "annotations/a.png", "annotations/all.json"], ""),
        (["x/a.jpg", "y/b.jpg", "x/a.txt", "y/b.txt"], ""),
        (["x/a.jpg", "y/b.jpg", "y/c.jpg", "notes.txt"], "image_folder"),
        (["Images/a.jpg", "Annotations/a.xml"], ""),
    ],
)
def test_files_of_other_formats_are_no_folders_of_images(names, option, here: Path) -> None:
    write(here, **{name: "<annotation></annotation>" if name.endswith("xml") else "x" for name in names})
    assert [name for name, _ in best_first(recognise_all(own_classes("dataset"), FileTree(".")))] == (
        [option] if option else []
    )


@pytest.mark.slow
def test_problems_are_counted_and_the_checking_command_is_named(here: Path) -> None:
    write_coco(here / "pets")
    (here / "pets" / "val2017" / "d.jpg").unlink()
    best = mxtrain.guess_data("pets").best
    assert (best.option, best.num_problems, best.splits) == (
        "coco",
        2,
        {"train": 3, "val": 1},
    )  # d.jpg, and a class of crowds
    check = "python -m mxtrain data check task=detection dataset=coco dataset.root=pets"
    assert best.lines()[-1] == f"  2 problems; `{check}` lists them"


@pytest.mark.slow
def test_several_forms_of_a_table_are_named_with_what_is_to_complete(here: Path) -> None:
    write(here, **{"a.csv": "text,label,n\nx,1,2\ny,0,3\n"})
    first, second = mxtrain.guess_data(here / "a.csv").forms
    assert first.option == "text" and first.overrides[-1] == "dataset.sentence=text"
    assert second.option == "feature_table" and second.command.endswith(" dataset.target=COLUMN")
    assert second.remark == "COLUMN is the one to predict: text, label, n." and not second.counts
    assert str(mxtrain.guess_data("a.csv")).count("\nor a table of categories and numbers\n") == 1


def test_files_that_cannot_be_opened_say_why(here: Path) -> None:
    FORMS["mnist dataset.root=./"](here)
    best = mxtrain.guess_data(here).best
    assert best.option == "mnist" and not best.counts
    assert best.remark.startswith("It cannot be opened: ") and "t10k-images" in best.remark


def test_problems_are_the_reason_where_nothing_is_left(here: Path) -> None:
    box = {"x": 1, "y": 1, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}
    result = {"id": "a", "type": "rectanglelabels", "original_width": 8, "original_height": 8, "value": box}
    tasks = [{"id": 1, "data": {"image": "/data/upload/1/a.png"}, "annotations": [{"id": 1, "result": [result]}]}]
    write(here, **{"export.json": json.dumps(tasks)})
    best = mxtrain.guess_data(here).best
    assert (best.option, best.num_problems, best.remark) == ("label_studio", 1, "")
    assert best.lines()[-1].endswith("` lists them")


def test_only_the_files_nearest_to_the_root_are_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtrain.data.recognition.MAX_READ", 2)
    (here / "a").mkdir()
    for name in ("a/1.csv", "a/2.csv", "a/3.jsonl", "b.csv"):
        (here / name).write_text('{"x": 1}\n')
    files = FileTree(here)
    read = [bool(files.text(name) and files.columns(name)) for name in ("a/1.csv", "a/2.csv", "a/3.jsonl", "b.csv")]
    assert read == [True, False, True, True] and files.columns("a/2.csv") == []


def test_texts_are_not_opened(here: Path) -> None:
    write(here, **{"train.en": "a\n", "train.de": "b\n"})
    best = mxtrain.guess_data(here).best
    assert best.option == "parallel_text" and best.lines() == [best.form, f"  {best.command}"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "'nowhere' cannot be read: No such file or directory."),
        (["here"], "'here': no dataset recognises it. It has 3 files (2 .xyz, 1 without extension)."),
        ([], "data guess takes one folder or file, and no settings"),
        (["here", "there"], "data guess takes one folder or file, and no settings"),
        (["here", "dataset=coco"], "data guess takes one folder or file, and no settings"),
    ],
)
def test_what_is_no_data_is_refused(arguments, message, here: Path, capsys: pytest.CaptureFixture) -> None:
    write(here, **{"here/a.xyz": "", "here/b.xyz": "", "here/LICENSE": ""})
    assert main(["data", "guess", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_each_file_of_a_large_folder_is_looked_at_once(tmp_path: Path) -> None:
    files = FileTree(tmp_path)
    files.names = [f"{number}.{ending}" for number in range(40_000) for ending in ("jpg", "txt")]
    begin_s = time.process_time()
    assert own_classes("dataset")["parallel_text"].recognise(files) is None  # type: ignore[attr-defined]
    assert time.process_time() - begin_s < 20  # comparing all pairs of names takes a quarter of an hour


def test_tables_in_parquet_are_recognised_by_their_cells(here: Path) -> None:
    texts = pyarrow.table({"review": ["a", "b"], "stars": [4.5, 1.25]})
    long = pyarrow.table({"item_id": ["a"], "timestamp": [np.datetime64("2024-01-01", "ms")], "target": [None]})
    wide = pyarrow.table({"date": [np.datetime64("2024-01-01", "ms")], "a": [1.0], "b": [2]})
    lists = pyarrow.table({"start": ["2024-01-01"], "target": [[1.0, 2.0]]})
    for table, expected in ((texts, "regression"), (long, "forecasting"), (wide, "forecasting"), (lists, "")):
        pyarrow.parquet.write_table(table, here / "a.parquet")
        found = recognise_all(own_classes("dataset"), FileTree("a.parquet"))
        assert {found[name].task for name in ("text", "time_series") if name in found} == ({expected} - {""})


def test_lists_and_structs_in_parquet_are_recognised(here: Path) -> None:
    """The columns of GoEmotions and WMT as Hugging Face's datasets writes them."""
    feature = {"_type": "Sequence", "feature": {"names": ["joy", "fear"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": {"labels": feature}}})}
    emotions = pyarrow.table({"text": ["a", "b"], "labels": [[0], [0, 1]], "id": ["x", "y"]})
    pairs = {"translation": [{"en": "a", "fr": "b"}]}
    for number in range(2):
        pyarrow.parquet.write_table(emotions.replace_schema_metadata(metadata), here / f"train-{number}-of-2.parquet")
    (option, guess), *_ = best_first(recognise_all(own_classes("dataset"), FileTree(".")))
    assert (option, guess.task) == ("text", "multi_label") and not guess.asks
    assert guess.settings == {"train": "./train-*-of-2.parquet", "sentence": "text", "label": "labels"}
    for columns, expected in (
        (pairs, {"train": "a.parquet", "source": "translation.en", "target": "translation.fr"}),
        ({"translation": [{"en": "a", "fr": "b", "de": "c"}]}, None),
        ({"translated": [{"en": "a", "fr": "b"}]}, None),
    ):
        pyarrow.parquet.write_table(pyarrow.table(columns), here / "a.parquet")
        found = recognise_all(own_classes("dataset"), FileTree("a.parquet")).get("parallel_text")
        assert (None if found is None else found.settings) == expected


def test_series_of_gluonts_are_recognised_with_their_frequency(here: Path) -> None:
    line = '{"start": "2024-01-01", "target": [1.0, 2.0], "item_id": "a"}\n'
    for name in ("train", "test"):
        (here / name).mkdir()
        (here / name / "data.json.gz").write_bytes(gzip.compress(line.encode()))
    for metadata, settings in (
        ('{"freq": "D", "prediction_length": 14}', {"frequency": "D", "horizon": 14}),
        ('{"freq": "D", "prediction_length": null}', {"frequency": "D"}),
        ('{"freq": "fortnight", "prediction_length": 14}', {}),
        ("[]", {}),
    ):
        write(here, **{"metadata.json": metadata})
        guess = recognise_all(own_classes("dataset"), FileTree("."))["deepar_lines"]
        assert guess.settings == {"path": "./test/data.json.gz", **settings}
        assert guess.asks == (() if settings else ("dataset.frequency=FREQUENCY",))


def test_damaged_gzip_files_are_not_recognised(here: Path) -> None:
    (here / "a.json.gz").write_bytes(b"\x1f\x8b\x00\x00")
    assert recognise_all(own_classes("dataset"), FileTree("a.json.gz")) == {}


def test_a_table_alone_is_recognised_by_the_images_beside_it(here: Path) -> None:
    draw(here / "photos" / "1.png", (8, 8))
    for cell, expected in (("photos/1.png", ["image_table"]), ("photos/2.png", []), ("photos", [])):
        write(here, **{"a.csv": f"image,age\n{cell},31.5\n"})
        assert [
            name for name in recognise_all(own_classes("dataset"), FileTree("a.csv")) if "image" in name
        ] == expected


def test_times_of_interactions_are_offered(tmp_path: Path) -> None:
    for header, remark in (
        ("user,item", ""),
        ("user,item,Date", "If 'Date' tells the order, add dataset.timestamp=Date: the last items are held out."),
    ):
        path = tmp_path / "a.csv"
        path.write_text(f"{header}\nu,i{',2024-01-01' if remark else ''}\n")
        found = InteractionTable.recognise(FileTree(str(path)))
        assert found is not None and found.remark == remark
