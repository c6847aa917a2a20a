"""conf/dataset: folders can be moved, and wrong values are refused."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from mxtrain.vision.classification.digits import Digits

CONF = sorted((Path(__file__).resolve().parents[2] / "conf" / "dataset").glob("*.yaml"))


def test_data_folder_can_be_moved(monkeypatch):
    monkeypatch.setenv("MXTRAIN_DATA", "/elsewhere")
    roots = {path.stem: OmegaConf.load(path).get("root") for path in CONF}
    folders = {name: re.sub("coco_(key_points|panoptic)", "coco", name) for name in roots}  # the same images
    assert roots == {name: root and f"/elsewhere/{folders[name]}" for name, root in roots.items()}
    assert [name for name, root in roots.items() if root is None] == [
        "aligned_manifest",
        "breast_cancer",
        "conll",
        "criteo",
        "deepar_lines",
        "digit_angles",
        "digit_key_points",
        "digit_lines",
        "digit_scenes",
        "digit_sets",
        "digits",
        "feature_table",
        "formant_digits",
        "formant_keywords",
        "gymnasium",
        "image_table",
        "imported_names",
        "interactions",
        "item_sequences",
        "kaldi",
        "libsvm",
        "masked_text",
        "match_reports",
        "number_and_date_phrases",
        "number_table",
        "parallel_text",
        "plain_text",
        "speech_manifest",
        "spoken_digits",
        "spoken_numbers",
        "squad",
        "summary_text",
        "synthetic",
        "text",
        "time_series",
        "verification_pairs",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": "64"},
        {"image_size": [8]},
        {"image_size": "big"},
        {"channels": 2},
        {"val_fraction": 0.6, "test_fraction": 0.4},
        {"std": [0.0]},
        {"augment": {"crop_scale": [0.9, 0.1]}},
        {"augment": {"rotate": 5}},
        {"num_workers": 0},
        {"typo": 1},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        Digits.model_validate(wrong)


def test_input_shape_follows_the_description():
    assert Digits().input_shape((1, 8, 8)) == (1, 8, 8)
    assert Digits(channels=3, image_size=[32, 48]).input_shape((1, 8, 8)) == (3, 32, 48)
