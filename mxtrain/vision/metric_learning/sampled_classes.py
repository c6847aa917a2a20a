"""Draws the classes with which the samples of a batch are compared, if there are too many classes to use all.

Each sample is compared with its own class and with the drawn classes, which are the same for the whole batch. So the
loss of a sample does not depend on the division of the batch over devices and workers. Memory and time of a draw do not
depend on the number of classes.

Source: An et al., "Partial FC: Training 10 Million Identities on a Single Machine", arXiv 2010.05222. Unlike there, the
classes of the other samples of a batch are used only if they are drawn.

Legend: B batch, M drawn classes, K classes, S centres of each class.
"""

from __future__ import annotations

import numpy as np

from mxtrain.data.loading.randomness import integers, uniform_rows
from mxtrain.vision.draws import VisionDraw


def draw_classes(seed: int, epoch: int, number: int, num_classes: int, num_drawn: int) -> np.ndarray:
    """Returns distinct classes, (M,) int64, each with the same probability M / K.

    Stratified sampling: the classes are divided into M consecutive parts, and one class of each part is drawn. The
    sizes of the parts differ by up to one class, which would favour the classes of smaller parts, so all drawn numbers
    are shifted by a random offset, modulo K.

    Args:
        seed: seed of the run.
        epoch, number: epoch, and number of the batch in it.
        num_classes: K.
        num_drawn: M, from 1 to K.
    """
    batch_1 = np.array([number])
    uniform_M = uniform_rows(seed, epoch, batch_1, VisionDraw.CLASS, num_drawn)[0]
    begin_M1 = np.arange(num_drawn + 1) * num_classes // num_drawn
    begin_M, size_M = begin_M1[:-1], np.diff(begin_M1)
    turn_1 = integers(seed, epoch, batch_1, VisionDraw.CLASS_TURN, num_classes)
    return (begin_M + (uniform_M * size_M).astype(np.int64) + turn_1) % num_classes


def centre_ids(class_B: np.ndarray, drawn_M: np.ndarray, sub_centres: int) -> np.ndarray:
    """Returns the rows of the table of centres that a sample is compared with, (B, (1 + M) * S) int32: first those of
    its own class, then those of the drawn classes, the same for all samples."""
    own_BS = class_B[:, None] * sub_centres + np.arange(sub_centres)
    drawn_N = (drawn_M[:, None] * sub_centres + np.arange(sub_centres)).ravel()
    return np.concatenate([own_BS, np.broadcast_to(drawn_N, (len(class_B), len(drawn_N)))], axis=1).astype(np.int32)
