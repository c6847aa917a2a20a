"""Base class of datasets for speech synthesis: symbols with durations, aligned with recordings.

Legend: N utterances, L symbols, F mel bands.
"""

from __future__ import annotations

import math
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Collection,
    Dict,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import numpy as np
import pydantic

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.corpus.shards import Shards
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, run_dir_setting
from mxtrain.speech.aligned import (
    DURATION_MISMATCH,
    UNKNOWN_SYMBOL,
    AlignedSource,
    AlignedUtterance,
    fit_durations,
    frame_statistics,
    number_symbols,
    ragged,
)
from mxtrain.speech.aligned_lines import read_aligned
from mxtrain.speech.features import Features
from mxtrain.speech.kinds import MelFrames, Symbols
from mxtrain.speech.loader import padded_frames
from mxtrain.speech.prepared import FEATURE, SECONDS, features_of, problems_of
from mxtrain.speech.recording import CUT_AUDIO, SILENT_AUDIO, require_soundfile
from mxtrain.speech.signature import SymbolSignature
from mxtrain.speech.usable import SkippedUtterances, can_open, divide, frames_of, is_complete
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Names, NonNegative, Positive, PositiveFloat
from mxtrain.types.kinds import Gives

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model

Parts = Tuple[str, List[AlignedUtterance], Optional[List[AlignedUtterance]], Optional[List[AlignedUtterance]]]
"""Name of the dataset, and the utterances for training, validation and test; None for a split that is held out of the
training utterances."""
MAX_MEASURED = 2000
"""Maximum number of utterances from which the mean and deviation of each band and each symbol are computed."""
SYNTHESIS_FEATURES = Features(
    sample_rate=22050, window_ms=46.44, step_ms=11.61, high_hz=8000.0, preemphasis=0.0, normalize="none"
)
"""Windows of 1024 samples with a hop of 256 at 22,050 Hz, and 80 bands up to 8 kHz, as in NVIDIA's Tacotron 2."""


class AlignedDataset(BaseDataset):
    """Base class of datasets whose samples are symbols with durations, and log-mel frames."""

    signature_class: ClassVar[Type[Signature]] = SymbolSignature
    gives: ClassVar[Gives] = Gives(Symbols, MelFrames)
    data_checks: ClassVar[DataChecks] = DataChecks(
        (
            SILENT_AUDIO,
            CUT_AUDIO,
            UNKNOWN_SYMBOL,
            DURATION_MISMATCH,
        )
    )
    is_generated: ClassVar[bool] = False
    """If true, recordings are generated on demand: there are no files, and the symbols of every split are known."""

    largest_batch: ClassVar[int] = 16
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 16, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 32
    batches_per_pool: Positive = 16
    """Number of batches whose samples are sorted by length together in training, to reduce padding; 1 = no sorting."""
    features: Features = SYNTHESIS_FEATURES
    """Settings of the frames computed from a recording; normalize must be none, because sound is reconstructed from
    frames."""
    symbols: Union[Literal["auto"], Names] = "auto"
    """All allowed characters or phonemes; auto = those of the training utterances."""
    tolerance_frames: NonNegative = 2
    """Maximum difference in frames between the sum of durations and the recording; it is added to the last symbol."""
    max_seconds: Optional[PositiveFloat] = None
    """Maximum length of training utterances; longer ones are left out; null = no limit."""
    batch_seconds: Optional[PositiveFloat] = None
    """Maximum seconds of sound in a training batch, including padding: number of utterances times the longest; null =
    batches of batch_size utterances."""
    skip_unreadable: bool = False
    """Train without unusable utterances and report their number; otherwise the first one is an error."""
    num_workers: Union[Literal["auto"], Positive] = "auto"
    """Number of threads that compute features, once before training; auto = the cores this process may use."""

    @pydantic.model_validator(mode="after")
    def _check_features(self) -> AlignedDataset:
        if self.features.normalize != "none":
            raise ValueError(
                f"features.normalize={self.features.normalize} cannot be inverted, which is needed to reconstruct "
                "sound from frames. Type dataset.features.normalize=none"
            )
        if self.features.step * 2 > self.features.window:
            raise ValueError(
                f"features.step_ms={self.features.step_ms} is more than half of window_ms={self.features.window_ms}: "
                "windows must overlap by half to reconstruct phases. Type e.g. dataset.features.step_ms="
                f"{self.features.window_ms / 4:g}"
            )
        return self

    def utterances(self, findings: Findings) -> Parts:
        """Reads the utterances of all splits from the files, unchecked.

        Raises:
            DataError: there are no utterances.
        """
        raise NotImplementedError

    def compute_features(self, name: str, utterances: Sequence[AlignedUtterance]) -> Shards:
        """Computes the frames of utterances, or reads them from the cache; see `prepared.features_of`."""
        recordings = [aligned.utterance for aligned in utterances]
        num_threads = count_workers(self.num_workers)
        return features_of(recordings, self.features, f"features of {name}", num_threads, are_centred=True)

    def can_open(self, utterance: Utterance, findings: Findings) -> bool:
        """Returns True if the recording of an utterance can be opened; otherwise adds the reason to the findings."""
        return self.is_generated or can_open(utterance, findings)

    @property
    def batch_unit(self) -> Tuple[str, int]:
        """See `BaseDataset.batch_unit`."""
        return super().batch_unit if self.batch_seconds is None else ("batch_seconds", math.ceil(self.batch_seconds))

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        require_soundfile()
        skipping = SkippedUtterances()
        utterance_findings = skipping if self.skip_unreadable and not findings.keeps_going else findings
        name, *parts = self.utterances(utterance_findings)
        symbols = self._symbols(parts)
        usable = [None if part is None else self._prepared(name, part, symbols, utterance_findings) for part in parts]
        skipping.log_counts()
        return divide(name, usable, self, symbols)

    def _symbols(self, all_parts: Sequence[Optional[Sequence[AlignedUtterance]]]) -> List[str]:
        if self.symbols != "auto":
            return list(dict.fromkeys(self.symbols))
        # Symbols that only validation or test files have cannot be learned.
        parts = all_parts if self.is_generated else all_parts[:1]
        return sorted({symbol for part in parts for aligned in part or () for symbol in aligned.symbols})

    def _prepared(
        self, name: str, utterances: Sequence[AlignedUtterance], symbols: Sequence[str], findings: Findings
    ) -> AlignedSource:
        """Returns the usable utterances, with symbol numbers, frames and durations in frames."""
        existing = [aligned for aligned in utterances if self.can_open(aligned.utterance, findings)]
        readable, symbol = number_symbols(existing, symbols, findings)
        if not readable:
            return AlignedSource([], ragged([]), ragged([]), None, np.zeros(0, np.int64), self.features.num_mels)
        shards = self.compute_features(name, readable)
        feature, seconds_N, problems = shards.ragged(FEATURE), shards.array(SECONDS), problems_of(shards)
        complete = [
            index
            for index, aligned in enumerate(readable)
            if is_complete(aligned.utterance, problems[index], float(seconds_N[index]), findings)
        ]
        frame_N = feature.length[complete].tolist()
        fits = fit_durations(
            [readable[index] for index in complete], frame_N, self.features, self.tolerance_frames, findings
        )
        kept = [complete[number] for number in fits]
        return AlignedSource(
            [readable[index] for index in kept],
            ragged([symbol[index] for index in kept]),
            ragged(list(fits.values())),
            feature,
            np.array(kept, np.int64),
            self.features.num_mels,
        )

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns the signature: the input shapes of the longest sample, and the normalization of frames."""
        sources: List[AlignedSource] = [
            source  # type: ignore[misc]
            for source in (splits.train, splits.val, splits.test)
            if source is not None
        ]
        frames = int(padded_frames(max(source.frame_N.max() for source in sources)))
        length = max(int(source.symbol.length.max()) for source in sources)
        mean_F, deviation_F = frame_statistics(sources[0], MAX_MEASURED)
        return SymbolSignature(
            input_shapes(length, frames),
            [round(value, 4) for value in mean_F.tolist()],
            [round(value, 4) for value in deviation_F.tolist()],
            symbols=list(splits.class_names),
            audio=self.features,
        )

    def remark(self, signature: Signature, splits: Splits) -> str:
        """Returns a sentence with the amount of data, and the error of a baseline that predicts each symbol's mean
        frame."""
        from mxtrain.speech.symbol_means import SymbolMeans

        signature = SymbolSignature.cast(signature)
        train, val = splits.train, splits.val
        assert isinstance(train, AlignedSource) and isinstance(val, AlignedSource)
        seconds = train.frame_N.sum() * self.features.step / self.features.sample_rate
        error, distortion = SymbolMeans(train, len(signature.symbols), MAX_MEASURED).measure(val, MAX_MEASURED)
        return (
            f"{seconds / 60:.1f} minutes of {len(signature.symbols)} symbols to train on; the mean frame of each "
            f"symbol is off by {error:.2f} dB in validation (mel_error), {distortion:.2f} dB (mel_cepstral_distortion)"
        )

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`: symbols, features and normalisation must be the same."""
        before = SymbolSignature.cast(before)
        signature = SymbolSignature.cast(signature)
        if list(before.symbols) != list(signature.symbols) or before.audio != signature.audio:
            raise CheckpointError(
                f"{source} was made with other symbols or features than these. Give the same data and "
                f"dataset.features, or choose another {run_dir_setting()}."
            )
        if list(before.mean) != list(signature.mean) or list(before.std) != list(signature.std):
            raise CheckpointError(
                f"{source} was made with recordings whose bands have another mean or deviation. Give the same data, or "
                f"choose another {run_dir_setting()}."
            )

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`: uses the features and symbols of the trained network."""
        signature = SymbolSignature.cast(signature)
        wrong = [name for name in overrides if name.startswith("dataset.features.") or name == "dataset.symbols"]
        if wrong:
            raise ConfigError(
                f"{wrong[0]}: the network of {source} has learned from its own features and symbols. Leave it out."
            )
        return self.model_copy(update={"features": signature.audio, "symbols": list(signature.symbols)}), signature

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: AlignedSource, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        from mxtrain.speech.aligned_loader import AlignedLoader

        max_frames = None if self.batch_seconds is None else frames_of(self.batch_seconds, self.features)
        return AlignedLoader(
            source,
            signature.mean,
            signature.std,
            options,
            batches_per_pool=self.batches_per_pool,
            batch_budget=max_frames,
        )

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Reads lines of JSON with symbols and durations; a source location is `file:line`."""
        signature = SymbolSignature.cast(signature)
        findings: Findings = SkippedLines(unreadable) if skip_unreadable else STRICT
        utterances = [aligned for name in names for aligned in read_aligned(name, findings, has_audio=False)]
        kept, symbol = number_symbols(utterances, signature.symbols, findings)
        frames = [aligned.frames(signature.audio) for aligned in kept]
        empty = [str(aligned.utterance.location) for aligned, frames_L in zip(kept, frames) if not frames_L.sum()]
        if empty:
            raise DataError(f"{empty[0]}: its durations are less than half a frame.")
        source = AlignedSource(
            kept, ragged(symbol), ragged(frames), None, np.arange(len(kept)), signature.audio.num_mels
        )
        return source, [f"{aligned.utterance.location.file}:{aligned.utterance.location.line}" for aligned in kept]


class SkippedLines(Findings):
    """Collects the problems of lines that `predict` skips.

    Args:
        reasons: dict that receives the reasons. Keys are negative, because skipped lines have no sample index.
    """

    def __init__(self, reasons: Dict[int, str]) -> None:
        self._reasons = reasons

    def refuse(self, *problems: Any, sentence: str = "") -> None:
        for problem in problems:
            self._reasons[-1 - len(self._reasons)] = problem.sentence

    @property
    def keeps_going(self) -> bool:
        return True


def input_shapes(length: int, frames: int) -> Tuple[Tuple[int, ...], ...]:
    """Returns the input shapes of a network for a sample with `length` symbols and `frames` frames, see
    `AlignedLoader`."""
    from mxtrain.speech.aligned_rows import NUM_POSITION_VALUES

    return (length,), (), (frames,), (frames, NUM_POSITION_VALUES)
