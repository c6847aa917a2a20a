"""`mxtrain verify`: trains a few steps under a placement and on one device, and shows how far they differ per layer."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import split_settings
from mxtrain.cluster.member import find_world
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check, set_environment
from mxtrain.config.groups import Description, describe
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED
from mxtrain.files.durable import encode_json
from mxtrain.files.temporary import temporary_root
from mxtrain.terminal.console import open_console
from mxtrain.terminal.progress import SILENT, ProgressDisplay
from mxtrain.terminal.tables import WRONG, print_rows
from mxtrain.workflows.output_file import open_output_file
from mxtrain.workflows.verify import VerifySettings, refuse_updates_without_order, verify

if TYPE_CHECKING:
    from rich.console import Console

    from mxtrain.parallel.differences import OwnGradients, Verification

COMMAND = Command(
    "verify",
    position=90,
    listed="verify [overrides]",
    help="train a few steps here and on one device, and compare them layer by layer",
    usage="[setting=value ...] [group=option ...] [group.field=value ...]",
    settings="VerifySettings",
    examples=("verify parallel=hybrid model=resnet", "verify parallel=data parallel.devices=cpu:3 steps=5"),
    in_groups=True,
)


def run(arguments: Sequence[str]) -> int:
    """Compares, prints and returns 0 within the tolerance and 1 beyond it."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, VerifySettings, "verify")
    command_line.no_positionals(parsed, "verify")
    with Composer(parsed.config_dirs) as composer:
        _, description = compose_and_check(composer, overrides)
    refuse_updates_without_order(description)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from mxtrain.cluster.launch.group import find_role, supervise_in
    from mxtrain.cluster.launch.store_server import serve

    member = find_role(description)
    if member is not None and member.role != "worker":
        return serve(member.role, lambda: description, description.cluster.start_timeout)
    if member is None and description.kvstore.distributed:
        with tempfile.TemporaryDirectory(prefix="mxtrain-verify-", dir=temporary_root()) as logs:
            return supervise_in(Path(logs), description, ["verify", *arguments])
    world = find_world()
    set_environment(description, exact=True)  # the host may be shared with other workers
    result = verify(description, settings, world, ProgressDisplay() if world.rank == 0 else SILENT)
    if world.rank > 0:
        return EXIT_FINISHED  # rank 0 compares
    show(result)
    if settings.output:
        with open_output_file(settings.output) as stream:
            stream.write(encode_json(result.to_json(), indent=2).decode() + "\n")
    return EXIT_FINISHED if result.passed else EXIT_CRASHED


def description_of(arguments: Sequence[str]) -> Description:
    """Returns the description for a server, from the same arguments as the workers'. Raises: ConfigError: they are
    wrong."""
    parsed = command_line.parse(arguments)
    _, overrides = split_settings(parsed, VerifySettings, "verify")
    with Composer(parsed.config_dirs) as composer:
        composed = composer.compose(overrides)
        return describe(composed.config, composed.where)


def show(result: Verification) -> None:
    """Prints the table and the verdict."""
    console = open_console(sys.stdout)
    rows = []
    for layer in result.layers:
        numbers = (layer.gradient_abs, layer.gradient_rel, layer.parameter_abs, layer.parameter_rel)
        rows.append([layer.layer or "(network)", *(f"{n:.1e}" if n else "0" for n in numbers)])
    wrong = [
        number
        for number, layer in enumerate(result.layers)
        if layer.worst > result.tolerance or layer.layer in result.unequal
    ]
    console.print("largest differences from one device in float64, absolute and over the largest value there")
    titles = ["layer", "gradient", "relative", "parameter", "relative"]
    print_rows(titles, rows, dict.fromkeys(wrong, WRONG), unbroken=("layer",))
    for remark in result.remarks:
        console.print(remark, soft_wrap=True)
    worst = result.worst
    size = f"largest relative difference {worst.worst:.1e}" if worst.worst else "every bit is equal"
    verdict = f"the same as on one device: {size}"
    if worst.worst > result.tolerance:
        verdict = f"NOT the same as on one device: {size}, in '{worst.layer}'"
    steps = f"{result.steps} step{'' if result.steps == 1 else 's'}"
    console.print(f"{verdict}, after {steps} (tolerance {result.tolerance:g})", soft_wrap=True)
    if result.low is not None:
        verdict = "NOT the same" if result.low_is_off else "the same"
        console.print(
            f"{result.dtype} on both sides: {verdict} as on one device: gradients of the first step "
            f"differ by {result.low:.1e} of their length (tolerance {result.low_tolerance:g})",
            soft_wrap=True,
        )
    if result.unequal:
        layers = f"'{result.unequal[0]}'" + (f" and {len(result.unequal) - 1} more" if len(result.unequal) > 1 else "")
        console.print(f"{result.dtype}, sums in the same order: bits differ, in {layers}", soft_wrap=True)
    elif result.bits:
        console.print(f"{result.dtype}, sums in the same order: every bit is equal", soft_wrap=True)
    show_own_gradients(console, result.own)


def show_own_gradients(console: Console, own: OwnGradients) -> None:
    """Prints the comparison of users' own blocks with finite differences; nothing if there are none."""
    for one in own.wrong:
        layer = f"layer '{one.layer}'" if one.layer else "the network itself"
        reference = "finite differences" if one.dtype == "float64" else "its gradient in float64"
        console.print(
            f"WRONG gradient in {one.dtype}: {layer}, a {one.kind}: the gradient of '{one.tensor}' differs from "
            f"{reference} by {one.error:.1e} of its length",
            soft_wrap=True,
        )
    if own.checked and not own.wrong:
        count = len(own.checked)
        blocks = "1 own layer agrees" if count == 1 else f"{count} own layers agree"
        console.print(f"gradients of {blocks} with finite differences", soft_wrap=True)
