"""Names of published weights: of GluonCV, GluonNLP and the Hugging Face Hub. Opens no weights (`weights_files`).

Checksums are read from the source of the installed GluonCV with `ast`, because importing it imports MXNet.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Tuple

from mxtrain.errors import did_you_mean
from mxtrain.files.regular_files import read_regular_text

PRETRAINED = "pretrained"
"""Means the published weights of the network that is described."""
HUB = "hf:"
"""Beginning of `model.weights` for names of the Hub."""
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(?:@[A-Za-z0-9][\w./-]*)?")
LATEST = "main"
"""Revision of names without one."""

REPOSITORY = "MXNET_GLUON_REPO"
"""The variable that names another server than the official one."""
OFFICIAL = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/"

GLUONNLP_SHA1: Mapping[str, str] = {
    "bert_12_768_12_book_corpus_wiki_en_cased": "5656dac6965b5054147b0375337d5a6a7a2ff832",
    "bert_12_768_12_book_corpus_wiki_en_uncased": "75cc780f085e8007b3bf6769c6348bb1ff9a3074",
    "bert_12_768_12_openwebtext_book_corpus_wiki_en_uncased": "a56e24015a777329c795eed4ed21c698af03c9ff",
    "bert_12_768_12_wiki_multilingual_uncased": "237f39851b24f0b56d70aa20efd50095e3926e26",
    "bert_12_768_12_wiki_multilingual_cased": "b0f57a207f85a7d361bb79de80756a8c9a4276f7",
    "bert_12_768_12_wiki_cn_cased": "885ebb9adc249a170c5576e90e88cfd1bbd98da6",
    "bert_12_768_12_scibert_scivocab_uncased": "6c82d963fc8fa79c35dd6cb3e1725d1e5b6aa7d7",
    "bert_12_768_12_scibert_scivocab_cased": "adf9c81e72ac286a37b9002da8df9e50a753d98b",
    "bert_12_768_12_scibert_basevocab_uncased": "75acea8e8386890120533d6c0032b0b3fcb2d536",
    "bert_12_768_12_scibert_basevocab_cased": "8e86e5de55d6dae99123312cd8cdd8183a75e057",
    "bert_12_768_12_biobert_v1.0_pmc_cased": "a07780385add682f609772e81ec64aca77c9fb05",
    "bert_12_768_12_biobert_v1.0_pubmed_cased": "280ad1cc487db90489f86189e045e915b35e7489",
    "bert_12_768_12_biobert_v1.0_pubmed_pmc_cased": "8a8c75441f028a6b928b11466f3d30f4360dfff5",
    "bert_12_768_12_biobert_v1.1_pubmed_cased": "55f15c5d23829f6ee87622b68711b15fef50e55b",
    "bert_12_768_12_clinicalbert_uncased": "60281c98ba3572dfdaac75131fa96e2136d70d5c",
    "bert_12_768_12_kobert_news_wiki_ko_cased": "ccf0593e03b91b73be90c191d885446df935eb64",
    "bert_24_1024_16_book_corpus_wiki_en_cased": "4e685a966f8bf07d533bd6b0e06c04136f23f620",
    "bert_24_1024_16_book_corpus_wiki_en_uncased": "24551e1446180e045019a87fc4ffbf714d99c0b5",
    "transformer_en_de_512_WMT2014": "e25287c5a924b7025e08d626f02626d5fa3af2d1",
}
"""SHA-1 of its networks that mxtrain can build. Source: gluonnlp 0.10.0, model/bert.py and transformer.py. The package
is not needed."""


class HubName(NamedTuple):
    """A repository of the Hub at a revision."""

    repository: str
    revision: str


def parse_hub_name(weights: str) -> HubName:
    """Splits `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`.

    Raises:
        ValueError: it is no such name.
    """
    name = weights[len(HUB) :]
    # The cache writes a slash of the repository as "--".
    if not HUB_NAME.fullmatch(name) or ".." in name or "--" in name.partition("@")[0]:
        raise ValueError(
            f"weights={weights} is no name of the Hugging Face Hub. Type model.weights=hf:ORG/NAME, e.g. "
            "hf:timm/resnet50.gluon_in1k, with @REVISION behind it if it is not the latest"
        )
    repository, _, revision = name.partition("@")
    return HubName(repository, revision or LATEST)


def published_sha1(library: str) -> Mapping[str, str]:
    """Returns the SHA-1 of each published weights file, by name of the network.

    Args:
        library: gluoncv or gluonnlp.
    """
    return GLUONNLP_SHA1 if library == "gluonnlp" else _gluoncv_sha1()


@functools.cache
def _gluoncv_sha1() -> Mapping[str, str]:
    """Returns name -> SHA-1 of the weights of the installed GluonCV; empty if it is not installed.

    Reads the table from the source code, because importing GluonCV would import MXNet.
    """
    spec = importlib.util.find_spec("gluoncv")
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse(read_regular_text(Path(spec.origin).parent / "model_zoo" / "model_store.py"))
    pairs: Dict[str, str] = {}
    for node in ast.walk(tree):
        elements = node.elts if isinstance(node, ast.Tuple) else []
        words = [element.value for element in elements if isinstance(element, ast.Constant)]
        if len(words) == 2 and re.fullmatch("[0-9a-f]{40}", str(words[0])):
            pairs[str(words[1])] = str(words[0])
    return pairs


def split_name(weights: str) -> Tuple[str, str]:
    """Splits `gluoncv:NAME` or `gluonnlp:NAME` into library and name; returns ("", "") for a path."""
    library, colon, name = weights.partition(":")
    return (library, name) if colon and library in ("gluoncv", "gluonnlp") else ("", "")


def require_published(weights: str, network_weights: str) -> str:
    """Resolves `model.weights` to `gluoncv:NAME`, `gluonnlp:NAME`, `hf:ORG/NAME` or a path.

    Args:
        weights: `model.weights`.
        network_weights: name of the published weights of the described network; empty if there are none.

    Raises:
        ValueError: there are no such published weights; the message lists those that exist.
    """
    if weights.startswith(HUB):
        parse_hub_name(weights)
        return weights
    if weights == PRETRAINED and not network_weights:
        raise ValueError(
            "weights=pretrained: GluonCV and GluonNLP publish no weights of this network. Type model.weights=PATH, "
            "model.weights=gluoncv:NAME or gluonnlp:NAME, or choose one of their networks, e.g. model.name=resnet18_v1"
        )
    resolved = network_weights if weights == PRETRAINED else weights
    library, name = split_name(resolved)
    if library and name not in published_sha1(library):
        names = list(published_sha1(library))
        longer = [candidate for candidate in names if candidate.startswith(f"{name}_")]
        near = f" It has {', '.join(longer)}." if longer else did_you_mean(name, names)
        example = longer[0] if longer else "resnet18_v1" if library == "gluoncv" else names[1]
        raise ValueError(
            f"weights={weights}: {library} publishes no weights of '{name}'.{near} Type model.weights=PATH or e.g. "
            f"model.weights={library}:{example}"
        )
    return resolved


def repository() -> str:
    """Returns the address of MXNet's files, which ends in a slash."""
    return (os.environ.get(REPOSITORY) or OFFICIAL).rstrip("/") + "/"
