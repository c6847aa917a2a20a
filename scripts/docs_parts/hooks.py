"""Makes a site of docs/: the README as its first page, sections, notebooks, and links that leave docs/.

A link to a file of the repository leads to REPOSITORY_URL. Without it the site contains a copy of each linked file.
"""

import json
import posixpath
import re
from base64 import b64decode
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "start": "Start",
    "coming-from": "Coming from",
    "notebooks": "Notebooks",
    "tasks": "Tasks",
    "data": "Data",
    "training": "Training",
    "distributed": "Distributed",
    "deploy": "Deployment",
    "extending": "Extending",
    "reference": "Reference",
    "decisions": "Decisions",
    "benchmarks": "Benchmarks",
    "internals": "Internals",
    "zh": "中文",
}
OUTSIDE = {
    "README.md": "README.md",
    "README.zh-CN.md": "zh/README.md",
    "docs/README.md": "README.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "reference/changes.md",
    "examples/own_code/README.md": "extending/example-own-code.md",
    "examples/own_task/README.md": "extending/example-own-task.md",
    "examples/plugin_time/README.md": "extending/example-plugin-time.md",
}
"""File of the repository -> page of the site."""
MOVED = {"training/fine-tuning.md": "../start/fine-tune.html"}
"""Former page of the site -> where it leads now, so that old links work."""
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
BINARY = (".png", ".gz", ".rec", ".params")


def page_of(path: str) -> str:
    """The page that shows a file or folder of the repository; empty if only its source can be shown."""
    notebook = re.fullmatch(r"examples/notebooks/([\w-]+)\.ipynb", path)
    if notebook:
        return f"notebooks/{notebook[1]}.md"
    if path in OUTSIDE:
        return OUTSIDE[path]
    inside = path[len("docs/") :] if path.startswith("docs/") else ""
    return f"{inside}/README.md" if inside in SECTIONS else inside


def list_decisions() -> str:
    """The index of docs/decisions/, which has no page of its own in the repository."""
    files = sorted((ROOT / "docs/decisions").glob("*.md"))
    titles = [file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for file in files]
    return "# Decisions\n\n" + "\n".join(f"- [{title}]({file.name})" for title, file in zip(titles, files)) + "\n"


def origins() -> Dict[str, str]:
    """Page of the site -> its file in the repository, of all pages that are not in docs/."""
    files = [*OUTSIDE, *(str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("examples/notebooks/*.ipynb")))]
    return {page_of(file): file for file in files if (ROOT / file).is_file() and file != "docs/README.md"}


ORIGINS = origins()


def follow_links(text: str, origin: str, follow: Callable[[str, str], str]) -> str:
    """Replaces the links of a page by what `follow` makes of (path in the repository, anchor with its #)."""

    def replace(found: "re.Match[str]") -> str:
        if re.match(r"[a-z]+:|#", found[1]):
            return found[1]
        path, sharp, anchor = found[1].partition("#")
        return follow(posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)), sharp + anchor)

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


# Source files.


def copy_page(path: str) -> str:
    """The page with the copy of a source file, or with the list of a folder's files."""
    return f"source/{path}.md"


def show_source(path: str) -> str:
    """Markdown of a file or folder of the repository."""
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if (ROOT / path).is_file():
        text = (ROOT / path).read_text(encoding="utf-8")
        return f"{head}````{LANGUAGES.get(Path(path).suffix, '')}\n{text}\n````\n"
    files = sorted(file for file in (ROOT / path).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return head + "\n".join(f"- `{file.relative_to(ROOT / path)}`" for file in files)


# Notebooks.


def read_notebook(path: str) -> Tuple[str, Dict[str, bytes]]:
    """Markdown of a notebook with its outputs, and the images by name."""
    parts: List[str] = []
    images: Dict[str, bytes] = {}
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{Path(path).stem}-{len(images)}.png"
                images[name] = b64decode(data["image/png"])
                parts.append(f"![output]({name})")
            elif "".join(data["text/plain"]).strip():
                parts.append(f"```text {{ .output }}\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.insert(1, f"Run it: [{path}]({posixpath.basename(path)})")
    return "\n\n".join(parts) + "\n", images


# Events of MkDocs.


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/, and the theme's own files."""
    for name in list(files.src_uris):
        if name.endswith("README.md") and name in ORIGINS:
            files.remove(files.src_uris[name])
    for page, origin in ORIGINS.items():
        if origin.endswith(".ipynb"):
            text, images = read_notebook(origin)
            for name, content in images.items():
                files.append(File.generated(config, f"notebooks/{name}", content=content))
            notebook = (ROOT / origin).read_bytes()
            files.append(File.generated(config, f"notebooks/{posixpath.basename(origin)}", content=notebook))
        else:
            text = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "decisions/README.md", content=list_decisions()))
    for page, target in MOVED.items():
        content = f'# Moved\n\n<meta http-equiv="refresh" content="0; url={target}">\n<a href="{target}">New page</a>\n'
        files.append(File.generated(config, page, content=content))
    for path in linked_sources(files) if not config.repo_url else ():
        files.append(File.generated(config, copy_page(path), content=show_source(path)))
    config.nav = navigation(files)
    chinese = [page for page in files.src_uris if page.startswith("zh/")]
    if chinese:
        first = posixpath.splitext(min(chinese, key=lambda page: (page != "zh/README.md", page)))[0]
        there = "zh/index.html" if first == "zh/README" else f"{first}.html"
        config.extra["alternate"] = [
            {"name": "English", "link": "index.html", "lang": "en"},
            {"name": "中文", "link": there, "lang": "zh"},
        ]
    return files


def linked_sources(files: Files) -> List[str]:
    """The files and folders of the repository that pages link to and that are no pages."""
    found = set()

    def note(path: str, anchor: str) -> str:
        if not page_of(path) and (ROOT / path).exists() and not path.endswith(BINARY):
            found.add(path)
        return ""

    for file in files.documentation_pages():
        follow_links(file.content_string, origin_of(file.src_uri), note)
    return sorted(found)


def origin_of(page: str) -> str:
    return ORIGINS.get(page, f"docs/{page}")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links from paths in the repository into links within the site, or to sources."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    if here == "README.md":
        page.meta["hide"] = ["navigation"]
        markdown = add_picture(markdown)
    elif here.startswith(("decisions/", "benchmarks/")) or here in MOVED:
        page.meta["search"] = {"exclude": True}  # a user searches the guides
    elif here == "reference/changes.md":
        page.meta["search"] = {"boost": 0.2}  # guides first

    def follow(path: str, anchor: str) -> str:
        target = page_of(path)
        if here.startswith("notebooks/") and (path == ORIGINS[here] or path.endswith(".png")):
            return posixpath.basename(path)
        if not target and config.repo_url:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{config.repo_url.rstrip('/')}/{kind}/main/{path}{anchor}"
        return posixpath.relpath(target or copy_page(path), posixpath.dirname(here) or ".") + anchor

    return follow_links(markdown, origin_of(here), follow)


def add_picture(home: str) -> str:
    """The home page, with the picture of docs/README.md after its own."""
    picture = re.search(r"^!\[(.*?)\]\((.*?)\)$", (ROOT / "docs/README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert picture is not None
    added = f"![{picture[1]}](docs/{picture[2]})"
    return re.sub(r"^!\[.*$", lambda own: f"{own[0]}\n{added}", home, count=1, flags=re.MULTILINE)


def navigation(files: Files) -> List[Any]:
    """The sections, each with the pages that docs/README.md links to, in its order, and then its others by name."""
    listed: Dict[str, int] = {}
    follow_links(
        (ROOT / "docs/README.md").read_text(encoding="utf-8"),
        "docs/README.md",
        lambda path, anchor: str(listed.setdefault(page_of(path), len(listed))),
    )
    pages = sorted(
        (file.src_uri for file in files.documentation_pages() if file.src_uri not in MOVED),
        key=lambda page: (not page.endswith("/README.md"), listed.get(page, len(listed)), page),
    )
    sections = ((name, [page for page in pages if page.startswith(f"{name}/")]) for name in SECTIONS)
    return [{"Home": "README.md"}, *({SECTIONS[name]: found} for name, found in sections if found)]
