"""A copy is whole: every document that it names is there, every picture too, and nothing is asked of another host."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_runs import make_folder, make_run
from tests.support.pages import good, poor
from tests.support.pages import make_run as make_evaluated
from vlmrl.extras.pages.view.save import save, write_documents, write_page
from vlmrl.extras.pages.view.view import kept_documents

EVIL = "<script>alert(1)</script> \x1b[2J\u202e <img src=https://evil.example/x.png onerror=alert(2)>"
NAMED = re.compile(r"(?:run|curves|metrics|questions|evaluation|comparison|check)/[A-Za-z0-9_~-]+")


class Page(HTMLParser):
    """Elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def texts_of(value: Any) -> list[str]:
    """All texts within JSON values."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_of(one)]


def whole(text: str) -> Page:
    """A page that asks for nothing outside, as its elements."""
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:", "static/")), (tag, attributes)
    policy = next(a["content"] or "" for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return save([make_folder(folder / "runs")], folder / "site").parent


def documents(site: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in (site / "data").rglob("*.js"):
        match = re.fullmatch(r"vlmrlDocument\((\"[^\"]+\"), (.*)\);\n", file.read_text(encoding="ascii"), re.DOTALL)
        assert match is not None, file
        found[json.loads(match[1])] = json.loads(match[2])
        assert file == site / "data" / f"{json.loads(match[1])}.js"
    return found


def test_a_site_has_every_document_that_it_names_and_every_picture(site: Path) -> None:
    found = documents(site)
    assert {"folder", "arms", "questions/all", "check/check", "comparison/comparison"} <= set(found)
    for document in found.values():
        for text in texts_of(document):
            if NAMED.fullmatch(text):
                assert text in found, text
            if text.startswith("media/"):
                assert (site / text).stat().st_size > 0, text
    table = found["questions/all"]
    assert {f"question/{one}" for one in table["questions"]["id"]} <= set(found)
    assert {f"group/{one}" for one in table["kept"]["address"]} <= set(found)


def test_a_site_loads_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    page = whole(text)
    assert 'data-mode="site"' in text
    for tag, attributes in page.tags:
        if tag in ("script", "link"):
            assert (site / (attributes.get("src") or attributes.get("href") or "")).is_file()
    for file in (site / "static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|\burl\(", text), file


def test_a_page_is_one_file_with_its_pictures(tmp_path: Path) -> None:
    run = make_evaluated(tmp_path / "run", {"base": poor(), "rl": good()})
    path = write_page(run)
    assert path == run / "report.html"
    text = path.read_text(encoding="utf-8")
    page = whole(text)
    assert 'data-mode="file"' in text
    assert all("src" not in attributes for tag, attributes in page.tags if tag == "script")
    found = kept_documents(path)
    assert found["folder"]["start"] == "run/run"
    assert {f"question/{one}" for one in found["questions/run"]["questions"]["id"]} <= set(found)
    assert not any(text.startswith("media/") for text in texts_of(found))
    assert write_page(run).read_bytes() == path.read_bytes(), "the same whenever it is written"


def test_texts_of_models_and_rows_cannot_become_markup(tmp_path: Path) -> None:
    evil = {"name": EVIL, "start": "", "</script><b>": EVIL}
    path = write_documents({"folder": evil}, tmp_path / "x.html", title=EVIL)
    text = path.read_text(encoding="utf-8")
    page = whole(text)
    assert "<script>alert" not in text
    assert not any(attributes.get("onerror") for _, attributes in page.tags)
    assert kept_documents(path)["folder"] == evil


def test_what_a_model_said_is_spelled_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    file = run / "eval" / "rl.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row | {"text": EVIL, "answer": EVIL}) + "\n" for row in rows))
    text = write_page(run).read_text(encoding="utf-8")
    whole(text)
    assert not {"\x1b", "\u202e"} & set(text)
    assert "<script>alert" not in text


def test_a_copy_of_a_run_in_its_own_folder_is_its_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=0)
    assert save([run], run) == run / "report.html"
    assert not (run / "data").exists()
    assert save([run], tmp_path / "mine.html") == tmp_path / "mine.html"
