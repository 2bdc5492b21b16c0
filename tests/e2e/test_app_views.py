"""The viewer in a real browser, on a folder of five runs: it is filtered, links are followed, groups stepped through, addresses kept."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("starlette", reason="vlmrl view needs starlette and uvicorn: pip install 'vlmrl[view]'")

from tests.support.asgi import ask
from tests.support.browse import BROWSER, TOKEN, errors, opened, served
from tests.support.kept import record
from tests.support.made_runs import make_folder
from tests.support.made_runs import make_run as made_run
from tests.support.pages import good, make_run, poor
from tests.support.tab import application, tab
from vlmrl.extras.agents.browser.process import Browser
from vlmrl.extras.pages.kept.write import KeptWriter

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: put it on PATH, or name its program in VLMRL_BROWSER")
FILTER = "reward.sft < 0.5 and reward.rl == 1"
EVIL = "<img src=x onerror=\"console.log('PWNED')\"><script>console.log('PWNED')</script>'\"><svg onload=console.log('PWNED')>\x1b\u202e"
SPELLED = EVIL.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser(program=BROWSER, seconds=60.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("view") / "five")


def document(folder: Path, address: str) -> Any:
    """What the server answers."""
    found = ask(application([folder]), "GET", f"/api/{address}", headers=[("host", "127.0.0.1"), ("authorization", f"Bearer {TOKEN}")])
    assert found.status == 200
    return found.json()


def learnt(table: dict[str, Any]) -> list[str]:
    """The questions that `FILTER` lets through, read off the columns of a table."""
    names, held = [one["name"] for one in table["columns"]], table["held"]
    score = {(q, names[c]): value for q, c, value in zip(held["q"], held["c"], held["score"], strict=True)}
    wanted = [q for q in range(len(table["questions"]["id"])) if score.get((q, "sft"), 1.0) < 0.5 and score.get((q, "rl")) == 1.0]
    return [table["questions"]["text"][q] for q in wanted]


def test_from_the_folder_to_a_question_and_back_by_the_address(browser: Browser, folder: Path) -> None:
    wanted = learnt(document(folder, "questions/dots-s0"))
    assert len(wanted) > 3
    with tab(browser, folder) as seen:
        assert seen.texts(".runs tbody th a") == ["dots-s0", "dots-s1", "dots-s2", "plain-s0", "plain-s1"]
        seen.click(".runs a", "dots-s0")
        assert seen.text(".lead p").startswith("RL raised hard questions from 0.350 to")
        assert re.findall(r"(?:before training|after SFT|after RL)\n", seen.text(".card.wide")) == [
            "before training\n",
            "after SFT\n",
            "after RL\n",
        ]
        assert {"exact", "brief"} <= set(seen.texts(".dots > span"))

        seen.click("nav a", "Questions")
        seen.press("/")
        seen.write(FILTER)
        seen.press("enter")
        assert seen.text("#count") == f"{len(wanted)} of 50"
        assert seen.texts(".sheet tbody a") == wanted

        seen.click(".sheet tbody a", wanted[1])
        assert (seen.text("h1"), seen.text(".stepper .note")) == (wanted[1], f"2 of {len(wanted)}")
        assert seen.texts(".fold header b") == ["before training", "after SFT", "after RL"]
        seen.press("right")
        assert seen.text("h1") == wanted[2]
        seen.press("left")
        seen.click("main button", "answers of all runs")
        assert sum(one.startswith("dots-s2: ") for one in seen.texts(".fold header b")) == 3
        address, text = seen.at, seen.text()
    with tab(browser, folder, at=address) as again:
        assert again.text() == text


def test_what_is_wrong_with_a_filter_is_said_at_its_place(browser: Browser, folder: Path) -> None:
    with tab(browser, folder, at=f"/questions/dots-s0?filter={quote('reward.sft < and 1')}") as seen:
        assert (
            seen.text(".problem")
            == 'At 14: a name, a number or a quoted text is wanted here, not "and".\nreward.sft < and 1\n             ^'
        )
        assert len(seen.texts(".sheet tbody a")) > 10, "the table stays"
        seen.go(f"/questions/dots-s0?filter={quote('reward.rll > 0')}")
        assert "no column is called reward.rll; near it: reward.base, reward.sft, reward.rl" in seen.text(".problem")
        seen.go(f"/questions/all?filter={quote('reward.dots-s0/sft == 0 and answer.dots-s1/rl != gold')}")
        assert seen.texts(".problem") == []


def test_a_table_has_only_the_rows_in_sight(browser: Browser, folder: Path) -> None:
    with tab(browser, folder, at="/questions/dots-s0?filter=held&sort=-reward.rl", height=400) as seen:
        there = seen.texts(".sheet tbody a")
        assert len(there) < 40
        assert seen.texts(".sheet tbody td:nth-child(5)")[:3] == ["1", "1", "1"]
        seen.page.run("document.querySelector('.sheet').scrollTop = 1e6")
        seen.page.run("new Promise((done) => { const c = new MessageChannel(); c.port1.onmessage = done; c.port2.postMessage(0); })")
        seen.page.run("document.querySelector('.sheet').dispatchEvent(new Event('scroll'))")
        assert seen.texts(".sheet tbody a") != there
        seen.click(".sheet thead button", "question")
        assert (seen.at, seen.text(".sheet [aria-sort]")) == ("/questions/dots-s0?filter=held&sort=text", "question ↑")


def became(kept: dict[str, Any]) -> dict[str, list[int]]:
    """Questions that no kept step solved, and those that one solved before and the last one did not; the best answer is worth 1."""
    history: dict[int, list[bool]] = {}
    for _, q, best in sorted(zip(kept["global"], kept["q"], kept["right"], strict=True)):
        history.setdefault(q, []).append(best == 1.0)
    never = [q for q, right in history.items() if not any(right)]
    return {"never": never, "lost": [q for q, right in history.items() if any(right) and not right[-1]]}


STORIES = [([0, 0.5], "never"), ([1, 0], "lost"), ([0, 1, 0], "lost"), ([0, 1], "learnt"), ([1, 0, 1], None), ([1], None), ([], None)]


@pytest.mark.parametrize(("best", "state"), STORIES)
def test_what_became_of_a_question_by_hand(browser: Browser, folder: Path, best: list[float], state: str | None) -> None:
    with tab(browser, folder) as seen:
        assert seen.page.run(f"became({best}, 1)") == state
        assert seen.page.run("became([0, 0.5], 0.5)") == "learnt"


def test_groups_by_question_and_step(browser: Browser, folder: Path) -> None:
    table = document(folder, "questions/dots-s0")
    states = became(table["kept"])
    with tab(browser, folder, at="/groups/dots-s0") as seen:
        counts = {name: len(states[state]) for name, state in (("never solved", "never"), ("lost again", "lost"))}
        assert all(f"{name} ({n})" in seen.texts("main button") and n for name, n in counts.items())
        seen.click("main button", f"never solved ({counts['never solved']})")
        assert seen.at == "/groups/dots-s0?filter=never"
        steps = sorted(set(table["kept"]["global"]))
        own = [n for n, q in enumerate(table["kept"]["q"]) if q == states["never"][0]]
        seen.click("svg.field", at=(4 + 26 * steps.index(table["kept"]["global"][own[0]]) + 10, 7))
        assert seen.at == f"/group/{table['kept']['address'][own[0]]}"
        assert re.match(r"8 × \w+", seen.text(".chip")), "eight equal answers are one"

        seen.go("/groups/dots-s0?view=rewards")
        assert seen.page.run("[...document.querySelectorAll('svg.field text')].slice(0, 2).map((one) => one.textContent)") == ["1", "0"]
        seen.go("/groups/dots-s0?step=9")
        assert seen.text(".stepper b") == "step 9"
        assert len(seen.texts(".groups a")) == 4
        seen.press("right")
        assert seen.text(".stepper b") == "step 10"


def test_a_group_is_stepped_through_and_its_tokens_have_colours(browser: Browser, folder: Path) -> None:
    with tab(browser, folder, at="/groups/dots-s0?step=9") as seen:
        questions = seen.texts(".groups .q")
        seen.click(".groups a")
        assert (seen.text("h1"), seen.text(".stepper .note")) == (questions[0], "1 of 4")
        seen.press("right")
        assert seen.text("h1") == questions[1]
        painted = "document.querySelectorAll('.tokens .answer span[style]').length"
        assert seen.page.run(painted) > 20
        seen.click("main button", "advantage")
        assert "colour=advantage" in seen.at
        assert seen.page.run("document.querySelector('.tokens.up .answer span').style.background").startswith("rgba(var(--pos)")
        seen.click("main button", "no colour")
        assert seen.page.run(painted) == 0
        seen.click("main a", "This question over stages, steps and runs")
        assert len(seen.texts(".fold")) > 1


def test_curves_of_several_runs_lead_to_the_groups_of_a_step(browser: Browser, folder: Path) -> None:
    with tab(browser, folder, at="/curves/dots-s0") as seen:
        assert {"Reward", "Held-out questions"} <= set(seen.texts("figcaption"))
        seen.click("main button", "+ dots-s1")
        assert seen.at == "/curves/dots-s0?with=dots-s1"
        assert "Reward: sum" in seen.texts("figcaption")
        lines = seen.page.run(
            "[...document.querySelectorAll('figure svg')[2].querySelectorAll('path.line')].map((one) => one.classList[1])"
        )
        assert lines == ["c0", "c1"]
        box = seen.page.run(
            "(() => { const box = document.querySelectorAll('figure svg')[2].getBoundingClientRect(); return box.width; })()"
        )
        seen.click("figure:nth-of-type(3) svg", at=(box * 388 / 400, 60))
        assert seen.at == "/groups/dots-s0?step=17"
        seen.go("/curves/arms?q=reward")
        assert len(seen.page.run("[...document.querySelectorAll('figure path.band')].map((one) => one.classList[1])")) >= 3
        assert "3 runs" in seen.text(".legend")


def test_marks_are_drawn_and_switched_off(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"base": poor(), "rl": good()})
    box = next(n for n, name in enumerate(document(run, "questions/run")["questions"]["sample"]) if name == "box-1")
    content = document(run, "questions/run")["questions"]["id"][box]
    drawn = "[...document.querySelectorAll('.screen .mark')].map((one) => one.classList[1] + ' ' + one.getAttribute('d'))"
    with tab(browser, run, at=f"/question/{content}?of=run") as seen:
        assert seen.page.run(drawn) == ["gold M25 25H50V75H25Z", "cgrey M50 50H90V90H50Z", "c0 M26 24H51V74H26Z"]
        seen.click(".layers button", "before training")
        assert len(seen.page.run(drawn)) == 2
        address = seen.at
    with tab(browser, run, at=address) as again:
        assert [one[:4] for one in again.page.run(drawn)] == ["gold", "c0 M"]


VIEWS = ("/", "/run/dots-s0", "/curves/dots-s0?with=plain-s0", "/curves/arms", "/questions/all?by=runs", "/questions/dots-s0?by=steps",
         "/groups/dots-s0", "/groups/dots-s0?view=rewards", "/groups/dots-s0?view=list", "/evaluation/after", "/comparison/comparison",
         "/check/check", "/questions/comparison")  # fmt: skip


def test_every_view_fits_a_phone_in_the_dark(browser: Browser, folder: Path) -> None:
    with tab(browser, folder, width=400, height=800, dark=True) as seen:
        for view in VIEWS:
            seen.go(view)
            assert seen.text("h1"), view
            assert seen.page.run("document.documentElement.scrollWidth") == 400, view
        paper, ink = seen.page.run("['backgroundColor', 'color'].map((name) => getComputedStyle(document.body)[name])")
        light = [sum(int(part) for part in re.findall(r"\d+", colour)[:3]) for colour in (paper, ink)]
        assert light[0] < 150 < 600 < light[1]
        assert seen.page.lacking == []


def test_an_open_view_follows_the_run(browser: Browser, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "plain-s1"
    shutil.copytree(folder / "runs" / "plain-s1", run)
    with tab(browser, tmp_path / "runs") as seen:
        assert "stopped" in seen.text(".runs")
        (run / "FINISHED").touch()
        for _ in range(3):
            seen.page.advance(2100)
            seen.wait()
        assert "finished" in seen.text("#main")


def test_empty_views_say_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "bare"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"schema": 1, "fixed": {}, "history": [{"notes": []}]}))
    (run / "config.yaml").write_text(json.dumps({"model": {"path": "toy"}, "stages": [{"name": "rl", "steps": 3}]}))
    with tab(browser, run) as seen:
        assert seen.at == "/run/bare"
        assert "eval.source" in seen.text(".lead")
        for view, words in (("curves", "No step has been logged yet"), ("questions", "eval.source"), ("groups", "keep.groups_per_step")):
            seen.go(f"/{view}/bare")
            assert words in seen.text(".empty"), view
        seen.go("/nowhere")
        assert "no such page" in seen.text()
        seen.go("/question/0000")
        assert seen.texts("main .problem")


def evil_run(path: Path) -> Path:
    """A run with markup in every text that it holds."""
    run = made_run(path, count=4)
    writer = KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=100)
    made = record(1, 5, sample=EVIL, question=EVIL, texts=[EVIL, f"<answer>{EVIL}</answer>"])
    for key in ("stage", "group", "task", "gold"):
        made[key] = EVIL
    made |= {"columns": [EVIL], "reasons": {EVIL: 1}, "lost_media": {"k": EVIL}, "media": [], "global_step": 30}
    made["answers"][0] |= {"finish": "length", "provenance": EVIL, "question": EVIL}
    made["answers"][0] |= {"guidance": {"question": EVIL, "tier": EVIL, "train": "plain", "old": "policy"}}
    made["answers"][0] |= {"turn": {"attempt": 0, "turn": 0, "state": EVIL, "reward": 1.0}}
    writer.add(made, {})
    writer.sync()
    line = {"stage": EVIL, "step": 2, "global_step": 31, EVIL: 1.5, f"rewards/{EVIL}/mean": 2.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    (run / "config.yaml").write_text(json.dumps({"model": {"path": EVIL}, "stages": [{"name": EVIL, "steps": 1}]}))
    return run


def test_markup_in_every_field_stays_text(browser: Browser, tmp_path: Path) -> None:
    run = evil_run(tmp_path / "evil")
    table = document(run, "questions/evil")
    n = next(n for n, q in enumerate(table["kept"]["q"]) if table["questions"]["text"][q] == EVIL)
    views = {
        "/": False, "/run/evil": True, "/curves/evil?all=1": True, "/questions/evil": True, "/groups/evil?view=list": True,
        f"/group/{table['kept']['address'][n]}": True, f"/question/{table['questions']['id'][table['kept']['q'][n]]}?of=evil": True,
        f"/{quote(EVIL)}": False, f"/questions/evil?filter={quote(EVIL)}": True,
    }  # fmt: skip
    told = "addEventListener, console.log = (text) => { globalThis.pwned = text; }"
    foreign = "[...document.querySelectorAll('*')].flatMap((one) => [...one.attributes]).filter((one) => one.name.startsWith('on')).length"
    with tab(browser, run) as seen:
        seen.page.run(f"({told}, 1)")
        for view, shown in views.items():
            seen.go(view)
            assert seen.page.run(
                f"[globalThis.pwned ?? '', document.querySelectorAll('main script, main img[src=x]').length, {foreign}]"
            ) == ["", 0, 0]
            text = seen.page.run("document.querySelector('main').textContent")
            assert not shown or SPELLED in text, view
            assert not {"\x1b", "\u202e"} & set(text), view


def test_the_policy_of_the_server_lets_every_view_through(folder: Path, tmp_path: Path) -> None:
    """A real server, whose headers count; without the token there is nothing."""
    with served(folder) as home:
        for view in ("/run/dots-s0", "/questions/dots-s0", "/groups/dots-s0?view=list", "/check/check"):
            text, said = opened(home, tmp_path / "profile", view=view)
            assert errors(said) == []
            assert 'data-ready="1"' in text
        text, _ = opened(home, tmp_path / "profile", token="wrong")

        def status(path: str, **headers: str) -> int:
            """Of a request that no client library would send."""
            connection = http.client.HTTPConnection(urlsplit(home).netloc)
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"} | headers)
            return connection.getresponse().status

        assert status("/api/folder") == 200
        assert status("/api/folder", Authorization="Bearer wrong") == 401
        assert status("/api/folder", Origin="http://evil.example") == 403
        assert status("/api/folder", Host="evil.example") == 403
        for path in ("/static/../../view.py", "/static/%2e%2e/%2e%2e/view.py", "/static/..%2fview.py", "/media/dots-s0/..%2f..%2fx/0.jpg"):
            assert status(path) == 403, path
    assert "refused" in text
    assert "script" not in text
