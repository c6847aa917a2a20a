"""Loads weights from a file into a network and reports which arrays matched."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.errors import WeightsError
from mxtrain.model.foreign.importing import Imported, import_foreign
from mxtrain.model.foreign.safetensors_file import is_safetensors
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.params_file import read_params, without_module_prefix
from mxtrain.model.symbol.structure import NoMatch, is_by_structure
from mxtrain.model.weights_report import ClassRows, WeightsReport, brief

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

Rows = Tuple[List[int], List[int]]
"""Output rows of a layer in the network, and the rows of the file from which they are loaded."""
CHECK_MODEL = "Check that model= and model.name= are the ones of the file."
MIN_MATCHED = 0.5
"""Smallest fraction of the network's arrays that must be in the file. With fewer, names only match by chance."""


def load_weights(
    network: gluon.Block, path: Union[str, Path], classes_in_file: Sequence[str] = (), classes: Sequence[str] = ()
) -> WeightsReport:
    """Loads the arrays of a file into the network: a `.params` file, or safetensors of a library of PyTorch.

    Structural names (`features.0.weight`) are matched exactly, or within a part of the network. Full names of older
    files (`resnetv10_conv0_weight`) and of Module and `export` (`arg:...`, `aux:...`) are matched by prefix, or by
    layer numbers if that is unambiguous. Layers for another number of classes keep their current values; layers in the
    network's `class_heads` load the outputs without a class and those of classes with equal names. Parameters listed in
    the network's `computed` follow from its description and are not loaded; those in `ones` are 1, whatever the file
    holds. Rows of classes in its `class_row_names` are loaded if the file has as many. The network's `backbone_names`
    translates the names of files that contain only the backbone. Names of PyTorch's libraries are translated by the
    tables in `foreign/families`; such a file must hold all of the network but its head.

    Args:
        network: initialised block with known shapes.
        path: path of the file.
        classes_in_file: names of the classes in the file, in the order of their scores; empty if unknown.
        classes: class names of the network.

    Returns:
        The report.

    Raises:
        WeightsError: the file is damaged, a shape does not fit, or nothing in it fits.
    """
    # Read by our own parser: MXNet's reader trusts the lengths in a file, and a damaged one ends the process.
    imported = import_foreign(path, network) if is_safetensors(path) else Imported(read_params(path))
    arrays = _with_network_names(network, imported.arrays)
    parameters = network._collect_params_with_prefix()
    computed = {name: parameters.pop(name) for name in getattr(network, "computed", ())}
    match = _Match(parameters, arrays, _match_names(parameters, arrays))
    remarks = list(imported.remarks)
    if len(match.file_names) < len(parameters) and is_by_structure(arrays) and not is_by_structure(parameters):
        by_structure = _match_layers(network, path, match)
        if by_structure:
            match = replace(match, file_names=by_structure)
            remarks.append("its names follow the structure of a Gluon network: matched to layers by shapes and order")
    _require_any(path, match, imported.hint)
    class_parameters = _training_class_parameters(network, match)
    match = replace(match, file_names={**match.file_names, **class_parameters})
    rows = _adapted_rows(network, path, match, classes_in_file, classes)
    names = list(match.file_names)
    misfits = [name for name in names if match.file_shape(name) != match.shape(name) and name not in rows]
    other_classes = [
        name for name in class_parameters if name in misfits and match.shape(name)[1:] == match.file_shape(name)[1:]
    ]
    replaced = [*_replaceable(network, match, misfits), *other_classes]
    _require_fit(path, match, [name for name in misfits if name not in replaced], imported.hint)
    matched = [name for name in names if name not in replaced and name not in rows]
    loaded = {id(parameters[name]) for name in names}
    used = set(match.file_names.values())
    shared_paths = {*parameters, *computed}  # a shared array is in the file under each of its names
    left = [name for name in parameters if id(parameters[name]) not in loaded]
    unused = [*imported.unused, *(name for name in arrays if name not in used and name not in shared_paths)]
    # All checks precede the first write, so that an error leaves the network unchanged.
    imported.require_whole(path, left, unused)
    _require_whole_graph(network, path, [parameters[name].name for name in left])
    _check_finite(path, {match.file_names[name]: match.array(name) for name in (*matched, *rows)})
    _write(network, match, matched, rows)
    remarks += [
        f"'{class_parameters[name]}' has {match.file_shape(name)[0]:,} rows, one for each of its classes, and "
        f"'{name}' has {match.shape(name)[0]:,}: it starts anew"
        for name in other_classes
    ]
    return WeightsReport(
        path=str(path),
        matched=matched,
        replaced=replaced,
        left=left,
        unused=unused,
        adapted=list(rows),
        reused=[name for name in classes if name in classes_in_file] if rows else [],
        names_classes=bool(classes_in_file),
        remarks=remarks,
        dropped=imported.dropped,
    )


@dataclass(frozen=True)
class _Match:
    """Parameters of a network, arrays of a file, and the pairs of both.

    Attributes:
        parameters: structural name -> parameter.
        arrays: name in the file -> array.
        file_names: structural name -> name in the file, for all names that match.
    """

    parameters: Mapping[str, gluon.Parameter]
    arrays: Mapping[str, np.ndarray]
    file_names: Mapping[str, str]

    def array(self, name: str) -> np.ndarray:
        """Returns the array in the file for a parameter."""
        return self.arrays[self.file_names[name]]

    def shape(self, name: str) -> Tuple[int, ...]:
        """Returns the shape of a parameter; that of the whole table if servers hold its rows."""
        parameter = self.parameters[name]
        return tuple(getattr(parameter, "whole_shape", parameter.shape))

    def file_shape(self, name: str) -> Tuple[int, ...]:
        """Returns the shape of the array in the file for a parameter."""
        return tuple(self.array(name).shape)


def _require_any(path: Union[str, Path], match: _Match, hint: str) -> None:
    """Raises a `WeightsError` if no name matches."""
    if match.file_names:
        return
    raise WeightsError(
        f"Nothing in the weights file {path} fits the network: the file has {brief(list(match.arrays))}; the "
        f"network has {brief(list(match.parameters))}. {CHECK_MODEL}{hint}"
    )


def _require_fit(path: Union[str, Path], match: _Match, misfits: Sequence[str], hint: str) -> None:
    """Raises a `WeightsError` if an array has a wrong shape, or most parameters are not in the file.

    Args:
        path: path of the file.
        match: pairs of parameters and arrays.
        misfits: parameters whose arrays in the file have a wrong shape.
        hint: sentence that is appended to the message.
    """
    if misfits:
        name = misfits[0]
        raise WeightsError(
            f"The weights file {path} does not fit the network: '{name}' has the shape "
            f"{match.shape(name)}, but '{match.file_names[name]}' in the file has "
            f"{match.file_shape(name)}. Only the number of classes of the last layer may differ.{hint}"
        )
    # A few names match by chance; the network would then train from nearly random weights, without a warning.
    if len(match.file_names) < len(match.parameters) * MIN_MATCHED:
        raise WeightsError(
            f"Only {len(match.file_names)} of the network's {len(match.parameters)} arrays are in the weights file "
            f"{path}, which has {len(match.arrays)}: {brief(list(match.file_names))}. {CHECK_MODEL}{hint}"
        )


def _write(network: gluon.Block, match: _Match, matched: Sequence[str], rows: Mapping[str, Rows]) -> None:
    """Writes arrays of the file into the network.

    Args:
        network: the network.
        match: pairs of parameters and arrays.
        matched: parameters to write completely.
        rows: parameter -> rows to write.
    """
    remote = {table.weight: table for table in tables_of(network) if table.remote_rows}
    for name in matched:
        parameter = match.parameters[name]
        if parameter in remote:
            remote[parameter].loaded = match.array(name)  # the servers do not run yet
        else:
            _set(parameter, match.array(name))
    # By full names: structural ones of a graph lack the prefix that all of its parameters share.
    ones = getattr(network, "ones", ())
    for parameter in match.parameters.values():
        if parameter.name in ones:
            parameter.set_data(parameter.list_data()[0].ones_like())
    for name, (network_rows, file_rows) in rows.items():
        array = match.parameters[name].list_data()[0].asnumpy()
        array[network_rows] = match.array(name)[file_rows]
        _set(match.parameters[name], array)


def _training_class_parameters(network: gluon.Block, match: _Match) -> Dict[str, str]:
    """Returns parameter -> name in the file, for parameters with a row per class that only training uses, such as
    centres of classes.

    They are those of the network's `class_row_names`, unless another parameter is loaded from this name.
    """
    wanted: Mapping[str, str] = getattr(network, "class_row_names", {})
    used = set(match.file_names.values())
    plain = {without_module_prefix(name): name for name in match.arrays if name not in used}
    return {name: plain[other] for name, other in wanted.items() if other in plain and name not in match.file_names}


def _with_network_names(network: gluon.Block, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Renames the arrays of a backbone file to names in the network, by the network's `backbone_names`.

    Returns the arrays unchanged if the file is not a backbone. A network that reads files of another form has
    `convert_arrays`, which returns their arrays under its own names.
    """
    if hasattr(network, "convert_arrays"):
        arrays = network.convert_arrays(arrays)
    file_names: Mapping[str, str] = getattr(network, "backbone_names", {})
    network_names = {file_name: name for name, file_name in file_names.items()}
    plain = {name: without_module_prefix(name) for name in arrays}
    num_known = sum(name in network_names for name in plain.values())
    if not network_names or num_known < len(network_names) * MIN_MATCHED:
        return arrays
    return {network_names.get(plain[name], name): array for name, array in arrays.items()}


def _match_layers(network: gluon.Block, path: Union[str, Path], match: _Match) -> Dict[str, str]:
    """Returns structural name -> name in the file, for a graph and a file of Gluon's `save_parameters`; nothing if they
    cannot be matched, and names match already.

    Args:
        network: block of a graph; it has `match_structure` if its graph may be that of a Gluon network.
        path: path of the file.
        match: parameters, arrays, and the pairs of equal names.

    Raises:
        WeightsError: they cannot be matched.
    """
    names = {parameter.name: name for name, parameter in match.parameters.items()}
    reason = "this graph is not that of a Gluon network"
    if hasattr(network, "match_structure"):
        try:
            found = network.match_structure({name: array.shape for name, array in match.arrays.items()}, names)
            return {names[name]: file_name for name, file_name in found.items() if name in names}
        except NoMatch as error:
            reason = str(error)
    if match.file_names:
        return {}
    raise WeightsError(
        f"The weights file {path} names its arrays by the structure of a Gluon network ({brief(list(match.arrays))}), "
        f"and the graph by its layers ({brief(list(match.parameters))}), and which belong together is not known: "
        f"{reason}. Load them into the Gluon network, and write both files by network.export('old'); or type the "
        "model=OPTION that made them."
    )


def _require_whole_graph(network: gluon.Block, path: Union[str, Path], left: Sequence[str]) -> None:
    """Checks that weights of a graph lack arrays of its `new_layers` only, and scales that it fixes.

    Raises:
        WeightsError: they lack others, which would start from random values, or statistics from none.
    """
    if not hasattr(network, "new_layers"):
        return
    lacking = [name for name in left if name not in network.new_layers and name not in network.ones]
    if lacking:
        raise WeightsError(
            f"The weights file {path} lacks {len(lacking)} arrays that the graph needs: {brief(lacking)}. Give the "
            "file that was saved with this graph, or name a layer in front of them by model.output=."
        )


def _adapted_rows(
    network: gluon.Block,
    path: Union[str, Path],
    match: _Match,
    classes_in_file: Sequence[str],
    classes: Sequence[str],
) -> Dict[str, Rows]:
    """Returns parameter -> `Rows` for class heads whose classes differ from those of the file.

    Raises:
        WeightsError: `classes_in_file` has another length than the number of classes in the file.
    """
    adapted: Dict[str, Rows] = {}
    for layer, layout in getattr(network, "class_heads", {}).items():
        for name in (f"{layer}{dot}{role}" for dot in "._" for role in ("weight", "bias")):
            if name not in match.file_names:
                continue
            shape, file_shape = match.shape(name), match.file_shape(name)
            num_classes = layout.num_classes(shape[0])
            file_classes = layout.num_classes(file_shape[0] if file_shape else 0)
            if num_classes is None or file_classes is None or shape[1:] != file_shape[1:]:
                continue  # the caller handles it as a mismatch of shapes
            if classes_in_file and len(classes_in_file) != file_classes:
                raise WeightsError(
                    f"The weights file {path} scores {file_classes} classes, but model.weights_classes names "
                    f"{len(classes_in_file)}. Name all classes of the file, in its order, or type "
                    "model.weights_classes=null."
                )
            if list(classes_in_file or classes) != list(classes) or num_classes != file_classes:
                pairs = [(i, classes_in_file.index(name)) for i, name in enumerate(classes) if name in classes_in_file]
                adapted[name] = _rows_to_copy(layout, num_classes, file_classes, pairs)
    return adapted


def _rows_to_copy(layout: ClassRows, num_classes: int, file_classes: int, pairs: Sequence[Tuple[int, int]]) -> Rows:
    """Returns rows of the network and the corresponding rows of the file, for outputs that can be copied.

    Outputs without a class are always copied, outputs of a class only if it is in `pairs`.

    Args:
        layout: layout of the layer.
        num_classes, file_classes: number of classes in the network and in the file.
        pairs: (index in the network, index in the file) of the classes that both have.
    """
    leading, width = layout.leading, layout.per_class
    class_pairs = [tuple(leading + index * width + i for index in pair) for pair in pairs for i in range(width)]
    copied = [*((index, index) for index in range(leading)), *class_pairs]
    network_rows, file_rows = (
        [group * (leading + count * width) + pair[side] for group in range(layout.groups) for pair in copied]
        for side, count in ((0, num_classes), (1, file_classes))
    )
    return network_rows, file_rows


def _set(parameter: gluon.Parameter, array: np.ndarray) -> None:
    from mxtrain.engine.backend import nd

    parameter.set_data(nd.array(array, dtype=parameter.dtype))


def _check_finite(path: Union[str, Path], arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WeightsError(
                f"The weights file {path} holds values that are not finite in '{name}': the run that wrote it had "
                "diverged, or the file is damaged. Use an earlier file."
            )


def _match_names(parameters: Mapping[str, gluon.Parameter], arrays: Mapping[str, np.ndarray]) -> Dict[str, str]:
    """Returns structural name -> name in the file, for all names that match."""
    plain: Mapping[str, str] = {without_module_prefix(name): name for name in arrays}
    if len(plain) != len(arrays):  # an argument and an auxiliary state have the same name: keep the prefixes
        plain = {name: name for name in arrays}
    plain = _as_part(parameters, plain)
    structural = {name: plain[name] for name in parameters if name in plain}
    # A dot only occurs in structural names (Gluon has the same rule). These must match exactly.
    if structural or any("." in name for name in plain):
        return structural
    legacy: Dict[str, str] = {}  # full name -> structural name, the first one if several layers share a parameter
    for name, parameter in parameters.items():
        legacy.setdefault(parameter.name, name)
    by_full_name = {legacy[name]: plain[name] for name in plain if name in legacy}
    if by_full_name:
        return by_full_name
    file_rest, network_rest = _without_common_prefix(plain), _without_common_prefix(legacy)
    by_rest = {legacy[network_rest[rest]]: plain[file_rest[rest]] for rest in file_rest if rest in network_rest}
    # Gluon counts blocks over the whole process, so the same network may be dense0 or dense4.
    numbered = _match_by_number(list(file_rest), list(network_rest))
    if numbered is not None:
        # The layers are the same, only the counters in their names differ, e.g. dense4 and dense0.
        return {legacy[network_rest[name]]: plain[file_rest[file_name]] for name, file_name in numbered.items()}
    return by_rest


def _as_part(parameters: Mapping[str, gluon.Parameter], plain: Mapping[str, str]) -> Mapping[str, str]:
    """Adds or removes a prefix of the file's names, if one network is a part of the other.

    For example, a file of an encoder has `encoder.` where a classifier has `bert.encoder.`. The prefix with the most
    matches wins.
    """
    outer = sorted({name.split(".")[0] for name in parameters if "." in name})
    inner = sorted({name.split(".")[0] for name in plain if "." in name})
    candidates = [
        plain,
        *[{f"{part}.{name}": file_name for name, file_name in plain.items()} for part in outer],
        *[
            {name[len(part) + 1 :]: file_name for name, file_name in plain.items() if name.startswith(f"{part}.")}
            for part in inner
        ],
    ]
    return max(candidates, key=lambda candidate: sum(name in candidate for name in parameters))


def _without_common_prefix(names: Collection[str]) -> Dict[str, str]:
    """Returns {rest: name} without the prefix that all names share, e.g. `resnetv10_`."""
    common = commonprefix(list(names)) if len(names) > 1 else ""
    common = common[: common.rfind("_") + 1]
    return {name[len(common) :]: name for name in names}


def _match_by_number(file_names: List[str], network_names: List[str]) -> Optional[Dict[str, str]]:
    """Returns network name -> file name, for names that differ only in numbers; None if other parts differ."""

    def by_kind(names: List[str]) -> Dict[str, List[str]]:
        kinds = defaultdict(list)
        for name in names:
            kinds[re.sub(r"\d+", "#", name)].append(name)
        return {kind: sorted(group, key=_numbers) for kind, group in kinds.items()}

    file_kinds, network_kinds = by_kind(file_names), by_kind(network_names)
    if {kind: len(group) for kind, group in file_kinds.items()} != {k: len(g) for k, g in network_kinds.items()}:
        return None
    return {name: other for kind, group in network_kinds.items() for name, other in zip(group, file_kinds[kind])}


def _numbers(name: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _replaceable(network: gluon.Block, match: _Match, misfits: Sequence[str]) -> List[str]:
    """Returns the mismatched parameters of layers with one output per class: the last layer and auxiliary heads."""
    head = _last_layer(network)
    if head is None or f"{head}.weight".lstrip(".") not in misfits:
        return []
    head_weight = f"{head}.weight".lstrip(".")
    num_rows, file_rows = match.shape(head_weight)[0], match.file_shape(head_weight)[0]
    layers = _layers_with_weights(network)

    def differs_in_classes_only(name: str) -> bool:
        shape, file_shape = match.shape(name), match.file_shape(name)
        layer = name.rpartition(".")[0]
        return (
            layer in layers
            and (shape[0], file_shape[:1]) == (num_rows, (file_rows,))
            and shape[1:] == file_shape[1:]
            and name.rpartition(".")[2] in ("weight", "bias")
        )

    return [name for name in misfits if differs_in_classes_only(name)]


def _layers_with_weights(network: gluon.Block) -> List[str]:
    from mxtrain.engine.backend import gluon
    from mxtrain.model.graph.trace import blocks_by_path

    kinds = (gluon.nn.Dense, gluon.nn.conv_layers._Conv)
    return [path for path, block in blocks_by_path(network) if isinstance(block, kinds)]


def _last_layer(network: gluon.Block) -> Optional[str]:
    layers = _layers_with_weights(network)
    return layers[-1] if layers else None
