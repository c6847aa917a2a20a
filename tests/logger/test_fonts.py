"""Names in any script, in images and in JSON."""

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from mxtrain.files.durable import encode_json, write_json_atomic
from mxtrain.logger.jsonl import encode_row
from mxtrain.task import confusion, sample_figure
from mxtrain.task import figure_fonts as fonts
from mxtrain.terminal.patient_stream import patient_streams
from mxtrain.workflows.eval_folder import write_artifacts

CAT = "\u732b"


@pytest.fixture
def system_fonts(monkeypatch):
    """Replaces the list of system fonts."""
    from matplotlib import font_manager

    caches = (
        fonts.font_of,
        fonts.font_files,
        fonts.letters_in,
        fonts.warn_missing_letters,
        sample_figure.open_font,
    )

    def forget():
        for cache in caches:
            cache.cache_clear()

    def have(*paths):
        forget()
        monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path) for path in paths])

    yield have
    forget()


@pytest.fixture
def cat_font(tmp_path):
    """A font that has one letter: a filled square."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    for place, point in enumerate([(0, 0), (0, 900), (900, 900), (900, 0)]):
        (pen.lineTo if place else pen.moveTo)(point)
    pen.closePath()
    square = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "cat"])
    builder.setupCharacterMap({ord(letter): "cat" for letter in (CAT, "l", "p")})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "cat": square})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "cat": (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Cat", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "NotoSansCJK-Cat.ttf")
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    return tmp_path


def image_of(name):
    samples = sample_figure.PredictedImages(
        np.full((1, 8, 8, 1), 255, np.uint8), np.zeros(1, int), np.array([[0.9, 0.1]])
    )
    return np.asarray(sample_figure.draw_samples(samples, [name, "b"], 1))


def test_system_font_draws_characters_missing_in_pillow(system_fonts, cat_font, tmp_path):
    system_fonts(cat_font / "broken.ttf", cat_font / "NotoSansCJK-Cat.ttf")
    assert fonts.font_of("cat") == "" and fonts.font_of(CAT) == str(cat_font / "NotoSansCJK-Cat.ttf")
    assert fonts.drawable(["a", CAT]) == ["a", CAT]
    caption = image_of(CAT)[-45:-26]
    assert (caption < 60).all(axis=2).sum() > 100  # the filled square
    confusion.draw_confusion(np.eye(2, dtype=int), [CAT, "b$_{"], "val").save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] > 100


OTHERS = ["\u043a\u043e\u0442", "\u03b3\u03ac\u03c4\u03b1", "chat \u00e9l\u00e8ve", "\u05d7\u05ea\u05d5\u05dc"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_alphabets_need_no_font_of_the_system(system_fonts, name):
    system_fonts()
    assert fonts.font_of(name).endswith("DejaVuSans.ttf")
    assert not np.array_equal(image_of(name), image_of("\u25a1" * len(name)))


@pytest.mark.filterwarnings("error")
def test_missing_font_shows_numbers_and_is_reported_once(system_fonts, caplog, tmp_path):
    system_fonts()
    assert fonts.drawable(["a", CAT, CAT]) == ["a", "#1", "#2"]
    for _ in range(2):
        assert np.array_equal(image_of(CAT), image_of("#0"))
        confusion.draw_confusion(np.eye(3, dtype=int), ["a", "b", CAT], "val").save(tmp_path / "a.png")
    said = [record.getMessage() for record in caplog.records if "no font on this machine" in record.getMessage()]
    assert len(said) == 1 and CAT in said[0] and "fonts-noto-cjk" in said[0]


def test_json_holds_letters_as_they_are(tmp_path):
    value = {"class": CAT, "file": "\udcff.jpg", "loss": float("nan")}
    write_json_atomic(tmp_path / "a.json", value)
    content = (tmp_path / "a.json").read_bytes()
    assert CAT.encode() in content and b"\\udcff" in content
    assert json.loads(content) == {"class": CAT, "file": "\udcff.jpg", "loss": None}
    assert CAT.encode() in encode_json([CAT]) and CAT.encode() in encode_row({"split": CAT})


def test_a_terminal_that_lacks_a_letter_gets_its_escape(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with patient_streams():  # as the command line does
        print(CAT)
    assert sys.stdout.buffer.getvalue().endswith(b"\\u732b\n")


def test_reports_are_written_in_utf8(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "ascii")
    write_artifacts(confusion.confusion_artifacts(np.arange(2), np.arange(2), [CAT, "b"], "val, step 3"), tmp_path)
    assert (tmp_path / "per_class.csv").read_text(encoding="utf-8").splitlines()[1].startswith(f"{CAT},1,")
    assert CAT in (tmp_path / "confusion.csv").read_text(encoding="utf-8")
