"""Training loops of videos and masks with PyTorch, as in torch_tasks_side.py. Needs nothing of mxtrain.

Legend: N samples, T frames of a sample, H height, W width, K classes.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_parts.torch_side import convolution, resnet, stem
from bench_parts.torch_tasks_side import Speeds, adam, fit, shuffled, start

# Videos: some of their frames to a class.

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class SegmentNetwork(nn.Module):
    """ResNet-18 of each frame; the mean of the features of a video is classified."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: Any = resnet((2, 2, 2, 2), 64, False, stem(64))
        self.features = layers[:-1]
        self.dropout, self.output = nn.Dropout(0.5), nn.Linear(layers[-1].in_features, num_classes)
        nn.init.normal_(self.output.weight, std=0.01)
        nn.init.zeros_(self.output.bias)

    def forward(self, video_NT3HW: Tensor) -> Tensor:
        """Scores, (N, K)."""
        frames = video_NT3HW.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        features = self.dropout(self.features(frames)).unflatten(0, video_NT3HW.shape[:2])
        return self.output(features.mean(1))


def train_videos(path: str, out: str, seed: int, epochs: int, batch_size: int, lr: float, num_frames: int) -> Speeds:
    """Trains a temporal segment network, and writes the scores of the test videos, of their central frames.

    Args:
        path: train_video (N, frames, H, W, 3) uint8, train_target (N,) and test_video.
        out: file for the scores, (N, K).
        num_frames: T: a frame of each of as many equal parts of a video, drawn anew in each epoch.
    """
    start(seed)
    arrays = np.load(path)
    video_NTHW3, test_NTHW3 = (torch.from_numpy(arrays[f"{split}_video"]) for split in ("train", "test"))
    target_N = torch.from_numpy(arrays["train_target"]).long()
    mean_311, std_311 = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    network: Any = SegmentNetwork(int(target_N.max()) + 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def frames_of(video: Tensor, place_NT: Tensor) -> Tensor:
        index_NT = ((torch.arange(num_frames) + place_NT) * (video.shape[1] / num_frames)).long()
        chosen = video[torch.arange(len(video))[:, None], index_NT]
        return (chosen.permute(0, 1, 4, 2, 3) / 255 - mean_311) / std_311

    def loss_of(rows: Tensor) -> Tensor:
        frames = frames_of(video_NTHW3[rows], torch.rand(len(rows), num_frames))
        return F.cross_entropy(network(frames), target_N[rows])

    count = len(video_NTHW3)
    speeds = fit(network, adam(network, lr), epochs, lambda: shuffled(count, batch_size), loss_of, count)
    with torch.inference_mode():
        scores = [network(frames_of(part, torch.full((len(part), num_frames), 0.5))) for part in test_NTHW3.split(64)]
    np.save(out, torch.cat(scores).numpy())
    return speeds


# Masks: images to a class of each pixel.


class Pyramid(nn.Module):
    """The layers of model=fpn: stages of 3x3 convolutions that halve the image, a top-down path, and the scores of
    4 x 4 pixels in each cell of the map at a quarter of the size."""

    def __init__(self, channels_in: int, num_classes: int, channels: Sequence[int], width: int) -> None:
        super().__init__()

        def layers(before: int, after: int, stride: int = 1) -> List[nn.Module]:
            return [*convolution(before, after, 3, stride), nn.ReLU(inplace=True)]

        stages: List[nn.Module] = []
        for number, (before, after) in enumerate(zip([channels_in, *channels], channels)):
            more = layers(after, after) if number else []
            stages.append(nn.Sequential(*layers(before, after, 2), *more))
        self.stages = nn.ModuleList(stages)
        self.lateral = nn.ModuleList(nn.Conv2d(count, width, 1) for count in channels[1:])
        self.merge = nn.ModuleList(nn.Sequential(*layers(width, width)) for _ in channels[2:])
        self.refine = nn.Sequential(*layers(width, width))
        self.output = nn.Sequential(nn.Conv2d(width, num_classes * 16, 1), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        merged = self.lateral[-1](maps[-1])
        for number in range(len(self.lateral) - 2, -1, -1):
            lateral = self.lateral[number](maps[number + 1])
            merged = self.merge[number](F.interpolate(merged, scale_factor=2) + lateral)
        return self.output(self.refine(merged))


def train_masks(
    path: str,
    out: str,
    seed: int,
    epochs: int,
    batch_size: int,
    lr: float,
    num_classes: int,
    channels: Sequence[int],
    width: int,
) -> Speeds:
    """Trains a feature pyramid network with cross entropy, and writes the scores of the test images.

    Args:
        path: train_input (N, C, H, W), train_target (N, H, W), whose -1 is ignored, and test_input.
        out: file for the scores, (N, K, H, W).
        num_classes: K.
        channels, width: of `Pyramid`.
    """
    start(seed)
    arrays = np.load(path)
    image_NCHW = torch.from_numpy(arrays["train_input"]).contiguous(memory_format=torch.channels_last)
    target_NHW = torch.from_numpy(arrays["train_target"]).long()
    network: Any = Pyramid(image_NCHW.shape[1], num_classes, channels, width)
    network = network.to(memory_format=torch.channels_last)
    speeds = fit(
        network,
        adam(network, lr),
        epochs,
        lambda: shuffled(len(image_NCHW), batch_size),
        lambda rows: F.cross_entropy(network(image_NCHW[rows]), target_NHW[rows], ignore_index=-1),
        len(image_NCHW),
    )
    with torch.inference_mode():
        scores = [network(part) for part in torch.from_numpy(arrays["test_input"]).split(256)]
    np.save(out, torch.cat(scores).numpy())
    return speeds
