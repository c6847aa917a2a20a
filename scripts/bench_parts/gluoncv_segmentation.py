"""Runs GluonCV's scripts/segmentation/train.py in turns with others, with what can't be compared here replaced.

    HOME=FOLDER python -m bench_parts.gluoncv_segmentation BLOCK_STEPS as-shipped|hybridized SCRIPT ARGUMENTS...

HOME/.mxnet/datasets/voc holds the files. The latter hybridizes the network, which the script does not do.

| replaced | why |
| --- | --- |
| the pretrained backbone, by an initialised one | nothing is downloaded |
| Gaussian blur, by nothing | the work that is compared has none |
| tqdm's bar, by one that takes turns | steps are timed in blocks |
"""

from __future__ import annotations

import functools
import runpy
import sys
import warnings
from typing import Any, Iterable, Iterator

warnings.simplefilter("ignore")

AS_SHIPPED, HYBRIDIZED = "as-shipped", "hybridized"


def main() -> None:
    # numpy's old names first: MXNet needs them with some numpy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    import tqdm
    from gluoncv.model_zoo import segbase
    from PIL import ImageFilter

    block_steps, way = int(sys.argv[1]), sys.argv[2]
    script, sys.argv = sys.argv[3], sys.argv[3:]
    ImageFilter.GaussianBlur = _Same  # type: ignore[assignment, misc]
    tqdm.tqdm = functools.partial(_TurnsBar, block_steps=block_steps)
    segbase.resnet50_v1s = functools.partial(_initialised, segbase.resnet50_v1s)
    made = segbase.get_segmentation_model
    segbase.get_segmentation_model = lambda **arguments: _prepared(made(**arguments), way)
    runpy.run_path(script, run_name="__main__")


def _initialised(backbone: Any, pretrained: Any = False, **arguments: Any) -> Any:
    network = backbone(pretrained=False, **arguments)
    network.initialize()
    return network


def _prepared(network: Any, way: str) -> Any:
    if way == HYBRIDIZED:
        network.hybridize()
    return network


class _Same:
    """A filter of Pillow's that changes nothing."""

    def __init__(self, radius: float = 2) -> None:
        pass

    def filter(self, image: Any) -> Any:
        return image


class _TurnsBar:
    """Goes through batches like tqdm, and ends a block after so many."""

    def __init__(self, batches: Iterable[Any], block_steps: int) -> None:
        self._batches, self._block_steps = batches, block_steps

    def __iter__(self) -> Iterator[Any]:
        from bench_parts.turn import Turns
        from mxtrain.engine.backend import nd

        turns = Turns()
        for number, batch in enumerate(self._batches, 1):
            yield batch
            if number % self._block_steps == 0:
                nd.waitall()
                turns.next()

    def set_description(self, text: str) -> None:
        """As tqdm shows it, in each step."""
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
