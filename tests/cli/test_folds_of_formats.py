"""Folds of each file format, in small files: which samples are held out, by their content."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import pytest
import soundfile
from boxed_files import draw
from running import rows, train_here

import mxtrain
from mxtrain.composing.composer import Composer
from mxtrain.config.groups import describe
from mxtrain.data.loading.folds import Fold
from mxtrain.data.spec import with_fold
from mxtrain.errors import ConfigError, DataError
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.pose.key_points import KeypointMeta

pytestmark = pytest.mark.usefixtures("own_cache")
FOLDS = 3
OFFICIAL = {"train": list(range(7)), "val": [7, 8], "test": [9, 10]}
"""Numbers of the units of each split: images with their objects, contexts with their questions, or single samples."""
RATE = 4000


def write_coco(folder: Path) -> None:
    """Images with two persons each. The area of a person, 1000 + N or 2000 + N, tells which it is."""
    (folder / "annotations").mkdir()
    for split, numbers in OFFICIAL.items():
        annotations = []
        for number in numbers:
            boxes = [("person", 2, 2 + 14 * one, 12 + number, 12 + 24 * one) for one in (0, 1)]
            draw(folder / f"{split}2017/{number}.png", (32, 40), boxes, seed=number)
            for one, (_, left, top, right, bottom) in enumerate(boxes):
                annotations.append(
                    {
                        "id": 2 * number + one,
                        "image_id": number,
                        "category_id": 1,
                        "iscrowd": 0,
                        "bbox": [left, top, right - left, bottom - top],
                        "area": 1000 * (one + 1) + number,
                        "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                        "keypoints": [left + 1, top + 1, 2, left + 5, top + 5, 2],
                        "num_keypoints": 2,
                    }
                )
        content = {
            "images": [{"id": n, "file_name": f"{n}.png", "width": 32, "height": 40} for n in numbers],
            "categories": [{"id": 1, "name": "person", "keypoints": ["head", "foot"], "skeleton": []}],
            "annotations": annotations,
        }
        (folder / f"annotations/{split}.json").write_text(json.dumps(content))


def unit_of_area(area: float) -> Tuple[int, int]:
    """Returns the number of the image, and which of its persons has this area."""
    return round(area) % 1000, round(area) // 1000 - 1


def images_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index in range(len(source)):
        units = [unit_of_area(area) for area in source.boxes(index)[:, Column.AREA]]
        image = int(Path(source.location(index).file).stem)
        assert units == [(image, 0), (image, 1)]
        found.append(units[0])
    return found


def persons_of(source: Any) -> List[Tuple[int, int]]:
    facts = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)[2]
    return [unit_of_area(area) for area in facts[:, KeypointMeta.AREA]]


def write_speech(folder: Path) -> None:
    """A tone of N words, as manifests, in the layout of LibriSpeech and in Kaldi's, with durations of the symbols."""
    for split, numbers in OFFICIAL.items():
        chapter, kaldi = folder / "libri" / split / "1" / "2", folder / "kaldi" / split
        chapter.mkdir(parents=True)
        kaldi.mkdir(parents=True)
        lines = []
        for number in numbers:
            length = 600 * (number + 4)
            soundfile.write(chapter / f"{number}.flac", 0.3 * np.sin(np.arange(length) * 0.8), RATE)
            text = text_of(number)
            frames = [length // 50 - 12 * (len(text) - 1), *[12] * (len(text) - 1)]
            path = f"libri/{split}/1/2/{number}.flac"
            lines.append(json.dumps({"audio_filepath": path, "text": text, "durations_frames": frames}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
        texts = "\n".join(f"{number} {text_of(number)}" for number in numbers)
        (chapter / "1-2.trans.txt").write_text(texts)
        (kaldi / "text").write_text(texts)
        (kaldi / "wav.scp").write_text("\n".join(f"{number} {chapter}/{number}.flac" for number in numbers))


def text_of(number: int) -> str:
    return "ab"[number % 2] + "abcdefg"[number % 7] * (1 + number % 3)


def utterances_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index in range(len(source)):
        number = number_of_length(source, index)
        assert source.transcript(index).text == text_of(number)
        found.append((number, 0))
    return found


def symbols_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index in range(len(source)):
        number = number_of_length(source, index)
        assert len(source.symbols_of(index)) == len(text_of(number))
        assert source.durations_of(index).sum() == source.frame_N[index]
        found.append((number, 0))
    return found


def number_of_length(source: Any, index: int) -> int:
    """Returns the number of an utterance by its frames, of 12.5 ms."""
    frames = (
        len(source.read(index, seed=0, epoch=0, train=False))
        if hasattr(source, "transcript")
        else len(source.read(index))
    )
    assert frames == source.frame_N[index]
    return round(frames / 12) - 4


def sentence_of(number: int) -> str:
    return f"number w{number} {'good' if number % 2 else 'bad'}"


def write_glue(folder: Path) -> None:
    """SST-2, and MNLI with a column of groups, of which quotes and an early end are no fault."""
    for name in ("SST-2", "MNLI"):
        (folder / name).mkdir()
    files = {"train": "train", "val": "dev", "test": "test"}
    for split, numbers in OFFICIAL.items():
        lines = [f"{sentence_of(number)}\t{number % 2}" for number in numbers]
        (folder / f"SST-2/{files[split]}.tsv").write_text("\n".join(["sentence\tlabel", *lines, "cut"]) + "\n")
    names = {"train": "train", "val": "dev_matched", "test": "dev_mismatched"}
    classes = ("neutral", "entailment", "contradiction")
    for split, numbers in OFFICIAL.items():
        lines = [
            f'{number}\tp{number}\t"{sentence_of(number)}\tsecond {one}\t{classes[(number + one) % 3]}'
            for one in (0, 1)
            for number in numbers
        ]
        head = "index\tpromptID\tsentence1\tsentence2\tgold_label"
        (folder / f"MNLI/{names[split]}.tsv").write_text("\n".join([head, *lines]) + "\n")


def single_texts_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index, label in enumerate(source.read_labels().tolist()):
        text, second = source.pairs[index]
        number = int(text.split()[1][1:])
        assert (text, second, label) == (sentence_of(number), None, number % 2)
        found.append((number, 0))
    return found


def text_pairs_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index, label in enumerate(source.read_labels().tolist()):
        text, second = source.pairs[index]
        number, one = int(text.split()[1][1:]), int(second.split()[1])
        assert text == f'"{sentence_of(number)}' and label == (number + one) % 3
        found.append((number, one))
    return found


def write_conll(folder: Path) -> None:
    """Sentences of three words; each has a word and sentence 3 a tag of its own."""
    for name, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        tag = {3: "B-LOC"}
        sentences = [f"number O\nw{number} {tag.get(number, 'B-PER')}\nends O\n" for number in OFFICIAL[split]]
        (folder / f"{name}.txt").write_text("\n".join(sentences))


def sentences_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for words, tags in zip(source.words.sentences, source.words.tags):
        number = int(words[1][1:])
        assert words == ["number", f"w{number}", "ends"] and tags[1] == ("B-LOC" if number == 3 else "B-PER")
        found.append((number, 0))
    return found


def write_squad(folder: Path) -> None:
    """Two questions of each context, as lines of JSON of which those of one context are far from each other."""
    for name, split in (("train-v1.1", "train"), ("dev-v1.1", "val"), ("test", "test")):
        lines = [
            {
                "id": f"{number} {one}",
                "context": f"the number w{number} ends",
                "question": f"which {'ab'[one]}",
                "answers": {"text": [f"w{number}"], "answer_start": [11]},
            }
            for one in (0, 1)
            for number in OFFICIAL[split]
        ]
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, lines)))


def questions_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for question in source.questions.questions:
        number, one = map(int, question.id.split())
        assert source.questions.contexts[question.context] == f"the number w{number} ends"
        found.append((number, one))
    return found


def write_pairs(folder: Path) -> None:
    for split, numbers in OFFICIAL.items():
        for ending, first in (("en", "number"), ("de", "Nummer")):
            (folder / f"{split}.{ending}").write_text("".join(f"{first} w{number} ends\n" for number in numbers))


def translations_of(source: Any) -> List[Tuple[int, int]]:
    found = []
    for index in range(len(source)):
        text, translation = source.pairs[index]
        number = int(text.split()[1][1:])
        assert (text, translation) == (f"number w{number} ends", f"Nummer w{number} ends")
        found.append((number, 0))
    return found


@dataclass(frozen=True)
class Format:
    """A file format, and how its samples are known again.

    Attributes:
        write: writes the files of all splits.
        words: overrides that name the dataset and its training files; FOLDER is where they are.
        official: overrides for the official validation and test files.
        none: settings that are None without these, validation first; empty if there must be some.
        samples: (unit, sample of the unit) of each sample of a source; fails if its parts do not belong together.
        of_unit: samples of a unit. The samples of a unit stay together.
        groups: the column that says which samples are a unit.
        network: overrides of a small network.
    """

    write: Callable[[Path], None]
    words: Sequence[str]
    official: Sequence[str]
    none: Sequence[str]
    samples: Callable[[Any], List[Tuple[int, int]]]
    of_unit: int = 1
    groups: Optional[str] = None
    network: Sequence[str] = ()


NULL = ("val", "test")
COCO = ("dataset.root=FOLDER", "dataset.train_annotations=annotations/train.json", "dataset.image_size=[32,32]")
COCO_OFFICIAL = ("dataset.val_annotations=annotations/val.json", "dataset.test_annotations=annotations/test.json")
COCO_NONE = ("val_annotations", "test_annotations")
FRAMES = (
    "dataset.features.sample_rate=4000",
    "dataset.features.window_ms=50",
    "dataset.features.step_ms=12.5",
    "dataset.features.num_mels=16",
    "dataset.features.high_hz=2000",
)
SPEECH = ("task=speech_recognition", *FRAMES)
MANIFESTS = ("dataset.val=FOLDER/val.jsonl", "dataset.test=FOLDER/test.jsonl")
FPN = ("model.channels=[8,16]", "model.width=8")
BERT = (
    "model=bert",
    "model.num_layers=1",
    "model.units=16",
    "model.hidden_size=32",
    "model.num_heads=2",
    "dataset.max_length=16",
    "dataset.vocab_size=100",
)
LSTM = ("model.units=8", "model.embed_size=8", "dataset.vocab_size=100", "dataset.max_length=16")
DEEP_SPEECH = ("model.channels=[2,3,2]", "model.units=8", "model.num_layers=1")

FORMATS = {
    "detection": Format(
        write_coco, ("task=detection", "dataset=coco", *COCO), COCO_OFFICIAL, COCO_NONE, images_of, network=FPN
    ),
    "instance segmentation": Format(
        write_coco,
        ("task=instance_segmentation", "dataset=coco", *COCO),
        COCO_OFFICIAL,
        COCO_NONE,
        images_of,
        network=("model.prototypes=4", *FPN),
    ),
    "pose": Format(
        write_coco,
        ("task=pose_estimation", "dataset=coco_key_points", *COCO),
        COCO_OFFICIAL,
        COCO_NONE,
        persons_of,
        of_unit=2,
        network=FPN,
    ),
    "speech manifests": Format(
        write_speech,
        (*SPEECH, "dataset=speech_manifest", "dataset.train=FOLDER/train.jsonl"),
        MANIFESTS,
        NULL,
        utterances_of,
        network=DEEP_SPEECH,
    ),
    "Kaldi": Format(
        write_speech,
        (*SPEECH, "dataset=kaldi", "dataset.train=FOLDER/kaldi/train"),
        ("dataset.val=FOLDER/kaldi/val", "dataset.test=FOLDER/kaldi/test"),
        NULL,
        utterances_of,
        network=DEEP_SPEECH,
    ),
    "LibriSpeech": Format(
        write_speech,
        (*SPEECH, "dataset=librispeech", "dataset.root=FOLDER/libri", "dataset.train=train"),
        ("dataset.val=val", "dataset.test=test"),
        NULL,
        utterances_of,
        network=DEEP_SPEECH,
    ),
    "speech synthesis": Format(
        write_speech,
        ("task=speech_synthesis", "dataset=aligned_manifest", "dataset.train=FOLDER/train.jsonl", *FRAMES),
        MANIFESTS,
        NULL,
        symbols_of,
        network=("model.units=8", "model.hidden_size=12", "task.iterations=2"),
    ),
    "GLUE": Format(write_glue, ("dataset=glue", "dataset.root=FOLDER", *BERT), (), (), single_texts_of),
    "GLUE, groups": Format(
        write_glue,
        ("dataset=glue", "dataset.root=FOLDER", "dataset.task=mnli", *BERT),
        (),
        (),
        text_pairs_of,
        of_unit=2,
        groups="promptID",
    ),
    "CoNLL": Format(
        write_conll,
        ("task=token_classification", "dataset.root=FOLDER", *LSTM),
        (),
        NULL,
        sentences_of,
    ),
    "SQuAD": Format(
        write_squad,
        ("task=question_answering", "dataset.root=FOLDER", "dataset.max_question=3", "dataset.doc_stride=4", *LSTM),
        ("dataset.test=test.json",),
        NULL,
        questions_of,
        of_unit=2,
    ),
    "parallel text": Format(
        write_pairs,
        ("task=translation", "dataset=parallel_text", "dataset.train=FOLDER/train"),
        ("dataset.val=FOLDER/val", "dataset.test=FOLDER/test"),
        NULL,
        translations_of,
        network=(
            "model.units=16",
            "dataset.batch_tokens=null",
            "task.max_length_offset=2",
            "task.beam_size=2",
            "dataset.tokenizer=characters",
            "dataset.vocab_size=300",
            "model.hidden_size=24",
            "model.num_heads=2",
            "model.num_layers=1",
        ),
    ),
}


def overrides_of(form: Format, folder: Path, *more: str) -> List[str]:
    groups = [] if form.groups is None else [f"trainer.fold_groups={form.groups}"]
    words = [*form.words, *form.network, f"trainer.folds={FOLDS}", *groups, *more]
    return [word.replace("FOLDER", str(folder)) for word in words]


def dataset_of(words: Sequence[str]) -> Any:
    with Composer() as composer:
        composed = composer.compose(words)
        return describe(composed.config, composed.where).dataset


def folds_of(dataset: Any, form: Format) -> List[Any]:
    return [with_fold(dataset, Fold(FOLDS, number, groups=form.groups)).open() for number in range(1, FOLDS + 1)]


def expected(form: Format, units: Sequence[int]) -> List[Tuple[int, int]]:
    return sorted((unit, one) for unit in units for one in range(form.of_unit))


def require_folds(form: Format, opened: Sequence[Any], kept: Sequence[int], test: Sequence[int]) -> None:
    """Each training sample is held out once and never trained on in that fold; units are whole; the names of classes
    and the test samples are the same in all folds."""
    assert len({tuple(splits.class_names) for splits in opened}) == 1
    samples = expected(form, kept)
    held: Counter = Counter()
    sizes = []
    for splits in opened:
        train, val = form.samples(splits.train), form.samples(splits.val)
        assert sorted([*train, *val]) == samples and val
        held.update(val)
        units = {unit for unit, _ in val}
        assert not units & {unit for unit, _ in train} and sorted(val) == expected(form, sorted(units))
        sizes.append(len(units))
        assert sorted(form.samples(splits.test) if splits.test is not None else []) == expected(form, test)
    assert held == Counter(samples)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_each_sample_is_held_out_once_and_the_test_split_never(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    form.write(tmp_path)
    dataset = dataset_of(overrides_of(form, tmp_path, *form.official))
    # An official test split replaces test_fraction. GLUE's test labels are secret, so its tasks but MNLI have none.
    has_test = name != "GLUE"
    given = dataset.model_copy(update={"test_fraction": 0.4}) if has_test else dataset
    opened = folds_of(given, form)
    require_folds(form, opened, OFFICIAL["train"], OFFICIAL["test"] if has_test else [])
    assert sorted(form.samples(with_fold(given, None).open().val)) == expected(form, OFFICIAL["val"])
    other = given.model_copy(update={"split_seed": 1})
    assert [form.samples(one.val) for one in folds_of(other, form)] != [form.samples(one.val) for one in opened]
    if name in ("CoNLL", "SQuAD", "GLUE"):
        for splits in opened:
            vocabulary = splits.build_tokenizer_config().to_json()["vocab"]
            assert set(filter(str.isdigit, vocabulary)) == {str(unit) for unit, _ in form.samples(splits.train)}
    if form.groups is not None:
        return
    # Test samples that are held out are those of a run without folds, with and without an official validation split.
    for has_val, left_out in ((True, form.none[1:]), (False, form.none)):
        if left_out or (has_val and not has_test):
            fractions = {"val_fraction": 0.2, "test_fraction": 0.3}
            changed = dataset.model_copy(update={**dict.fromkeys(left_out), **fractions})
            without = with_fold(changed, None).open()
            assert has_val == (sorted(form.samples(without.val)) == expected(form, OFFICIAL["val"]))
            test = [] if without.test is None else sorted({unit for unit, _ in form.samples(without.test)})
            # Detection and its like hold out test images only together with validation images.
            assert len(test) == (0 if form.write is write_coco and has_val else 2)
            require_folds(form, folds_of(changed, form), sorted(set(OFFICIAL["train"]) - set(test)), test)


def test_tag_of_held_out_sentences_is_a_class_of_every_fold(tmp_path: Path) -> None:
    form = FORMATS["CoNLL"]
    form.write(tmp_path)
    opened = folds_of(dataset_of(overrides_of(form, tmp_path)), form)
    assert all(splits.class_names == ["O", "B-LOC", "B-PER"] for splits in opened)
    assert sorted(any("B-LOC" in tags for tags in splits.train.words.tags) for splits in opened) == [False, True, True]


@pytest.mark.slow
def test_groups_of_formats_without_names_of_columns_are_refused(tmp_path: Path) -> None:
    write_glue(tmp_path)
    glue = FORMATS["GLUE, groups"]
    with pytest.raises(DataError, match="trainer.fold_groups.*has no column 'promptId'.*Did you mean 'promptID'"):
        folds_of(dataset_of(overrides_of(glue, tmp_path)), Format(**{**vars(glue), "groups": "promptId"}))
    for words in (["dataset=glue", "dataset.task=cola", "model=bert"], ["task=translation", "dataset=parallel_text"]):
        with pytest.raises(ConfigError, match="trainer.fold_groups=document: .* cannot group samples by a column"):
            dataset_of([*words, "trainer.folds=3", "trainer.fold_groups=document"])


def require_run(form: Format, folder: Path) -> None:
    """Trains a step of fold 2, and compares the batches of the trained run with the fold."""
    form.write(folder)
    words = overrides_of(
        form,
        folder,
        *form.official,
        "trainer.fold=2",
        "trainer.max_epochs=1",
        "dataset.batch_size=4",
        "trainer.limit_train_batches=1",
    )
    train_here(folder / "run", *words)
    assert [row["split"] for row in rows(folder / "run")][:2] == ["train", "val"]
    splits = folds_of(dataset_of(words), form)[1]
    run = mxtrain.load(folder / "run")
    for split, source in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
        if source is not None:
            found = sorted(index for batch in run.batches(split) for index in batch["index"].tolist())
            assert found == list(range(len(source))), split


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CoNLL", "SQuAD"])
def test_a_fold_trains(name: str, tmp_path: Path) -> None:
    require_run(FORMATS[name], tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("CoNLL", "SQuAD")])
def test_a_fold_of_other_formats_trains(name: str, tmp_path: Path) -> None:
    require_run(FORMATS[name], tmp_path)
