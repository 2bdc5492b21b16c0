"""The viewer answers whom it may, from inside the run, and nothing can be changed through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="vlmrl view needs starlette and uvicorn: pip install 'vlmrl[view]'")
from starlette.testclient import TestClient

from tests.support.asgi import ask
from tests.support.kept import record
from tests.support.viewed import PICTURE, VIDEO, make_run
from vlmrl.errors import ConfigError
from vlmrl.extras.pages.kept.write import KeptWriter
from vlmrl.extras.pages.view.app import cookie_name, make_app
from vlmrl.extras.pages.view.run import RunView

TOKEN = "secret-of-this-viewer"
HOME = "http://127.0.0.1:8000"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one")


def client(*runs: Path, token: str | None = TOKEN, **headers: str) -> TestClient:
    given = {} if token is None else {"authorization": f"Bearer {token}"}
    return TestClient(make_app([RunView(path) for path in runs], TOKEN), base_url=HOME, headers=given | headers, follow_redirects=False)


def got(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


PATHS = ["/", "/static/app.js", "/api/runs", "/api/runs/0/state", "/api/runs/0/groups", f"/api/runs/0/media/{VIDEO}/0"]


@pytest.mark.parametrize("path", PATHS)
def test_who_has_the_token_is_answered(run: Path, path: str) -> None:
    answer = client(run).get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "é"])
def test_a_wrong_token_is_refused(run: Path, path: str, token: str | None) -> None:
    asks = client(run, token=None)
    given = {} if token is None else {"authorization": f"Bearer {token}".encode()}
    assert asks.get(path, headers=given).status_code == 401
    assert asks.get(path, params={"token": "wrong"}).status_code == 401
    assert asks.get(path, headers={"cookie": f"{cookie_name(TOKEN)}=wrong"}).status_code == 401


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
    ],
    ids=str,
)
def test_another_origin_and_another_host_are_refused(run: Path, path: str, headers: dict[str, str]) -> None:
    assert client(run).get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_names_of_this_machine_are_answered(run: Path, host: str) -> None:
    assert client(run).get("/api/runs", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2E%2E%5capp.py",
        f"/api/runs/0/media/..%2f..%2f{VIDEO}/0",
        "/api/runs/0/groups/../state",
        "//etc/passwd",
        "/static/%00",
    ],
)
def test_a_path_that_climbs_is_refused(path: str) -> None:
    """As it comes over the wire; clients like those of these tests make it plain before they send it."""
    headers = [("host", "127.0.0.1:8000"), ("authorization", f"Bearer {TOKEN}")]
    app = make_app([], TOKEN)
    assert ask(app, "GET", path, headers=headers).status == 403
    assert ask(app, "GET", "/api/runs", headers=headers).status == 200


LINKED = {
    "a medium": f"groups/rank-0/media/{VIDEO}.zip",
    "media": "groups/rank-0/media",
    "groups": "groups",
    "a rank": "groups/rank-0",
    "a shard": "groups/rank-0/000000.jsonl",
    "an index": "groups/rank-0/000000.index.jsonl",
    "metrics": "metrics.jsonl",
    "the recipe": "config.yaml",
    "the run": "run.json",
}


@pytest.mark.parametrize("what", LINKED)
def test_a_link_out_of_the_run_is_refused(run: Path, tmp_path: Path, what: str) -> None:
    asks = client(run)
    place, outside = run / LINKED[what], tmp_path / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    path = f"media/{VIDEO}/0" if what == "a medium" else "state" if what in ("the recipe", "the run") else "groups"
    assert asks.get(f"/api/runs/0/{path}").status_code == 403


@pytest.mark.parametrize("inside", [False, True], ids=["another run's", "of this run"])
def test_the_folder_of_a_rank_may_be_no_link_to_another_run(run: Path, tmp_path: Path, inside: bool) -> None:
    place = run / "groups" / "rank-7"
    there = (run if inside else make_run(tmp_path / "runs" / "two", steps=2)) / "groups" / "rank-0"
    place.symlink_to(there)
    assert client(run).get("/api/runs/0/groups").status_code == (200 if inside else 403)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_can_be_changed(run: Path, method: str, path: str) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert client(run).request(method, path).status_code == 405
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_the_token_of_the_address_becomes_a_cookie(run: Path) -> None:
    asks = client(run, token=None)
    answer = asks.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    said = answer.headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said
    assert asks.get("/api/runs").status_code == 200, "by the cookie"


def test_two_runs_are_told_apart(run: Path, tmp_path: Path) -> None:
    asks = client(run, make_run(tmp_path / "runs" / "two", steps=2))
    assert got(asks.get("/api/runs")) == ["one", "two"]
    assert [got(asks.get(f"/api/runs/{r}/state"))["groups"] for r in (0, 1)] == [8, 4]
    assert asks.get("/api/runs/2/state").status_code == 404


def test_groups_come_in_pages_by_order_and_filter(run: Path) -> None:
    asks = client(run)

    def steps(**q: Any) -> list[tuple[int, str]]:
        return [(one["global_step"], one["sample"]) for one in got(asks.get("/api/runs/0/groups", params=q))["groups"]]

    assert steps(size=3) == [(4, "row-1"), (3, "row-1"), (2, "row-1")], "the most surprising first"
    assert steps(size=3, page=1) == [(1, "row-1"), (4, "row-2"), (3, "row-2")]
    assert steps(sort="oldest", task="boxes", size=2) == [(1, "row-2"), (2, "row-2")]
    assert steps(step=3) == [(3, "row-1"), (3, "row-2")]
    assert steps(q="ROW-2", size=1) == [(4, "row-2")]
    assert steps(only="cut") == []
    assert len(steps(only="signal")) == 8
    for wrong in ({"sort": "nothing"}, {"only": "nothing"}, {"page": "-1"}, {"size": "x"}):
        assert asks.get("/api/runs/0/groups", params=wrong).status_code == 400
    assert got(asks.get("/api/runs/0/same", params={"sample": "row-1"}))["total"] == 4


def test_a_group_comes_with_pixels_and_marks(run: Path) -> None:
    asks = client(run)
    found = {one["sample"]: one["address"] for one in got(asks.get("/api/runs/0/groups"))["groups"]}
    span = got(asks.get(f"/api/runs/0/groups/{found['row-1']}"))
    assert span["media"][VIDEO]["times"] == [n / 2 for n in range(8)]
    assert [(one["start"], one["end"]) for one in span["marks"]["gold"]["spans"]] == [(1.0, 3.0)]
    assert [[(one["start"], one["end"]) for one in answer["spans"]] for answer in span["marks"]["answers"]] == [[(0.0, 3.0)], [(2.0, 3.0)]]
    box = got(asks.get(f"/api/runs/0/groups/{found['row-2']}"))
    assert box["marks"]["gold"]["shapes"][0]["points"] == [[25, 25], [50, 75]]
    assert [len(answer["shapes"]) for answer in box["marks"]["answers"]] == [1, 0]
    assert box["marks"]["read"][1]["errors"] != []
    picture = asks.get(f"/api/runs/0/media/{PICTURE}/0")
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content[:2] == b"\xff\xd8"
    for missing in (f"media/{PICTURE}/9", f"media/{'f' * 64}/0", "media/abc/0", "groups/0-0-7", "groups/nothing"):
        assert asks.get(f"/api/runs/0/{missing}").status_code == 404


def test_an_answer_type_of_a_plugin_is_shown_undrawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", steps=1)
    writer = KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=1)
    writer.add(record(1, 7, answer_type="of_a_plugin", sample="other"), {})
    asks = client(run)
    (found,) = got(asks.get("/api/runs/0/groups", params={"sample": "other"}))["groups"]
    assert "of_a_plugin" in got(asks.get(f"/api/runs/0/groups/{found['address']}"))["marks"]["gold"]["problems"][0]


def test_a_run_is_followed_while_it_trains(run: Path) -> None:
    asks = client(run)
    assert got(asks.get("/api/runs/0/state"))["groups"] == 8
    KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=4).add(record(5), {})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "rl", "step": 5, "global_step": 5, "reward": 2.0}) + '\n{"torn')
    state = got(asks.get("/api/runs/0/state"))
    assert (state["groups"], state["global_step"]) == (9, 5)
    curve = got(asks.get("/api/runs/0/curves", params={"name": ["reward", "loss", "nothing"]}))["series"]
    assert curve["reward"] == {"x": [1, 2, 3, 4, 5], "y": [0.25, 0.5, 0.75, 1.0, 2.0]}
    assert curve["loss"]["x"] == [1, 3, 4], "what is no number is left out"
    assert "nothing" not in curve


def test_the_end_of_a_run_is_no_stage(run: Path) -> None:
    """The last line of a run that has ended is about the whole run, the first about the model before it: both have curves, and no stage."""
    lines = (run / "metrics.jsonl").read_text()
    base = json.dumps({"stage": "base", "step": 0, "global_step": 0, "eval/exact": 0.5}) + "\n"
    whole = json.dumps({"stage": "run", "step": 4, "global_step": 4, "time/total": 3.0}) + "\n"
    (run / "metrics.jsonl").write_text(base + lines + whole)
    asks = client(run)
    state = got(asks.get("/api/runs/0/state"))
    assert (state["stage"], state["step"], state["steps"], state["stages"]) == ("rl", 4, 4, [["rl", 1]])
    assert {"eval/exact", "time/total"} <= set(state["metrics"])


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        RunView(tmp_path)
