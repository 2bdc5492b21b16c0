"""A view as files that need no server and load nothing from elsewhere: a site of small files, or one page with everything in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.extras.pages.documents.folder import kind_of
from vlmrl.extras.pages.view.view import View

STATIC = Path(__file__).parent / "static"
SITE_GROUPS = 1000
"""Kept groups of a run that a site has whole, the most surprising ones, and a page not; the tables of both have all."""
SITE_QUESTIONS, PAGE_QUESTIONS = 20_000, 2000
_SCRIPT = re.compile(r'<script src="static/([\w.-]+)" defer></script>')
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w.-]+)">')
_CLOSE = re.compile(r"</(script|style)", re.IGNORECASE)
_INLINED = re.compile(r"<script>(.*?)</script>", re.DOTALL)
PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src SCRIPTS; base-uri 'none'; form-action 'none'"
SITE_POLICY = (
    "default-src 'none'; img-src file: 'self'; style-src file: 'self'; script-src file: 'self'; base-uri 'none'; form-action 'none'"
)


def save(paths: Iterable[Path], to: Path) -> Path:
    """Write a view: into a folder as a site whose first page is `index.html`, or as one file, if `to` ends in `.html`. A run or an
    evaluation that is saved into a folder of a run or an evaluation becomes `report.html` there, and no site.

    Returns:
        The page to open.

    Raises:
        ConfigError: there is nothing to look at.
        StorageError: a file of it is damaged, or the copy cannot be written.
    """
    paths = list(paths)
    if to.suffix in (".html", ".htm") and not to.is_dir():
        return save_page(paths, to)
    if kind_of(to) is not None:
        return save_page(paths, to / "report.html")
    view = View(paths, strict=True)
    for address in [*_addresses(view, SITE_QUESTIONS), *view.groups(SITE_GROUPS)]:
        file = to / "data" / f"{address}.js"
        fs.mkdir(file.parent)
        _put(file, f"vlmrlDocument({json.dumps(address)}, {_json(view.document(address))});\n".encode())
    for src, place in view.pictures.given.items():
        fs.mkdir((to / src).parent)
        _put(to / src, view.picture(*place)[0])
    fs.mkdir(to / "static")
    for file in STATIC.iterdir():
        if file.suffix in (".js", ".css"):
            fs.write_bytes(to / "static" / file.name, file.read_bytes())
    fs.write_text(to / "index.html", _shell("site", _title(view), SITE_POLICY))
    return to / "index.html"


def _put(file: Path, data: bytes) -> None:
    """Write one of thousands of files, without waiting for the disk: what is saved can be saved again, and `index.html` is written last."""
    if file.exists():
        fs.truncate(file, 0)
    fs.append(file, data)


def save_page(paths: list[Path], to: Path) -> Path:
    """Write a view as one file."""
    view = View(paths, strict=True, inline=True)
    found = {address: view.document(address) for address in _addresses(view, PAGE_QUESTIONS)}
    return write_documents(found, to, title=_title(view))


def write_page(folder: Path) -> Path:
    """Write the page of a run or an evaluation as one file, `report.html` in its folder. Raises what `save` does."""
    return save_page([folder], folder / "report.html")


def write_comparison(result: Any, out: Path) -> Path:
    """Write the page of a comparison with the answers of its two sides, and beside it `comparison.json` and `comparison.md`.

    Args:
        result: a `FolderComparison`.
    """
    result.write(out.parent)
    return save_page([out.parent, *(Path(path) for path in result.paths)], out)


def write_documents(documents: Mapping[str, Any], to: Path, *, title: str, kind: str = "") -> Path:
    """Write a page of documents that are known.

    Args:
        kind: says in the first line what the page is, so that a view of its folder finds it.
    """
    scripts = "\n".join(f'<script type="application/json" data-address="{escape(a)}">{_json(one)}</script>' for a, one in documents.items())
    text = _shell("file", title, PAGE_POLICY).replace("<!--documents-->", scripts, 1)
    text = _STYLE.sub(lambda match: f"<style>\n{_inline(match[1])}</style>", text)
    text = _SCRIPT.sub(lambda match: f"<script>\n{_inline(match[1])}</script>", text)
    text = text.replace("script-src SCRIPTS;", f"script-src {' '.join(map(_digest, _INLINED.findall(text)))};", 1)
    fs.mkdir(to.parent)
    fs.write_text(to, text.replace('data-mode="file"', f'data-mode="file" data-page="{kind}"', 1) if kind else text)
    return to


def _shell(mode: str, title: str, policy: str) -> str:
    text = (STATIC / "index.html").read_text(encoding="utf-8").replace('data-mode="live"', f'data-mode="{mode}"', 1)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape(title)}</title>'
    return re.sub(r"<title>.*?</title>\n?", "", text).replace("<!--head-->", head, 1)


def _digest(script: str) -> str:
    """How a policy names a script that may run: no other one does, wherever it came from."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _inline(name: str) -> str:
    """A script or style sheet as text that cannot end the element around it."""
    return _CLOSE.sub(r"<\\/\1", (STATIC / name).read_text(encoding="utf-8"))


def _json(value: Any) -> str:
    """JSON in ASCII that cannot end a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _addresses(view: View, questions: int) -> list[str]:
    view.document("live")
    return [*view.addresses(), *(f"question/{one}" for one in view.questions()[:questions])]


def _title(view: View) -> str:
    return f"{view.document('folder')['name']} - vlmrl"
