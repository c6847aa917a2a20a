"""Videos: choice and order of frames, folders and files, problems, and GluonCV's networks for videos."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, Dict, List

import cv2
import numpy as np
import pydantic
import pytest
from PIL import Image
from video_files import sound_alone, without_frames

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.recognition import FileTree
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.segmentation.gluoncv_segmentation import GluonCVSegmentation
from mxtrain.vision.video import exported_videos, video_file
from mxtrain.vision.video.frames import FrameFolder, is_frame_folder, open_frames
from mxtrain.vision.video.gluoncv_video import INFLATED_NAMES, SEGMENT_NAMES, VIDEO_NAMES, GluonCVVideo
from mxtrain.vision.video.source import VideoFiles, VideoSource
from mxtrain.vision.video.video_file import VideoFile, VideoLimits, clip_indices, segment_indices
from mxtrain.vision.video.video_folder import VideoFolder, find_videos, recording_of

SIDE = 32


def grey_frames(count: int, size: int = SIDE) -> List[np.ndarray]:
    """Frame t has the value 10 t in red, and 5 t in blue."""
    return [np.full((size, size, 3), (10 * t, 0, 5 * t), np.uint8) for t in range(count)]


def write_folder(path: Path, frames: List[np.ndarray], form: str = "img_{}.png") -> str:
    path.mkdir(parents=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(path / form.format(number + 1))
    return str(path)


def write_file(path: Path, frames: List[np.ndarray]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames[0].shape[:2]
    # FFV1 is lossless, so that frames are recognised by their values.
    codec = "FFV1" if path.suffix == ".avi" else "mp4v"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, (width, height))
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
    writer.release()
    return str(path)


def videos(root: Path, per_class: int = 3) -> VideoFolder:
    for label in ("run", "walk"):
        for number in range(per_class):
            write_folder(root / label / f"v{number}", grey_frames(12))
    return VideoFolder(root=str(root), frames=4, image_size=[SIDE, SIDE], val_fraction=0.4, central_crop=1.0)


def red_of(clip_CHW: np.ndarray) -> List[int]:
    """Returns the number of each frame by its red channel, which is the first of three."""
    assert clip_CHW[1::3].max() == 0
    np.testing.assert_allclose(clip_CHW[2::3, 8, 8], clip_CHW[0::3, 8, 8] / 2, atol=2)
    return (np.round(clip_CHW[0::3, 8, 8] / 10)).astype(int).tolist()


def test_indices() -> None:
    assert segment_indices(12, np.full(4, 0.5)) == [1, 4, 7, 10]
    assert segment_indices(12, np.zeros(4)) == [0, 3, 6, 9] and segment_indices(12, np.full(4, 0.999)) == [2, 5, 8, 11]
    assert segment_indices(2, np.full(4, 0.5)) == [0, 0, 1, 1] and segment_indices(1, np.full(3, 0.99)) == [0, 0, 0]
    assert clip_indices(12, 3, 2, 0.0) == [0, 2, 4] and clip_indices(12, 3, 2, 0.999) == [7, 9, 11]
    assert clip_indices(12, 3, 2, 0.5) == [4, 6, 8] and clip_indices(4, 3, 2, 0.9) == [0, 2, 3]


@pytest.mark.parametrize("write", [write_folder, write_file])
def test_frames_of_files_and_folders_are_read_in_order(tmp_path: Path, write: Any) -> None:
    frames = open_frames(write(tmp_path / "a.avi", grey_frames(12)))
    assert len(frames) == 12
    read = frames.read([1, 1, 9, 11])
    assert isinstance(frames, VideoFile if write is write_file else FrameFolder)
    assert isinstance(read[0], bytes) or read[0] is not read[1], "ImageReader changes an image"
    values = [np.asarray(Image.open(io.BytesIO(one)) if isinstance(one, bytes) else one) for one in read]
    assert [round(float(value[..., 0].mean()) / 10) for value in values] == [1, 1, 9, 11]
    assert abs(float(values[2][..., 2].mean()) - 45) < 3


def test_numbers_in_names_of_frames_count_as_numbers(tmp_path: Path) -> None:
    frames = FrameFolder(write_folder(tmp_path / "v", grey_frames(11), "f{}.png"))
    (tmp_path / "v" / "notes.txt").write_text("x")
    (tmp_path / "v" / ".f0.png").write_bytes(b"")
    (content,) = frames.read([10])
    assert content == (tmp_path / "v/f11.png").read_bytes() and len(FrameFolder(str(tmp_path / "v"))) == 11


def test_frames_that_are_no_files_are_refused(tmp_path: Path) -> None:
    """In predict, too, where `skip_unreadable` leaves the video out."""
    for name in "ab":
        write_folder(tmp_path / name, grey_frames(3))
    os.mkfifo(tmp_path / "a" / "img_0.PNG")
    (tmp_path / "a" / "folder.png").mkdir()
    with pytest.raises(LoaderError, match="a/img_0.PNG' is a named pipe, and only regular files are read"):
        open_frames(str(tmp_path / "a"))
    dataset = videos(tmp_path / "data")
    signature = dataset.infer_signature(open_splits(dataset), GluonCVVideo())
    with pytest.raises(DataError, match=r"a/img_0.PNG' is a named pipe, .*type skip_unreadable=true"):
        dataset.open_inputs([str(tmp_path)], signature, False, {})
    unreadable: Dict[int, str] = {}
    source, paths = dataset.open_inputs([str(tmp_path)], signature, True, unreadable)
    source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    assert [Path(paths[index]).name for index in unreadable] == ["a", "img_0.PNG"]


def test_unusual_digits_and_hidden_images_in_names_of_frames(tmp_path: Path) -> None:
    folder = Path(write_folder(tmp_path / "v", grey_frames(2), "f²_{}.png"))
    assert len(FrameFolder(str(folder))) == 2, "² is a digit, and no decimal one"
    for path in folder.iterdir():
        path.rename(path.with_name(f"._{path.name}"))
    assert not is_frame_folder(folder)


def test_previews_in_system_folders_are_no_videos(tmp_path: Path) -> None:
    videos(tmp_path, 2)
    write_folder(tmp_path / "run/@eaDir/v0.mp4", grey_frames(1), "SYNOPHOTO_THUMB_{}.jpg")
    write_folder(tmp_path / "run/.previews/v1", grey_frames(1))
    write_folder(tmp_path / "elsewhere/v7", grey_frames(3))
    (tmp_path / "run/linked").symlink_to(tmp_path / "elsewhere/v7")
    (tmp_path / "run/loop").symlink_to(tmp_path / "run")
    found = find_videos(tmp_path / "run")
    assert [path.relative_to(tmp_path / "run").as_posix() for path in found] == ["linked", "v0", "v1"]


@pytest.mark.parametrize("below", [".", "match"])
def test_videos_beside_images_are_refused(tmp_path: Path, below: str) -> None:
    write_file(tmp_path / below / "a.mp4", grey_frames(2))
    Image.new("RGB", (9, 9)).save(tmp_path / below / "a.jpg")
    with pytest.raises(DataError, match="holds images beside videos"):
        find_videos(tmp_path)


def test_an_image_is_no_video(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "v", grey_frames(2))
    with pytest.raises(LoaderError, match="img_1.png' is an image, and a video is a file or the folder of its frames"):
        open_frames(f"{folder}/img_1.png")


def test_central_frames_are_read_in_evaluation_and_drawn_ones_in_training(tmp_path: Path) -> None:
    splits = open_splits(videos(tmp_path))
    assert splits.shape == (12, SIDE, SIDE) and splits.class_names == ["run", "walk"]
    assert (len(splits.train), len(splits.val)) == (4, 2) and splits.train.read_labels().tolist() == [0, 0, 1, 1]
    image_BCHW, label_B = splits.val.fetch(np.arange(2), seed=0, epoch=0, train=True)
    assert image_BCHW.dtype == np.uint8 and label_B.tolist() == [0, 1]
    still_BCHW, _ = splits.train.fetch(np.arange(4), seed=0, epoch=0, train=False)
    assert [red_of(clip) for clip in still_BCHW] == [[1, 4, 7, 10]] * 4
    drawn = [red_of(splits.train.fetch(np.array([0]), seed=0, epoch=n, train=True)[0][0]) for n in range(20)]
    again = red_of(splits.train.fetch(np.array([0]), seed=0, epoch=3, train=True)[0][0])
    assert drawn[3] == again and len(set(map(tuple, drawn))) > 10
    assert all([t * 3 <= number < t * 3 + 3 for t, number in enumerate(numbers)] == [True] * 4 for numbers in drawn)
    one, two = (splits.train.fetch(np.array([n]), seed=0, epoch=0, train=True)[0] for n in (0, 1))
    assert not np.array_equal(one, two)


def test_clips_have_frames_at_equal_distances(tmp_path: Path) -> None:
    dataset = videos(tmp_path).model_copy(update={"sampling": "clip", "frame_step": 3})
    source = open_splits(dataset).train
    assert red_of(source.fetch(np.array([0]), seed=0, epoch=0, train=False)[0][0]) == [1, 4, 7, 10]
    drawn = [red_of(source.fetch(np.array([1]), seed=0, epoch=n, train=True)[0][0]) for n in range(12)]
    assert {tuple(np.diff(numbers)) for numbers in drawn} == {(3, 3, 3)} and {each[0] for each in drawn} == {0, 1, 2}


def test_all_frames_have_the_same_crop(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    frame = draw.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    for label in "ab":
        for number in range(2):
            write_folder(tmp_path / label / str(number), [frame] * 5)
    dataset = VideoFolder(root=str(tmp_path), frames=3, image_size=[SIDE, SIDE], augment={"crop_scale": [0.2, 0.6]})
    source = open_splits(dataset.model_copy(update={"val_fraction": 0.5})).train
    crops = [source.fetch(np.array([0]), seed=0, epoch=n, train=True)[0][0].reshape(3, 3, SIDE, SIDE) for n in range(3)]
    assert all(np.array_equal(crop[0], crop[1]) and np.array_equal(crop[0], crop[2]) for crop in crops)
    assert not np.array_equal(crops[0], crops[1])


def test_means_are_those_of_photographs_for_each_frame(tmp_path: Path) -> None:
    dataset = videos(tmp_path)
    assert open_splits(dataset).mean == [0.485, 0.456, 0.406] * 4  # type: ignore[attr-defined]  # of images
    given = open_splits(dataset.model_copy(update={"mean": [0.1, 0.2, 0.3], "std": [1.0] * 12}))
    assert given.mean == [0.1, 0.2, 0.3] * 4 and given.std == [1.0] * 12  # type: ignore[attr-defined]


def test_splits_in_folders_and_videos_in_memory(tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "val/a/1", "val/b/1", "test/a/1", "test/b/1"):
        write_file(tmp_path / f"{name}.avi", grey_frames(9))
    dataset = VideoFolder(root=str(tmp_path), frames=3, image_size=[SIDE, SIDE], central_crop=1.0)
    splits = open_splits(dataset)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [2, 2, 2]
    assert splits.test.read_labels().tolist() == [0, 1]
    signature = ImageSignature.cast(dataset.infer_signature(splits, GluonCVVideo()))
    assert signature.shape == (9, SIDE, SIDE)
    arrays = np.stack(grey_frames(9))
    from_file, places = dataset.open_inputs([str(tmp_path / "val")], signature, False, {})
    assert places == [str(tmp_path / f"val/{label}/1.avi") for label in "ab"]
    for value in (arrays, [arrays], arrays[None]):
        given = dataset.samples_from(value, signature)
        one, two = (source.fetch(np.array([0]), seed=0, epoch=0, train=False)[0][0] for source in (given, from_file))
        assert len(given) == 1 and red_of(one) == red_of(two) == [1, 4, 7]
    for wrong in (arrays[0], arrays.astype(float), arrays[..., :1]):
        with pytest.raises(ConfigError, match="Give uint8 frames"):
            dataset.samples_from([wrong], signature)
    with pytest.raises(ConfigError, match=r"videos \(uint8 arrays of frames x height x width x 3, in RGB\) and paths"):
        dataset.samples_from([3], signature)


def clips(root: Path, form: str, split_by: str) -> List[set]:
    """Recordings of the training and of the validation videos: five of each class, with three clips each."""
    for label in ("run", "walk"):
        for number in range(15):
            name = form.format(label=label, recording=number // 3, clip=number % 3)
            write_folder(root / label / name, grey_frames(2))
    dataset = VideoFolder(root=str(root), frames=2, image_size=[SIDE, SIDE], val_fraction=0.4, split_by=split_by)
    splits = open_splits(dataset)
    parts = [
        [Path(part.source.location(int(index)).file).relative_to(root).as_posix() for index in part.index_N]
        for part in (splits.train, splits.val)
    ]
    assert sorted(map(len, parts)) == [12, 18]
    return [{(name.partition("/")[0], name.split("rec")[1][0]) for name in part} for part in parts]


UCF101, KINETICS = "v_{label}_rec{recording}_g01_c0{clip}", "rec{recording}_00000{clip}_000010"


@pytest.mark.parametrize(
    "form, split_by, is_together",
    [
        (UCF101, "auto", True),
        (UCF101, "recording", True),
        (UCF101, "video", False),
        (UCF101, "folder", False),
        (KINETICS, "auto", True),
        ("rec{recording}/c{clip}", "folder", True),
        ("rec{recording}/c{clip}", "auto", False),
        ("rec{recording}_{clip}", "auto", False),
    ],
)
def test_clips_of_one_recording_stay_together(tmp_path: Path, form: str, split_by: str, is_together: bool) -> None:
    train, val = clips(tmp_path, form, split_by)
    assert (not train & val) is is_together and len(train | val) == 10


def test_recordings_by_names_of_clips(tmp_path: Path) -> None:
    assert recording_of("a/v_Run_g01_c03.avi") == "a/v_Run_g01.avi" != recording_of("b/v_Run_g01_c03.avi")
    assert recording_of("a/x_y_000010_000020.mp4") == "a/x_y.mp4"
    for name in ("v_Run_g1_c03.avi", "v_Run_g01.avi", "x_00010_000020.mp4", "x.mp4"):
        assert recording_of(name) == name
    (tmp_path / "v.1_g02_c01").mkdir()
    assert recording_of(str(tmp_path / "v.1_g02_c01")) == str(tmp_path / "v.1_g02")


def test_restored_datasets_open_again(tmp_path: Path) -> None:
    dataset = videos(tmp_path)
    splits = open_splits(dataset)
    signature = dataset.infer_signature(splits, GluonCVVideo())
    restored, again = dataset.restored(signature, (), "run")
    assert open_splits(restored).shape == (12, SIDE, SIDE) == tuple(again.shape)  # type: ignore[arg-type]
    assert restored.exported(again).reader == "mxtrain.vision.video.exported_videos"


def test_the_guess_tells_videos_from_images(tmp_path: Path) -> None:
    for number in range(4):
        write_file(tmp_path / "ab"[number % 2] / f"{number}.mp4", grey_frames(3))
        write_folder(tmp_path / "ab"[number % 2] / f"v{number}", grey_frames(3))
    found = VideoFolder.recognise(FileTree(tmp_path))
    assert found is not None and found.task == "classification"
    assert ImageFolder.recognise(FileTree(tmp_path)) is None
    assert VideoFolder.recognise(FileTree(tmp_path / "a")) is None, "there are no folders of classes"
    write_file(tmp_path / "one/a/1.mp4", grey_frames(2))
    assert VideoFolder.recognise(FileTree(tmp_path / "one")) is None, "there is only one class"


@pytest.mark.parametrize(
    "spoil, said",
    [
        ("cut", "'.*b.avi' cannot be read as a video|ends after .* frames: it is cut off"),
        ("empty", r"'.*b.avi' cannot be read as a video \(it begins as none of MP4, MOV, AVI"),
        ("text", r"'.*b.avi' cannot be read as a video \(it begins as none of MP4, MOV, AVI"),
        ("list", r"'.*b.avi' cannot be read as a video \(it begins as none of MP4, MOV, AVI"),
        ("sound", r"'.*b.avi' cannot be read as a video \(FFmpeg finds no frames in it: it has no video stream"),
        ("none", "'.*b.avi' holds no frame that FFmpeg decodes"),
        ("frame", "'.*b' cannot be read as a video"),
        ("sizes", "frames have different sizes, 16 x 16 and 32 x 32 pixels"),
        ("deep", "more than 8 bits a channel"),
    ],
)
def test_damaged_videos_are_named(tmp_path: Path, spoil: str, said: str) -> None:
    path = tmp_path / "b"
    if spoil in ("frame", "sizes", "deep"):
        write_folder(path, grey_frames(6))
        if spoil == "frame":
            (path / "img_4.png").write_bytes((path / "img_4.png").read_bytes()[:60])
        elif spoil == "sizes":
            Image.fromarray(grey_frames(1, 16)[0]).save(path / "img_4.png")
        else:
            for number in range(1, 7):
                Image.fromarray(np.full((SIDE, SIDE), 40_000, np.uint16)).save(path / f"img_{number}.png")
    else:
        draw = np.random.default_rng(0)
        path = Path(write_file(tmp_path / "b.avi", list(draw.integers(0, 256, (20, 64, 64, 3), np.uint8))))
        content = path.read_bytes()
        listed = f"#EXTM3U\n#EXTINF:9,\n{write_file(tmp_path / 'other.mp4', grey_frames(9))}\n".encode()
        spoiled = {"cut": content[: len(content) // 2], "empty": b"", "text": b"no video", "list": listed}
        path.write_bytes({**spoiled, "sound": sound_alone(), "none": without_frames(content)}[spoil])
    dataset = VideoFolder(frames=6, image_size=[SIDE, SIDE])
    signature = ImageSignature((18, SIDE, SIDE), [0.0] * 18, [1.0] * 18, ["a", "b"], decoding=dataset.decoding())
    source, _ = dataset.open_inputs([str(path)], signature, False, {})
    with pytest.raises(LoaderError, match=said):
        source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    reasons: Any = {}
    skipping, _ = dataset.open_inputs([str(path)], signature, True, reasons)
    assert skipping.fetch(np.array([0]), seed=0, epoch=0, train=False)[0].shape == (1, 18, SIDE, SIDE) and reasons
    assert isinstance(source, VideoSource)
    (problem,) = source.checks().check(0).problems
    assert problem.location.file == str(path)


def test_headers_may_state_a_few_frames_too_many(tmp_path: Path) -> None:
    frames = open_frames(write_file(tmp_path / "a.avi", grey_frames(20)))
    assert isinstance(frames, VideoFile)
    frames._count = 22  # as headers of some formats do
    read = [round(float(np.asarray(image)[..., 0].mean()) / 10) for image in frames.read([3, 19, 20, 21])]
    assert read == [3, 19, 19, 19]
    (frame, label) = VideoFiles([str(tmp_path / "a.avi")], np.array([7])).read(0)
    assert round(float(np.asarray(frame)[..., 0].mean()) / 10) == 10 and label == 7, "the middle frame"
    frames._count = 23
    with pytest.raises(LoaderError, match="ends after 20 of 23 frames"):
        frames.read([21])


def test_streams_without_an_index_are_counted_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "a.avi", grey_frames(7))
    monkeypatch.setattr(video_file, "_count", lambda capture: 0.0)
    assert len(open_frames(path)) == 7


def without_videos(root: Path) -> None:
    for path in (root / "walk").rglob("*.png"):
        path.unlink()


def with_a_class_in_val_only(root: Path) -> None:
    (root / "train").mkdir()
    for name in ("run", "walk"):
        (root / name).rename(root / "train" / name)
    write_folder(root / "val/run/v", grey_frames(2))
    write_folder(root / "val/walk/v", grey_frames(2))
    write_folder(root / "val/jump/v", grey_frames(2))


@pytest.mark.parametrize(
    "change, said",
    [
        (without_videos, "The class folder '.*walk' holds no videos"),
        (
            lambda root: Image.new("RGB", (9, 9)).save(root / "walk/a.png"),
            "'.*walk' holds images: a video is",
        ),
        (with_a_class_in_val_only, "'.*val' holds the class 'jump', which the training videos do not have"),
    ],
)
def test_problems_of_folders_are_named(tmp_path: Path, change: Any, said: str) -> None:
    dataset = videos(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=said):
        open_splits(dataset)
    findings = CollectedFindings()
    dataset.examine(findings)
    assert len([problem for shown in findings.shown.values() for problem in shown]) == 1


def test_missing_folders_and_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        VideoFolder(root=str(tmp_path / "no")).examine(CollectedFindings())
    (tmp_path / "one").mkdir()
    with pytest.raises(DataError, match="must hold one folder for each of at least two classes, but holds only one"):
        VideoFolder(root=str(tmp_path)).examine(CollectedFindings())
    with pytest.raises(DataError, match="holds no videos: no file there or below ends in .mp4"):
        find_videos(tmp_path)
    assert VideoFolder(frames=64).decoded_shape()[0] == 192
    for settings in ({"channels": 1}, {"frames": 0}, {"frames": 65}, {"frame_step": 0}):
        with pytest.raises(pydantic.ValidationError):
            VideoFolder(**settings)


def test_names_of_networks_for_videos_imply_their_model() -> None:
    found = {GluonCVSegmentation.option_of(name, "") for name in (*VIDEO_NAMES, "i3d_resnet50_v1_kinetics40")}
    assert found == {"gluoncv_video"}
    assert GluonCVSegmentation.option_of("resnet50_v1b", "") == "gluoncv"


def test_names_are_those_of_gluoncv() -> None:
    with pytest.raises(pydantic.ValidationError, match="GluonCV has no video network 'i3d_resnet50'.* Did you mean"):
        GluonCVVideo(name="i3d_resnet50")
    with pytest.raises(pydantic.ValidationError, match="the number of frames is dataset.frames"):
        GluonCVVideo(options={"num_segments": 3})
    with pytest.raises(ConfigError, match="takes frames of 3 channels each, and samples have 4 channels"):
        GluonCVVideo().build(2, (4, 64, 64))
    with pytest.raises(ConfigError, match="samples have 7. Type dataset.frames=8 or more"):
        GluonCVVideo(name=INFLATED_NAMES[0]).build(2, (21, 64, 64))


@pytest.mark.slow
def test_names_are_in_the_registry_of_gluoncv() -> None:
    from gluoncv.model_zoo import get_model_list

    from mxtrain.vision.networks import gluoncv as zoo  # silences GluonCV's messages

    assert zoo and set(VIDEO_NAMES) <= set(get_model_list())
    names = {
        name
        for name in get_model_list()
        if name.startswith(("i3d_", "resnet"))
        and "int8" not in name
        and name.split("_")[-1] in ("kinetics400", "sthsthv2", "hmdb51", "ucf101")
    }
    assert set(VIDEO_NAMES) == names


@pytest.mark.slow
def test_networks_compute_what_those_of_gluoncv_do() -> None:
    from mxtrain.engine.backend import mx
    from mxtrain.vision.networks import gluoncv as zoo

    clip_BTCHW = mx.nd.array(np.random.default_rng(0).random((2, 8, 3, 64, 64)))
    ours_input = clip_BTCHW.reshape((2, 24, 64, 64))
    for name in ("resnet18_v1b_kinetics400", "i3d_inceptionv1_kinetics400"):
        ours = GluonCVVideo(name=name).build(5, (24, 64, 64))
        ours.initialize(mx.init.Xavier(), force_reinit=True)
        result_BK = ours(ours_input).asnumpy()
        own = type(ours).__mro__[3]  # behind the class that arranges the input
        if name in SEGMENT_NAMES:
            theirs = own(18, 5, pretrained_base=False, num_segments=8)
            theirs_input = clip_BTCHW.reshape((16, 3, 64, 64))
        else:
            theirs = zoo.get_model(name, nclass=5, pretrained_base=False)
            theirs_input = clip_BTCHW.transpose((0, 2, 1, 3, 4))
        theirs.initialize(force_reinit=True)
        theirs(theirs_input)
        mine, other = ours._collect_params_with_prefix(), theirs._collect_params_with_prefix()
        assert mine.keys() == other.keys()
        for key in mine:
            other[key].set_data(mine[key].data())
        np.testing.assert_allclose(result_BK, theirs(theirs_input).asnumpy(), rtol=1e-5, atol=1e-6)
        backwards = ours(clip_BTCHW[:, ::-1].reshape((2, 24, 64, 64))).asnumpy()
        changes = np.abs(backwards - result_BK).max() > 1e-4 * np.abs(result_BK).max()
        assert changes == (name in INFLATED_NAMES), "only convolutions over frames tell the direction"


def test_large_videos_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    path = Path(write_file(tmp_path / "a.avi", grey_frames(12)))
    head = path.read_bytes()[: video_file.HEAD_BYTES]
    assert len(VideoFile(str(path), head, VideoLimits(SIDE**2, 12 * SIDE**2))) == 12
    with pytest.raises(LoaderError, match="a.avi' has frames of 32 x 32 pixels, and at most 1,023 are read"):
        VideoFile(str(path), head, VideoLimits(SIDE**2 - 1))
    with pytest.raises(LoaderError, match="has 12 frames or more of 1,024 pixels, and at most 12,287 are read"):
        VideoFile(str(path), head, VideoLimits(total=12 * SIDE**2 - 1))


def test_frames_are_counted_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write_file(tmp_path / "a.avi", grey_frames(12)))
    monkeypatch.setattr(video_file, "_count", lambda capture: 0.0)
    with pytest.raises(LoaderError, match="has 6 frames or more of 1,024 pixels"):
        VideoFile(str(path), path.read_bytes()[: video_file.HEAD_BYTES], VideoLimits(total=5 * SIDE**2))


@pytest.mark.parametrize("sampling", ["segments", "clip"])
@pytest.mark.parametrize("ending", [".avi", ".mp4"])
def test_exported_folders_read_the_frames_of_predictions(tmp_path: Path, ending: str, sampling: str) -> None:
    """Bits of the network's input are those of `predict`, also if the network takes another size."""
    draw = np.random.default_rng(0)
    path = write_file(tmp_path / f"a{ending}", list(draw.integers(0, 256, (17, 40, 56, 3), np.uint8)))
    dataset = VideoFolder(frames=4, image_size=[SIDE, SIDE], sampling=sampling, frame_step=3, central_crop=0.8)
    signature = ImageSignature((12, SIDE, SIDE), [0.0] * 12, [1.0] * 12, ["a", "b"], decoding=dataset.decoding())
    source, _ = dataset.open_inputs([path], signature, False, {})
    expected_BCHW, _ = source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    facts = {
        "signature": signature.to_json(),
        "facts": dict(dataset.exported(signature).facts),
        "inputs": [{"name": "x", "dtype": "uint8"}],
    }
    given = json.loads(json.dumps(facts))
    found_BCHW = exported_videos.clip_of(Path(path).read_bytes(), "a", given)
    assert found_BCHW.dtype == np.uint8 and np.array_equal(found_BCHW, expected_BCHW)
    assert facts["facts"] == {"frame_step": 3 if sampling == "clip" else None}
    with pytest.raises(LoaderError, match=r"^a cannot be read as a video \(it begins as none of"):
        exported_videos.clip_of(b"#EXTM3U", "a", given)
    ((name, content),) = exported_videos.examples(given)
    assert name.endswith(".avi") and exported_videos.clip_of(content, name, given).shape == (1, 12, SIDE, SIDE)
