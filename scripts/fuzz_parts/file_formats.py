"""Small valid inputs of every format that mxtrain reads, and how each is read whole."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
from PIL import Image

Read = Callable[[], None]
"""Reads an input: a MxtrainError says what is wrong with it, and any other error is a fault."""
FORMATS: Dict[str, Callable[[Path], Read]] = {}


def fmt(name: str) -> Callable[[Callable[[Path], Read]], Callable[[Path], Read]]:
    """Registers a function: an empty folder -> a valid input is written there; it returns what reads it."""

    def register(make: Callable[[Path], Read]) -> Callable[[Path], Read]:
        FORMATS[name] = make
        return make

    return register


def reads(build: Callable[[], Any]) -> Read:
    """Opens a dataset as a training run does, then as `data check` does, and reads all samples either way."""

    def read() -> None:
        from mxtrain.data.checking.checks import checks_of
        from mxtrain.data.checking.dataset_check import CollectedFindings
        from mxtrain.data.spec import open_splits
        from mxtrain.errors import MxtrainError

        refused = []
        for check in (False, True):
            try:
                dataset = build()
                findings = CollectedFindings()
                splits = dataset.examine(findings) if check else open_splits(dataset)
                for source in (splits.train, splits.val, splits.test):
                    if source is None:
                        continue
                    if check:
                        checks = checks_of(source)
                        for index in range(min(len(checks), 60)):
                            _or_refused(lambda checks=checks, index=index: checks.check(index))
                    elif hasattr(source, "fetch"):
                        source.fetch(np.arange(min(len(source), 60)), seed=0, epoch=0, train=False)
            except (MxtrainError, OSError) as error:
                if isinstance(error, OSError) and not error.filename:
                    raise
                refused.append(error)
        if refused:
            raise refused[0] if isinstance(refused[0], MxtrainError) else MxtrainError(str(refused[0]))

    return read


def _or_refused(call: Callable[[], object]) -> None:
    from mxtrain.errors import MxtrainError

    with contextlib.suppress(MxtrainError, OSError):
        call()


def _table(ending: str, mark: str) -> None:
    @fmt(f"table.{ending}")
    def _(folder: Path) -> Read:
        from mxtrain.tables.feature_table import FeatureTable

        path = folder / f"t.{ending}"
        rows = [{"age": 20 + n, "income": n * 1.5, "city": "abc"[n % 3], "target": n % 2} for n in range(40)]
        if ending == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif ending == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            lines = [list(rows[0]), *([str(one) for one in row.values()] for row in rows)]
            path.write_text("".join(mark.join(line) + "\n" for line in lines))
        return reads(lambda: FeatureTable(train=str(path)))


for _ending, _mark in (("csv", ","), ("tsv", "\t"), ("jsonl", ""), ("parquet", "")):
    _table(_ending, _mark)


@fmt("interactions")
def _interactions(folder: Path) -> Read:
    from mxtrain.recommendation.interactions import InteractionTable

    path = folder / "x.csv"
    path.write_text("user,item,rating,time\n" + "".join(f"{n % 7},{n % 11},{n % 5 + 1},{n}\n" for n in range(70)))
    return reads(lambda: InteractionTable(path=str(path), rating="rating", timestamp="time", feedback="explicit"))


@fmt("libsvm")
def _libsvm(folder: Path) -> Read:
    from mxtrain.tables.libsvm import Libsvm

    (folder / "a.txt").write_text("".join(f"{n % 2} {n % 5 + 1}:0.5 {n % 7 + 9}:1e-3\n" for n in range(40)))

    def build() -> Any:
        return Libsvm(train=str(folder / "a.txt"))

    return reads(build)


@fmt("conll")
def _conll(folder: Path) -> Read:
    from mxtrain.text.token_classification.conll import Conll

    text = "".join(f"Word{n} NN B-PER\nof IN O\nParis{n} NN B-LOC\n\n" for n in range(20))
    (folder / "train.txt").write_text("-DOCSTART- O O\n\n" + text)
    return reads(
        lambda: Conll(root=str(folder), val=None, test=None, val_fraction=0.2, test_fraction=0.2, vocab_size=100)
    )


@fmt("squad")
def _squad(folder: Path) -> Read:
    from mxtrain.text.question_answering.squad import Squad

    paragraphs = [
        {
            "context": f"The house number {n} is red.",
            "qas": [
                {
                    "id": str(n),
                    "question": "Which colour?",
                    "answers": [{"text": "red", "answer_start": len(f"The house number {n} is ")}],
                }
            ],
        }
        for n in range(12)
    ]
    (folder / "a.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]}))
    return reads(
        lambda: Squad(
            root=str(folder), train="a.json", val=None, val_fraction=0.3, vocab_size=100, max_length=64, max_question=16
        )
    )


@fmt("text")
def _text(folder: Path) -> Read:
    from mxtrain.text.classification.text import Text

    (folder / "t.csv").write_text(
        "sentence,label\n" + "".join(f'"text {n}, fine",{"good" if n % 2 else "bad"}\n' for n in range(30))
    )
    return reads(lambda: Text(train=str(folder / "t.csv"), vocab_size=100))


@fmt("plain text")
def _plain(folder: Path) -> Read:
    from mxtrain.text.language_modeling.plain_text import PlainText

    (folder / "t.txt").write_text("".join(f"a line of words {n} caf\u00e9\n" for n in range(60)), encoding="utf-8")
    (folder / "v.txt").write_text("".join(f"other words {n}\n" for n in range(60)))
    return reads(
        lambda: PlainText(
            train=str(folder / "t.txt"), val=str(folder / "v.txt"), vocab_size=300, batch_size=2, max_length=8
        )
    )


@fmt("parallel text")
def _parallel(folder: Path) -> Read:
    from mxtrain.text.translation.parallel_text import ParallelText

    (folder / "a.tsv").write_text("en\tde\n" + "".join(f"house {n}\tHaus {n}\n" for n in range(40)))
    return reads(lambda: ParallelText(train=str(folder / "a.tsv"), val_fraction=0.2))


def _vocabulary(name: str, content: Callable[[], bytes]) -> None:
    @fmt(name)
    def _(folder: Path) -> Read:
        from mxtrain.text.tokenizing.kinds import TokenizerSettings, read_tokenizer

        path = folder / name
        path.write_bytes(content())

        def read() -> None:
            found = read_tokenizer(TokenizerSettings(), str(path))
            token_F, _ = found.encode(["the quick fox", "", "caf\u00e9 \u4e2d"])
            found.decode(token_F.tolist())

        return read


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##s", *"abcdefghijklmnopqrstuvwxyz"]


def _tokenizer_json() -> bytes:
    model = {
        "type": "BPE",
        "unk_token": "[UNK]",
        "vocab": {one: n for n, one in enumerate([*PIECES, "th"])},
        "merges": ["t h"],
    }
    split = {"type": "Split", "pattern": {"Regex": " ?\\w+|\\s+"}, "behavior": "Isolated", "invert": False}
    parts = {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": split, "model": model}
    return json.dumps({"version": "1.0", "added_tokens": [], **parts}).encode()


def _model() -> bytes:
    def field(content: bytes) -> bytes:
        return b"\x0a" + bytes([len(content)]) + content

    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), *((one, -n / 9, 1) for n, one in enumerate("abcdefghij\u2581"))]
    made = [
        field(one.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]) for one, score, kind in pieces
    ]
    return b"".join(map(field, made))


_vocabulary("vocab.txt", lambda: "\n".join(PIECES).encode())
_vocabulary("tokenizer.json", _tokenizer_json)
_vocabulary("sentencepiece.model", _model)


def write_images(folder: Path, count: int = 6, ending: str = "png", size: Any = (24, 16)) -> List[str]:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.RandomState(0)
    for number in range(count):
        Image.fromarray(draw.randint(0, 256, (size[1], size[0], 3), np.uint8)).save(folder / f"{number}.{ending}")
    return [f"{number}.{ending}" for number in range(count)]


@fmt("voc")
def _voc(folder: Path) -> Read:
    from mxtrain.vision.detection.voc import Voc

    names = write_images(folder / "JPEGImages", ending="jpg")
    (folder / "Annotations").mkdir()
    for name in names:
        box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>13</ymax></bndbox>"
        (folder / "Annotations" / name.replace("jpg", "xml")).write_text(
            f'<?xml version="1.0" encoding="utf-8"?><annotation><filename>{name}</filename><size><width>24</width>'
            f"<height>16</height><depth>3</depth></size><object><name>dog</name><difficult>0</difficult>{box}</object>"
            "</annotation>"
        )
    return reads(lambda: Voc(root=str(folder), train_split=None, val_split=None, image_size=[32, 32], val_fraction=0.3))


def _coco(name: str, make: Callable[..., Any], **more: Any) -> None:
    @fmt(name)
    def _(folder: Path) -> Read:
        files = write_images(folder / "i", ending="jpg")
        found = {
            "images": [{"id": n, "file_name": one, "width": 24, "height": 16} for n, one in enumerate(files)],
            "categories": [{"id": 1, "name": "person", **more.get("category", {})}],
            "annotations": [
                {
                    "id": n,
                    "image_id": n,
                    "category_id": 1,
                    "bbox": [2, 3, 10.5, 9],
                    "area": 90.0,
                    "iscrowd": 0,
                    **more.get("annotation", {}),
                }
                for n in range(len(files))
            ],
        }
        (folder / "a.json").write_text(json.dumps(found))
        return reads(
            lambda: make(
                root=str(folder),
                train_annotations="a.json",
                train_images="i",
                val_annotations=None,
                image_size=[32, 32],
                val_fraction=0.3,
            )
        )


def _lazy(module: str, name: str, **given: Any) -> Callable[..., Any]:
    def make(**more: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(**given, **more)

    return make


_coco("coco", _lazy("mxtrain.vision.detection.coco", "Coco"))
_coco(
    "coco polygons",
    _lazy("mxtrain.vision.detection.coco", "CocoInstances"),
    annotation={"segmentation": [[2, 3, 12, 3, 12, 12, 2, 12]]},
)
_coco(
    "coco run lengths",
    _lazy("mxtrain.vision.detection.coco", "CocoInstances"),
    annotation={"segmentation": {"size": [16, 24], "counts": [50, 10, 324]}},
)
_coco(
    "coco key points",
    _lazy("mxtrain.vision.pose.coco_key_points", "CocoKeyPoints"),
    category={"keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2], [1, 3]]},
    annotation={"keypoints": [4, 4, 2, 5, 6, 1, 0, 0, 0], "num_keypoints": 2},
)


def _image_folder(ending: str) -> None:
    @fmt(f"image folder, {ending}")
    def _(folder: Path) -> Read:
        from mxtrain.vision.classification.image_folder import ImageFolder

        for name in ("blue", "red"):
            write_images(folder / "images" / name, 4, ending)
        return reads(lambda: ImageFolder(root=str(folder / "images"), image_size=[8, 8], val_fraction=0.3))


for _ending in ("png", "jpg"):
    _image_folder(_ending)


@fmt("dicom")
def _dicom(folder: Path) -> Read:
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset

    from mxtrain.vision.classification.image_folder import ImageFolder

    for name in ("blue", "red"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(3):
            meta = FileMetaDataset()
            meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
            meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
            made = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
            made.Rows, made.Columns, made.SamplesPerPixel, made.BitsAllocated, made.BitsStored = 16, 12, 1, 16, 12
            made.HighBit, made.PixelRepresentation, made.PhotometricInterpretation = 11, 0, "MONOCHROME2"
            made.PixelData = (np.arange(192, dtype=np.uint16) + number).tobytes()
            made.save_as(folder / "images" / name / f"{number}.dcm")
    return reads(lambda: ImageFolder(root=str(folder / "images"), image_size=[8, 8], val_fraction=0.3))


@fmt("masks")
def _masks(folder: Path) -> Read:
    from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

    write_images(folder / "images")
    (folder / "masks").mkdir()
    (folder / "classes.txt").write_text("background\ncat\ndog\n")
    for number in range(6):
        Image.fromarray((np.arange(384).reshape(16, 24) % 3).astype(np.uint8)).save(folder / "masks" / f"{number}.png")
    return reads(lambda: SegmentationFolder(root=str(folder), image_size=[16, 16], val_fraction=0.3))


@fmt("lst")
def _lst(folder: Path) -> Read:
    from mxtrain.vision.detection.image_list import ImageList

    names = write_images(folder)
    (folder / "train.lst").write_text(
        "".join(f"{n}\t4\t5\t24\t16\t{n % 2}\t0.1\t0.2\t0.6\t0.7\t{one}\n" for n, one in enumerate(names))
    )
    return reads(lambda: ImageList(root=str(folder), image_size=[32, 32], val_fraction=0.3))


@fmt("recordio")
def _recordio(folder: Path) -> Read:
    from mxtrain.vision.classification.image_record import ImageRecord
    from mxtrain.vision.images.make_record import make_record

    for name in ("blue", "red"):
        write_images(folder / "images" / name, 4)
    make_record(str(folder / "images"), str(folder / "images"))
    return reads(lambda: ImageRecord(root=str(folder), image_size=[8, 8], val_fraction=0.3))


@fmt("mnist")
def _mnist(folder: Path) -> Read:
    from mxtrain.vision.classification.mnist import Mnist

    for part, count in (("train", 40), ("t10k", 20)):
        head = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + bytes(784 * count))
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
    return reads(lambda: Mnist(root=str(folder), verify_checksum=False))


@fmt("cifar")
def _cifar(folder: Path) -> Read:
    from mxtrain.vision.classification.cifar import Cifar100

    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(b"".join(bytes([0, number % 10]) + bytes(3072) for number in range(20)))
    return reads(lambda: Cifar100(root=str(folder), verify_checksum=False))


def write_sounds(folder: Path, ending: str) -> List[str]:
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(6):
        wave = 0.3 * np.sin(np.arange(8000) * 0.05 * (number + 1))
        soundfile.write(folder / f"{number}.{ending}", wave, 16000)
    return [f"{number}.{ending}" for number in range(6)]


def _speech(ending: str) -> None:
    @fmt(f"speech manifest, {ending}")
    def _(folder: Path) -> Read:
        from mxtrain.speech.manifests import SpeechManifest

        rows = [{"audio_filepath": one, "duration": 0.5, "text": "one two"} for one in write_sounds(folder, ending)]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return reads(lambda: SpeechManifest(train=str(folder / "train.jsonl"), val_fraction=0.3))


for _ending in ("wav", "flac"):
    _speech(_ending)


@fmt("aligned manifest")
def _aligned(folder: Path) -> Read:
    from mxtrain.speech.manifests import AlignedManifest

    rows = [{"audio_filepath": one, "text": "no", "durations_s": [0.2, 0.3]} for one in write_sounds(folder, "wav")]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return reads(lambda: AlignedManifest(train=str(folder / "train.jsonl"), val_fraction=0.3))


@fmt("kaldi")
def _kaldi(folder: Path) -> Read:
    from mxtrain.speech.kaldi import Kaldi

    (folder / "train").mkdir()
    names = write_sounds(folder, "wav")
    (folder / "train/wav.scp").write_text("".join(f"u{n} {folder / one}\n" for n, one in enumerate(names)))
    (folder / "train/text").write_text("".join(f"u{n} one two\n" for n in range(len(names))))
    return reads(lambda: Kaldi(train=str(folder / "train"), val_fraction=0.3))


@fmt("weights")
def _weights(folder: Path) -> Read:
    from mxtrain.checkpoint.ndarray_file import read_ndarrays, write_ndarrays

    write_ndarrays(folder / "w.params", {"a": np.ones((3, 4), "float32"), "b": np.zeros(5, "float16")})
    return lambda: read_ndarrays(folder / "w.params") and None


@fmt("safetensors")
def _safetensors(folder: Path) -> Read:
    from mxtrain.exporting.pytorch.safetensors_file import write_safetensors
    from mxtrain.model.foreign.safetensors_file import read_safetensors

    arrays = {"a": np.ones((3, 4), "float32"), "b": np.zeros(5, "float16"), "c": np.array(True)}
    write_safetensors(folder / "w.safetensors", arrays, {"format": "pt"})
    return lambda: read_safetensors(folder / "w.safetensors") and None


@fmt("checkpoint")
def _checkpoint(folder: Path) -> Read:
    from mxtrain.checkpoint import Snapshot, open_checkpoint
    from mxtrain.checkpoint.contents import write_contents
    from mxtrain.data.signature import Signature, signature_of

    state = {
        "run": {
            "description": {"model": {"hidden": 8}},
            "workers": 1,
            "batch_size": 4,
            "cut_before": [],
            "threads": "1",
            "own_operators": "none",
            "updates": False,
            "input": {"shape": [1, 8, 8], "mean": [0.5], "std": [0.5], "class_names": ["a", "b"]},
        },
        "train": {
            "step": 5,
            "epoch": 1,
            "epoch_step": 0,
            "epoch_sums": [],
            "window_sums": [],
            "validated_step": 0,
            "values": {},
            "unmoved": {},
            "validation_due": False,
            "best": None,
            "early_stopping": {},
        },
        "optimizer": {"update_counts": {"w": 5}, "attributes": {"num_update": 5}, "cum_counts": {}},
    }
    arrays = {"model": {"w": np.ones((3, 4), "float32")}, "optimizer": {"w:0": np.ones((3, 4), "float32")}}
    (folder / "checkpoints").mkdir()
    write_contents(Snapshot(5, 1, arrays, state, 0.5), folder / "checkpoints/step-00000005")

    def read() -> None:
        from mxtrain.training.resume import require_run_state

        agree(folder / "checkpoints/step-00000005")
        found = open_checkpoint(folder / "checkpoints/step-00000005")
        require_run_state(found)
        signature_of(found, Signature)
        for stem in found.stems:
            found.arrays(stem)

    return read


def agree(folder: Path) -> None:
    """Makes the manifest right for changed files, as a stranger would; where it was changed itself, it stays."""
    import hashlib
    import os
    import stat

    try:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_bytes()) if stat.S_ISREG(os.lstat(path).st_mode) else {}
        for name in manifest["files"]:
            if stat.S_ISREG(os.lstat(folder / name).st_mode):
                content = (folder / name).read_bytes()
                manifest["files"][name].update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
