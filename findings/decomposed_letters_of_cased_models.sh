#!/usr/bin/env bash
# transformers 5.24.0, tokenizers 0.23.3
# Guess: the two BERT tokenizers of transformers, in Python and by tokenizers, give a cased model the same ids.
# What happened: the one in Python (BertTokenizerLegacy, with a BasicTokenizer that other models have copies of)
# composes characters (NFC), BertNormalizer doesn't. So "café" with a combining accent, decomposed Korean, compatibility
# forms of Chinese characters and the sign of the Angstrom are other tokens, or unknown. Composed texts are the same,
# and with lower case all of these are, as both decompose. NFC came with huggingface/transformers#22280, for CLIP.
# Source: transformers/models/bert/tokenization_bert_legacy.py, BasicTokenizer.tokenize. Exit code 0 as long as this is
# so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
TRANSFORMERS_VERBOSITY=error venv/bin/python -W ignore - <<'PYTHON'
import pathlib
import unicodedata

import tokenizers
import transformers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

pieces = ["caf", "##e", "##é", "##\u0301", "한국", "\u8c48", "Å", "a"]
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
pathlib.Path("vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
ids = {piece: id_ for id_, piece in enumerate(vocabulary)}
texts = {
    "composed": "café 한국 \u8c48 Å",
    "combining accent": "cafe\u0301",
    "Korean letters": unicodedata.normalize("NFD", "한국"),
    "compatibility form": "\uf900",
    "Angstrom": "\u212b",
}
print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}: tokens by Python, by tokenizers")
differ = {}
for lower in (False, True):
    pair = BertTokenizerLegacy("vocab.txt", do_lower_case=lower), transformers.BertTokenizer(ids, do_lower_case=lower)
    for name, text in texts.items():
        first, second = (tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])[1:-1] for tokenizer in pair)
        differ[lower, name] = first != second
        print(f"  {'lower case' if lower else 'cased':10} {name:18} {ascii(first)} {ascii(second)}")
assert [name for (lower, name), value in differ.items() if value and not lower] == list(texts)[1:]
assert not any(value for (lower, _), value in differ.items() if lower)
PYTHON
