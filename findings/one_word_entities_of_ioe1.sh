#!/usr/bin/env bash
# seqeval 1.2.2
# Guess: with mode="strict" and the scheme that the tags are written in, the entities that were written are read.
# What happened: so it is for IOB1, IOB2, IOE2 and IOBES, but not for IOE1, which marks the last word of an entity with
# E if another one of its type follows. An entity of one word that is tagged so, at the start, after O or after another
# type, is not read: of two persons in "E-PER I-PER" one is counted, and a model that misses the other has an F1 of 1.
# The default mode reads both. A comment in the source leaves "some cases" of IOE1 open; a user hears nothing. Source:
# seqeval/scheme.py, IOE1.start_patterns. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q seqeval==1.2.2 numpy==2.4.6 scikit-learn==1.9.1
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, IOE1, IOE2, Tokens


def layouts(length, start=0):
    """Yields each way to place entities of the types A and B, as (type, start, end), on the words from start on."""
    if start == length:
        yield []
        return
    yield from layouts(length, start + 1)
    for end in range(start + 1, length + 1):
        for rest in layouts(length, end):
            yield from ([(type_, start, end), *rest] for type_ in "AB")


def written(entities, length, scheme):
    tags = ["O"] * length
    for type_, start, end in entities:
        tags[start:end] = [f"I-{type_}"] * (end - start)
    for type_, start, end in entities:
        before = any(other[0] == type_ and other[2] == start for other in entities)
        behind = any(other[0] == type_ and other[1] == end for other in entities)
        if scheme in (IOB2, IOBES) or (scheme is IOB1 and before):
            tags[start] = f"B-{type_}"
        if scheme in (IOE2, IOBES) or (scheme is IOE1 and behind):
            tags[end - 1] = f"E-{type_}"
        if scheme is IOBES and end - start == 1:
            tags[start] = f"S-{type_}"
    return tags


print(f"seqeval {importlib.metadata.version('seqeval')}: layouts of up to 5 words whose entities are not those written")
wrong = {}
for scheme in (IOB1, IOB2, IOE1, IOE2, IOBES):
    cases = [(layout, written(layout, length, scheme)) for length in range(1, 6) for layout in layouts(length)]
    read = [[entity.to_tuple()[1:] for entity in Tokens(tags, scheme).entities] for _, tags in cases]
    wrong[scheme] = [tags for (layout, tags), found in zip(cases, read) if layout != found]
    print(f"  {scheme.__name__:5} {len(wrong[scheme])} of {len(cases)}", *wrong[scheme][:2])
tags = ["E-PER", "I-PER"]
strict = Tokens(tags, IOE1).entities
score = f1_score([tags], [["O", "I-PER"]], mode="strict", scheme=IOE1)
print(f"  {tags}: strict {strict}, default {get_entities(tags)}; F1 of a model that finds the second only: {score}")
assert wrong.pop(IOE1) and not any(wrong.values()) and len(strict) == 1 and len(get_entities(tags)) == 2 and score == 1
PYTHON
