"""Runs GluonCV's train_cifar10.py as it is, on files that are not the official ones.

    MXNET_HOME=FOLDER python -m bench_parts.gluoncv_run SCRIPT ARGUMENTS...

Gluon's CIFAR10 downloads the official files unless those in MXNET_HOME/datasets/cifar10 have their checksums. That
check is the one thing replaced here.
"""

from __future__ import annotations

import runpy
import sys
import warnings

warnings.simplefilter("ignore")


def main() -> None:
    # numpy's old names first: MXNet needs them with some numpy versions.
    import mxtrain.engine.backend  # noqa: F401, I001
    from mxnet.gluon.data.vision import datasets

    datasets.check_sha1 = lambda path, checksum: True
    script, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
