"""Base class of datasets for speech recognition: recordings with transcripts.

Legend: N utterances.
"""

from __future__ import annotations

import logging
import math
import os
from typing import (
    TYPE_CHECKING,
    Callable,
    ClassVar,
    Collection,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import (
    EMPTY_TEXT,
    LISTED_TWICE,
    Findings,
    Problem,
)
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.speech.alphabet import Alphabet, is_punctuation, normalized
from mxtrain.speech.base import TranscribedDataset
from mxtrain.speech.chunks import cut_recordings
from mxtrain.speech.features import Features
from mxtrain.speech.given_recordings import find_recordings, find_usable
from mxtrain.speech.model import FrameModel
from mxtrain.speech.prepared import FEATURE, SECONDS, Recordings, features_for_now, features_of, problems_of
from mxtrain.speech.recording import CUT_AUDIO, SILENT_AUDIO, require_soundfile
from mxtrain.speech.signature import AudioSignature
from mxtrain.speech.source import SHORT_AUDIO, short_problem
from mxtrain.speech.spec_augment import SpecAugment
from mxtrain.speech.usable import (
    Channels,
    Rates,
    SkippedUtterances,
    can_open,
    divide,
    frames_of,
    has_layout,
    is_complete,
)
from mxtrain.speech.utterances import PIPE, Utterance
from mxtrain.types import BatchSize, Positive, PositiveFloat
from mxtrain.types.kinds import TargetKind

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)
UNKNOWN_CHARACTER = "unknown_character"
Parts = Tuple[str, List[Utterance], Optional[List[Utterance]], Optional[List[Utterance]]]
"""Name of the dataset, and the utterances for training, validation and test; None for a split that is held out of the
training utterances."""


def _warn_of_shared(splits: Mapping[str, Optional[Sequence[Utterance]]], findings: Findings) -> None:
    """Warns of recordings, or of parts of recordings, that belong to two splits."""
    owner: Dict[Tuple[str, float, Optional[float]], Tuple[str, Utterance]] = {}
    shared: List[Tuple[str, str, Utterance, Utterance]] = []
    for split, utterances in splits.items():
        for one in utterances or ():
            first_split, first = owner.setdefault(
                (os.path.normpath(one.path), one.begin_s, one.duration_s), (split, one)
            )
            if first_split != split:
                shared.append((first_split, split, first, one))
    if shared:
        first_split, split, first, one = shared[0]
        more = f" ({len(shared):,} such utterances)" if shared[1:] else ""
        fact = f"'{one.path}' belongs to {first_split} ({first.location}) and to {split} ({one.location}){more}."
        remedy = "Metrics mean little where splits share samples: leave it in one of them."
        findings.warn(Problem(LISTED_TWICE, one.location, fact, remedy))


class AudioDataset(TranscribedDataset):
    """Base class of datasets of recordings with transcripts."""

    signature_class: ClassVar[Type[Signature]] = AudioSignature
    data_checks: ClassVar[DataChecks] = DataChecks(
        (
            SHORT_AUDIO,
            SILENT_AUDIO,
            CUT_AUDIO,
            UNKNOWN_CHARACTER,
            PIPE,
        )
    )

    largest_batch: ClassVar[int] = 32
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 32, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 32
    features: Features = Features()
    """Settings of the frames computed from a recording."""
    augment: SpecAugment = SpecAugment()
    """Masks on the frames in training (SpecAugment)."""
    case: Literal["lower", "upper", "keep"] = "lower"
    """Case of transcripts."""
    punctuation: Literal["keep", "remove"] = "keep"
    """Punctuation of transcripts; remove = replace it with spaces, except apostrophes inside of words."""
    characters: str = "auto"
    """Alphabet of transcripts, e.g. "abcdefghijklmnopqrstuvwxyz' "; auto = characters of the training transcripts."""
    max_seconds: Optional[PositiveFloat] = None
    """Maximum length of training utterances; longer ones are left out; null = no limit."""
    batch_seconds: Optional[PositiveFloat] = None
    """Maximum seconds of sound in a training batch, including padding: number of utterances times the longest; null =
    batches of batch_size utterances."""
    skip_unreadable: bool = False
    """Train without unusable utterances and report their number; otherwise the first one is an error."""
    rates: Rates = "resample"
    """Recordings of other rates than features.sample_rate: resample = convert them; refuse_lower = those of lower rates
    are problems, because their upper bands are empty; refuse = all of them are."""
    channels: Channels = "mix"
    """Recordings of several channels: mix = their mean; refuse = they are problems."""
    chunk_seconds: Optional[Annotated[float, pydantic.Field(ge=2)]] = None
    """Maximum length of what `predict` transcribes at once, in seconds: longer recordings are cut where they are quiet,
    and the texts joined; null = recordings as a whole."""
    num_workers: Union[Literal["auto"], Positive] = "auto"
    """Number of threads that compute features, once before training; auto = the cores this process may use."""
    _count_scores: Callable[[int], Optional[int]] = pydantic.PrivateAttr(default=int)
    """Maps a number of frames to the number of scores of the network, which limits the length of transcripts."""
    _is_restored: bool = pydantic.PrivateAttr(default=False)
    """If true, the alphabet is that of a trained network."""

    def utterances(self, findings: Findings) -> Parts:
        """Reads the utterances of all splits from the files, unchecked.

        Raises:
            DataError: there are no utterances.
        """
        raise NotImplementedError

    @property
    def batch_frames(self) -> Optional[int]:
        if self.batch_seconds is None:
            return None
        return frames_of(self.batch_seconds, self.features)

    @property
    def batch_unit(self) -> Tuple[str, int]:
        """See `BaseDataset.batch_unit`."""
        return super().batch_unit if self.batch_seconds is None else ("batch_seconds", math.ceil(self.batch_seconds))

    def compute_features(self, name: str, utterances: Sequence[Utterance]) -> Shards:
        """Computes the frames of utterances, or reads them from the cache; see `prepared.features_of`."""
        return features_of(utterances, self.features, f"features of {name}", count_workers(self.num_workers))

    def can_open(self, utterance: Utterance, findings: Findings) -> bool:
        """Returns True if the recording of an utterance can be opened; otherwise adds the reason to the findings."""
        rate = self.features.sample_rate
        return can_open(utterance, findings) and has_layout(utterance, rate, self.rates, self.channels, findings)

    @property
    def transcript_signature(self) -> str:
        # Error rates compare only between equal treatments of transcripts, so the treatment is a part of the signature.
        return f"NFC,{self.case},single_spaces{',no_punctuation' if self.punctuation == 'remove' else ''}"

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> AudioDataset:
        """See `BaseDataset.for_run`: opening the data then reports transcripts that are too long for the network's
        time steps."""
        if not isinstance(model, FrameModel):
            return self
        fitted = self.model_copy()
        fitted._count_scores = model.count_scores
        return fitted

    def with_characters(self, characters: str) -> AudioDataset:
        return self.model_copy(update={"characters": characters})

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `TranscribedDataset.restored`; uses the features of the trained network."""
        if not isinstance(signature, AudioSignature):
            raise ConfigError(
                f"dataset: the network of {source} has learned from frames that are no sound. Name the dataset that it "
                "was trained with, or leave dataset out."
            )
        wrong = [name for name in overrides if name.startswith("dataset.features.") or name == "dataset.characters"]
        if wrong:
            raise ConfigError(
                f"{wrong[0]}: the network of {source} has learned from its own features and characters. Leave it out."
            )
        restored = self.with_characters("".join(signature.class_names)).model_copy(update={"features": signature.audio})
        restored._is_restored = True
        return restored, signature

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        signature = super().infer_signature(splits, model)
        return AudioSignature(signature.shape, class_names=signature.class_names, audio=self.features)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        require_soundfile()
        skipping = SkippedUtterances()
        utterance_findings = skipping if self.skip_unreadable and not findings.keeps_going else findings
        name, train, val, test = self.utterances(utterance_findings)
        _warn_of_shared({"train": train, "val": val, "test": test}, findings)
        parts = [
            None
            if part is None
            else [one._replace(text=normalized(one.text, self.case, self.punctuation)) for one in part]
            for part in (train, val, test)
        ]
        alphabet = self._alphabet(name, parts[0] or [])
        usable = [None if part is None else self._prepared(name, part, alphabet, utterance_findings) for part in parts]
        skipping.log_counts()
        return divide(name, usable, self, alphabet.characters)

    def _alphabet(self, name: str, train: Sequence[Utterance]) -> Alphabet:
        """Returns the alphabet: `characters`, or the characters of the training transcripts.

        Raises:
            DataError: the alphabet is empty.
        """
        setting = self.characters
        # Sorted: the order of a set differs between processes, and it numbers the outputs of the network.
        characters = sorted(set("".join(utterance.text for utterance in train))) if setting == "auto" else setting
        if not characters:
            raise DataError(f"{name}: the training transcripts hold no characters.")
        return Alphabet(list(dict.fromkeys(characters)))

    def _prepared(
        self, name: str, utterances: Sequence[Utterance], alphabet: Alphabet, findings: Findings
    ) -> Recordings:
        """Returns the usable utterances with their frames; problems of the others are added to the findings."""
        readable = [
            utterance
            for utterance in utterances
            if self._has_valid_text(utterance, alphabet, findings) and self.can_open(utterance, findings)
        ]
        if not readable:
            # `divide` decides if an empty split is an error, because it knows the other splits.
            nothing = Ragged(np.zeros((0, self.features.num_mels), np.float16), np.zeros(1, np.int64))
            return Recordings([], nothing, np.zeros(0, np.int64), alphabet)
        shards = self.compute_features(name, readable)
        feature, seconds_N, problems = shards.ragged(FEATURE), shards.array(SECONDS), problems_of(shards)
        kept = [
            index
            for index, utterance in enumerate(readable)
            if is_complete(utterance, problems[index], float(seconds_N[index]), findings)
        ]
        row_N = np.array(kept, np.int64)
        recordings = Recordings([readable[index] for index in kept], feature, row_N, alphabet, self.augment)
        score_N = np.array([self._count_scores(frames) for frames in recordings.frame_N.tolist()], np.int64)
        short = recordings.too_short(score_N)
        for index in short.tolist():
            findings.refuse(short_problem(recordings, index, int(score_N[index])))
        return recordings.take(np.setdiff1d(np.arange(len(recordings)), short).tolist()) if len(short) else recordings

    def _has_valid_text(self, utterance: Utterance, alphabet: Alphabet, findings: Findings) -> bool:
        if not utterance.text:
            fact = f"{utterance.location} has an empty transcript."
            findings.refuse(Problem(EMPTY_TEXT, utterance.location, fact, "Write the spoken words, or remove it."))
            return False
        unknown = alphabet.unknown(utterance.text)
        if unknown:
            names = ", ".join(map(repr, unknown[:8]))
            fact = (
                f"{utterance.location} holds {names}, which {'is' if len(unknown) == 1 else 'are'} not in the alphabet."
            )
            findings.refuse(Problem(UNKNOWN_CHARACTER, utterance.location, fact, self._remedy_for(unknown, alphabet)))
        return not unknown

    def _remedy_for(self, unknown: Sequence[str], alphabet: Alphabet) -> str:
        """Returns the advice for characters that are not in the alphabet."""
        characters = repr("".join(alphabet.characters))
        remedies = ["Correct it"]
        if any(map(is_punctuation, unknown)) and self.punctuation == "keep":
            remedies.append("type dataset.punctuation=remove")
        if self._is_restored:
            remedies.append("type dataset.skip_unreadable=true to leave such utterances out")
            return f"{', or '.join(remedies)}; the network knows {characters}, in dataset.case={self.case}."
        remedies.append("add it to dataset.characters")
        return f"{', or '.join(remedies)}; it is {characters}."

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens recordings, and all recordings in folders."""
        signature = AudioSignature.cast(signature)
        require_soundfile()
        files = find_recordings(names)
        utterances, numbers = (
            (files, list(range(len(files))))
            if self.chunk_seconds is None
            else cut_recordings(files, self.chunk_seconds)
        )
        shards = features_for_now(utterances, signature.audio, count_workers(self.num_workers))
        kept = find_usable(utterances, problems_of(shards), skip_unreadable, unreadable, numbers)
        alphabet = Alphabet(signature.class_names)
        readable = [utterances[index] for index in kept]
        recordings = Recordings(readable, shards.ragged(FEATURE), np.array(kept, np.int64), alphabet, are_known=False)
        recordings.numbers = [numbers[index] for index in kept]
        recordings.store = shards  # removed from the disk when it is no longer read
        return recordings, [utterance.path for utterance in readable]
