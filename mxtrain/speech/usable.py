"""Usable utterances of a dataset of recordings, and messages about the others.

Legend: N utterances.
"""

from __future__ import annotations

import logging
import math
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, List, Literal, Optional, Protocol, Sequence, Tuple, TypeVar, Union

import numpy as np

from mxtrain.data.checking.problems import (
    UNREADABLE_AUDIO,
    WRONG_FORMAT,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
)
from mxtrain.data.loading.splitting import refuse_empty, split_groups
from mxtrain.data.spec import Splits, samples_per_step
from mxtrain.errors import DataError, reason_of
from mxtrain.speech.features import Features
from mxtrain.speech.loader import padded_frames
from mxtrain.speech.recording import CUT_AUDIO, RecordingError, read_header
from mxtrain.speech.utterances import Utterance

if TYPE_CHECKING:
    from mxtrain.data.loading.division import Division
    from mxtrain.speech.aligned_dataset import AlignedDataset
    from mxtrain.speech.audio import AudioDataset

log = logging.getLogger(__name__)
REMEDY = "Restore or remove it, or type dataset.skip_unreadable=true to train without such utterances."
_MAX_S, _USUAL_ROWS, _TIMES_MEDIAN = 60.0, 32, 3.0
"""An utterance is refused if it is longer than `_MAX_S`, at least `_TIMES_MEDIAN` times as long as the median, and
its batch would have more sound than `_USUAL_ROWS` rows of `_MAX_S`."""
Rates = Literal["resample", "refuse_lower", "refuse"]
Channels = Literal["mix", "refuse"]
_ROUNDING_S = 0.05
"""Maximum difference between the times in manifests and in recordings, in seconds."""


class UsableUtterances(Protocol):
    """Utterances of one split.

    Attributes:
        frame_N: frames of each.
    """

    frame_N: np.ndarray

    def __len__(self) -> int: ...

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an utterance."""

    def speaker(self, index: int) -> str:
        """Returns the speaker of an utterance; empty if unknown."""

    def take(self: Source, indices: Sequence[int]) -> Source:
        """Returns some of the utterances."""


Source = TypeVar("Source", bound=UsableUtterances)


class SkippedUtterances(Findings):
    """Leaves out utterances with problems, and logs their number by kind."""

    def __init__(self) -> None:
        self._count: Dict[str, int] = {}
        self._first: Dict[str, str] = {}

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        for problem in problems:
            self._count[problem.kind] = self._count.get(problem.kind, 0) + 1
            self._first.setdefault(problem.kind, problem.fact)

    @property
    def keeps_going(self) -> bool:
        return True

    def log_counts(self) -> None:
        """Logs the number of skipped utterances by kind of problem."""
        for kind, count in self._count.items():
            log.warning(
                "dataset.skip_unreadable: %s left out, %s, e.g. %s `data check` lists all.",
                "1 is" if count == 1 else f"{count:,} are",
                kind,
                self._first[kind],
            )


def can_open(utterance: Utterance, findings: Findings) -> bool:
    """Returns True if the recording of an utterance can be opened; otherwise adds the reason to the findings."""
    try:
        status = os.stat(utterance.path)
        # A pipe or a device could block its reader for ever.
        problem = "" if stat.S_ISREG(status.st_mode) else "which is no regular file"
    except (OSError, ValueError) as error:
        problem = f"which cannot be read: {reason_of(error)}"
    if problem:
        fact = f"{utterance.location} names '{utterance.path}', {problem}."
        findings.refuse(Problem(UNREADABLE_AUDIO, utterance.location, fact, REMEDY))
    return not problem


def has_layout(utterance: Utterance, rate: int, rates: Rates, channels: Channels, findings: Findings) -> bool:
    """Returns True if the sample rate and the channels of a recording are accepted; otherwise adds the reason to the
    findings.

    Args:
        utterance: utterance of a recording that can be opened.
        rate: sample rate of the features in Hz.
        rates, channels: see `AudioDataset`.
        findings: gets the problem.
    """
    if rates == "resample" and channels == "mix":
        return True
    try:
        header = read_header(utterance.path)
    except RecordingError:
        return True  # the reader of frames says why
    fact = remedy = ""
    if channels == "refuse" and header.channels > 1:
        fact, remedy = f"has {header.channels} channels", "Save one of them, or type dataset.channels=mix"
    elif header.rate < rate and rates != "resample":
        fact = f"has {header.rate} samples a second, so its bands above {header.rate / 2:g} Hz are empty"
        remedy = f"Type dataset.features.sample_rate={header.rate} if all have, or dataset.rates=resample"
    elif header.rate != rate and rates == "refuse":
        fact = f"has {header.rate} samples a second, and dataset.features.sample_rate={rate}"
        remedy = "Convert it, or type dataset.rates=resample"
    if fact:
        sentence = f"{utterance.location}: '{utterance.path}' {fact}."
        findings.refuse(Problem(WRONG_FORMAT, utterance.location, sentence, f"{remedy}."))
    return not fact


def is_complete(utterance: Utterance, problem: str, seconds: float, findings: Findings) -> bool:
    """Returns True if an utterance could be read and has the expected length."""
    if problem:
        kind, _, detail = problem.partition("\t")
        findings.refuse(Problem(kind, utterance.location, f"{utterance.location}: '{utterance.path}' {detail}", REMEDY))
        return False
    if seconds < utterance.stated_s - max(_ROUNDING_S, 0.01 * utterance.stated_s):
        fact = f"{utterance.location}: '{utterance.path}' is cut: it has {seconds:.2f} s of {utterance.stated_s:.2f} s."
        findings.refuse(Problem(CUT_AUDIO, utterance.location, fact, REMEDY))
        return False
    return True


def frames_of(seconds: float, features: Features) -> int:
    """Returns the number of whole frames in a duration."""
    return int(seconds * features.sample_rate / features.step)


def short_enough(
    frame_N: np.ndarray, location: Callable[[int], DataLocation], features: Features, max_seconds: Optional[float]
) -> List[int]:
    """Returns the indices of utterances of at most `max_seconds`.

    Raises:
        DataError: all utterances are longer.
    """
    if max_seconds is None:
        return list(range(len(frame_N)))
    step_s = features.step / features.sample_rate
    kept = np.flatnonzero(frame_N * step_s <= max_seconds)
    if len(frame_N) and not len(kept):
        raise DataError(
            f"dataset.max_seconds={max_seconds:g} leaves no training samples: the shortest, of "
            f"{location(int(frame_N.argmin()))}, has {frame_N.min() * step_s:.2f} s. Choose more."
        )
    if len(kept) < len(frame_N):
        log.info(
            "dataset.max_seconds=%s: %s of %s utterances are not trained on",
            max_seconds,
            f"{len(frame_N) - len(kept):,}",
            f"{len(frame_N):,}",
        )
    indices: List[int] = kept.tolist()
    return indices


def require_room(
    frame_N: np.ndarray, location: Callable[[int], DataLocation], features: Features, batch_seconds: Optional[float]
) -> None:
    """Raises a `DataError` if the longest training utterance does not fit into a batch of `batch_seconds`."""
    if batch_seconds is None or not len(frame_N):
        return
    index = int(frame_N.argmax())
    needed = int(padded_frames(frame_N[index : index + 1])[0])
    if needed > frames_of(batch_seconds, features):
        needed_s = math.ceil(needed * features.step / features.sample_rate)
        raise DataError(
            f"dataset.batch_seconds={batch_seconds:g} has no room for the longest utterance, of {location(index)}. "
            f"Type dataset.batch_seconds={needed_s} or more, or a smaller dataset.max_seconds."
        )


def require_memory(
    split: str, source: UsableUtterances, features: Features, rows: int, max_seconds: Optional[float]
) -> None:
    """Raises an error if a single very long utterance would fill its batch with padding.

    Args:
        split: train, val or test.
        source: utterances of the split.
        features: settings of the frames.
        rows: number of utterances of a batch.
        max_seconds: utterances up to this length are accepted; None = up to `_MAX_S`.

    Raises:
        DataError: the longest utterance needs too much memory; the message says what to type.
    """
    if not len(source):
        return
    index = int(source.frame_N.argmax())
    longest_s, median_s = (
        float(frames) * features.step / features.sample_rate
        for frames in (source.frame_N[index], np.median(source.frame_N))
    )
    allowed_s = _MAX_S if max_seconds is None else max_seconds
    fits = longest_s * rows <= _MAX_S * _USUAL_ROWS
    if longest_s <= allowed_s or longest_s < _TIMES_MEDIAN * median_s or fits:
        return
    needed = max(int(_MAX_S * _USUAL_ROWS / longest_s), 1)
    fewer = (
        f"dataset.max_seconds={_MAX_S:g} to train without such utterances, dataset.batch_seconds="
        f"{math.ceil(longest_s) + 1} for batches by duration"
        if split == "train"
        else f"dataset.eval_batch_size={needed} for smaller batches"
    )
    raise DataError(
        f"{source.location(index)} is of {longest_s:,.0f} s, the median of {split} is {median_s:,.1f} s, and with "
        f"padding its batch has {rows} x {longest_s:,.0f} s. Cut the recording, or type {fewer}, or "
        f"dataset.max_seconds={math.ceil(longest_s)} if memory is large enough."
    )


def divide(
    name: str,
    usable: Sequence[Optional[Source]],
    dataset: Union[AlignedDataset, AudioDataset],
    class_names: Sequence[str],
) -> Splits:
    """Returns the splits of a dataset: existing ones, and ones held out of the training split.

    Args:
        name: name of the dataset, for messages.
        usable: usable utterances for training, validation and test; None if there is no such split.
        dataset: description of the dataset.
        class_names: see `Splits`.

    Raises:
        DataError: a split that must be there has no samples, or the longest utterance does not fit into a batch.
    """
    train, val, test = usable
    if train is None or not len(train):
        raise NoUsableSamples(f"{name}: no utterance for training can be used.")
    parts = _divide_train(train, dataset.division, val is not None, test is not None)
    val = dataset.division.own_validation(val)
    train_part, *held_out = (train.take(part.tolist()) for part in parts)
    val, test = (existing if existing is not None else split for existing, split in zip((val, test), held_out))
    indices = short_enough(train_part.frame_N, train_part.location, dataset.features, dataset.max_seconds)
    train_kept = train_part.take(indices)
    require_room(train_kept.frame_N, train_kept.location, dataset.features, dataset.batch_seconds)
    # With batch_seconds the size of a batch is bounded by `require_room`.
    if dataset.batch_seconds is None:
        require_memory("train", train_kept, dataset.features, samples_per_step(dataset), dataset.max_seconds)
    for split, source in (("val", val), ("test", test)):
        require_memory(split, source, dataset.features, dataset.eval_batch_size, dataset.max_seconds)
    refuse_empty(name, len(train_kept), len(val), dataset.val_fraction)
    return Splits(train_kept, val, test if len(test) else None, class_names=class_names)


def _divide_train(
    train: UsableUtterances, division: Division, has_val: bool, has_test: bool
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divides by speakers if the data name them and there are enough; folds divide utterances."""
    val_fraction = 0.0 if has_val else division.val_fraction
    test_fraction = 0.0 if has_test else division.test_fraction
    splits = 1 + (val_fraction > 0) + (test_fraction > 0)
    speakers, group_N = np.unique([train.speaker(index) for index in range(len(train))], return_inverse=True)
    if splits == 1 or division.fold is not None or "" in speakers or len(speakers) < splits:
        return division.divide(np.zeros(len(train), np.int32), has_val, has_test)
    log.info("%d speakers: all utterances of one are in one split", len(speakers))
    return split_groups(group_N, val_fraction, test_fraction, division.seed)
