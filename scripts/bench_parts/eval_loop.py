"""Evaluates a run as `mxtrain eval` does, in turns with others.

python -m bench_parts.eval_loop RUN BLOCK_BATCHES                                               see turn.py
"""

from __future__ import annotations

import sys
from typing import List

from bench_parts.turn import Turns
from mxtrain.cli.arguments import parse
from mxtrain.cli.restored import restore_description, restore_inputs


def main(arguments: List[str]) -> None:
    run, block_batches = arguments
    checkpoint, description = restore_description(parse([run]), "eval", "last", [])
    dataset, signature = restore_inputs(checkpoint, description, [])
    from mxtrain.trainer.loaders import build_loader
    from mxtrain.trainer.trained import load_trained

    trained = load_trained(checkpoint, description, signature)
    source = dataset.open().train
    loader = build_loader(description, source, signature, trained.device, limit_batches=int(block_batches))
    turns = Turns()
    while True:
        print(trained.evaluator.measure(loader), flush=True)
        turns.next()


if __name__ == "__main__":
    main(sys.argv[1:])
