"""Damaged videos, and folders of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List

import cv2
import numpy as np
from damage import Case, damage, damage_file, kind, linked_to, piped, read_splits
from PIL import Image
from video_files import sound_alone, without_frames

from mxtrain.vision.video.video_folder import VideoFolder

VIDEOS, FRAMES = "videos", "folders of frames"
VIDEO, FRAME = (VIDEOS, "clips/run/1.avi"), (FRAMES, "clips/run/1/4.png")

CASES: List[Case] = [
    Case(VIDEOS, "a file is cut off", "run/1.avi' ends after ", 1),
    Case(VIDEOS, "a file ends in its header", "cannot be read as a video (FFmpeg finds no frames in it", 1),
    Case(VIDEOS, "a file is empty", "cannot be read as a video (it begins as none of MP4, MOV, AVI", 1),
    Case(VIDEOS, "a file is a text", "cannot be read as a video (it begins as none of MP4, MOV, AVI", 1),
    Case(VIDEOS, "a file is a list of other files", "cannot be read as a video (it begins as none of MP4, MOV, AVI", 1),
    Case(VIDEOS, "a file holds sound alone", "it has no video stream, such as sound alone", 1),
    Case(VIDEOS, "a file holds no frames", "run/1.avi' holds no frame that FFmpeg decodes", 1),
    Case(VIDEOS, "a file is a named pipe", "run/1.avi' is a named pipe"),
    Case(VIDEOS, "a file is a link to nothing", "run/1.avi' is a link to nothing"),
    Case(VIDEOS, "a file is a link into another class", "are the same file, by a link: a video has one class"),
    Case(VIDEOS, "an image lies beside", "run' holds images: a video is a file, or a folder of its frames"),
    Case(FRAMES, "a frame is a named pipe", "run/1/4.png' is a named pipe"),
    Case(FRAMES, "a frame is a link to nothing", "run/1/4.png' is a link to nothing"),
    Case(FRAMES, "a frame is cut off", "run/1' cannot be read as a video", 1),
    Case(FRAMES, "a frame has another size", "frames have different sizes, 16 x 16 and 32 x 32 pixels", 1),
]


def _dataset(folder: Path) -> Callable[[], None]:
    return read_splits(VideoFolder(root=str(folder / "clips"), frames=8, image_size=16, val_fraction=0.4))


def _noise() -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, (20, 32, 32, 3)).astype(np.uint8)


@kind(VIDEOS)
def _videos(folder: Path) -> Callable[[], None]:
    for name in ("run", "walk"):
        (folder / "clips" / name).mkdir(parents=True)
        for number in range(3):
            path = str(folder / "clips" / name / f"{number}.avi")
            writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"FFV1"), 10, (32, 32))
            for frame in _noise():
                writer.write(frame)
            writer.release()
    return _dataset(folder)


@kind(FRAMES)
def _frames(folder: Path) -> Callable[[], None]:
    for name in ("run", "walk"):
        for number in range(3):
            video = folder / "clips" / name / str(number)
            video.mkdir(parents=True)
            for index, frame in enumerate(_noise()[:8]):
                Image.fromarray(frame).save(video / f"{index}.png")
    return _dataset(folder)


@damage_file(VIDEO, called="a file is cut off")
@damage_file(FRAME, called="a frame is cut off")
def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@damage_file(VIDEO, called="a file ends in its header")
def _cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@damage_file(VIDEO, called="a file is empty")
def _empty(path: Path) -> None:
    path.write_bytes(b"")


@damage_file(VIDEO, called="a file is a text")
def _text(path: Path) -> None:
    path.write_text("no video at all, " * 100)


@damage_file(VIDEO, called="a file is a list of other files")
def _list(path: Path) -> None:
    path.write_text(f"#EXTM3U\n#EXTINF:9,\n{path.parent / '2.avi'}\n")


@damage_file(VIDEO, called="a file holds sound alone")
def _sound(path: Path) -> None:
    path.write_bytes(sound_alone())


@damage_file(VIDEO, called="a file holds no frames")
def _none(path: Path) -> None:
    path.write_bytes(without_frames(path.read_bytes()))


damage_file(VIDEO, called="a file is a named pipe")(piped)
damage_file(VIDEO, called="a file is a link to nothing")(linked_to("gone"))
damage_file(FRAME, called="a frame is a named pipe")(piped)
damage_file(FRAME, called="a frame is a link to nothing")(linked_to("gone"))


@damage(VIDEOS, called="a file is a link into another class")
def _to_other_class(folder: Path) -> None:
    path = folder / "clips" / "run" / "1.avi"
    path.unlink()
    path.symlink_to(folder / "clips" / "walk" / "1.avi")


@damage(VIDEOS, called="an image lies beside")
def _image(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(folder / "clips" / "run" / "1.png")


@damage_file(FRAME, called="a frame has another size")
def _size(path: Path) -> None:
    Image.new("RGB", (16, 16)).save(path)
