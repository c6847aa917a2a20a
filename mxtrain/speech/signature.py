"""Signatures of recordings, and of inputs of speech synthesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Sequence, Tuple

from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER
from mxtrain.speech.features import Features
from mxtrain.speech.model import build_symbols
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json, JsonForm, JsonObject


@dataclass(frozen=True)
class AudioSignature(Signature):
    """Recordings as rows of frames.

    Attributes:
        audio: how recordings become frames.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **Signature.form,
        "audio": {
            "sample_rate": int,
            "window_ms": NUMBER,
            "step_ms": NUMBER,
            "num_mels": int,
            "low_hz": NUMBER,
            "high_hz": NUMBER,
            "preemphasis": NUMBER,
            "normalize": str,
        },
    }

    exported_reader: ClassVar[str] = "mxtrain.speech.exported_speech"

    audio: Features = REQUIRED

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "audio": self.audio.model_dump()}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._arguments(values), "audio": features_from(values["audio"])}


@dataclass(frozen=True)
class SymbolSignature(AudioSignature):
    """Symbols that become sound.

    Attributes:
        symbols: the characters or phonemes whose numbers enter the network.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**AudioSignature.form, "symbols": [str]}

    known_names: ClassVar[Tuple[str, ...]] = ("input_shape", "vocab_size")
    exported_reader: ClassVar[str] = "mxtrain.speech.exported_synthesis"

    symbols: Sequence[str] = ()

    @property
    def learned_names(self) -> Sequence[str]:
        return self.symbols

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.Block:
        return build_symbols(model, num_classes, self.shape, len(self.symbols))

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), "symbols": list(self.symbols)}


def features_from(values: JsonObject) -> Features:
    """Restores the feature settings of a checkpoint.

    Raises:
        DamagedCheckpoint: a setting is invalid.
    """
    try:
        return Features(**values)
    except ValueError as error:
        reason = str(error).splitlines()[-2].strip() if str(error).count("\n") > 1 else str(error)
        raise DamagedCheckpoint(f"The checkpoint cannot be used: in its audio, {reason}.") from error
