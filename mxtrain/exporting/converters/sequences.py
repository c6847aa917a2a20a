"""Operators of sequences of different lengths."""

from __future__ import annotations

from typing import Sequence

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall


@converts("SequenceMask")
def sequence_mask(call: OperatorCall) -> str:
    if not call.flag("use_sequence_length"):
        return call.x()
    axis, rank = call.axis(default=0), call.rank()
    time, row = [1] * rank, [1] * rank
    time[axis] = row[1 - axis] = -1
    place = call.reshape(call.range_of(call.x(), axis), *time)
    length = call.reshape(call.as_ints(1), *row)
    return call.add("Where", [call.add("Less", [place, length]), call.x(), call.constant(call.number_of("value"))])


@converts("SequenceReverse")
def sequence_reverse(call: OperatorCall) -> str:
    if not call.flag("use_sequence_length"):
        return call.add("Slice", [call.x(), call.ints(-1), call.ints(-(2**31)), call.ints(0), call.ints(-1)])
    return call.add("ReverseSequence", [call.x(), call.as_ints(1)], time_axis=0, batch_axis=1)


@converts("SequenceLast")
def sequence_last(call: OperatorCall) -> str:
    axis = call.axis(default=0)
    if not call.flag("use_sequence_length"):
        last = call.add("Slice", [call.x(), call.ints(-1), call.ints(2**31 - 1), call.ints(axis)])
        return call.squeeze(last, axis)
    x = call.x() if axis else call.transpose(call.x(), 1, 0, *range(2, call.rank()))
    place = call.add("Sub", [call.as_ints(1), call.constant(1, "int64")])
    return call.add("GatherND", [x, call.unsqueeze(place, 1)], batch_dims=1)


@converts("_mxtrain_cross_entropy")
def cross_entropy(call: OperatorCall) -> Sequence[str]:
    """Computes -log p of a class, and its mean over all classes; 0 for negative classes."""
    log_p = call.add("LogSoftmax", [call.x()], axis=-1)
    label = call.as_ints(1)
    is_counted = call.cast(call.add("GreaterOrEqual", [label, call.constant(0, "int64")]), "float32")
    place = call.unsqueeze(call.add("Max", [label, call.constant(0, "int64")]), -1)
    label_log_p = call.squeeze(call.add("GatherElements", [log_p, place], axis=-1), -1)
    mean = call.add("ReduceMean", [log_p], axes=[-1], keepdims=0)
    weight = call.add("Neg", [is_counted])
    return [call.add("Mul", [one, weight]) for one in (label_log_p, mean)]
