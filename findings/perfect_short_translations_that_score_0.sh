#!/usr/bin/env bash
# sacrebleu 2.6.0
# Guess: texts that equal their references have a corpus BLEU of 100.
# What happened: it is 0 if no text has four words, with the default smoothing (exp) as well as with floor and none,
# however many texts there are; one text of four words makes it 100. Smoothing add-k gives 100, and so does
# effective_order=True, which sentence_bleu uses and corpus_bleu doesn't. So a mean of sentence scores is 100 where the
# corpus score is 0.
# Source: sacrebleu/metrics/bleu.py, compute_bleu. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sacrebleu==2.6.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import sacrebleu
from sacrebleu.metrics import BLEU

short, mixed = ["yes", "good day", "a good day"], ["yes", "a very good day"]
print(
    f"sacrebleu {sacrebleu.__version__}: BLEU of texts that equal their references, all of less than four words and not"
)
found = {}
for method in ("exp", "floor", "none", "add-k"):
    scores = [round(BLEU(smooth_method=method).corpus_score(texts, [texts]).score, 6) for texts in (short, mixed)]
    effective = round(BLEU(smooth_method=method, effective_order=True).corpus_score(short, [short]).score, 6)
    found[method] = *scores, effective
    print(f"  {method:6} {scores[0]:5} {scores[1]:5}, short ones with effective_order {effective}")
single = [round(sacrebleu.sentence_bleu(text, [text]).score, 6) for text in short]
print("  sentence_bleu of the short ones:", single)
assert found == {method: (100 if method == "add-k" else 0, 100, 100) for method in found} and single == [100, 100, 100]
PYTHON
