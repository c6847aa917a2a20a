"""Runs the checks one after the other and prints the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import List, NoReturn, Tuple

from bench_parts.publish import describe_machine

from gpu_check_parts.checks import CHECKS, Answer, Bench, Failed
from gpu_check_parts.devices import find_gpus, read_devices
from mxtrain.errors import ConfigError
from mxtrain.runtime.gpus import find_gpus as ask_driver
from mxtrain.workflows.doctor import mxnet_packages


class Flags(argparse.ArgumentParser):
    """Parser of flags that answers mistakes with one sentence and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"gpu_check: {message}.")


def main(argv: List[str]) -> int:
    parser = Flags("scripts/gpu_check", description="Look whether mxtrain computes right on this machine's GPUs.")
    parser.add_argument("--devices", default="", help="gpu:0,gpu:1 (all by default), or cpu:0,cpu:1 to stand in")
    parser.add_argument("--torch-python", default="", help="a Python that has PyTorch with CUDA, to compare speed with")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that the checks run")
    try:
        given = parser.parse_args(argv)
        if given.torch_python and not Path(given.torch_python).exists():
            raise ConfigError(f"--torch-python={given.torch_python}: it is not there.")
        devices = read_devices(given.devices) if given.devices else find_gpus()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mxtrain-gpu-check-") as folder:
        bench = Bench(devices, Path(folder), given.quick, given.torch_python)
        answers = [("versions", versions()), *_run_all(bench)]
    print("\n".join(table(answers)))
    failed = [name for name, answer in answers if answer.state == "failed"]
    if not bench.on_gpus:
        print("\nCPU devices stood in: this says nothing about GPUs.")
    return 1 if failed else 0


def _run_all(bench: Bench) -> List[Tuple[str, Answer]]:
    answers = []
    for number, (name, check) in enumerate(CHECKS.items(), 1):
        print(f"{number}/{len(CHECKS)} {name} ...", end=" ", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        try:
            answer = check(bench)
        except Failed as error:
            answer = Answer("failed", str(error))
        print(f"{answer.state}, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        answers.append((name, answer))
    return answers


def versions() -> Answer:
    """Returns the versions of the GPUs, of the driver and of mxtrain."""
    machine = describe_machine()
    gpus = ", ".join(map(str, ask_driver())) or "no GPU that nvidia-smi lists"
    packages = ", ".join(mxnet_packages()) or "a build of MXNet of its own"
    words = [gpus, packages, f"mxtrain {machine['packages']['mxtrain']} {machine['commit']}".strip(), machine["cpu"]]
    return Answer("ok", "; ".join([*words, f"Python {machine['python']}", machine["system"]]))


def table(answers: List[Tuple[str, Answer]]) -> List[str]:
    """Markdown, to be pasted into an issue."""
    rows = [f"| {name} | {answer.state} | {answer.text.replace('|', '/')} |" for name, answer in answers]
    return ["", "| check | result | what was found |", "| --- | --- | --- |", *rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
