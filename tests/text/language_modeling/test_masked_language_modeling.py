"""Hidden tokens: what the network returns for them, and which losses count those that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.text.language_modeling.masked_language_modeling import MaskedLanguageModeling
from mxtrain.text.signature import TextSignature
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import WordPiece
from mxtrain.types import Batch

TASK = MaskedLanguageModeling()
TOKENIZER = TokenizerConfig(WordPiece(("x", "y", "z"), True), 20, 0.2)
SIGNATURE = TextSignature(((20,), (20,), (), (TOKENIZER.num_masked,)), tokenizer_config=TOKENIZER)


def test_a_score_for_each_token_of_the_vocabulary_at_each_hidden_position() -> None:
    assert TASK.num_classes(SIGNATURE) == 3
    assert TASK.output_shapes(None, SIGNATURE) == [(TOKENIZER.num_masked, 3)] and TOKENIZER.num_masked > 1
    found = TASK.decode((nd.array([[[0, 2, 1], [3, 0, 0]]]),), Batch((), (), 1))
    np.testing.assert_array_equal(found.asnumpy(), [[1, 0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (["loss._target_=mxnet.gluon.loss.SoftmaxCELoss"], "would count positions without a hidden token"),
        (
            ["loss._target_=tests_own.loss", "loss.label_smoothing=0.1"],
            "is given token indices, which cannot be smoothed. Type loss.label_smoothing=0.",
        ),
    ],
)
def test_losses_that_cannot_be_right_are_refused(describe_run, monkeypatch, tmp_path, words, said) -> None:
    (tmp_path / "tests_own.py").write_text("def loss():\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        describe_run("task=masked_language_modeling", *words)
