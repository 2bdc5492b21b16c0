"""agents.check: it passes what keeps its promises, and finds each one that is broken. The page of the documentation is executed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.documents import blocks
from vlmrl.extras.agents.check import Checked, check
from vlmrl.extras.agents.find import begins_alike, default_tasks, open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.protocols import environment

SETTINGS = PoolSettings(workers=2, start=60.0, deadline=20.0, retries=0)


def look(name: str, *, plugins: tuple[str, ...] = (), episodes: int = 4, turns: int = 6, retries: int = 0, **arguments: object) -> Checked:
    settings = PoolSettings(workers=2, start=60.0, retries=retries)
    with open_pool(name, arguments, plugins=plugins, settings=settings) as pool:
        return check(pool, default_tasks(name, arguments), episodes=episodes, turns=turns, begins_alike=begins_alike(name))


def wrong(done: Checked) -> set[str]:
    return {name for name, found in done.found.items() if not found.ok}


def test_toy_desk_keeps_everything():
    done = look("toy_desk", retries=1)
    assert done.ok, done.lines()
    assert all(found.looked for found in done.found.values())
    assert len(done.resets) == 4
    assert any(line.startswith("      time of a step: median") for line in done.lines())


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("dirty", {"reset"}),
        ("unseeded", {"seed"}),
        ("raises", {"invalid", "faults"}),
        ("boasting", {"optimum"}),
        ("rambling", {"determinism", "recovery", "optimum"}),
    ],
)
def test_a_broken_promise_is_found(how, found):
    done = look("odd", plugins=("tests.support.odd_worlds",), retries=1, how=how)
    assert wrong(done) == found, done.lines()
    assert any(line.startswith("WRONG") for line in done.lines())


def test_a_world_that_may_begin_alike_does():
    done = look("fixed_board", plugins=("tests.support.odd_worlds",), retries=1)
    assert done.ok, done.lines()
    assert done.found["seed"].line() == "another seed, another beginning: 3 of 3 (all begin alike, as they may here)"
    (said,) = look("odd", plugins=("tests.support.odd_worlds",), retries=1, how="unseeded").found["seed"].wrong
    assert "begins_alike=True" in said


def test_the_environment_of_the_documentation_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    block = next(block for block in blocks("docs/environments.md") if block.language == "python")
    text = block.text.replace('@environment("lights")', '@environment("lights_of_the_page")')
    (tmp_path / "world_of_the_page.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        done = look("lights_of_the_page", plugins=("world_of_the_page",), retries=1)
    finally:
        environment._entries.pop("lights_of_the_page", None)
        sys.modules.pop("world_of_the_page", None)
    assert done.ok, done.lines()
