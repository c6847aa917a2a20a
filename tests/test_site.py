"""The documentation site: built as scripts/docs builds it, and looked at in Chromium; the notebooks that it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, browser  # noqa: F401

import mxtrain

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
PAGES = ("index.html", "start/command-line.html", "reference/python-api.html")
LOADS = re.compile(
    r"<(?:script|link|img|iframe)[^>]*\s(?:src|href)=\"?(?:https?:)?//[^>]*>|@import|url\(\"?(?:https?:)?//"
)


pytestmark = pytest.mark.timeout(600)


def test_reference_lists_the_complete_python_api() -> None:
    page = (ROOT / "docs/reference/python-api.md").read_text(encoding="utf-8")
    names = {name for name in mxtrain.__all__ if not name.startswith("_")}
    listed = set(re.findall(r"^(?:::: |\| `)mxtrain\.(\w+)(?:$|` \|)", page, flags=re.MULTILINE))
    assert listed == names, "one line for each: `::: mxtrain.NAME`, or of an error a row of the table"


def test_the_table_of_errors_has_their_exit_codes() -> None:
    page = (ROOT / "docs/reference/python-api.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `mxtrain\.(\w+)` \|.*\| (\d+) \|$", page, flags=re.MULTILINE))
    assert len(rows) > 10
    assert {name: str(getattr(mxtrain, name).exit_code) for name in rows} == rows
    assert all(issubclass(getattr(mxtrain, name), mxtrain.MxtrainError) for name in rows)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of MkDocs, such as a broken link, ends the build."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the site is built with Python 3.11 only")
    folder = tmp_path_factory.mktemp("site")
    clean = {name: value for name, value in os.environ.items() if name not in ("REPOSITORY_URL", "PYTHONPATH")}
    done = subprocess.run(
        [str(ROOT / "scripts/docs"), "--site-dir", str(folder)],
        env={**clean, "MXTRAIN_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_site_has_every_guide_and_is_self_contained(site: Path) -> None:
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    built = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert {page.replace("README", "index") for page in pages} <= built
    assert {f"notebooks/{notebook.stem}.html" for notebook in NOTEBOOKS} <= built
    found = [
        (page.name, match[0])
        for kind in ("*.html", "*.css")
        for page in site.rglob(kind)
        for match in LOADS.finditer(page.read_text(encoding="utf-8"))
    ]
    assert found == []
    # Links to source files lead to copies, since no repository is named.
    copy = "source/mxtrain/training/step.py.html"
    assert f'href="../{copy}"' in (site / "internals/architecture.html").read_text(encoding="utf-8")
    assert (site / copy).is_file()
    api = (site / "reference/python-api.html").read_text(encoding="utf-8")
    assert 'id="mxtrain.Run.predict"' in api and api.count('<div class="highlight">') >= 5 and "<blockquote>" not in api


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_do_not_scroll_sideways(site: Path, browser: Browser, width: int) -> None:
    browser.resize(width, 900)
    for page in PAGES:
        browser.open((site / page).as_uri())
        assert browser.run("document.querySelectorAll('pre > code').length") > 0
        wide = "[...document.querySelectorAll('pre, pre > code, body')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert browser.run(f"{wide}.map(e => e.textContent.slice(0, 80))") == [], page
    assert browser.errors == []
    assert [address for address in browser.requests if address.startswith("http")] == []


@pytest.mark.slow
def test_the_search_is_for_users_and_moved_pages_lead_on(site: Path) -> None:
    index = re.search(r"\{.*\}", (site / "search/search_index.js").read_text(encoding="utf-8"), re.DOTALL)
    assert index is not None
    found = {entry["location"].partition("#")[0] for entry in json.loads(index[0])["docs"]}
    assert {"deploy/serve.html", "start/fine-tune.html", "distributed/slurm.html"} <= found
    assert [page for page in found if page.startswith(("decisions/", "benchmarks/", "training/fine-tuning"))] == []
    assert (site / "decisions/0031-independent-reference.html").is_file()
    assert "url=../start/fine-tune.html" in (site / "training/fine-tuning.html").read_text(encoding="utf-8")
    home = (site / "index.html").read_text(encoding="utf-8")
    for picture in ("images/detections.png", "images/curves.png"):
        assert f'src="{picture}"' in home and (site / picture).is_file()
    tabs = re.findall(r'md-tabs__link">\s*(.*?)\s*<', home, re.DOTALL)
    assert tabs[:1] == ["Home"] and "Deployment" in tabs


def test_every_section_of_the_documentation_has_a_tab() -> None:
    hooks = (ROOT / "scripts/docs_parts/hooks.py").read_text(encoding="utf-8")
    declared = re.search(r"^SECTIONS = \{(.*?)^\}", hooks, re.DOTALL | re.MULTILINE)
    assert declared is not None
    tabs = re.findall(r'"([\w-]+)": "', declared[1])
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    folders = [re.findall(r"\]\((?:\.\./examples/)?([a-z-]+)/", text) for text in page.split("\n## ")[1:]]
    assert all(folders), "each heading of docs/README.md has a page"
    first = [found[0] for found in folders]
    assert first == [name for name in tabs if name in first], "the order of docs/README.md"
    assert {name for found in folders for name in found} <= set(tabs)
    inside = {path.name for path in (ROOT / "docs").iterdir() if path.is_dir()} - {"images"}
    assert inside <= set(tabs) <= inside | {"notebooks"}


@pytest.mark.slow
def test_the_search_finds_a_word_without_a_server(site: Path, browser: Browser) -> None:
    browser.resize(1280, 900)
    browser.open((site / "index.html").as_uri() + "?q=straggler")
    links = browser.wait("[...document.querySelectorAll('.md-search-result__link')].map(e => e.href).join(' ')")
    assert "/distributed/parameter-server.html" in links
    browser.open((site / "index.html").as_uri() + "?q=qqqzzz")
    assert "No matching documents" in browser.wait(
        "((t) => t.includes('match') && t)(document.querySelector('.md-search-result__meta').textContent)"
    )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_outputs_name_no_local_paths(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    texts = json.dumps([{**output, "data": {**output.get("data", {}), "image/png": ""}} for output in outputs])
    places = r"(?<!\w)(?:/tmp|/home|/root|/work|/usr|\.venv)[/\w.-]*"
    assert re.findall(places, texts) == []
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", texts)
    assert notebook.stat().st_size < 150_000


@pytest.mark.zoo_except("first-minute")
@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_cells_of_a_notebook_run(notebook: Path) -> None:
    pytest.importorskip("nbclient", reason="scripts/test installs it")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/notebooks"), "--check", notebook.stem],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
