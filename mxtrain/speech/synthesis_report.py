"""Report of `eval` for speech synthesis: the network, the mean frame of each symbol, and the worst utterances.

Legend: T frames, F mel bands, C cepstral coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import numpy as np

from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError
from mxtrain.metric.host import Collected
from mxtrain.speech.aligned_dataset import MAX_MEASURED
from mxtrain.speech.aligned_loader import DECIBELS
from mxtrain.speech.signature import SymbolSignature
from mxtrain.speech.symbol_means import SymbolMeans, cepstrum_matrix, distances
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.host import HostPredictions
    from mxtrain.speech.aligned import AlignedSource

MAX_SHOWN = 20
ERRORS = ("mel_error (dB)", "mel_cepstral_distortion (dB)")


class _Errors(Collected):
    """Errors of each symbol and of each utterance."""

    def __init__(self, source: AlignedSource, num_symbols: int) -> None:
        self._source, self._matrix_FC = source, cepstrum_matrix(source.width)
        self.of_symbol, self.frames_of_symbol = np.zeros(num_symbols), np.zeros(num_symbols)
        self.of_sample: Dict[int, Tuple[float, float, int]] = {}

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        for index, predicted_TF in zip(index_B.tolist(), prediction_B):
            difference_TF = (predicted_TF.astype(np.float64) - self._source.read(index)) * DECIBELS
            self.of_sample[index] = (*distances(difference_TF, self._matrix_FC), len(difference_TF))
            symbol_T = np.repeat(self._source.symbols_of(index), self._source.durations_of(index))
            count = len(self.of_symbol)
            self.of_symbol += np.bincount(symbol_T, np.abs(difference_TF).mean(axis=1), count)
            self.frames_of_symbol += np.bincount(symbol_T, minlength=count)


class SynthesisReport(CollectingReport):
    """Errors in dB of all frames that were measured, of each symbol and of each utterance.

    Args:
        decode: converts outputs to predictions.
        dataset: dataset of the run, with the recordings of training.
        signature: signature of the network.
        source: the split that is measured.
    """

    def __init__(self, decode: Decode, dataset: BaseDataset, signature: Signature, source: AlignedSource) -> None:
        self._signature = SymbolSignature.cast(signature)
        self._errors = _Errors(source, len(self._signature.symbols))
        super().__init__(decode, self._errors)
        self._dataset, self._source = dataset, source

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        self.finish()
        error, distortion, frames = np.sum(list(self._errors.of_sample.values()), axis=0)
        rows: List[List[Any]] = [["this network", error / frames, distortion / frames], self._means()]
        return [Table("baselines", ("frames of", *ERRORS), rows), self._symbols(), self._worst()]

    def _means(self) -> List[Any]:
        try:
            train: AlignedSource = open_splits(self._dataset).train  # type: ignore[assignment]  # of symbols
        except DataError as error:
            return [f"no means of symbols, for the recordings of training cannot be read: {error}", "", ""]
        means = SymbolMeans(train, len(self._signature.symbols), MAX_MEASURED)
        measured = self._source.take(sorted(self._errors.of_sample))
        return ["the mean of their symbol", *means.measure(measured, len(measured))]

    def _symbols(self) -> Artifact:
        errors = self._errors
        means = errors.of_symbol / np.maximum(errors.frames_of_symbol, 1)
        rows = [
            [self._signature.symbols[number], int(errors.frames_of_symbol[number]), float(means[number])]
            for number in np.argsort(-means, kind="stable").tolist()
            if errors.frames_of_symbol[number]
        ]
        return Table("symbols", ("symbol", "frames", ERRORS[0]), rows)

    def _worst(self) -> Artifact:
        by_error = sorted(self._errors.of_sample.items(), key=lambda item: (-item[1][0] / item[1][2], item[0]))
        rows: List[List[Any]] = [
            [
                str(self._source.location(index)),
                error / frames,
                distortion / frames,
                self._source.utterances[index].utterance.text,
            ]
            for index, (error, distortion, frames) in by_error[:MAX_SHOWN]
        ]
        return Table("worst", ("sample", *ERRORS, "text"), rows, is_shown=False)
