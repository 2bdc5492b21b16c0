"""The pages in a real browser: they open, their filters work, links carry the filters, and nothing outside is asked for."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.browse import BROWSER
from tests.support.pages import ROWS, good, make_eval, make_run, media, picture, poor, sample
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.records import prompt_ids_hash
from vlmrl.extras.pages.check_page import CheckRows, write_check_page
from vlmrl.extras.pages.eval_page import write_comparison
from vlmrl.extras.pages.prompts import keep_prompts
from vlmrl.extras.pages.run_page import write_report
from vlmrl.types import Prompt

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium-headless-shell, chromium, chromium-browser or google-chrome on PATH")
CHARACTERS = "Where is the <b>? "
"""What the ids of the prompt below stand for; its two spans hold 64 placeholders and 2."""
PROMPT = Prompt(
    sample=sample("box-1", "bbox", {"boxes": [[0, 0, 100, 100]]}),
    ids=(0, 1, *[99] * 64, 2, 3, *[99] * 2, *range(4, len(CHARACTERS))),
    media=(),
    spans=((2, 66), (68, 70)),
    answer_format="think",
)


def piece(ids: Sequence[int]) -> str:
    return "".join("<|image_pad|>" if token == 99 else CHARACTERS[token] for token in ids)


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
    asked = prompt_ids_hash(PROMPT)
    stages = {
        name: [dataclasses.replace(r, prompt_ids_hash=asked) if r.sample_id == "box-1" else r for r in rows]
        for name, rows in (("base", poor()), ("rl", good()))
    }
    run = make_run(path / "run", stages)
    keep_prompts(run / "eval" / "frames", [PROMPT], piece)
    write_report(run)
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


COPIER = """<pre id="driven"></pre><script>
(async () => {
  const out = [], card = document.getElementById("q0"), answers = [...card.querySelectorAll("figure [data-copy]")];
  const prompt = card.querySelector(".prompt [data-copy]"), wait = () => new Promise((done) => setTimeout(done, 20));
  const clipboard = (writeText) => Object.defineProperty(navigator, "clipboard", { value: { writeText }, configurable: true });
  clipboard(async (text) => { out.push(text); });
  for (const button of [...answers, prompt]) { button.click(); await wait(); out.push(button.textContent); }
  clipboard(async () => { throw new DOMException("no", "NotAllowedError"); });
  answers[0].click(); await wait();
  out.push(getSelection().toString(), /copied|marked/.test(answers[0].textContent));
  out.push(getComputedStyle(card.querySelector(".prompt i"), "::after").content, document.querySelectorAll(".prompt").length);
  document.getElementById("driven").textContent = JSON.stringify(out);
})();
</script></body>"""


def test_prompts_are_shown_and_texts_are_copied(folder):
    page = folder / "run" / "copied.html"
    text = (folder / "run" / "report.html").read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", COPIER), encoding="utf-8")
    shown, said = opened(page)
    assert errors(said) == []
    found = json.loads(html.unescape(re.search(r'<pre id="driven">(.*?)</pre>', shown, re.DOTALL)[1]))
    first, last = (next(r for r in rows if r.sample_id == "box-1").text for rows in (poor(), good()))
    once = "Wh<|image_pad|>er<|image_pad|>e is the <b>? "
    assert found[:6] == [first, "copied", last, "copied", once, "copied"]
    assert found[6:8] == [first, True], "without a clipboard the text is marked"
    assert found[8:] == ['" × 64"', 1], "the prompts of the other questions were not kept"


def test_words_of_prompts_are_not_searched(folder):
    assert "image_pad" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    text, _ = opened(folder / "run" / "report.html", "#q=image_pad")
    assert Cards(text).shown == []


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
