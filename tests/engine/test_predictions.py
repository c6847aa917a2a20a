"""Predictions of a batch are decoded once, however many ask, and are never those of another batch."""

import weakref

from mxtrain.engine.predictions import DecodedOnce


class Outputs:
    """Stands for an array."""


def test_each_batch_is_decoded_once():
    asked = []

    def decode(outputs, batch):
        asked.append(batch)
        return outputs, batch

    decode_once = DecodedOnce(decode)
    first, second = (1,), (2,)
    for outputs, batch in ((first, "a"), (first, "a"), (second, "b"), (second, "b"), (first, "c")):
        assert decode_once(outputs, batch)[0] is outputs
    assert asked == ["a", "b", "c"]


def test_evaluation_keeps_no_arrays_of_a_batch():
    outputs, decode_once = (Outputs(),), DecodedOnce(lambda outputs, batch: outputs[0])
    decode_once(outputs, "a")
    kept = weakref.ref(outputs[0])
    decode_once.forget()
    del outputs
    assert kept() is None
