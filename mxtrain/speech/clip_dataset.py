"""Base class of datasets whose samples are clips of sound with a class.

Legend: N clips, T frames, F mel bands.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Callable,
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
from mxtrain.data.checking.problems import Findings
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import prepare, prepare_temporary
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import CheckpointError, ConfigError, run_dir_setting
from mxtrain.files.json_form import NUMBER
from mxtrain.speech.clip_frames import clip_frames
from mxtrain.speech.clips import Clip, ClipAugment, ClipLoader, Clips
from mxtrain.speech.features import Features
from mxtrain.speech.given_recordings import find_recordings, find_usable
from mxtrain.speech.kinds import Spectrograms
from mxtrain.speech.prepared import (
    FEATURE,
    SECONDS,
    Computed,
    feature_forms,
    feature_key,
    feature_writer,
    problems_of,
)
from mxtrain.speech.recording import CUT_AUDIO, SILENT_AUDIO, RecordingError, read_recording, require_soundfile
from mxtrain.speech.signature import AudioSignature
from mxtrain.speech.usable import SkippedUtterances, can_open, is_complete
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive, PositiveFloat
from mxtrain.types.kinds import ClassIndex, Gives

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json, JsonForm

CLIPS_VERSION = 1
"""Version of the frames of clips; those of other versions in the cache are not used."""
MAX_MEASURED = 2000
"""Maximum number of clips from which the mean and deviation of each band are computed."""
_LONGER = 1.05
"""Clips up to this many times `seconds` are as long as they should be."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClipSignature(AudioSignature):
    """Clips as log-mel frames, (1, T, F), standardised by the mean and deviation of each band.

    Attributes:
        seconds: length of clips.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**AudioSignature.form, "seconds": NUMBER}
    exported_reader: ClassVar[str] = "mxtrain.speech.exported_clips"

    seconds: float = REQUIRED

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "seconds": self.seconds}


@dataclass(frozen=True)
class ListedClips:
    """Clips of a dataset before they are read.

    Attributes:
        class_names: names of the classes.
        train, val, test: clips of the splits; None = held out of the training clips.
        noise: recordings of noise.
        name: name of the dataset, for messages.
    """

    class_names: Sequence[str]
    train: Sequence[Clip]
    val: Optional[Sequence[Clip]]
    test: Optional[Sequence[Clip]]
    noise: Sequence[Utterance] = ()
    name: str = ""


class ClipDataset(BaseDataset):
    """Base class of datasets of clips of sound with a class."""

    gives: ClassVar[Gives] = Gives(Spectrograms, ClassIndex, usual_model="keyword_cnn")
    signature_class: ClassVar[Type[Signature]] = ClipSignature
    data_checks: ClassVar[DataChecks] = DataChecks((SILENT_AUDIO, CUT_AUDIO))
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    batch_size: BatchSize = "auto"
    seconds: PositiveFloat = 1.0
    """Length of a clip: shorter recordings get silence on both sides, of longer ones the middle is used."""
    features: Features = Features(window_ms=40.0, step_ms=20.0, num_mels=40, normalize="none")
    """Settings of the frames computed from a clip; normalize must be none, because bands are standardised over the
    training clips."""
    augment: ClipAugment = ClipAugment()
    """Changes of clips in training."""
    skip_unreadable: bool = False
    """Train without unusable recordings and report their number; otherwise the first one is an error."""
    num_workers: Union[Literal["auto"], Positive] = "auto"
    """Number of threads that compute features, once before training; auto = the cores this process may use."""

    @pydantic.model_validator(mode="after")
    def _check_clips(self) -> ClipDataset:
        if self.features.normalize != "none":
            raise ValueError(
                f"features.normalize={self.features.normalize} removes the level of a clip, which is standardised over "
                "the training clips. Type dataset.features.normalize=none"
            )
        if self.seconds * 1000 < self.features.window_ms:
            raise ValueError(
                f"seconds={self.seconds:g} is shorter than a window of features.window_ms={self.features.window_ms:g}"
            )
        return self

    def list_clips(self, findings: Findings) -> ListedClips:
        """Lists the clips of all splits, unread.

        Raises:
            DataError: there are none.
        """
        raise NotImplementedError

    def read_sound(self, utterance: Utterance) -> np.ndarray:
        """Returns the sound of a clip or of a recording of noise at `features.sample_rate`.

        Raises:
            RecordingError: it cannot be read.
        """
        return read_recording(utterance.path, self.features.sample_rate, utterance.begin_s, utterance.duration_s)

    def can_open(self, utterance: Utterance, findings: Findings) -> bool:
        """Returns True if a recording can be opened; otherwise adds the reason to the findings."""
        return can_open(utterance, findings)

    def cache_key(self, utterances: Sequence[Utterance], name: str) -> Json:
        """Returns the values that decide the sound of utterances."""
        paths = list(dict.fromkeys(utterance.path for utterance in utterances))
        number = {path: index for index, path in enumerate(paths)}
        contents = contents_of(paths, f"content of the files for {name}", count_workers(self.num_workers))
        parts: List[Json] = [[number[one.path], one.begin_s, one.duration_s] for one in utterances]
        return [[content.sha256 for content in contents], parts]

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        require_soundfile()
        skipping = SkippedUtterances()
        own = skipping if self.skip_unreadable and not findings.keeps_going else findings
        listed = self.list_clips(own)
        noise = self._noise(listed, own)
        train, *held_out = (
            None if clips is None else self._prepared(listed.name, clips, noise, own)
            for clips in (listed.train, listed.val, listed.test)
        )
        skipping.log_counts()
        assert train is not None
        parts = self.division.divide(train.read_labels(), held_out[0] is not None, held_out[1] is not None)
        held_out[0] = self.division.own_validation(held_out[0])
        kept, val, test = (
            existing if existing is not None else train.take(part.tolist())
            for existing, part in zip((None, *held_out), parts)
        )
        refuse_empty(listed.name, len(kept), len(val), self.val_fraction)
        return Splits(kept, val, test if len(test) else None, listed.class_names, kept.shape)

    def _prepared(self, name: str, clips: Sequence[Clip], noise: Optional[Ragged], findings: Findings) -> Clips:
        """Returns the usable clips with their frames; problems of the others are added to the findings."""
        readable = [clip for clip in clips if self.can_open(clip.utterance, findings)]
        utterances = [clip.utterance for clip in readable]
        shards = self._frames(utterances, f"features of {name}", self.seconds)
        seconds_N, problems = shards.array(SECONDS), problems_of(shards)
        kept = [
            index
            for index, utterance in enumerate(utterances)
            if is_complete(utterance, problems[index], float(seconds_N[index]), findings)
        ]
        longer = [index for index in kept if seconds_N[index] > self.seconds * _LONGER]
        if longer:
            first = utterances[longer[0]]
            log.warning(
                "dataset.seconds=%g: %s of %s recordings are longer, and only their middle is used, e.g. %s of %.1f s",
                self.seconds,
                f"{len(longer):,}",
                f"{len(kept):,}",
                first.location,
                seconds_N[longer[0]],
            )
        row_N = np.array(kept, np.int64)
        return Clips([readable[index] for index in kept], shards.ragged(FEATURE), row_N, self.augment, noise)

    def _frames(self, utterances: Sequence[Utterance], what: str, seconds: float) -> Shards:
        """Returns the frames of clips, from the cache if they exist; of recordings as a whole if `seconds` is 0."""
        key: Json = [CLIPS_VERSION, seconds, feature_key(self.features), self.cache_key(utterances, what)]
        write = feature_writer(
            len(utterances),
            lambda index: self._compute(utterances[index], seconds, self.read_sound),
            count_workers(self.num_workers),
        )
        return prepare("clips", key, feature_forms(self.features), write, what=what, total=len(utterances))

    def _compute(self, utterance: Utterance, seconds: float, read: Callable[[Utterance], np.ndarray]) -> Computed:
        try:
            sound_S = read(utterance)
        except RecordingError as error:
            return Computed(np.zeros((0, self.features.num_mels), np.float16), f"{error.kind}\t{error.fact}", 0.0)
        own_s = len(sound_S) / self.features.sample_rate
        frames_TF = clip_frames(sound_S, self.features, seconds or max(own_s, self.seconds))
        return Computed(frames_TF.astype(np.float16), "", own_s)

    def _noise(self, listed: ListedClips, findings: Findings) -> Optional[Ragged]:
        """Returns the frames of the usable recordings of noise; None if there are none."""
        if not listed.noise or not self.augment.noise_share:
            return None
        usable = [utterance for utterance in listed.noise if self.can_open(utterance, findings)]
        shards = self._frames(usable, f"features of the noise of {listed.name}", 0.0)
        seconds_N, problems = shards.array(SECONDS), problems_of(shards)
        kept = [
            index
            for index, utterance in enumerate(usable)
            if is_complete(utterance, problems[index], float(seconds_N[index]), findings)
        ]
        feature = shards.ragged(FEATURE)
        rows = [feature.value[feature.begin[index] : feature.begin[index + 1]] for index in kept]
        if not rows:
            return None
        return Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns the signature with the mean and deviation of each band over the training clips."""
        train = splits.train
        assert isinstance(train, Clips)
        step = -(-len(train) // MAX_MEASURED)
        sums_2F, count = np.zeros((2, train.shape[2])), 0
        for index in range(0, len(train), step):
            frames_TF = train.frames(index).astype(np.float64)
            sums_2F += np.stack([frames_TF.sum(axis=0), np.square(frames_TF).sum(axis=0)])
            count += len(frames_TF)
        mean_F = sums_2F[0] / count
        std_F = np.sqrt(np.maximum(sums_2F[1] / count - np.square(mean_F), 1e-6))
        mean, std = ([round(value, 4) for value in values.tolist()] for values in (mean_F, std_F))
        return ClipSignature(
            train.shape, mean, std, list(splits.class_names), audio=self.features, seconds=self.seconds
        )

    def remark(self, signature: Signature, splits: Splits) -> str:
        """See `BaseDataset.remark`."""
        _, frames, width = splits.shape
        return f"clips of {self.seconds:g} s enter the network as {frames} frames of {width} bands"

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`: classes and frames must be the same."""
        signature, before = ClipSignature.cast(signature), ClipSignature.cast(before)
        if list(before.class_names) != list(signature.class_names):
            raise CheckpointError(
                f"{source} was made with the classes {', '.join(before.class_names)}, and these are "
                f"{', '.join(signature.class_names)}. Give the same data, or choose another {run_dir_setting()}."
            )
        if (before.audio, before.seconds) != (signature.audio, signature.seconds):
            raise CheckpointError(
                f"{source} was made with other dataset.features or dataset.seconds. Give the same, or choose another "
                f"{run_dir_setting()}."
            )

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`: uses the features and the length of clips of the trained network."""
        signature = ClipSignature.cast(signature)
        wrong = [name for name in overrides if name.startswith("dataset.features.") or name == "dataset.seconds"]
        if wrong:
            raise ConfigError(f"{wrong[0]}: the network of {source} has learned from its own clips. Leave it out.")
        return self.model_copy(update={"features": signature.audio, "seconds": signature.seconds}), signature

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Clips, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return ClipLoader(source, (signature.mean, signature.std), options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Clips, Sequence[str]]:
        """Opens recordings, and all recordings in folders."""
        signature = ClipSignature.cast(signature)
        require_soundfile()
        utterances = find_recordings(names)
        own = self.model_copy(update={"features": signature.audio, "seconds": signature.seconds})
        read = partial(ClipDataset.read_sound, own)  # a file, also if the clips of training were synthesised
        write = feature_writer(
            len(utterances),
            lambda index: own._compute(utterances[index], own.seconds, read),
            count_workers(self.num_workers),
        )
        shards = prepare_temporary("clips", feature_forms(signature.audio), write)
        kept = find_usable(utterances, problems_of(shards), skip_unreadable, unreadable)
        clips = Clips([Clip(utterances[index], 0) for index in kept], shards.ragged(FEATURE), np.array(kept, np.int64))
        clips.store = shards  # removed from the disk when it is no longer read
        return clips, [utterances[index].path for index in kept]
