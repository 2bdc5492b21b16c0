"""The viewer answers whom it may, from inside the run, and nothing can be changed through it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="vlmrl view needs starlette and uvicorn: pip install 'vlmrl[view]'")
from starlette.testclient import TestClient

from tests.support.asgi import ask
from tests.support.kept import record
from tests.support.viewed import PICTURE, VIDEO, make_run
from vlmrl.extras.pages.kept.write import KeptWriter
from vlmrl.extras.pages.view.app import cookie_name, make_app
from vlmrl.extras.pages.view.view import View

TOKEN = "secret-of-this-viewer"
HOME = "http://127.0.0.1:8000"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one")


def client(*runs: Path, token: str | None = TOKEN, **headers: str) -> TestClient:
    given = {} if token is None else {"authorization": f"Bearer {token}"}
    return TestClient(make_app(View(runs), TOKEN), base_url=HOME, headers=given | headers, follow_redirects=False)


def got(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


PATHS = ["/", "/static/app.js", "/api/folder", "/api/run/one", "/api/questions/one", f"/media/one/{VIDEO}/0.jpg"]


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
    assert client(run).get("/api/folder", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2E%2E%5capp.py",
        f"/media/one/..%2f..%2f{VIDEO}/0.jpg",
        "/api/run/../folder",
        "//etc/passwd",
        "/static/%00",
    ],
)
def test_a_path_that_climbs_is_refused(run: Path, path: str) -> None:
    """As it comes over the wire; clients like those of these tests make it plain before they send it."""
    headers = [("host", "127.0.0.1:8000"), ("authorization", f"Bearer {TOKEN}")]
    app = make_app(View([run]), TOKEN)
    assert ask(app, "GET", path, headers=headers).status == 403
    assert ask(app, "GET", "/api/folder", headers=headers).status == 200


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
    assert asks.get(f"/media/one/{VIDEO}/0.jpg" if what == "a medium" else "/api/run/one").status_code == 403


def test_a_link_that_comes_later_is_refused_as_well(run: Path, tmp_path: Path) -> None:
    asks = client(run)
    assert asks.get("/api/questions/one").status_code == 200
    (run / "eval").symlink_to(tmp_path)
    os.utime(run / "metrics.jsonl")
    assert asks.get("/api/questions/one").status_code == 403


@pytest.mark.parametrize("inside", [False, True], ids=["another run's", "of this run"])
def test_the_folder_of_a_rank_may_be_no_link_to_another_run(run: Path, tmp_path: Path, inside: bool) -> None:
    place = run / "groups" / "rank-7"
    there = (run if inside else make_run(tmp_path / "runs" / "two", steps=2)) / "groups" / "rank-0"
    place.symlink_to(there)
    assert client(run).get("/api/run/one").status_code == (200 if inside else 403)


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
    assert asks.get("/api/folder").status_code == 200, "by the cookie"


def test_two_runs_are_told_apart(run: Path, tmp_path: Path) -> None:
    asks = client(run, make_run(tmp_path / "runs" / "two", steps=2))
    table = got(asks.get("/api/questions/all"))
    assert table["runs"] == ["one", "two"]
    assert [table["kept"]["run"].count(n) for n in (0, 1)] == [8, 4]


@pytest.mark.parametrize(
    "path",
    [
        *("/api/run/three", "/api/evaluation/one", "/api/check/one", "/api/comparison/one", "/api/question/0", "/api/questions/x"),
        *("/api/group/one/0-0-7", "/api/group/one/nothing", "/api/group/one", "/api/folder/x", "/api/", "/api/nothing"),
        *(f"/media/one/{PICTURE}/9.jpg", f"/media/one/{'f' * 64}/0.jpg", "/media/one/abc/0.jpg", "/media/one/f-abc/0.png"),
        *(f"/media/two/{PICTURE}/0.jpg", f"/media/one/{PICTURE}/x.jpg", "/static/nothing.js"),
    ],
)
def test_what_is_not_there_is_said(run: Path, path: str) -> None:
    assert client(run).get(path).status_code == 404


def test_pictures_are_those_that_documents_name(run: Path) -> None:
    asks = client(run)
    address = got(asks.get("/api/questions/one"))["kept"]["address"][0]
    for medium in got(asks.get(f"/api/group/{address}"))["media"]:
        for src in medium["frames"]:
            answer = asks.get(f"/{src}")
            assert (answer.status_code, answer.headers["content-type"], answer.content[:2]) == (200, "image/jpeg", b"\xff\xd8")


def test_a_run_is_followed_while_it_trains(run: Path) -> None:
    asks = client(run)
    before, questions = got(asks.get("/api/live")), got(asks.get("/api/questions/one"))
    assert got(asks.get("/api/live")) == before
    assert len(questions["kept"]["q"]) == 8
    KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=4).add(record(5), {})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "rl", "step": 5, "global_step": 5, "reward": 2.0}) + '\n{"torn')
    assert got(asks.get("/api/live"))["stamp"] != before["stamp"]
    assert len(got(asks.get("/api/questions/one"))["kept"]["q"]) == 9
    curves = got(asks.get("/api/curves/one"))
    (reward,) = next(group for group in curves["groups"] if group["title"] == "Reward")["series"]
    assert (curves["xs"][reward["x"]]["step"], reward["y"]) == ([1, 2, 3, 4, 5], [0.25, 0.5, 0.75, 1.0, 2.0])
    assert got(asks.get("/api/run/one"))["about"] == "RL, step 5 of 4"
