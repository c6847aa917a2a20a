"""Builds the network of a run, ready to compute, and says what its embedding tables cost."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, List

from mxtrain.config.groups import Description
from mxtrain.config.sparse_tables import PAYS_FROM, WORKERS_PAY_FROM, obstacle, sparse_from, sparse_samples
from mxtrain.data.given import GivenDataset
from mxtrain.errors import ConfigError
from mxtrain.loss.distillation import expose_layers
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.graph.shapes import WrongOutputs
from mxtrain.model.parameters import distinct_parameters, is_trained
from mxtrain.model.prepare import Prepared, TableOptions, prepare_network
from mxtrain.parallel.engine_dependency import can_add_dependencies

if TYPE_CHECKING:
    from mxnet import Context, gluon

    from mxtrain.data.signature import Signature

log = logging.getLogger("mxtrain")


def build_network(
    description: Description, signature: Signature, device: Context, remote_rows: bool = False, learns: bool = True
) -> gluon.Block:
    """Returns the initialised, hybridized network.

    Args:
        remote_rows: servers hold the rows of its large tables.
        learns: else there is no memory for gradients.
    """
    task, dataset = description.task, description.dataset
    network = task.build_network(description, signature)
    if isinstance(dataset, GivenDataset):
        dataset.require_order(network)
    try:
        prepared = prepare_network(
            description.model,
            num_classes=task.num_classes(signature),
            input_shape=signature.shape,
            seed=description.trainer.seed,
            device=device,
            network=network,
            output_shapes=[*task.output_shapes(description, signature), *description.model.state_shapes],
            output_names=task.output_names(signature),
            learns=learns,
            set_values=partial(signature.set_initial_values, description.model),
            tables=TableOptions(
                sparse_from(description),
                sparse_samples(description),
                remote_rows,
                task.training_shapes(description, signature),
            ),
        )
    except WrongOutputs as error:
        note = dataset.note_on_values() if isinstance(dataset, GivenDataset) else ""
        raise ConfigError(f"dataset: {note}" if note else str(error)) from error
    warn_dense_gradients(description, prepared)
    if remote_rows:
        require_tables(prepared.network)
    if description.model.weights:
        for line in str(prepared.weights_report).splitlines():
            log.info("%s", line)
    if prepared.additions is not None:
        log.info("%s", describe_additions(prepared))
    spec = description.distillation
    # Only the loss of training reads the features; a network that only predicts needs no further outputs.
    if spec.teacher is not None and spec.features and learns:
        expose_layers(prepared.network, list(spec.features), "distillation.features")
    return hybridize(prepared.network)


def describe_additions(prepared: Prepared) -> str:
    """Returns a sentence on the parameters that are trained with `model.lora`."""
    assert prepared.additions is not None
    added, trained = prepared.additions.parameters, prepared.additions.trained
    parameters = distinct_parameters(prepared.network)
    sizes = {name: math.prod(one.shape) for name, one in parameters.items()}
    trained = [name for name in trained if name in parameters and is_trained(parameters[name])]
    count, total = sum(sizes[name] for name in trained), sum(sizes.values())
    others = sorted(set(trained) - set(added))
    in_full = f"; in full: {', '.join(others[:4])}{' and others' * (len(others) > 4)}" if others else ""
    num_frozen = len(set(added) - set(trained))
    frozen = f"; model.freeze matches {num_frozen} matrices of additions" if num_frozen else ""
    return (
        f"lora: additions to {len(prepared.additions.layers)} dense layers; {count:,} of {total:,} parameters are "
        f"trained{in_full}{frozen}"
    )


def warn_dense_gradients(description: Description, prepared: Prepared) -> None:
    """Logs why the gradients of large embedding tables are dense: they hold all rows, not those of the batch alone.

    Raises:
        ConfigError: `trainer.sparse_grad=true`, but the network needs a dense gradient.
    """
    reason_against, _ = obstacle(description)
    if description.trainer.sparse_grad is True and prepared.dense_tables:
        raise ConfigError(
            f"trainer.sparse_grad=true: {prepared.dense_tables[0]}. Type trainer.sparse_grad=auto, or look ids up in "
            "an EmbeddingTable and nowhere else."
        )
    reasons = list(prepared.dense_tables)
    if reason_against and description.trainer.sparse_grad == "auto":
        reasons += [reason_against] * any(
            table.num_rows * table.units >= PAYS_FROM for table in tables_of(prepared.network)
        )
    for text in reasons:
        log.info("the gradient of a table of embeddings holds all of its rows: %s", text)


def require_tables(network: gluon.Block) -> None:
    """Verifies that the network has a table whose rows servers can hold.

    Raises:
        ConfigError: it has none.
    """
    if not any(table.remote_rows for table in tables_of(network)):
        advice = getattr(network, "tables_advice", "Type trainer.sparse_grad=true for smaller ones")
        raise ConfigError(
            f"kvstore.tables=servers: no table of this network can have its rows on servers, of those with "
            f"{WORKERS_PAY_FROM:,} numbers or more. {advice}, or kvstore.tables=workers."
        )


def remote_tables(network: gluon.Block) -> List[str]:
    """Returns the structural names of the tables whose rows are held by servers or other workers."""
    weights = [table.weight for table in tables_of(network) if table.remote_rows]
    return [name for name, parameter in distinct_parameters(network).items() if any(parameter is w for w in weights)]


def hybridize(block: gluon.Block) -> gluon.Block:
    """Hybridizes with static memory; a plain gluon.Block only passes that on to its children. Shapes are static, too,
    where an `EngineDependency` can mend what that breaks."""
    block.hybridize(static_alloc=True, static_shape=can_add_dependencies(block))
    return block
