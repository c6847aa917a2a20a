"""Runs one of GluonCV's training scripts as one of several workers, with what keeps it from running here replaced.

    python -m bench_parts.gluoncv_worker SCRIPT ARGUMENTS...

| replaced | why |
| --- | --- |
| the check that CIFAR-10's files are the official ones | they are made up |
| `autogluon.utils.pil_transforms`, by nothing | train_horovod.py imports it and does not use it below 320 pixels |
| random jitter of colours and lighting, by nothing | the work that is compared has none |
| the level of logging | without mpi4py, train_horovod.py's first message sets it to warnings: no speed is told |
| the store of `gluon.Trainer`, where DMLC_ROLE is set | the classification scripts have no option for it |
"""

from __future__ import annotations

import functools
import logging
import os
import runpy
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")


def main() -> None:
    # numpy's old names first: MXNet needs them with some numpy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    from mxnet import gluon
    from mxnet.gluon.data.vision import datasets, transforms

    datasets.check_sha1 = lambda path, checksum: True
    for name in ("autogluon", "autogluon.utils", "autogluon.utils.pil_transforms"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["autogluon.utils"].pil_transforms = sys.modules["autogluon.utils.pil_transforms"]  # type: ignore
    for name in ("RandomColorJitter", "RandomLighting"):
        setattr(transforms, name, _Same)
    if "DMLC_ROLE" in os.environ:
        gluon.Trainer = functools.partial(gluon.Trainer, kvstore="dist_sync")
    logging.basicConfig(level=logging.INFO)
    script, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_path(script, run_name="__main__")


class _Same:
    """Stands where a transform was."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        from mxnet.gluon.data.vision import transforms

        return transforms.Cast("uint8")


if __name__ == "__main__":
    main()
