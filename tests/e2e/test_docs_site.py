"""The site builds strictly, loads nothing from elsewhere, has no dead link, and every page is reached from the navigation.

Needs the extra `docs`; skipped without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Proxies lead nowhere, so that a build that fetched something would fail."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site needs the extra docs: pip install 'vlmrl[docs]'")
    out = tmp_path_factory.mktemp("site")
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


class Links(HTMLParser):
    """What a page loads (`src`, style sheets), links to, and the ids that it has."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])


def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def within(site: Path, page: Path, target: str) -> tuple[Path, str] | None:
    """(file, anchor) of a link into the site; None for one to elsewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = (page.parent / unquote(path)).resolve() if path else page
    return (file / "index.html" if file.is_dir() else file), unquote(anchor)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path, links in pages(site).items():
        assert [one for one in links.loads if re.match(r"(?:[a-z]+:)?//", one)] == [], path
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import\s+['\"]?http[^;]*", path.read_text(encoding="utf-8")) == [], path


def test_no_link_is_dead(site: Path) -> None:
    found = pages(site)
    dead: list[str] = []
    for path, links in found.items():
        if path.name == "404.html":
            continue  # its links begin at the root of the server
        for target in links.targets:
            place = within(site, path, target)
            if place is None:
                continue
            file, anchor = place
            if not file.exists() or (anchor and file in found and anchor not in found[file].ids):
                dead.append(f"{path.relative_to(site)}: {target}")
    assert dead == []


def test_every_page_is_reached_from_the_navigation(site: Path) -> None:
    found = pages(site)
    start = site / "index.html"
    seen, ahead = {start}, [start]
    while ahead:
        at = ahead.pop()
        for place in (within(site, at, target) for target in found[at].targets):
            if place is not None and place[0] in found and place[0] not in seen:
                seen.add(place[0])
                ahead.append(place[0])
    assert {path.relative_to(site).as_posix() for path in set(found) - seen} == {"404.html"}


def test_pages_hold_what_they_are_generated_from(site: Path) -> None:
    def text(page: str) -> str:
        return (site / page).read_text(encoding="utf-8")

    assert "stages.rl.optim.lr=1e-6" in text("reference/recipe.html")
    assert "arXiv:2604.08539" in text("reference/methods/advantage.html")
    assert "--gpus-per-node" in text("reference/cli/plan.html")
    assert "load_recipe" in text("reference/api.html")
    assert "AdvantageInputs" in text("reference/api.html")
    assert "Three commands" in text("index.html")


def test_no_text_shows_its_markup(site: Path) -> None:
    """Escapes and fences that the renderer did not take would be seen."""
    for path in site.rglob("*.html"):
        body = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.S)
        shown = re.sub(r"<[^>]+>", "", body)
        assert "```" not in shown, path
        assert not re.search(r"\\[<_*|]", shown), path
        assert not re.search(r"^\s*\|.*\|.*\|\s*$", shown, re.M), path
