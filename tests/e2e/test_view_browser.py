"""The viewer in a real browser: its views show a run, and nothing that stands in a run becomes markup or a script."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="vlmrl view needs starlette and uvicorn: pip install 'vlmrl[view]'")

from tests.support.browse import BROWSER, TOKEN, Seen, errors, opened, served
from tests.support.kept import record
from tests.support.viewed import VIDEO, make_run
from vlmrl.extras.pages.kept.write import KeptWriter
from vlmrl.extras.pages.view.groups import KeptGroups

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium-headless-shell, chromium or google-chrome on PATH")

EVIL = "<img src=x onerror=\"console.log('PWNED')\"><script>console.log('PWNED')</script>'\"><svg onload=console.log('PWNED')>"


def addresses(run: Path) -> dict[str, str]:
    """The newest group of each question."""
    kept = KeptGroups(run / "groups")
    kept.follow()
    return {entry["sample"]: address for address, entry in kept.entries()}


def test_the_views_of_a_run(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "one"), make_run(tmp_path / "two", steps=2)
    at = addresses(run)
    with served(run, other) as home:

        def view(name: str) -> Seen:
            text, said = opened(home, tmp_path / "profile", view=name)
            assert errors(said) == []
            seen = Seen(text)
            assert {attributes["src"] for attributes in seen.tags("script")} == {"/static/app.js"}
            assert all((attributes["src"] or "").startswith("/api/") for attributes in seen.tags("img"))
            return seen

        curves = view("/curves")
        lines, dots = ([one["class"] for one in curves.tags(tag) if one.get("class") in ("r0", "r1")] for tag in ("path", "circle"))
        assert (lines, dots) == (["r0", "r1", "r0"], ["r1"]), "loss of the second run: NaN in one of its two steps"
        assert "stage rl, step 4 of 4, 8 groups kept" in curves.text

        groups = view("/groups?q=row-1")
        assert "4 groups" in groups.text
        assert "2 groups" in groups.text
        assert len([one for one in groups.tags("a") if one.get("class") == "card group"]) == 6

        group = view(f"/group/0/{at['row-1']}?colour=advantage")
        assert "advantage +0.5" in group.text
        assert "gold: 1 to 3 s" in group.text
        assert len([one for one in group.tags("img") if VIDEO in (one["src"] or "")]) == 9, "the screen and a film of eight frames"
        assert len([one for one in group.tags("span") if "background" in (one.get("style") or "")]) > 20, "tokens with a colour"

        box = view(f"/group/0/{at['row-2']}")
        drawn = [one["d"] for one in box.tags("path") if one.get("class") in ("gold", "pred")]
        assert drawn == ["M25 25H50V75H25Z", "M10 10H40V80H10Z"]

        same = view("/same/row-1")
        assert "asked in 4 kept steps" in same.text
        assert "asked in 2 kept steps" in same.text


def evil_run(path: Path) -> Path:
    """A run with markup in every text that it holds."""
    run = make_run(path, steps=1, question=EVIL)
    writer = KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=1)
    made = record(1, 5, sample=EVIL, question=EVIL, texts=[EVIL, f"<answer>{EVIL}</answer>"])
    for key in ("stage", "group", "task", "gold"):
        made[key] = EVIL
    made |= {"columns": [EVIL], "reasons": {EVIL: 1}, "lost_media": {"k": EVIL}, "media": []}
    made["answers"][0] |= {
        "finish": "length",
        "provenance": EVIL,
        "guidance": {"question": EVIL, "tier": EVIL, "train": "plain", "old": "policy"},
        "turn": {"attempt": 0, "turn": 0, "state": EVIL, "reward": 1.0},
        "question": EVIL,
    }
    writer.add(made, {})
    line = {"stage": EVIL, "step": 2, "global_step": 2, EVIL: 1.5, f"rewards/{EVIL}": 2.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    (run / "config.yaml").write_text(json.dumps({"model": {"path": EVIL}, "stages": [{"name": EVIL, "steps": 1}]}))
    return run


@pytest.mark.parametrize("view", ["/curves", "/groups", "/group", "/same", f"/group/0/{EVIL}", f"/{EVIL}"])
def test_markup_in_every_field_stays_text(tmp_path: Path, view: str) -> None:
    run = evil_run(tmp_path / "one")
    at = addresses(run)[EVIL]
    wanted = {"/group": f"/group/0/{at}", "/same": "/same/" + EVIL.replace("%", "%25").replace("?", "%3F").replace("/", "%2F")}.get(
        view, view
    )
    with served(run) as home:
        text, said = opened(home, tmp_path / "profile", view=wanted)
    seen = Seen(text)
    assert "PWNED" not in "".join(line for line in said.splitlines() if "CONSOLE" in line)
    assert not [one for _, one in seen.elements if any(key.startswith("on") for key in one)]
    assert {one.get("src") for one in seen.tags("script")} == {"/static/app.js"}
    if view in ("/groups", "/group", "/same", "/curves"):
        assert EVIL in seen.text
    if view == "/group":
        assert seen.text.count(EVIL) >= 10


def test_raw_requests_are_refused(tmp_path: Path) -> None:
    """What no client library would send, over a socket."""
    run = make_run(tmp_path / "one", steps=1)
    with served(run) as home:

        def status(path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection(urlsplit(home).netloc)
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"} | headers)
            return connection.getresponse().status

        assert status("/api/runs") == 200
        assert status("/api/runs", Authorization="Bearer wrong") == 403
        assert status("/api/runs", Origin="http://evil.example") == 403
        assert status("/api/runs", Host="evil.example") == 403
        for path in ("/static/../../run.py", "/static/%2e%2e/%2e%2e/run.py", "/static/..%2frun.py", "/api/runs/0/media/..%2f..%2fx/0"):
            assert status(path) == 403


def test_a_page_without_the_token_sees_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", steps=1)
    with served(run) as home:
        text, _ = opened(home, tmp_path / "profile", token="wrong")
    assert "refused" in text
    assert "script" not in text
