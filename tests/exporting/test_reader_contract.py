"""One value, all readers: a file gives the same rows, or is refused, in training's dataset, `mxtrain predict`,
`run.predict`, `predict.py` of the exported folder and `serve`. The formats are generated."""

from __future__ import annotations

import csv
import io
import itertools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import running
import soundfile
from PIL import Image
from served_folders import Served
from test_one_reader_of_tables import FILES as TABLES
from test_one_reader_of_tables import KINDS, ROWS, as_csv

import mxtrain
from mxtrain.cli.dispatch import run as run_command
from mxtrain.errors import DataError
from mxtrain.speech.sound_formats import HEAD

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6
"""Tolerance for numbers in rows, which have six digits: MXNet and onnxruntime sum in different orders."""
Rows = Optional[List[Dict[str, Any]]]
"""Rows of a file; None if it is refused."""
SHORT = ("trainer.test=false", "trainer.seed=3", "early_stopping=off")

DRIVER = """
import json, sys
folder, files = sys.argv[1], json.load(open(sys.argv[2]))
sys.modules.update(dict.fromkeys(("mxtrain", "mxnet", "scipy", "cv2", "pydantic")))
sys.path[0] = folder
import predict
assert any(name.startswith("reading proof.") for name in predict.check(folder, predict.reader_of))
opened = predict.OpenedExport(folder)
for file in files:
    try:
        found = [predict.strict(row) for row in predict.rows_of(opened, file)]
    except ValueError as error:
        found = str(error)
    print(json.dumps(found), flush=True)
"""
"""Calls predict.py for many files in one process that can import none of our packages."""


@dataclass
class Field:
    """A run of a field with its export.

    Attributes:
        run_dir: of the run.
        in_val: files whose samples are the validation split.
        media_types: extension -> media type of requests; others are sent as the last one.
        file_of: place of a sample in its split -> file, if the split is a list of files.
        bodies_of: bodies of the requests for a file, if the server takes a sample at a time.
        val_of: setting of the validation split, if it is one file: the split is opened for each of `in_val`.
    """

    run_dir: Path
    in_val: Sequence[Path]
    media_types: Mapping[str, str]
    file_of: Mapping[str, str] = field(default_factory=dict)
    bodies_of: Callable[[Path], Sequence[bytes]] = field(default=lambda path: [path.read_bytes()])
    val_of: str = ""

    def by_training(self) -> Dict[str, Rows]:
        """Rows of the validation split."""
        words = [[f"{self.val_of}={file}"] for file in self.in_val] if self.val_of else [[]]
        return {name: rows for one in words for name, rows in self._written("split=val", *one).items()}

    def by_command(self, files: Sequence[Path]) -> Dict[str, Rows]:
        """Rows that `mxtrain predict` writes."""
        return self._written(*map(str, files), "skip_unreadable=true")

    def _written(self, *words: str) -> Dict[str, Rows]:
        output = self.run_dir / "rows.jsonl"
        assert run_command(["predict", str(self.run_dir), *words, f"output={output}"]) == 0
        found: Dict[str, Rows] = {}
        for row in map(json.loads, output.read_text().splitlines()):
            _add(found, {**row, "file": self.file_of.get(row["file"], row["file"])})
        return found

    def by_python(self, files: Sequence[Path]) -> Dict[str, Rows]:
        """Rows of `run.predict`, which reads one file at a time."""
        run, found = mxtrain.load(self.run_dir), {}
        for file in files:
            try:
                rows = list(map(dict, run.predict(file)))
            except DataError:
                continue
            for row in rows:
                _add(found, row)
        return found

    def by_folder(self, files: Sequence[Path]) -> Dict[str, Rows]:
        """Rows of predict.py."""
        names = self.run_dir / "names.json"
        names.write_text(json.dumps(list(map(str, files))))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", DRIVER, str(self.run_dir / "export"), str(names)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found: Dict[str, Rows] = {}
        for rows in map(json.loads, done.stdout.splitlines()):
            for row in rows if isinstance(rows, list) else ():
                _add(found, row)
        return found

    def by_server(self, files: Sequence[Path]) -> Dict[str, Rows]:
        """Answers of `serve`."""
        found: Dict[str, Rows] = {}
        with Served(self.run_dir / "export") as server:
            for file in files:
                media_type = self.media_types.get(file.suffix, list(self.media_types.values())[-1])
                for body in self.bodies_of(file):
                    status, answer, _ = server.ask("/v2/models/export/predict", body, media_type)
                    assert status in (200, 400), (file, answer)
                    for row in answer.get("predictions", [answer]) if status == 200 else ():
                        found.setdefault(str(file), []).append(row)  # type: ignore[union-attr]
        return found


def _add(found: Dict[str, Rows], row: Dict[str, Any]) -> None:
    file, _, line = row["file"].rpartition(":")
    name = file if line.isdigit() and file else row["file"]
    found.setdefault(name, []).append(row)  # type: ignore[union-attr]


def require_same(
    found: Mapping[str, Rows], expected: Mapping[str, Rows], reader: str, has_locations: bool = True
) -> None:
    """The same files have rows, with the same keys, classes and texts, and numbers within `TOLERANCE`."""
    assert found.keys() == expected.keys(), (reader, found.keys() ^ expected.keys())
    for name, rows in expected.items():
        own = found[name]
        assert own is not None and rows is not None and len(own) == len(rows), (reader, name)
        for one, other in zip(own, rows):
            other = other if has_locations else {key: value for key, value in other.items() if key != "file"}
            _require_equal(one, other, f"{reader}, {name}")


def _require_equal(found: Any, expected: Any, place: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            _require_equal(found[key], value, f"{place}, {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for one, other in zip(found, expected):
            _require_equal(one, other, place)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=0, abs=TOLERANCE), place
    else:
        assert found == expected, place


def check(
    own: Field,
    files: Sequence[Path],
    refused: Sequence[Path],
    most_unread: int,
    not_sent: Sequence[Path] = (),
    num_proven: int = 4,
) -> Dict[str, Rows]:
    """Compares all readers, and returns the rows of each file.

    Args:
        own: the run.
        files: files that have rows, or that all readers refuse, such as codings that libsndfile writes only.
        refused: files that every reader refuses.
        most_unread: largest number of `files` without rows.
        not_sent: files of a format that the server does not take.
        num_proven: number of samples whose files the export has read.
    """
    everything = [*files, *refused]
    expected = own.by_command(everything)
    assert not expected.keys() & set(map(str, refused))
    assert json.loads((own.run_dir / "export" / "export.json").read_text())["files"] == num_proven
    unread = set(map(str, files)) - expected.keys()
    assert len(unread) <= most_unread, unread
    in_val = {str(file): expected[str(file)] for file in own.in_val if str(file) not in unread}
    require_same(own.by_training(), in_val, "training")
    require_same(own.by_python(everything), expected, "run.predict")
    require_same(own.by_folder(everything), expected, "predict.py")
    sent = [file for file in everything if file not in not_sent]
    kept = {str(file): expected[str(file)] for file in sent if str(file) in expected}
    require_same(own.by_server(sent), kept, "serve", has_locations=False)
    return expected


def numbers_of(rows: Mapping[str, Rows]) -> np.ndarray:
    """All probabilities, which must differ between files for the comparison to say something."""
    return np.array([row["probability"] for found in rows.values() for row in found or ()])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps prepared data apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


# Images: every format that Pillow writes in every mode, small and so large that decoders scale, turned by EXIF.

FORMATS = {"JPEG": ".jpg", "PNG": ".png", "TIFF": ".tif", "GIF": ".gif", "WEBP": ".webp", "BMP": ".bmp", "PPM": ".ppm"}
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")
SIZES = ((31, 40), (640, 427))


def images() -> Iterator[Tuple[str, bytes]]:
    """Name and content of each."""
    seed = itertools.count()
    for (kind, ending), mode, size in itertools.product(FORMATS.items(), MODES, SIZES):
        draw = np.random.default_rng(next(seed))
        image = Image.fromarray(draw.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize(size, Image.BICUBIC)
        image = (
            Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
            if mode == "I;16"
            else image.convert(mode)
        )
        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = 1 + next(seed) % 8
        try:
            image.save(file, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}))
        except (OSError, KeyError, ValueError, SystemError):  # the format has no such mode
            continue
        yield f"{kind}-{mode.replace(';', '')}-{size[0]}{ending}", file.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_images(channels: int, tmp_path: Path) -> None:
    files, refused = [], []
    for name, content in images():
        path = tmp_path / "data" / "val" / "abc"[len(files) % 3] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(path)
        if content[:2] in (b"\xff\xd8", b"\x89P", b"GI", b"BM") and len(content) > 500:
            refused.append(tmp_path / f"cut-{name}")
            refused[-1].write_bytes(content[: len(content) // 2])
    for number in range(24):
        path = tmp_path / "data" / "train" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 31, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    assert len(files) > 50 and len(refused) > 10
    running.train_here(
        tmp_path / "run",
        *SHORT,
        "trainer.max_epochs=1",
        "dataset=image_folder",
        f"dataset.root={tmp_path}/data",
        "dataset.image_size=[24,20]",
        f"dataset.channels={channels}",
        "model=mlp",
        "model.hidden=[16]",
        "dataset.batch_size=8",
        "optimizer.lr=0.05",
    )
    assert run_command(["export", str(tmp_path / "run"), "limit_batches=1"]) == 0
    own = Field(tmp_path / "run", files, {".png": "image/png"})
    assert numbers_of(check(own, files, refused, most_unread=0)).std() > 1e-2


# Recordings: every format and coding that libsndfile writes, at several rates, of one and two channels.

RATES = (8000, 16000, 22050, 48000)


def recordings() -> Iterator[Tuple[str, bytes]]:
    """Name and content of each."""
    rate_of, seed = itertools.cycle(RATES), itertools.count()
    for kind in sorted({*soundfile.available_formats()} - {"SD2"}):  # which would write ._ into the current folder
        for subtype, channels in itertools.product(soundfile.available_subtypes(kind), (1, 2)):
            rate, file = next(rate_of), io.BytesIO()
            draw = np.random.default_rng(next(seed))
            wave_S = np.sin(np.cumsum(draw.uniform(0.02, 0.9, rate // 3)))[:, None] * draw.uniform(0.2, 0.9, channels)
            try:
                soundfile.write(file, wave_S, rate, format=kind, subtype=subtype)
            except (soundfile.SoundFileError, ValueError, TypeError):  # at other rates or numbers of channels
                continue
            if HEAD.match(file.getvalue()[:12]) and len(file.getvalue()) > 1000:
                yield f"{kind}-{subtype}-{channels}-{rate}.wav", file.getvalue()


def test_recordings(tmp_path: Path) -> None:
    files, refused = [], []
    for name, content in recordings():
        files.append(tmp_path / name)
        files[-1].write_bytes(content)
        if name.startswith(("WAV-PCM", "WAV-FLOAT", "WAV-ALAW", "FLAC", "AIFF-PCM", "W64-PCM", "AU-PCM")):
            refused.append(tmp_path / f"cut-{name}")
            refused[-1].write_bytes(content[: len(content) // 2])
    for kind, subtype in (("WAV", "PCM_16"), ("WAV", "ULAW"), ("FLAC", "PCM_16"), ("AIFF", "FLOAT")):
        refused.append(tmp_path / f"silent-{kind}-{subtype}.wav")
        with refused[-1].open("wb") as file:
            soundfile.write(file, np.zeros(8000), 16000, format=kind, subtype=subtype)
    assert len(files) > 50 and len(refused) > 10
    for split, listed in (("train", files[:16]), ("val", files)):
        lines = [
            {"audio_filepath": str(file), "text": "abcdefghijklmnop"[number % 12 :][:3]}
            for number, file in enumerate(listed)
        ]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    running.train_here(
        tmp_path / "run",
        *SHORT,
        "trainer.max_epochs=1",
        "dataset=speech_manifest",
        f"dataset.train={tmp_path}/train.jsonl",
        f"dataset.val={tmp_path}/val.jsonl",
        "dataset.features.num_mels=24",
        "model.channels=[2,3,2]",
        "model.units=16",
        "model.num_layers=2",
        "dataset.batch_size=4",
        "task.beam_size=1",
        "trainer.limit_train_batches=1",
        "dataset.skip_unreadable=true",
    )
    assert run_command(["export", str(tmp_path / "run"), "limit_batches=1"]) == 0
    file_of = {f"{tmp_path}/val.jsonl:{line}": str(file) for line, file in enumerate(files, start=1)}
    own = Field(tmp_path / "run", files, {".wav": "audio/wav"}, file_of)
    found = check(own, files, refused, most_unread=8)
    assert len({row["text"] for rows in found.values() for row in rows or ()}) > len(files) // 3


def test_clips(tmp_path: Path) -> None:
    """Clips of sound with classes: shorter, longer and as long as the network takes, of any rate and format."""
    draw = np.random.default_rng(0)
    for split, number, tone in itertools.product(("train", "val"), range(6), (300, 900, 2000)):
        ending, rate = (("wav", 16000), ("flac", 8000), ("ogg", 11025), ("mp3", 16000))[number % 4]
        wave = 0.3 * np.sin(np.arange(int(rate * (0.3 + 0.1 * number))) * tone * 6.283 / rate)
        folder = tmp_path / "data" / split / f"t{tone}"
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{number}.{ending}", wave + 0.01 * draw.standard_normal(len(wave)), rate)
    files = sorted((tmp_path / "data/val").rglob("*.*"))
    refused = [tmp_path / "cut.wav", tmp_path / "silent.wav"]
    refused[0].write_bytes(next(file for file in files if file.suffix == ".wav").read_bytes()[:5000])
    soundfile.write(refused[1], np.zeros(8000), 16000)
    running.train_here(
        tmp_path / "run",
        *SHORT,
        "trainer.max_epochs=2",
        "dataset=audio_folder",
        f"dataset.root={tmp_path}/data",
        "dataset.seconds=0.5",
        "dataset.features.num_mels=16",
        "model.channels=[4,6]",
        "dataset.batch_size=6",
        "optimizer.lr=0.01",
    )
    assert run_command(["export", str(tmp_path / "run"), "limit_batches=1"]) == 0
    own = Field(tmp_path / "run", files, {".wav": "audio/wav"})
    found = check(own, files, refused, most_unread=0)
    assert numbers_of(found).std() > 1e-2


# Tables: the rows of `test_one_reader_of_tables` as programs write them.


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ",".join(f"{name}:{kind}" for name, kind in KINDS.items())
    draw = np.random.default_rng(0)
    rows = [{**row, "bought": answer} for row, answer in zip(ROWS, ("yes", "no", "no", "yes", "no"))]
    monkeypatch.setitem(KINDS, "bought", "category")  # the target is a column of all files
    varied = [{**rows[number % len(rows)], "age": float(draw.normal(40, 20))} for number in range(60)]
    (tmp_path / "train.csv").write_bytes(as_csv(varied, lambda value: "" if value is None else str(value)))
    files = [tmp_path / name for name in TABLES]
    for file, write in zip(files, TABLES.values()):
        file.write_bytes(write(rows))
    refused = [tmp_path / "short.csv", tmp_path / "word.csv", tmp_path / "list.jsonl", tmp_path / "cut.parquet"]
    refused[0].write_text("vip,code\ntrue,1\n")
    refused[1].write_text(f"{','.join(KINDS)}\ntrue,1,,Ulm,old,no\n")
    refused[2].write_text(json.dumps({**dict.fromkeys(KINDS, 1), "vip": [1]}) + "\n")
    refused[3].write_bytes(TABLES["parquet.parquet"](rows)[:-20])
    running.train_here(
        tmp_path / "run",
        *SHORT,
        "trainer.max_epochs=1",
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={tmp_path}/train.csv",
        f"dataset.val=[{','.join(map(str, files))}]",
        "dataset.target=bought",
        f"dataset.columns={{{columns}}}",
        "dataset.batch_size=8",
        "optimizer.lr=0.1",
    )
    assert run_command(["export", str(tmp_path / "run"), "limit_batches=1"]) == 0
    media_types = {".csv": "text/csv", ".tsv": "text/tab-separated-values", ".jsonl": "application/jsonl"}
    own = Field(tmp_path / "run", files, media_types)
    not_sent = [file for file in [*files, *refused] if file.suffix == ".parquet"]
    found = check(own, files, refused, most_unread=0, not_sent=not_sent)
    first = found[str(files[0])]
    for file in files:  # also the same rows whatever the format
        _require_equal(
            [{**row, "file": ""} for row in found[str(file)] or ()],
            [{**row, "file": ""} for row in first or ()],
            str(file),
        )
    assert numbers_of(found).std() > 1e-2


# Texts: tables with every separator, quoting and line end, JSON lines, Parquet, and lines of plain text.

ANY = ("x, y", 'say "x"; or y', "two\nlines", "  spaces ", "5", "true", "\u00fcber | \u00df", "NA", "tab\there", "1.0")
PLAIN = ("x, y", "\u00fcber | \u00df", "  spaces ", "5", "w1 w2; w3", "NA")
BERT = (
    "model=bert",
    "model.num_layers=1",
    "model.units=16",
    "model.hidden_size=32",
    "model.num_heads=2",
    "dataset.max_length=16",
    "dataset.vocab_size=120",
)


def text_files() -> Iterator[Tuple[str, bytes, Sequence[str]]]:
    """Name, content and texts of each."""

    def table(texts: Sequence[str], **options: Any) -> str:
        file = io.StringIO(newline="")
        writer = csv.writer(file, **options)
        writer.writerow(["label", "text"])
        writer.writerows(["abc"[number % 3], text] for number, text in enumerate(texts))
        return file.getvalue()

    for mark, quoting, end in itertools.product(",;|\t", (csv.QUOTE_MINIMAL, csv.QUOTE_ALL), ("\n", "\r\n")):
        written = table(ANY, delimiter=mark, quoting=quoting, lineterminator=end)
        yield f"{ord(mark)}-{quoting}-{len(end)}.csv", written.encode(), ANY
    yield "bom.csv", b"\xef\xbb\xbf" + table(ANY).encode(), ANY
    yield "excel.csv", b"sep=;\r\n" + table(ANY, delimiter=";").encode(), ANY
    yield "quoted.tsv", table(ANY, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n").encode(), ANY
    yield "plain.tsv", table(PLAIN, delimiter="\t", lineterminator="\n").encode(), PLAIN
    for name, spell in (("texts.jsonl", str), ("values.jsonl", lambda text: {"5": 5, "true": True}.get(text, text))):
        lines = [json.dumps({"label": "abc"[number % 3], "text": spell(text)}) for number, text in enumerate(ANY)]
        yield name, "\n".join(lines).encode(), ANY
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"label": list("abc" * 4)[: len(ANY)], "text": list(ANY)}), file)
    yield "rows.parquet", file.getvalue(), ANY
    yield "lines.txt", "\n".join(PLAIN).encode(), PLAIN


def test_texts(tmp_path: Path) -> None:
    files, texts_of = [], {}
    for name, content, texts in text_files():
        files.append(tmp_path / name)
        files[-1].write_bytes(content)
        texts_of[files[-1]] = [text.encode() for text in texts]
    refused = [tmp_path / name for name in ("column.csv", "null.jsonl", "latin1.csv", "cut.parquet")]
    refused[0].write_text("label,texts\na,x\n")
    refused[1].write_text('{"label": "a", "text": null}\n')
    refused[2].write_bytes("label,text\na,\u00fc\n".encode("latin1"))
    refused[3].write_bytes((tmp_path / "rows.parquet").read_bytes()[:-9])
    words = [*ANY, *PLAIN, *(f"w{number}" for number in range(20))]
    draw = np.random.default_rng(0)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        for _ in range(120):
            number, *others = draw.integers(len(words), size=3)
            writer.writerow(["abc"[number % 3], " ".join([words[number], *(words[other] for other in others)])])
    running.train_here(
        tmp_path / "run",
        *SHORT,
        *BERT,
        "dataset=text",
        f"dataset.train={tmp_path}/train.csv",
        f"dataset.val={files[0]}",
        "dataset.sentence=text",
        "dataset.batch_size=8",
        "optimizer.lr=0.01",
        "trainer.max_epochs=8",
    )
    assert run_command(["export", str(tmp_path / "run"), "limit_batches=1"]) == 0
    own = Field(
        tmp_path / "run",
        [file for file in files if file.suffix != ".txt"],
        {"": "text/plain"},
        bodies_of=lambda file: texts_of.get(file, ()),
        val_of="dataset.val",
    )
    found = check(own, files, refused, most_unread=0)
    assert len(set(numbers_of({"": found[str(files[0])]}).round(5))) >= len(ANY) - 1
