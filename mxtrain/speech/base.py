"""Base of datasets of frames with a transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Collection, Optional, Tuple

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.data.writing import language_without_spaces
from mxtrain.errors import CheckpointError, run_dir_setting
from mxtrain.speech.kinds import Frames, Transcripts
from mxtrain.speech.source import SHORT_AUDIO, TranscribedSource
from mxtrain.types import BatchSize, Positive, shapes_of
from mxtrain.types.kinds import Gives

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model


class TranscribedDataset(BaseDataset):
    """Base of the descriptions of datasets whose samples are frames, (T, F), and a transcript."""

    gives: ClassVar[Gives] = Gives(Frames, Transcripts)
    data_checks: ClassVar[DataChecks] = DataChecks((SHORT_AUDIO,))

    largest_batch: ClassVar[int] = 32
    batch_size: BatchSize = "auto"
    eval_batch_size: Positive = 64
    batches_per_pool: Positive = 16
    """Number of batches whose samples are sorted by length together in training, to reduce padding; 1 = no sorting."""

    @property
    def batch_frames(self) -> Optional[int]:
        """Returns the maximum number of frames of a training batch, including padding; None = batch_size samples."""
        return None

    @property
    def transcript_signature(self) -> str:
        """Returns the normalization of transcripts before comparison, for the signatures of metrics."""
        return "none"

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns a signature with the inputs frames, padded to the longest sample, and number of frames."""
        from mxtrain.speech.loader import padded_frames

        sources = [source for source in (splits.train, splits.val, splits.test) if source is not None]
        longest = max(source.frame_N.max() for source in sources)  # type: ignore[attr-defined]  # of its own
        width: int = sources[0].width  # type: ignore[attr-defined]
        return Signature(((int(padded_frames(longest)), width), ()), class_names=list(splits.class_names))

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`: scores would mean other characters."""
        width, width_before = (shapes_of(each.shape)[0][1] for each in (signature, before))
        if list(before.class_names) != list(signature.class_names) or width != width_before:
            raise CheckpointError(
                f"{source} was made with other characters ({''.join(before.class_names)!r}) or frames of another width "
                f"({width_before}) than these ({''.join(signature.class_names)!r}, {width}). Give the same data, or "
                f"choose another {run_dir_setting()}."
            )

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`: uses the alphabet of the trained network, not that of the transcripts."""
        return self.with_characters("".join(signature.class_names)), signature

    def with_characters(self, characters: str) -> TranscribedDataset:
        """Returns this dataset with another alphabet."""
        return self

    def remark(self, signature: Signature, splits: Splits) -> str:
        frames, width = shapes_of(signature.shape)[0]
        text = f"samples of up to {frames} frames of {width} numbers, {len(signature.class_names)} characters"
        if language_without_spaces(signature.class_names) in ("", "ko"):
            return text
        return f"{text}; no spaces divide its words, so the character error rate counts (trainer.monitor=val/cer)"

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: TranscribedSource, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        from mxtrain.speech.loader import FrameLoader

        return FrameLoader(source, options, batches_per_pool=self.batches_per_pool, batch_budget=self.batch_frames)
