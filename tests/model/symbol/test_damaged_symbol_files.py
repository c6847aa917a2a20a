"""Damaged and swapped files of networks: one sentence with what to type, exit code 2, and no run."""

import json
import re
import tarfile

import pytest
from symbol_files import described, features, prepared, write

from mxtrain.cli.dispatch import run
from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError, WeightsError


@pytest.fixture
def prefix(tmp_path):
    return write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))


@pytest.mark.parametrize("tenth", range(10))
def test_graphs_that_end_early_are_refused(tmp_path, prefix, tenth):
    graph = tmp_path / "old-symbol.json"
    text = graph.read_text()
    graph.write_text(text[: len(text) * tenth // 10])
    with pytest.raises(ConfigError, match="old-symbol.json is damaged, or no graph of a symbol: it is (empty|no JSON)"):
        prepared(prefix=prefix)


@pytest.mark.parametrize("tenth", range(10))
def test_weights_that_end_early_are_refused(tmp_path, prefix, tenth):
    weights = tmp_path / "old-0003.params"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) * tenth // 10])
    with pytest.raises(WeightsError, match="old-0003.params is damaged or no MXNet .params file: it (is empty|ends)"):
        prepared(prefix=prefix)


def test_swapped_files_are_refused(prefix):
    graph, weights = f"{prefix}-symbol.json", f"{prefix}-0003.params"
    with pytest.raises(ConfigError, match="0003.params is no text, so it is no graph. Weights belong into model.weig"):
        prepared(symbol=weights, weights=graph)
    with pytest.raises(WeightsError, match="symbol.json is damaged or no MXNet .params file"):
        prepared(symbol=graph, weights=graph)


ARCHIVES = [
    ([".json"], "is an archive without a .params file"),
    ([".params"], "holds 0 files *-symbol.json: none. One is needed"),
    ([".json", ".params", "more"], "holds 2 files *-symbol.json: old-symbol.json, more-symbol.json. One is needed"),
]


@pytest.mark.parametrize("names, message", ARCHIVES)
def test_archives_without_one_network_are_refused(tmp_path, prefix, names, message):
    archive = tmp_path / "model.tar.gz"
    members = {".json": "old-symbol.json", ".params": "old-0003.params"}
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            tar.add(tmp_path / members.get(name, "old-symbol.json"), members.get(name, f"{name}-symbol.json"))
    with pytest.raises((ConfigError, WeightsError)) as caught:
        prepared(symbol=str(archive))
    assert message in str(caught.value)


@pytest.mark.parametrize("tenth", range(10))
def test_archives_that_end_early_are_refused(tmp_path, prefix, tenth):
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("old-symbol.json", "old-0003.params"):
            tar.add(tmp_path / name, name)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) * tenth // 10])
    with pytest.raises(ConfigError, match="is no archive: |is an archive that ends early"):
        prepared(symbol=str(archive))


def test_outputs_that_a_layer_lacks_are_refused(tmp_path, prefix):
    """MXNet reads other memory for them, which may end the process."""
    with pytest.raises(ConfigError, match="layer 'fc1' .FullyConnected. has 1 outputs, .* its output 7 is used"):
        described(prefix=prefix, output="fc1_output7").build(3, (1, 6, 6))
    path = tmp_path / "old-symbol.json"
    graph = json.loads(path.read_text())
    graph["nodes"][-1]["inputs"][0][1] = 5
    path.write_text(json.dumps(graph))
    with pytest.raises(ConfigError, match="layer 'fc1' .* its output 5 is used"):
        described(prefix=prefix, output="softmax").build(3, (1, 6, 6))
    parts = mx.sym.split(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc"), num_outputs=2, name="parts"
    )
    prefix = write(tmp_path, parts, name="parts")
    network = prepared(prefix=prefix, output="parts_output1").network
    assert network._cached_graph[1].list_outputs() == ["parts_output1"]
    with pytest.raises(ConfigError, match="layer 'parts' .SliceChannel. has 2 outputs"):
        described(prefix=prefix, output="parts_output2").build(3, (1, 6, 6))


@pytest.mark.parametrize(
    "name, argument, message",
    [
        ("conv1", "nonsense", "MXNet refuses the graph: [^\n]*Cannot find argument 'nonsense'[^\n]*$"),
        ("conv1_weight", "__lr_mult__", "'conv1_weight' has __lr_mult__=x, which is no number.$"),
        ("conv1_weight", "__wd_mult__", "'conv1_weight' has __wd_mult__=x, which is no number.$"),
    ],
)
def test_impossible_arguments_are_refused_in_one_line(tmp_path, prefix, name, argument, message):
    path = tmp_path / "old-symbol.json"
    graph = json.loads(path.read_text())
    node = next(node for node in graph["nodes"] if node["name"] == name)
    node.setdefault("attrs", {})[argument] = "x"
    path.write_text(json.dumps(graph))
    with pytest.raises(ConfigError) as caught:
        described(prefix=prefix).build(3, (1, 6, 6))
    assert re.fullmatch(f"model.symbol: .*{message}", str(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["old-symbol.json", "old-0003.params"])
def test_nothing_is_written_for_a_damaged_file(tmp_path, prefix, capsys, name):
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    words = [f"hydra.run.dir={tmp_path}/run", "model=symbol", f"model.prefix={prefix}"]
    assert run(words) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("*.params"))
