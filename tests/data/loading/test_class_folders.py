"""Folders of classes of images, videos and recordings."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Callable, List

import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import Problem
from mxtrain.data.loading.class_folders import folders_in, match_classes, refuse_undecodable
from mxtrain.errors import DataError
from mxtrain.speech.audio_folder import AudioFolder
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.video.video_folder import VideoFolder


def test_hidden_folders_and_files_are_no_classes(tmp_path: Path) -> None:
    for name in ("b", "a", ".git", "__MACOSX"):
        (tmp_path / name).mkdir()
    (tmp_path / "c").write_text("")
    assert folders_in(tmp_path) == ["a", "b"]


def test_decomposed_letters_are_matched_and_other_classes_refused() -> None:
    decomposed = unicodedata.normalize("NFD", "ä")
    findings = CollectedFindings()
    assert match_classes(Path("val"), ["b", decomposed, "z"], ["a", "b", "ä"], "images", findings) == [
        "a",
        "b",
        decomposed,
    ]
    ((problem,),) = findings.shown.values()
    assert str(problem.location) == "'val/z'" and "the class 'z', which the training images do not" in problem.fact
    # A split may have both forms, which are two classes.
    assert match_classes(Path("val"), ["ä", decomposed], ["ä", decomposed], "images", findings) == ["ä", decomposed]


@pytest.mark.parametrize(
    "examine, said",
    [
        (lambda root, findings: ImageFolder(root=root).examine(findings), "dataset=image_folder: .*images"),
        (lambda root, findings: VideoFolder(root=root).examine(findings), "dataset=video_folder: .*videos"),
        (lambda root, findings: AudioFolder(root=root).list_clips(findings), "dataset=audio_folder: .*recordings"),
    ],
)
def test_missing_roots_and_single_classes_are_refused(
    tmp_path: Path, examine: Callable[[str, CollectedFindings], object], said: str
) -> None:
    option, contents = said.split(": .*")
    with pytest.raises(DataError, match=f"{option}: there is no folder '.*one folder per class with {contents}, or tr"):
        examine(str(tmp_path / "none"), CollectedFindings())
    (tmp_path / "only").mkdir()
    remedy = f"holds only one, 'only'. Sort the {contents} into CLASS folders, or name another folder"
    with pytest.raises(DataError, match=remedy):
        examine(str(tmp_path), CollectedFindings())


@pytest.mark.parametrize(
    "ending, examine",
    [
        (".mp4", lambda root, findings: VideoFolder(root=root).examine(findings)),
        (".wav", lambda root, findings: AudioFolder(root=root).list_clips(findings)),
    ],
)
def test_files_of_two_splits_are_refused(
    tmp_path: Path, ending: str, examine: Callable[[str, CollectedFindings], object]
) -> None:
    for name in ("train/a/1", "train/a/2", "train/b/1", "train/b/2", "val/b/1"):
        path = tmp_path / f"{name}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "val/a").mkdir()
    (tmp_path / f"val/a/3{ending}").symlink_to(tmp_path / f"train/a/2{ending}")
    findings = CollectedFindings()
    examine(str(tmp_path), findings)
    ((problem,),) = findings.shown.values()
    assert f"a/2{ending}' (train) and " in problem.fact and f"a/3{ending}' (val) are the same file" in problem.fact


@pytest.mark.parametrize(
    "ending, sample, examine",
    [
        (".mp4", "a video", lambda root, findings: VideoFolder(root=root).examine(findings)),
        (".wav", "a recording", lambda root, findings: AudioFolder(root=root).list_clips(findings)),
    ],
)
def test_files_of_two_classes_are_refused(
    tmp_path: Path, ending: str, sample: str, examine: Callable[[str, CollectedFindings], object]
) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        path = tmp_path / f"{name}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / f"a/3{ending}").symlink_to(tmp_path / f"a/2{ending}")  # of one class: it counts once

    def refused() -> List[Problem]:
        findings = CollectedFindings()
        examine(str(tmp_path), findings)
        return [problem for shown in findings.shown.values() for problem in shown if "one class" in problem.fact]

    assert not refused()
    (tmp_path / f"b/3{ending}").symlink_to(tmp_path / f"a/2{ending}")
    (problem,) = refused()
    assert problem.fact.endswith(f"a/2{ending}' are the same file, by a link: {sample} has one class.")
    assert problem.location.file == str(tmp_path / f"b/3{ending}")


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    findings = CollectedFindings()
    refuse_undecodable(tmp_path, ["a", "ä", os.fsdecode(b"b\xff")], findings)
    ((problem,),) = findings.shown.values()
    assert r"is called 'b\xff', which is no UTF-8." in problem.fact
