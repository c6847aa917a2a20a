"""Small valid inputs of the formats that tools for annotation, corpora of speech and libraries write."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
from PIL import Image

from fuzz_parts.file_formats import Read, fmt, reads, write_images, write_sounds

SPLIT = {"val_fraction": 0.34}


def _lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _json_lines(path: Path, rows: Sequence[Any]) -> None:
    _lines(path, *(json.dumps(row, ensure_ascii=False) for row in rows))


def _yolo(name: str, kind: str, row: str, more: str = "", names: Sequence[str] = ("café", "dog")) -> None:
    @fmt(name)
    def _(folder: Path) -> Read:
        from mxtrain.vision import kinds
        from mxtrain.vision.objects.yolo import Yolo

        for part in ("train", "val"):
            for image in write_images(folder / "images" / part, 3):
                _lines(
                    folder / "labels" / part / f"{image[:-4]}.txt", *(f"{number} {row}" for number in range(len(names)))
                )
        _lines(folder / "data.yaml", "train: images/train", "val: images/val", f"names: [{', '.join(names)}]", more)
        return reads(lambda: Yolo(root=str(folder), image_size=[16, 24]).for_run(getattr(kinds, kind)))


_yolo("yolo", "Boxes", "0.5 0.5 0.25 0.25")
_yolo("yolo polygons", "Masks", "0.1 0.1 0.5 0.1 0.5 0.5")
_yolo(
    "yolo key points",
    "KeyPoints",
    "0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.4 1",
    more="kpt_shape: [2, 3]\nflip_idx: [1, 0]",
    names=["café"],
)


@fmt("csv of boxes")
def _box_csv(folder: Path) -> Read:
    from mxtrain.vision.objects.box_csv import BoxCsv

    names = write_images(folder)
    _lines(folder / "train.csv", "image,xmin,ymin,xmax,ymax,class", *(f"{name},2,3,12,13,café" for name in names))
    return reads(lambda: BoxCsv(root=str(folder), image_size=[16, 24], **SPLIT))


def _mask(height: int, width: int) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.tri(height, width).astype(np.uint8)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


@fmt("labelme")
def _labelme(folder: Path) -> Read:
    from mxtrain.vision.kinds import Masks
    from mxtrain.vision.objects.labelme import Labelme

    def shape(kind: str, *points: List[int], **more: str) -> Dict[str, Any]:
        return {"label": "café", "points": points, "group_id": None, "shape_type": kind, **more}

    shapes = [
        shape("rectangle", [2, 3], [12, 13]),
        shape("polygon", [1, 1], [20, 1], [20, 9]),
        shape("circle", [10, 8], [10, 12]),
        shape("mask", [4, 2], [9, 6], mask=_mask(5, 6)),
    ]
    for name in write_images(folder):
        facts = {"version": "5.5.0", "flags": {}, "imagePath": name, "imageHeight": 16, "imageWidth": 24}
        _json(folder / f"{name[:-4]}.json", {**facts, "imageData": None, "shapes": shapes})
    return reads(lambda: Labelme(root=str(folder), image_size=[16, 24], **SPLIT).for_run(Masks))


@fmt("label studio")
def _label_studio(folder: Path) -> Read:
    from mxtrain.vision.kinds import Masks
    from mxtrain.vision.objects.label_studio import LabelStudio

    def region(kind: str, **value: Any) -> Dict[str, Any]:
        size = {"original_width": 24, "original_height": 16, "image_rotation": 0}
        return {**size, "value": {**value, f"{kind}labels": ["café"]}, "type": f"{kind}labels"}

    regions = [
        region("rectangle", x=25, y=10, width=50, height=50, rotation=0),
        region("polygon", points=[[0, 0], [50, 0], [50, 100]]),
        region("ellipse", x=50, y=50, radiusX=25, radiusY=25, rotation=90),
    ]
    tasks = [
        {"id": number, "data": {"image": f"/data/upload/1/{name}"}, "annotations": [{"id": number, "result": regions}]}
        for number, name in enumerate(write_images(folder / "images"))
    ]
    _json(folder / "export.json", tasks)
    return reads(lambda: LabelStudio(root=str(folder), image_size=[16, 24], **SPLIT).for_run(Masks))


@fmt("cvat")
def _cvat(folder: Path) -> Read:
    from mxtrain.vision.kinds import Masks
    from mxtrain.vision.objects.cvat import Cvat

    shapes = (
        '<box label="café" xtl="2.00" ytl="3.00" xbr="12.00" ybr="13.00" z_order="0"></box>',
        '<polygon label="dog" points="1.00,1.00;20.00,1.00;20.00,9.00" z_order="0"></polygon>',
        '<mask label="dog" rle="1, 3, 2, 1, 1" left="4" top="5" width="4" height="2" z_order="2"></mask>',
    )
    images = [
        line
        for number, name in enumerate(write_images(folder / "images"))
        for line in (f'<image id="{number}" name="{name}" width="24" height="16">', *shapes, "</image>")
    ]
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("café", "dog"))
    head = ('<?xml version="1.0" encoding="utf-8"?>', f"<annotations><meta><labels>{labels}</labels></meta>")
    _lines(folder / "annotations.xml", *head, *images, "</annotations>")
    return reads(lambda: Cvat(root=str(folder), image_size=[16, 24], **SPLIT).for_run(Masks))


VIA_REGIONS = [
    {"name": "rect", "x": 2, "y": 3, "width": 10, "height": 10},
    {"name": "polygon", "all_points_x": [1, 20, 20], "all_points_y": [1, 1, 9]},
    {"name": "circle", "cx": 10, "cy": 8, "r": 4},
]


@fmt("via")
def _via(folder: Path) -> Read:
    from mxtrain.vision.kinds import Masks
    from mxtrain.vision.objects.via import Via

    regions = [{"shape_attributes": shape, "region_attributes": {"kind": "café"}} for shape in VIA_REGIONS]
    _json(
        folder / "via.json",
        {
            f"{name}12": {"filename": name, "size": 12, "regions": regions, "file_attributes": {}}
            for name in write_images(folder)
        },
    )
    return reads(lambda: Via(root=str(folder), image_size=[16, 24], **SPLIT).for_run(Masks))


@fmt("via csv")
def _via_csv(folder: Path) -> Read:
    from mxtrain.vision.kinds import Masks
    from mxtrain.vision.objects.via import Via

    def cell(content: Any) -> str:
        return '"' + json.dumps(content, ensure_ascii=False).replace('"', '""') + '"'

    head = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes"
    rows = [
        f'{name},12,"{{}}",{len(VIA_REGIONS)},{number},{cell(shape)},{cell({"kind": "café"})}'
        for name in write_images(folder)
        for number, shape in enumerate(VIA_REGIONS)
    ]
    _lines(folder / "via.csv", head, *rows)
    return reads(lambda: Via(root=str(folder), image_size=[16, 24], **SPLIT).for_run(Masks))


@fmt("coco panoptic")
def _panoptic(folder: Path) -> Read:
    from mxtrain.vision.segmentation.coco_panoptic import CocoPanoptic

    segment = np.arange(384).reshape(16, 24) // 130 * 300  # 0, 300, 600
    categories = [{"id": 7, "name": "tree", "isthing": 0}, {"id": 2, "name": "café", "isthing": 1}]
    segments = [{"id": 300, "category_id": 7}, {"id": 600, "category_id": 2}]
    for split in ("train2017", "val2017"):
        masks = folder / "annotations" / f"panoptic_{split}"
        masks.mkdir(parents=True)
        names = write_images(folder / split, 2, "jpg")
        for name in names:
            channels = [segment & 255, segment >> 8 & 255, segment >> 16]
            Image.fromarray(np.stack(channels, -1).astype(np.uint8)).save(masks / f"{name[0]}.png")
        images = [{"id": n, "file_name": name, "width": 24, "height": 16} for n, name in enumerate(names)]
        annotations = [{"image_id": n, "file_name": f"{n}.png", "segments_info": segments} for n in range(2)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        _json(folder / "annotations" / f"panoptic_{split}.json", content)
    return reads(lambda: CocoPanoptic(root=str(folder), image_size=[16, 24]))


@fmt("colour masks")
def _color_masks(folder: Path) -> Read:
    from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

    colors = np.array([[0, 0, 255], [128, 64, 128], [0, 0, 0]], np.uint8)
    (folder / "masks").mkdir()
    for name in write_images(folder / "images"):
        Image.fromarray(colors[np.arange(384).reshape(16, 24) % 3]).save(folder / "masks" / name)
    _lines(folder / "class_dict.csv", "name,r,g,b", "sky,0,0,255", "café,128,64,128", "void,0,0,0")
    return reads(lambda: SegmentationFolder(root=str(folder), image_size=[16, 24], **SPLIT))


@fmt("table of images")
def _image_table(folder: Path) -> Read:
    from mxtrain.vision.classification.image_table import ImageTable

    rows = [f"{name},{'a|café' if number % 2 else 'a'}" for number, name in enumerate(write_images(folder, 9))]
    _lines(folder / "train.csv", "image,labels", *rows)
    return reads(lambda: ImageTable(train=str(folder / "train.csv"), image_size=[16, 24], **SPLIT))


@fmt("table with several classes")
def _class_sets(folder: Path) -> Read:
    from mxtrain.tables.feature_table import FeatureTable
    from mxtrain.types.kinds import ClassSet

    rows = [f"{n},{'xyz'[n % 3]},{'a|café' if n % 2 else 'a'}" for n in range(30)]
    _lines(folder / "train.csv", "age,town,labels", *rows)
    return reads(lambda: FeatureTable(train=str(folder / "train.csv"), target="labels").for_run(ClassSet))


@fmt("table of numbers")
def _number_table(folder: Path) -> Read:
    from mxtrain.tables.number_table import NumberTable

    _lines(folder / "train.csv", "size,age,target", *(f"{n},{n * 0.5},{n * 3}" for n in range(30)))
    return reads(lambda: NumberTable(train=str(folder / "train.csv")))


@fmt("table with several targets")
def _targets(folder: Path) -> Read:
    from mxtrain.tables.feature_table import FeatureTable
    from mxtrain.types.kinds import Number

    rows = [f"{n},{'xyz'[n % 3]},2024-01-{n + 1:02},{n * 3},{n * 0.5}" for n in range(30)]
    _lines(folder / "train.csv", "size,town,day,price,rent", *rows)
    return reads(lambda: FeatureTable(train=str(folder / "train.csv"), targets=["price", "rent"]).for_run(Number))


def _series(ending: str) -> None:
    @fmt(f"series.{ending}")
    def _(folder: Path) -> Read:
        from mxtrain.forecasting.series_table import SeriesTable

        path = folder / f"a.{ending}"
        rows = [
            {"item_id": item, "timestamp": f"2024-01-{day:02}", "target": day}
            for item in ("a", "café")
            for day in range(1, 31)
        ]
        if ending == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            _lines(path, ",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows))
        return reads(lambda: SeriesTable(path=str(path), horizon=2))


for _ending in ("csv", "parquet"):
    _series(_ending)


@fmt("deepar lines")
def _deepar(folder: Path) -> Read:
    from mxtrain.forecasting.json_lines import DeepARLines

    rows = [{"start": "2024-01-01", "target": list(range(30 + n)), "cat": [n % 2]} for n in range(3)]
    _json_lines(folder / "a.jsonl", rows)
    return reads(lambda: DeepARLines(path=str(folder / "a.jsonl"), frequency="D", horizon=2))


def _vectors(name: str, content: bytes) -> None:
    @fmt(f"word vectors, {name}")
    def _(folder: Path) -> Read:
        from mxtrain.text.word_vectors.reading import open_vectors
        from mxtrain.text.word_vectors.word_table import WordTable

        path = folder / "vectors"
        path.write_bytes(content)

        def read() -> None:
            words = ["the", "Paris", "unseen"]
            table = WordTable(dict(enumerate(words)), len(words), 3)
            open_vectors(str(path), 3, "model.units").fill(table)
            table.describe(str(path))

        return read


VECTORS = {"the": [1.5, -2.25, 0.5], "Paris": [0.25, 4, 5], "café": [-6, 7.125, 8]}
GLOVE = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in VECTORS.items()).encode()
_vectors("GloVe", GLOVE)
_vectors("text of word2vec", b"3 3\n" + GLOVE)
_vectors(
    "word2vec", b"3 3\n" + b"".join(f"{word} ".encode() + np.float32(row).tobytes() for word, row in VECTORS.items())
)


def _fasttext() -> bytes:
    """A model of fastText without subwords: magic and version; 12 settings and t; the dictionary; two matrices."""
    settings = np.int32([793712314, 12, 3, 5, 5, 1, 5, 1, 2, 2, 0, 0, 0, 100]).tobytes() + np.float64([1e-4]).tobytes()
    sizes = np.int32([3, 3, 0]).tobytes() + np.int64([9, -1]).tobytes()
    words = b"".join(word.encode() + b"\0" + np.int64([3]).tobytes() + b"\0" for word in VECTORS)
    matrix = b"\0" + np.int64([3, 3]).tobytes() + np.float32(list(VECTORS.values())).tobytes()
    return settings + sizes + words + matrix + matrix


_vectors("fastText", _fasttext())


@fmt("summaries")
def _summaries(folder: Path) -> Read:
    from mxtrain.text.summarization.summary_text import SummaryText

    rows = [{"document": f"first {n} second café {'more ' * 9}end", "summary": f"short {n}"} for n in range(30)]
    _json_lines(folder / "train.jsonl", rows)
    return reads(
        lambda: SummaryText(
            train=str(folder / "train.jsonl"), tokenizer="words", vocab_size=100, max_length=16, max_summary_length=8
        )
    )


def _questions(ending: str) -> None:
    @fmt(f"questions.{ending}")
    def _(folder: Path) -> Read:
        from mxtrain.text.question_answering.squad import Squad

        path = folder / f"train.{ending}"
        rows = [
            {
                "id": str(number),
                "title": "T",
                "context": f"On floor 0 café stands item {number} near box 3.",
                "question": "where?",
                "answers": {"text": ["floor 0"], "answer_start": [3]},
            }
            for number in range(12)
        ]
        if ending == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            _json_lines(path, rows)
        return reads(
            lambda: Squad(train=str(path), val=None, val_fraction=0.3, vocab_size=100, max_length=64, max_question=16)
        )


for _ending in ("jsonl", "parquet"):
    _questions(_ending)


@fmt("common voice")
def _common_voice(folder: Path) -> Read:
    from mxtrain.speech.common_voice import CommonVoice

    write_sounds(folder / "clips", "mp3")
    rows = [f"s{number}\t{number}.mp3\tone café {'abcdef'[number]}\t2" for number in range(6)]
    for name, part in {"train": rows[:4], "dev": rows[4:5], "test": rows[5:]}.items():
        _lines(folder / f"{name}.tsv", "client_id\tpath\tsentence\tup_votes", *part)
    durations = (f"{number}.mp3\t500" for number in range(6))
    _lines(folder / "clip_durations.tsv", "clip\tduration[ms]", *durations)
    return reads(lambda: CommonVoice(root=str(folder)))


@fmt("lj speech")
def _ljspeech(folder: Path) -> Read:
    from mxtrain.speech.ljspeech import LJSpeech

    names = write_sounds(folder / "wavs", "wav")
    _lines(folder / "metadata.csv", *(f"{name[:-4]}|No. {name[0]}|number café" for name in names))
    return reads(lambda: LJSpeech(root=str(folder), **SPLIT))


@fmt("aishell")
def _aishell(folder: Path) -> Read:
    from mxtrain.speech.aishell import Aishell

    lines = []
    for number, name in enumerate(write_sounds(folder, "wav")):
        split = ("train", "train", "train", "train", "dev", "test")[number]
        target = folder / "wav" / split / f"S000{number}" / f"BAC009S000{number}W012{number}.wav"
        target.parent.mkdir(parents=True)
        (folder / name).rename(target)
        lines.append(f"{target.stem} 而 对 楼市")
    _lines(folder / "transcript" / "aishell_transcript_v0.8.txt", *lines)
    return reads(lambda: Aishell(root=str(folder)))


@fmt("keyword folders")
def _keywords(folder: Path) -> Read:
    from mxtrain.speech.audio_folder import AudioFolder
    from mxtrain.speech.features import Features

    for word in ("no", "yes"):
        write_sounds(folder / word, "wav")
    _lines(folder / "validation_list.txt", "no/0.wav", "yes/0.wav")
    _lines(folder / "testing_list.txt", "no/1.wav", "yes/1.wav")
    features = Features(sample_rate=8000, window_ms=40.0, step_ms=20.0, num_mels=8, normalize="none")
    return reads(lambda: AudioFolder(root=str(folder), features=features, seconds=0.5))


def _histories(name: str, write: Callable[[Path], Callable[..., Any]]) -> None:
    """A dataset of interactions as histories of users, and one with the features of users and items."""

    @fmt(f"{name}, sequences")
    def _(folder: Path) -> Read:
        from mxtrain.recommendation.kinds import NextItem

        build = write(folder)
        return reads(lambda: build().for_run(NextItem))

    @fmt(f"{name}, features")
    def _(folder: Path) -> Read:
        from mxtrain.types.kinds import Preference

        build = write(folder)

        def make() -> Any:
            dataset = build(features=True)
            for side in ("user", "item"):
                features = dataset.side_file(side)
                if features is not None:
                    features.measure([str(number) for number in range(9)])
            return dataset.for_run(Preference)

        return reads(make)


def _pairs() -> List[Sequence[int]]:
    return [
        (user, item, (user + item) % 5 + 1, 100 * user + item) for user in range(9) for item in range(user, user + 5)
    ]


def _movielens_100k(folder: Path) -> Callable[..., Any]:
    from mxtrain.recommendation.movielens import MovieLens

    _lines(folder / "u.data", *("\t".join(map(str, pair)) for pair in _pairs()))
    _lines(folder / "u.user", *(f"{user}|{20 + user}|{'MF'[user % 2]}|writer|8571{user}" for user in range(9)))
    flags = "|".join("1" if place in (3, 5) else "0" for place in range(19))
    _lines(folder / "u.item", *(f"{item}|Film {item} (1995)|01-Jan-1995||http://x|{flags}" for item in range(13)))
    return lambda **given: MovieLens(root=str(folder), **given)


def _movielens_1m(folder: Path) -> Callable[..., Any]:
    from mxtrain.recommendation.movielens import MovieLens

    _lines(folder / "ratings.dat", *("::".join(map(str, pair)) for pair in _pairs()))
    _lines(folder / "users.dat", *(f"{user}::{'MF'[user % 2]}::1::10::4806{user}" for user in range(9)))
    _lines(folder / "movies.dat", *(f"{item}::Film {item} (1995)::Drama|Musical" for item in range(13)))
    return lambda **given: MovieLens(root=str(folder), **given)


def _movielens_csv(folder: Path) -> Callable[..., Any]:
    from mxtrain.recommendation.movielens import MovieLens

    _lines(folder / "ratings.csv", "userId,movieId,rating,timestamp", *(",".join(map(str, pair)) for pair in _pairs()))
    _lines(folder / "movies.csv", "movieId,title,genres", *(f'{i},"Café, {i} (1995)",Action|Crime' for i in range(13)))
    return lambda **given: MovieLens(root=str(folder), **given)


def _recbole(folder: Path) -> Callable[..., Any]:
    from mxtrain.recommendation.atomic_files import AtomicFiles

    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    _lines(folder / "x.inter", head, *("\t".join(map(str, pair)) for pair in _pairs()))
    _lines(folder / "x.user", "user_id:token\tage:float\ttown:token", *(f"{n}\t{20 + n}\tcafé" for n in range(9)))
    _lines(folder / "x.item", "item_id:token\tgenre:token_seq", *(f"{n}\tDrama Crime" for n in range(13)))
    return lambda **given: AtomicFiles(root=str(folder), **given)


_histories("movielens 100k", _movielens_100k)
_histories("movielens 1m", _movielens_1m)
_histories("movielens csv", _movielens_csv)
_histories("recbole", _recbole)
