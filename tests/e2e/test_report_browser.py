"""The pages in a real browser: they open, their filters work, links carry the filters, and nothing outside is asked for."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.pages import ROWS, good, make_eval, make_run, media, picture, poor, sample
from vlmrl.evals.pages.check_page import CheckRows, write_check_page
from vlmrl.evals.pages.eval_page import write_comparison
from vlmrl.evals.pages.run_page import write_report
from vlmrl.evals.score.compare import compare_folders
from vlmrl.types import Prompt

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


class Cards(HTMLParser):
    """What a filtered page shows: ids of the cards that are not hidden, pressed buttons, and the line that counts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shown: list[str] = []
        self.pressed: list[str] = []
        self.count = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = dict(attrs)
        self._in = a.get("id") or a.get("class") or ""
        if tag == "article":
            self._visible = "hidden" not in a
        if tag == "button" and "data-tag" in a and a["aria-pressed"] == "true":
            self.pressed.append(a["data-tag"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "count":
            self.count = data
        elif self._in == "id" and self._visible:
            self.shown.append(data.split(" ")[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run/report.html`, `both.html` and `check.html`."""
    path = tmp_path_factory.mktemp("pages")
    write_report(make_run(path / "run", {"base": poor(), "rl": good()}))
    a, b = (make_eval(path / name, name, {"all": rows}) for name, rows in (("base", poor()), ("rl", good())))
    write_comparison(compare_folders(a, b), path / "both.html")
    rows, shown = CheckRows(budget=100), media(picture())
    for n, box in enumerate(([0, 0, 100, 100], [0, 0, 900, 900], [0, 0, 1800, 900])):
        made = sample(f"row-{n}", "bbox", {"boxes": [box]})
        rows.add("train.jsonl", Prompt(sample=made, ids=(1, 2), media=(shown.handle,), spans=((0, 1),), answer_format="think"), shown)
    write_check_page(path / "check.html", rows)
    return path


def opened(page: Path, fragment: str = "", *, log: Path | None = None) -> tuple[str, str]:
    """The document after its script ran, and what the browser said."""
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--disable-component-update"),
        *("--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={page.parent / 'profile'}"),
        *([f"--log-net-log={log}"] if log else []),
        *("--dump-dom", page.as_uri() + fragment),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def requests_of_pages(log: Path) -> list[str]:
    """Addresses that a page asked the network for, without those that the browser asks for itself."""
    params = [event.get("params") or {} for event in json.loads(log.read_text())["events"]]
    return [p["url"] for p in params if "url" in p and "file:" in str(p.get("network_isolation_key"))]


def errors(said: str) -> list[str]:
    return re.findall(r"CONSOLE.*(?:Error|Refused|violates).*", said)


def test_the_report_opens_at_a_link_without_errors_and_asks_for_nothing(folder, tmp_path):
    log = tmp_path / "net.json"
    text, said = opened(folder / "run" / "report.html", "#filter=better&task=bbox_task", log=log)
    cards = Cards(text)
    assert (cards.shown, cards.pressed, cards.count) == (["box-1"], ["better"], "1 of 9 shown")
    assert errors(said) == []
    assert requests_of_pages(log) == []


def test_a_page_that_asks_for_something_is_seen(tmp_path):
    page, log = tmp_path / "bad.html", tmp_path / "net.json"
    page.write_text('<img src="http://outside.example/x.png"><script>throw new Error("no")</script>')
    _, said = opened(page, log=log)
    assert set(requests_of_pages(log)) == {"http://outside.example/x.png"}
    assert len(errors(said)) == 1


LINKS = {
    "#filter=worse": "box-2",
    "#filter=failed,worse": "box-2",
    "#filter=cut": "span-1",
    "#filter=unreadable": "span-1 track-1",
    "#task=bbox_task&q=600%20block": "box-2",
    "#q=coordinate": "click-1",
    "#filter=skipped": " ".join(ROWS),
    "#filter=thought": "",
    "#filter=nothing&task=elsewhere": "",
    "#hide=1": " ".join(ROWS),
}
DRIVER = """<pre id="driven"></pre><script>
const links = %s, out = [], all = (path) => [...document.querySelectorAll(path)];
const state = (name) => out.push([
  name,
  all(".question:not([hidden]) .id").map((e) => e.textContent.split(" ")[0]).join(" "),
  document.getElementById("count").textContent,
  [...new Set(all("svg .layer[hidden]").map((e) => e.dataset.layer))].join(" "),
  location.hash,
]);
const next = () => {
  if (links.length) { const link = links.shift(); location.hash = link; setTimeout(() => { state(link); next(); }, 30); return; }
  location.hash = "#filter=";
  setTimeout(() => {
    document.querySelector("[data-tag=worse]").click();
    state("click");
    document.querySelector("[data-tag=worse]").click();
    document.getElementById("find").value = "middle";
    document.getElementById("find").dispatchEvent(new Event("input"));
    state("find");
    document.getElementById("driven").textContent = JSON.stringify(out);
  }, 30);
};
next();
</script></body>"""


def test_filters_links_and_layers(folder):
    """A copy of the report with a script that follows links and presses buttons, and writes down what is shown."""
    page = folder / "run" / "driven.html"
    text = (folder / "run" / "report.html").read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", DRIVER % json.dumps(list(LINKS))), encoding="utf-8")
    shown, said = opened(page)
    assert errors(said) == []
    states = {name: rest for name, *rest in json.loads(html.unescape(re.search(r'<pre id="driven">(.*?)</pre>', shown, re.DOTALL)[1]))}
    assert {link: states[link][0] for link in LINKS} == LINKS
    assert states["#filter=worse"][1] == "1 of 9 shown"
    assert states["#filter=nothing&task=elsewhere"][1] == "0 of 9 shown; no card has nothing, task elsewhere"
    assert states["#filter=thought"][1] == "0 of 9 shown; no card has thought"
    assert (states["#hide=1"][2], states["#q=coordinate"][2]) == ("1", "")
    assert (states["click"][0], states["click"][3]) == ("box-2", "#filter=worse")
    assert (states["find"][0], states["find"][3]) == ("span-1", "#q=middle")


def test_the_page_of_a_check_filters_too(folder):
    text, said = opened(folder / "check.html", "#filter=small")
    cards = Cards(text)
    assert (cards.shown, cards.count) == (["row-0"], "1 of 3 shown")
    assert errors(said) == []


def test_no_page_refers_to_elsewhere(folder):
    for page in (folder / "run" / "report.html", folder / "both.html", folder / "check.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"https?://", text)
        assert set(re.findall(r"url\(([a-z]+:)", text)) == {"data:"}
        assert not re.findall(r"<(?:img|link|iframe|object|embed|base)\b", text)
        assert not re.findall(r"@import|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
