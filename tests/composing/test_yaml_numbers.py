"""Numbers that YAML 1.1 reads in another base: refused in every YAML file of a user."""

import pytest
import yaml

from mxtrain.composing.composer import Composer
from mxtrain.composing.ranges import read_space_file
from mxtrain.composing.yaml_numbers import OtherBase, strict
from mxtrain.errors import ConfigError


@pytest.mark.parametrize(
    "text, said",
    [
        ("010", "010 is 8 in YAML. Write 10, or 8, or '010'"),
        ("-017", "-017 is -15 in YAML. Write -17, or -15"),
        ("0x10", "0x10 is 16 in YAML. Write 16"),
        ("0b11", "0b11 is 3 in YAML. Write 3"),
        ("1:30", "1:30 is 90 in YAML. Write 90"),
        ("1:30.5", "1:30.5 is 90.5"),
        ("0_10", "0_10 is 8"),
        ("07", "07 is 7 in YAML. Write 7, or '07'"),
        ("00", "00 is 0 in YAML. Write 0, or '00'"),
    ],
)
def test_refused(text, said) -> None:
    for content in (text, f"[1, {text}]", f"a:\n  b: {text}", f"{text}: 1"):
        with pytest.raises(OtherBase, match=said):
            yaml.load(content, strict(yaml.SafeLoader))


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0),
        ("10", 10),
        ("-3", -3),
        ("1_000", 1000),
        ("0.5", 0.5),
        ("1.0e-3", 1e-3),
        ("'010'", "010"),
        ("08", "08"),
        (".5", 0.5),
        ("a:b", "a:b"),
        ("true", True),
        ("0.10", 0.1),
    ],
)
def test_plain_numbers_keep_type_and_value(text, value) -> None:
    found = yaml.load(f"a: {text}", strict(yaml.SafeLoader))["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.slow
def test_experiments_and_spaces(tmp_path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text("# @package _global_\ntrainer:\n  max_epochs: 010\n")
    with Composer([str(tmp_path)]) as composer:
        with pytest.raises(ConfigError, match="mine.yaml:3: 010 is 8 in YAML. Write 10, or 8"):
            composer.compose(["experiment=mine"])
        (folder / "mine.yaml").write_text("# @package _global_\ntrainer:\n  max_epochs: 10\noptimizer:\n  lr: 1e-2\n")
        config = composer.compose(["experiment=mine"]).config
        assert config["trainer"]["max_epochs"] == 10 and config["optimizer"]["lr"] == 0.01
        (tmp_path / "space.yaml").write_text("optimizer.lr: log(1e-4,1e-1)\ntrainer.max_epochs: 0x10\n")
        with pytest.raises(ConfigError, match="space.yaml: it cannot be read: line 2: 0x10 is 16 in YAML"):
            read_space_file(composer, str(tmp_path / "space.yaml"))


def test_other_readers_of_yaml_are_not_changed() -> None:
    from omegaconf import OmegaConf

    assert OmegaConf.create("a: 010").a == 8
