#!/usr/bin/env bash
# tokenizers 0.22.2
# Guess: training a WordPiece vocabulary twice from the same texts gives the same vocabulary, as training BPE does.
# What happened: the ids of single letters with the prefix "##" come in the order of a hash table, so they differ from
# training to training, in one process: a model that was trained with one vocabulary reads other letters with the next.
# BPE is the same each time. Naming all letters in initial_alphabet, with and without the prefix, makes it the same.
# Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tokenizers==0.22.2
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import random

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

random.seed(1)
words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(400)]
texts = [" ".join(random.choices(words, k=12)) for _ in range(3000)]
ALPHABET = [prefix + letter for letter in "abcdefghij" for prefix in ("", "##")]


def vocabularies(model, trainer):
    """Returns the number of different vocabularies of eight trainings."""
    found = set()
    for _ in range(8):
        tokenizer = Tokenizer(model())
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(texts, trainer())
        found.add(tuple(sorted(tokenizer.get_vocab().items())))
    return len(found)


def word_piece(**options):
    return trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False, **options)


found = {
    "WordPiece": vocabularies(lambda: models.WordPiece(unk_token="[UNK]"), word_piece),
    "BPE": vocabularies(models.BPE, lambda: trainers.BpeTrainer(vocab_size=200, show_progress=False)),
}
print(f"tokenizers {tokenizers.__version__}: different vocabularies of eight trainings from the same texts")
for name, count in found.items():
    print(f"  {name:10} {count}")
assert found["WordPiece"] > 1 and found["BPE"] == 1
PYTHON
