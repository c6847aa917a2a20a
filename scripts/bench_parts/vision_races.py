"""Classification of videos and segmentation of volumes beside the same networks in PyTorch; see seeded_runs.py. The
last weights are measured on all sides."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np

from bench_parts.harness import Measured, Options, status_of
from bench_parts.seeded_runs import OURS, Score, ask_theirs, compare_runs, train_ours
from bench_parts.task_races import TORCH, ask_ours, epochs_of, new_file, write_arrays

# Videos.

SIDE = 32
"""Height and width of frames."""
FRAMES_OF_VIDEO, FRAMES = 12, 4
"""Frames of a video, and of a sample."""


def draw_videos(count: int, draw: np.random.Generator, rows: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns videos of a handwritten digit that moves over noise, (N, frames, H, W, 3) uint8, and the digits.

    Args:
        count: N.
        rows: scikit-learn's digits that may be drawn.
    """
    from sklearn.datasets import load_digits

    images, target = load_digits(return_X_y=True)
    # Each digit as often as the others, so that no split is without one.
    chosen_N = np.array([draw.choice(rows[target[rows] == number % 10]) for number in range(count)])
    video_NTHW3 = draw.integers(0, 120, (count, FRAMES_OF_VIDEO, SIDE, SIDE, 3), dtype=np.uint8)
    for video_THW3, row in zip(video_NTHW3, chosen_N):
        digit_hw = np.kron(images[row].reshape(8, 8), np.ones((2, 2)))
        begin_2, end_2 = draw.uniform(0, SIDE - 16, (2, 2))
        for share, frame_HW3 in zip(np.linspace(0, 1, FRAMES_OF_VIDEO), video_THW3):
            top, left = np.rint(begin_2 + share * (end_2 - begin_2)).astype(int)
            part = frame_HW3[top : top + 16, left : left + 16]
            part[:] = np.minimum(part + digit_hw[..., None] * 8, 255)
    return video_NTHW3, target[chosen_N]


def write_videos(folder: Path, counts: Dict[str, int]) -> Path:
    """Writes videos as SPLIT/CLASS/NUMBER.avi (MJPEG), whose digits are other ones in each split; returns an archive of
    NumPy with the decoded frames: train_video (N, frames, H, W, 3), train_target, and so on."""
    import cv2

    draw = np.random.default_rng(0)
    parts = dict(zip(counts, np.array_split(draw.permutation(1797), len(counts))))
    arrays: Dict[str, np.ndarray] = {}
    for split, count in counts.items():
        video_NTHW3, target_N = draw_videos(count, draw, parts[split])
        for number, (video_THW3, target) in enumerate(zip(video_NTHW3, target_N)):
            path = folder / split / str(target) / f"{number}.avi"
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (SIDE, SIDE))
            for frame_HW3 in video_THW3:
                writer.write(np.ascontiguousarray(frame_HW3[..., ::-1]))
            writer.release()
            capture = cv2.VideoCapture(str(path))
            video_THW3[:] = [capture.read()[1][..., ::-1] for _ in range(FRAMES_OF_VIDEO)]
        arrays.update({f"{split}_video": video_NTHW3, f"{split}_target": target_N})
    np.savez(folder / "videos.npz", **arrays)  # type: ignore[arg-type]
    return folder / "videos.npz"


def video(options: Options) -> Measured:
    """A temporal segment network of ResNet-18, and the same in PyTorch; accuracy on the test videos."""
    counts = {"train": 60, "val": 20, "test": 20} if options.quick else {"train": 800, "val": 50, "test": 400}
    epochs, batch_size, lr = *((1, 4) if options.quick else (6, 16)), 0.0005
    folder = options.work / "videos"
    path = write_videos(folder, counts)
    given = [
        "dataset=video_folder",
        f"dataset.root={folder}",
        f"dataset.frames={FRAMES}",
        f"dataset.image_size=[{SIDE},{SIDE}]",
        "dataset.central_crop=1.0",
        f"dataset.batch_size={batch_size}",
        "dataset.augment.crop_padding=0",
        "dataset.augment.flip=false",
        "dataset.augment.crop_scale=[1.0,1.0]",
        "model=gluoncv_video",
        "model.name=resnet18_v1b_kinetics400",
        f"optimizer.lr={lr}",
        *epochs_of(epochs),
    ]

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(options, given, seed, counts["train"])
        return {**speeds, "accuracy": status_of(run_dir)["metrics"]["test/accuracy"]}

    def theirs(seed: int) -> Dict[str, float]:
        scores = new_file(options)
        arguments = (path, scores, seed, epochs, batch_size, lr, FRAMES)
        speeds = ask_theirs(options, "torch_vision_side:train_videos", *arguments)
        target_N = np.load(path)["test_target"]
        return {**speeds, "accuracy": float((np.load(scores).argmax(1) == target_N).mean())}

    score = Score("accuracy", "accuracy of the test videos", "fraction", 1)
    found = compare_runs(options, {OURS: ours, TORCH: theirs}, [score], "videos", 1.0)
    found.details = {"training videos": counts["train"], "test videos": counts["test"], "epochs": epochs}
    return found


# Volumes.

CLASSES = ("background", "lesion", "vessel")
SIZE = (64, 64, 16)
"""Voxels of a volume; its slices lie along the last axis."""
CHANNELS, WIDTH = (24, 48, 96, 128), 64
"""Of the pyramid, as in model=fpn."""


def draw_volume(draw: np.random.Generator) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the values of a noisy volume, uint16, and its labels, uint8: ellipsoids, and tubes across all slices that
    are as bright."""
    axes = np.meshgrid(*(np.arange(size) for size in SIZE), indexing="ij")
    label_XYZ = np.zeros(SIZE, np.uint8)
    for kind in draw.integers(1, 3, 6):
        x, y, z = draw.uniform(8, [56, 56, 16])
        if kind == 1:
            radii = draw.uniform(4, [10, 10, 6])
            is_inside = sum(((axis - c) / r) ** 2 for axis, c, r in zip(axes, (x, y, z), radii)) < 1
        else:
            slope_x, slope_y = draw.uniform(-1, 1, 2)
            across = axes[2] - z
            is_inside = (axes[0] - x - slope_x * across) ** 2 + (axes[1] - y - slope_y * across) ** 2 < 9
        label_XYZ[is_inside] = kind
    value_XYZ = 400 + 150 * (label_XYZ > 0) + draw.normal(0, 80, SIZE)
    return np.clip(value_XYZ, 0, 4095).astype(np.uint16), label_XYZ


def write_volumes(folder: Path, counts: Dict[str, int]) -> None:
    """Writes SPLIT/images/NUMBER.nii.gz with SPLIT/masks/NUMBER.nii.gz, and the names of the classes."""
    from mxtrain.vision.images.nifti_labels import encode_labels, header_of

    draw, head = np.random.default_rng(0), header_of(np.eye(3, 4))
    for split, count in counts.items():
        for name in ("images", "masks"):
            (folder / split / name).mkdir(parents=True)
        for number in range(count):
            for name, volume_XYZ in zip(("images", "masks"), draw_volume(draw)):
                content = gzip.compress(encode_labels(head, volume_XYZ), 1)
                (folder / split / name / f"{number}.nii.gz").write_bytes(content)
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")


def mean_iou(class_NHW: np.ndarray, true_NHW: np.ndarray) -> float:
    """Returns the mean over the classes of intersection over union, of all pixels together."""
    shares: List[float] = []
    for number in range(len(CLASSES)):
        is_found, is_true = class_NHW == number, true_NHW == number
        shares.append(float((is_found & is_true).sum() / (is_found | is_true).sum()))
    return float(np.mean(shares))


def volumes(options: Options) -> Measured:
    """A feature pyramid network on slices of NIfTI volumes, and the same in PyTorch; mean IoU of both by NumPy."""
    counts = {"train": 4, "val": 1, "test": 2} if options.quick else {"train": 40, "val": 4, "test": 20}
    epochs, batch_size, lr = *((1, 4) if options.quick else (6, 16)), 0.003
    folder = options.work / "volumes"
    write_volumes(folder, counts)
    given = [
        "task=segmentation",
        "dataset=segmentation_folder",
        f"dataset.root={folder}",
        "dataset.channels=1",
        "dataset.window=percentile",
        f"dataset.image_size=[{SIZE[0]},{SIZE[1]}]",
        f"dataset.batch_size={batch_size}",
        "dataset.augment.scale=[1.0,1.0]",
        "dataset.augment.flip=false",
        "model=fpn",
        f"optimizer.lr={lr}",
        *epochs_of(epochs),
    ]
    path = write_arrays(options, given)
    true_NHW, samples = np.load(path)["test_target"], SIZE[2] * counts["train"]

    def score_of(scores: Path) -> float:
        return mean_iou(np.load(scores).argmax(1), true_NHW)

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(options, given, seed, samples)
        scores = new_file(options)
        ask_ours(options, "write_scores", run_dir, path, scores)
        return {**speeds, "iou": score_of(scores)}

    def theirs(seed: int) -> Dict[str, float]:
        scores = new_file(options)
        arguments = (path, scores, seed, epochs, batch_size, lr, len(CLASSES), CHANNELS, WIDTH)
        speeds = ask_theirs(options, "torch_vision_side:train_masks", *arguments)
        return {**speeds, "iou": score_of(scores)}

    score = Score("iou", "mean IoU of the slices of the test volumes", "fraction", 1)
    found = compare_runs(options, {OURS: ours, TORCH: theirs}, [score], "slices", 1.0)
    found.details = {"training slices": samples, "test slices": len(true_NHW), "epochs": epochs}
    return found
