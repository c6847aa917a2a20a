"""Makes large texts of real ones: Python's own library and reference, paragraph by paragraph, with some words changed.

    python -m bench_parts.corpus_files FILE MEGABYTES [ROWS]

A name that ends in .csv gets ROWS rows of text and class; any other gets paragraphs.
"""

from __future__ import annotations

import csv
import random
import re
import sys
import sysconfig
from pathlib import Path
from typing import Iterator, List

CHANGED = 0.1
"""Share of words that are exchanged for others, so that hardly a paragraph comes twice."""


def base_paragraphs() -> List[List[str]]:
    """The words of every paragraph of the standard library's sources and of the language's reference."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8", "replace") for path in sorted(library.glob("*.py"))]
    parts = (part.split() for text in [*texts, *topics.values()] for part in re.split(r"\n\s*\n", text))
    return [words for words in parts if 8 <= len(words) <= 400]


def paragraphs(seed: int = 0) -> Iterator[str]:
    """Without end."""
    rng, base = random.Random(seed), base_paragraphs()
    known = [word for words in base for word in words]
    while True:
        words = list(rng.choice(base))
        for _ in range(max(1, int(len(words) * CHANGED))):
            words[rng.randrange(len(words))] = rng.choice(known)
        yield " ".join(words)


def write_text(path: Path, megabytes: float) -> None:
    """A file of paragraphs."""
    size, most = 0, megabytes * 1e6
    with open(path, "w", encoding="utf-8") as file:
        for text in paragraphs():
            size += file.write(f"{text}\n\n")
            if size >= most:
                return


def write_table(path: Path, megabytes: float, num_rows: int) -> None:
    """A CSV of texts of about the same length, and classes that say how many words these have."""
    length = int(megabytes * 1e6 / num_rows) - 10
    source = paragraphs()
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "label"])
        rest = ""
        for _ in range(num_rows):
            while len(rest) < length:
                rest += " " + next(source)
            text, rest = rest[:length], rest[length:]
            rows.writerow([text, "many" if text.count(" ") > length // 7 else "few"])


if __name__ == "__main__":
    file, size = Path(sys.argv[1]), float(sys.argv[2])
    if file.suffix == ".csv":
        write_table(file, size, int(sys.argv[3]))
    else:
        write_text(file, size)
