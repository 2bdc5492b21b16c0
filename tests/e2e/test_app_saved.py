"""A saved site and a saved page, opened from the disk in a real browser: they show what the server shows, and ask nobody for anything."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.browse import BROWSER, Seen, errors
from tests.support.made_runs import make_run
from vlmrl.extras.pages.view.save import save

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: put it on PATH, or name its program in VLMRL_BROWSER")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in `runs`, saved as `site/index.html` and as `page.html`."""
    path = tmp_path_factory.mktemp("saved")
    for seed in range(2):
        make_run(path / "runs" / f"dots-s{seed}", seed=seed, count=12, steps=4)
    assert save([path / "runs"], path / "site") == path / "site" / "index.html"
    assert save([path / "runs"], path / "page.html") == path / "page.html"
    return path


def opened(page: Path, view: str = "", *, log: Path | None = None) -> tuple[Seen, str]:
    """The document after its scripts ran, and what the browser said."""
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--disable-component-update"),
        *("--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={page.parent / 'profile'}"),
        *([f"--log-net-log={log}"] if log else []),
        *("--dump-dom", f"{page.as_uri()}#{view}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return Seen(done.stdout), done.stderr


def requests_of_pages(log: Path) -> list[str]:
    """Addresses that a page asked the network for, without those that the browser asks for itself."""
    params = [event.get("params") or {} for event in json.loads(log.read_text())["events"]]
    return [p["url"] for p in params if "url" in p and "file:" in str(p.get("network_isolation_key"))]


def test_a_page_that_asks_for_something_is_seen(tmp_path: Path) -> None:
    page, log = tmp_path / "bad.html", tmp_path / "net.json"
    page.write_text('<img src="http://outside.example/x.png"><script>throw new Error("no")</script>')
    _, said = opened(page, log=log)
    assert set(requests_of_pages(log)) == {"http://outside.example/x.png"}
    assert len(errors(said)) == 1


@pytest.mark.parametrize("page", ["site/index.html", "page.html"])
def test_a_saved_view_opens_from_the_disk_and_asks_for_nothing(folder: Path, tmp_path: Path, page: str) -> None:
    log = tmp_path / "net.json"
    seen, said = opened(folder / page, "/questions/dots-s0?filter=reward.sft%20%3C%200.5%20and%20reward.rl%20%3D%3D%201", log=log)
    assert requests_of_pages(log) == []
    assert errors(said) == []
    rows = [one["href"] or "" for one in seen.tags("a") if (one.get("href") or "").startswith("#/question/")]
    assert f"{len(rows)} of 22" in seen.text
    assert rows, "twelve held-out questions and ten of training"
    for view, words in (
        ("/", "Over seeds"),
        ("/run/dots-s1", "Accuracy on 12 held-out questions"),
        ("/curves/arms", "dots, 2 runs"),
        (rows[0][1:], "after RL"),
    ):
        seen, said = opened(folder / page, view)
        assert words in seen.text, view
        assert errors(said) == []


def test_pictures_of_a_site_are_files_and_those_of_a_page_are_in_it(folder: Path) -> None:
    with_pixels = json.loads(
        next((folder / "site" / "data" / "questions").glob("dots-s0.js")).read_text().split(", ", 1)[1].removesuffix(");\n")
    )
    shown = next(name for name, src in zip(with_pixels["questions"]["id"], with_pixels["questions"]["src"], strict=True) if src)
    for page, start in (("site/index.html", "media/"), ("page.html", "data:image/")):
        seen, _ = opened(folder / page, f"/question/{shown}?of=dots-s0")
        sources = [one["src"] or "" for one in seen.tags("img")]
        assert sources
        assert all(src.startswith(start) for src in sources)
        assert page == "page.html" or all((folder / "site" / src).is_file() for src in sources)


def test_what_a_page_does_not_hold_is_said(folder: Path) -> None:
    for page in ("site/index.html", "page.html"):
        seen, _ = opened(folder / page, "/question/0000")
        assert "not saved in this copy" in seen.text


def test_nothing_saved_refers_to_elsewhere(folder: Path) -> None:
    texts = [folder / "page.html", *(file for file in (folder / "site").rglob("*") if file.suffix in (".html", ".js", ".css"))]
    assert len(texts) > 20
    for file in texts:
        text = file.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
        assert not re.findall(r"https?://", text), file
        assert not re.findall(r"@import|XMLHttpRequest|WebSocket|sendBeacon|\beval\(|new Function|innerHTML", text), file
        assert not re.findall(r"<(?:iframe|object|embed|base)\b", text), file
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert re.search(r"script-src 'sha256-[^;]*;", page), "scripts of the page by their hashes, and no others"
    assert re.findall(r"<script(?! type=\"application/json\")[^>]*src", page) == []
