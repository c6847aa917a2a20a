"""The Chinese pages show what their English sources show. After an English page has changed and its translation was
brought up to date by a person, `python tests/test_chinese.py --accept docs/zh/NAME.md` records the new source."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]
ORIGINAL = ROOT / "docs/zh/glossary.md"
"""The page that is no translation."""
TRANSLATED = [page for page in PAGES if page != ORIGINAL]
SOURCE = re.compile(r"<!-- source: (\S+) sha256:(\S+) -->")
SWITCH = re.compile(r"^(?:English \| \[中文\]\((\S+)\)|\[English\]\((\S+)\) \| 中文)\n", flags=re.MULTILINE)
CODE = re.compile(r"^```[\s\S]*?^```$|(?<=\n\n)(?: {4}.*\n)+", flags=re.MULTILINE)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """The page without its code blocks and the line that switches languages."""
    return CODE.sub("", SWITCH.sub("", read(page)))


def source_of(page: Path) -> Tuple[Path, str]:
    """The English page of a translation, and the hash of the text that was translated."""
    name, digest = SOURCE.findall(read(page))[0]
    return ROOT / name, digest


def digest_of(page: Path) -> str:
    """The hash of an English page, independent of line breaks and of the link to the translation."""
    return hashlib.sha256(" ".join(SWITCH.sub("", read(page)).split()).encode()).hexdigest()[:16]


def headings(page: Path) -> List[Tuple[int, str]]:
    """(level, anchor) of each heading, as GitHub makes them."""
    found = re.findall(r"^(#+) (.+)$", prose(page), flags=re.MULTILINE)
    return [(len(marks), re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")) for marks, title in found]


def inline_code(page: Path) -> Counter:
    return Counter(" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page)))


def links(page: Path, translations: Dict[Path, Path]) -> Counter:
    """(target, heading) of the links of a page. Links to a translated page are those to its translation, and their
    headings are numbers, so that both languages have the same."""
    found: Counter = Counter()
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / file)) if file else page
        if link.startswith(("http://", "https://")):
            found[link] += 1
        elif target in (*translations, *translations.values()):
            number = [name for _, name in headings(target)].index(anchor) if anchor else None
            found[translations.get(target, target), number] += 1
        else:
            found[target, anchor] += 1
    return found


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_a_page_is_the_translation_of_the_present_english_page(page: Path) -> None:
    source, digest = source_of(page)
    name, original = page.relative_to(ROOT), source.relative_to(ROOT)
    assert digest == digest_of(source), (
        f"{original} has changed since {name} was translated: see `git log -p {original}`, bring {name} up to date, "
        f"then type: python tests/test_chinese.py --accept {name}"
    )


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_a_page_has_the_code_headings_and_links_of_its_source(page: Path) -> None:
    source, _ = source_of(page)
    assert CODE.findall(read(page)) == CODE.findall(read(source))
    assert inline_code(source) - inline_code(page) == Counter(), "names in backticks that the translation lacks"
    assert [level for level, _ in headings(page)] == [level for level, _ in headings(source)]
    translations = {source_of(other)[0]: other for other in TRANSLATED}
    assert links(source, translations) - links(page, translations) == Counter(), "links that the translation lacks"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_prefer_chinese_pages(page: Path) -> None:
    english = {source_of(other)[0] for other in TRANSLATED}
    files = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    assert [file for file in files if Path(os.path.normpath(page.parent / file)) in english] == []


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_both_pages_switch_to_each_other(page: Path) -> None:
    source, _ = source_of(page)
    for here, there in ((page, source), (source, page)):
        (switch,) = SWITCH.finditer(read(here))
        assert (here.parent / (switch[1] or switch[2])).resolve() == there


def accept(page: Path) -> None:
    """Records that a translation was compared with the present English page."""
    source, digest = source_of(page)
    page.write_bytes(read(page).replace(f"sha256:{digest}", f"sha256:{digest_of(source)}").encode())


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "--accept":
        sys.exit("Type: python tests/test_chinese.py --accept docs/zh/NAME.md ...")
    for name in sys.argv[2:]:
        accept(Path(name).resolve())
