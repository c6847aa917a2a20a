"""The parameters of a network on the devices of a placement. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Dict, Iterable, List, Mapping

from mxtrain.engine.backend import gluon, nd, same_device_runs
from mxtrain.kvstore.reduction import Reduction
from mxtrain.model.parameters import distinct_parameters, is_trained
from mxtrain.parallel.planner import assign_owners

if TYPE_CHECKING:
    import mxnet as mx


def move(parameter: gluon.Parameter, devices: List[mx.Context]) -> None:
    """Moves a parameter to these devices with exact copies. `reset_ctx` alone would average its present copies."""
    if parameter.list_ctx() != devices:
        value = parameter.list_data()[0].copy()
        parameter.reset_ctx(devices)
        parameter.set_data(value)


class PlacedParameters:
    """Copies of a network's parameters on the devices of their stage, one for each replica.

    Args:
        network: initialised, on one device. Its parameters are moved.
        devices: [replica][stage].
        stage_of: `Parameter.name` -> stage; what no stage reads stays with the first.
        accumulates: whether gradients are summed over backward passes.
        with_first: structural names of parameters that the first replica updates in any case.

    Attributes:
        by_name: structural name -> gluon.Parameter.
        copies: structural name -> its array on each replica.
        values: structural name -> the array that is updated.
        reductions: the gradients of all trained parameters.
    """

    def __init__(
        self,
        network: gluon.Block,
        devices: List[List[mx.Context]],
        stage_of: Mapping[str, int],
        accumulates: bool,
        with_first: Collection[str],
    ):
        self.by_name: Dict[str, gluon.Parameter] = distinct_parameters(network)
        for parameter in self.by_name.values():
            move(parameter, [stages[stage_of.get(parameter.name, 0)] for stages in devices])
        trained = [name for name, parameter in self.by_name.items() if is_trained(parameter)]
        if accumulates:
            # Before `list_grad` below: a new grad_req makes new gradient arrays.
            for name in trained:
                self.by_name[name].grad_req = "add"
        # Arrays, not lookups: Gluon checks contexts at every parameter.grad(), which a small network's step would feel.
        self.copies = {name: parameter.list_data() for name, parameter in self.by_name.items()}
        owners = assign_owners({name: self.copies[name][0].size for name in trained}, len(devices), with_first)
        self.reductions = [Reduction(name, self.by_name[name].list_grad(), owners[name]) for name in trained]
        self.values = {name: arrays[owners.get(name, 0)] for name, arrays in self.copies.items()}
        self._gradient_runs = []
        for replica in range(len(devices)):
            arrays = [reduction.replicas[replica] for reduction in self.reductions]
            self._gradient_runs.append([[arrays[index] for index in run] for run in same_device_runs(arrays)])

    @property
    def structural_names(self) -> Dict[str, str]:
        """Returns the structural names by `Parameter.name`."""
        return {parameter.name: name for name, parameter in self.by_name.items()}

    def zero_gradients(self, replicas: Iterable[int]) -> None:
        """Sets the gradients of some replicas to 0. Asynchronous."""
        for replica in replicas:
            for run in self._gradient_runs[replica]:
                # One operator for all gradients of a device and dtype, because each call into the engine costs time.
                nd.reset_arrays(*run, num_arrays=len(run))

    def gather(self, device: mx.Context) -> None:
        """Moves all parameters to one device."""
        for parameter in self.by_name.values():
            move(parameter, [device])
