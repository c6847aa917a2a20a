"""Tests each row of docs/reference/damaged-input.md: valid input is read, damaged input is refused."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import damaged_annotations
import damaged_checkpoints
import damaged_class_sets
import damaged_forms
import damaged_histories
import damaged_images
import damaged_series
import damaged_sounds
import damaged_texts
import damaged_videos
import damaged_volumes
import pytest
from damage import DAMAGES, KINDS, table

from mxtrain.errors import MxtrainError

CASES = [
    *damaged_images.CASES,
    *damaged_volumes.CASES,
    *damaged_annotations.CASES,
    *damaged_videos.CASES,
    *damaged_texts.CASES,
    *damaged_class_sets.CASES,
    *damaged_series.CASES,
    *damaged_forms.CASES,
    *damaged_sounds.CASES,
    *damaged_histories.CASES,
    *damaged_checkpoints.CASES,
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "damaged-input.md"


@pytest.mark.timeout(30)
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_damaged_input(case, tmp_path):
    read = KINDS[case.kind](tmp_path)
    DAMAGES[case.kind, case.damage](tmp_path)
    if case.exit_code == 0:
        assert case.said in (read() or "")
        return
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MxtrainError) as caught:
        read()
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    parts = case.said.split(" ... ")
    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.exit_code == case.exit_code


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_input_is_accepted(kind, tmp_path):
    assert not KINDS[kind](tmp_path)()


def test_every_damage_has_its_row():
    assert {(case.kind, case.damage) for case in CASES} == set(DAMAGES)


def test_the_page_shows_the_rows():
    """`MXTRAIN_WRITE_DOCS=1 pytest tests/damaged` writes them."""
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition("| what |")
    if os.environ.get("MXTRAIN_WRITE_DOCS"):
        PAGE.write_text(head + table(CASES), encoding="utf-8")
    assert mark and PAGE.read_text(encoding="utf-8") == head + table(CASES)
