"""Hooks of mkdocs (`mkdocs.yml`): pages from outside docs/, reference pages from the code, and links in place of paths.

README is the front page, and CONTRIBUTING, SECURITY, CHANGELOG and the pages of data sets and suites are pages too: nothing stands twice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.docs_site import api, commands, methods, recipe_keys  # noqa: E402
from scripts.docs_site.marks import rendered, title_of  # noqa: E402

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "data/README.md": "data_sets/index.md",
    "evals/README.md": "suites.md",
}
"""File of the repository -> its page."""
FOLDERS = {"benchmarks": "Benchmarks", "design": "Design", "reproduce": "Reproductions"}
"""Folders of docs/ with a list of what lies in them, and its title."""
_texts: dict[str, str] = {}
"""Page that is no file of docs/ -> its text before links are made."""
_sources: dict[str, str] = {}
"""Page -> file or folder of the repository that it is of."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def outside() -> dict[str, str]:
    """Page -> file, of pages that lie outside of docs/."""
    cards = {f"data_sets/{path.parent.name}.md": path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "data").glob("*/card.md"))}
    return {page: path for path, page in OUTSIDE.items()} | cards


def generated() -> dict[str, str]:
    """Page -> text, of all reference pages."""
    return {recipe_keys.PAGE: recipe_keys.page(), api.PAGE: api.page(), **methods.pages(), **commands.pages()}


def listing(folder: str, title: str) -> str:
    """The list of what lies in a folder of docs/."""
    pages = [path for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
    lines = [f"* [{title_of(path.read_text(encoding='utf-8'), path.stem)}]({path.name})" for path in pages]
    return "\n".join([f"# {title}", "", *lines, ""])


def inside() -> dict[str, str]:
    """Page -> file, of docs/ itself."""
    docs = ROOT / "docs"
    return {path.relative_to(docs).as_posix(): path.relative_to(ROOT).as_posix() for path in sorted(docs.rglob("*.md"))}


def _collect() -> None:
    """Read and generate everything anew."""
    _texts.clear()
    _sources.clear()
    _sources.update(inside() | outside())
    _texts.update({page: read(path) for page, path in outside().items()})
    _texts.update(generated())
    _texts.update({f"{folder}/index.md": listing(folder, title) for folder, title in FOLDERS.items()})
    _sources.update({f"{folder}/index.md": f"docs/{folder}" for folder in FOLDERS})


def places() -> dict[str, str]:
    """File or folder of the repository -> page. Pictures of docs/ are files of the site."""
    pictures = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "images").glob("*")]
    return {source: page for page, source in _sources.items()} | {f"docs/{name}": name for name in pictures}


def on_config(config: Any) -> Any:
    """Write the lists of generated pages into the navigation: an entry that ends in `/` is all that lies in that folder."""
    _collect()
    config.nav = [_expanded(entry) for entry in config.nav]
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _folder(inner) if isinstance(inner, str) and inner.endswith("/") else _all(inner) for title, inner in entry.items()}
    return entry


def _all(entries: Any) -> Any:
    return [_expanded(entry) for entry in entries] if isinstance(entries, list) else entries


def _folder(folder: str) -> list[str]:
    pages = sorted(page for page in {*_texts, *_sources} if page.startswith(folder))
    return [f"{folder}index.md", *(page for page in pages if page != f"{folder}index.md")]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of docs/."""
    for page, text in _texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """The page's text as the site needs it."""
    where = page.file.src_uri
    known = places()
    return rendered(markdown, source=_sources.get(where, where), page=where, places=known, titles=_titles())


def _titles() -> dict[str, str]:
    out = {page: title_of(text, page) for page, text in _texts.items()}
    return {"index.md": "README"} | {page: title_of(read(path), page) for page, path in inside().items()} | out
