"""Writes the files of `eval` about single samples: predictions.csv, the samples with the largest losses, and pages."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from mxtrain.files.durable import HashedFile, replace_file
from mxtrain.files.temporary import temporary_place
from mxtrain.task.sample_report import sample_pages, worst_samples
from mxtrain.task.sample_results import ResultReader, SampleResults

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples, Source
    from mxtrain.training.trained import Trained
    from mxtrain.workflows.eval_folder import EvaluationFolder

PREDICTIONS = "predictions.csv"


class SampleFiles:
    """Collects the results of single samples in a temporary file, and writes the files.

    Args:
        trained: trained network.
        source: evaluated split.
        split: name of the split.
    """

    def __init__(self, trained: Trained, source: Samples, split: str) -> None:
        self._trained, self._source = trained, source
        self._stream = tempfile.TemporaryFile(dir=temporary_place())
        reader = ResultReader(trained.description, trained.signature, source, split, trained.evaluator.decode)
        self.results = SampleResults(reader, self._stream, trained.evaluator.losses)

    def write(self, folder: EvaluationFolder, title: str) -> None:
        """Writes all files into the folder of the evaluation.

        Args:
            folder: the folder.
            title: split and step, for captions.
        """
        self.results.finish()
        if not self.results.columns:
            return
        with HashedFile(folder.place / PREDICTIONS) as file:
            self.results.copy_to(file)
        folder.note(PREDICTIONS)
        sample = self._trained.description.dataset.gives.sample
        folder.write(worst_samples(self.results, self._take, sample, title))
        for name, page in sample_pages(self.results, self._trained.signature, title).items():
            replace_file(folder.place / name, page.encode("utf-8", "backslashreplace"))
            folder.note(name)

    def _take(self, index: int) -> Source:
        from mxtrain.training.loaders import take

        return take(self._source, [index])  # type: ignore[return-value]  # only samples of images are read: no pairs

    def close(self) -> None:
        """Removes the temporary file."""
        self._stream.close()
