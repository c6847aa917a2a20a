"""Checks and settings that the families of BERT share."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Callable, List, Mapping, Optional, Tuple

from mxtrain.model.foreign.table import Config, DoesNotFit
from mxtrain.model.graph.trace import blocks_by_path

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

CELL = "encoder.transformer_cells.{0}"
"""A layer in our encoder."""
HEAD_WIDTH = 64
"""Units of a head in all published sizes: what num_heads is, if no config.json says it."""
DEFAULT_EPSILON, DEFAULT_HEADS = 1e-12, 12
"""Of transformers, for settings that config.json leaves out."""
ERF_GELU = ("gelu", "gelu_python")

Check = Callable[[Mapping[str, "np.ndarray"], "gluon.Block", Config], List[str]]


def check_encoder(epsilon: float, activation: str, heads: str, tied: Optional[Tuple[str, str]] = None) -> Check:
    """Returns the check of a family: epsilon, number of heads, GELU and kind of positions are those of config.json.

    Args:
        epsilon: of its layer norms as published, for files without config.json.
        activation: name of the activation in config.json.
        heads: name of the number of heads in config.json.
        tied: names of the output layer and of the embedding, which must be equal, as ours are one.
    """

    def check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
        wanted = layer_norm_epsilon(config, epsilon)
        for _, block in blocks_by_path(network):
            own = getattr(block, "_epsilon", None)
            if own is not None and not math.isclose(float(own), float(wanted), rel_tol=1e-6):
                raise DoesNotFit(
                    f"its layer norms have the epsilon {wanted:g}, and those of the network {own:g}. Type "
                    f"model.layer_norm_eps={wanted:g}."
                )
            require_heads(block, config, heads)
        if config.get(activation, "gelu") not in ERF_GELU:
            raise DoesNotFit(
                f"config.json says {activation}={config[activation]}; the network computes gelu in the erf form only."
            )
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise DoesNotFit("config.json says relative positions; the network has absolute ones only.")
        require_tied(arrays, tied)
        if config:
            return []
        return [
            f"no config.json beside it: layer norms' epsilon {wanted:g}, the erf form of GELU and the number of heads "
            "were not compared"
        ]

    return check


def layer_norm_epsilon(config: Config, published: float) -> float:
    """Returns the epsilon of layer norms: that of config.json, or without one the published one."""
    return float(config.get("layer_norm_eps", DEFAULT_EPSILON if config else published))


def require_heads(block: gluon.Block, config: Config, name: str) -> None:
    """Checks the number of heads of a block, if it has heads.

    Args:
        block: a block of our network.
        config: see `Config`.
        name: name of the number in config.json.

    Raises:
        DoesNotFit: config.json has another one.
    """
    own = getattr(block, "_num_heads", None)
    wanted = config.get(name, DEFAULT_HEADS) if config else own
    if own is not None and own != wanted:
        raise DoesNotFit(
            f"config.json says {name}={wanted}, and the network has {own} heads. Type model.num_heads={wanted}."
        )


def count_layers(arrays: Mapping[str, np.ndarray], pattern: str) -> int:
    """Returns the number of layers; 1 if there is none.

    Args:
        arrays: the arrays of the file.
        pattern: regular expression for the beginning of the names in a layer, with its number as group.
    """
    numbers = [int(match[1]) for match in (re.match(pattern, name) for name in arrays) if match]
    return 1 + max(numbers, default=0)


def overrides(model: str, settings: Mapping[str, object]) -> str:
    """Returns the overrides for a model with these settings."""
    return " ".join([f"model={model}", *(f"model.{name}={value}" for name, value in settings.items())])


def require_tied(arrays: Mapping[str, np.ndarray], tied: Optional[Tuple[str, str]]) -> None:
    """Checks that two arrays, of which ours is one, are equal.

    Raises:
        DoesNotFit: both are in the file, and differ.
    """
    import numpy as np

    if tied is None or not set(tied) <= set(arrays):
        return
    if not np.array_equal(arrays[tied[0]], arrays[tied[1]]):
        raise DoesNotFit(
            f"'{tied[0]}' and '{tied[1]}' differ; the network's output layer is its embedding, and cannot hold both."
        )


def encoder_settings(
    layers: str, hidden: str, num_special: int = 0, epsilon: float = DEFAULT_EPSILON
) -> Callable[[Mapping[str, np.ndarray], Config], str]:
    """Returns the function that gives the overrides for an encoder of the file's sizes.

    Args:
        layers: regular expression for the name of a layer, with its number as group.
        hidden: end of the name of the first dense layer of the feed-forward sublayer.
        num_special: first rows of the position embedding that no token uses.
        epsilon: of its layer norms as published.
    """

    def settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
        words = arrays["embeddings.word_embeddings.weight"]
        positions = arrays.get("embeddings.position_embeddings.weight", words)
        width = next((array.shape[0] for name, array in arrays.items() if name.endswith(f"{hidden}.weight")), 0)
        heads = config.get("num_attention_heads", config.get("n_heads", max(1, words.shape[1] // HEAD_WIDTH)))
        found = {
            "num_layers": count_layers(arrays, layers),
            "units": words.shape[1],
            "hidden_size": width,
            "num_heads": heads,
            "max_length": positions.shape[0] - num_special,
        }
        eps = layer_norm_epsilon(config, epsilon)
        if eps != DEFAULT_EPSILON:
            found["layer_norm_eps"] = f"{eps:g}"
        return overrides("bert", found)

    return settings
