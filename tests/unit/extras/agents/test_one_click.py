"""The solution of MiniWoB++'s one-click pages: every page is solved by one click that the world names, and becomes rows of fine-tuning."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.support.browsers import needs_miniwob, own_page
from vlmrl.data.row import parse_row
from vlmrl.extras.agents.browser.process import Browser
from vlmrl.extras.agents.demonstrations import demonstrations
from vlmrl.extras.agents.find import default_tasks, open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.play import play_many
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.worlds.miniwob import HEIGHT, ONE_CLICK, WIDTH, _right, miniwob

pytestmark = needs_miniwob
SETTINGS = PoolSettings(workers=1, start=300.0, deadline=120.0)


def test_every_page_is_solved_by_its_click(tmp_path: Path) -> None:
    arguments = {"pages": list(ONE_CLICK), "patience": 60.0}
    with open_pool("miniwob", arguments, settings=SETTINGS) as pool:
        tasks = default_tasks("miniwob", arguments)
        groups = play_many(pool, tasks, tmp_path, episodes=2 * len(tasks), attempts=1, agent="solve", turns=2, seed=3)
    lost = {one.task["page"]: one.outcome for group in groups for one in group if (one.total, len(one.turns)) != (1.0, 1)}
    assert lost == {}
    assert all(one.optimum is not None and one.optimum.turns == 1 for group in groups for one in group)
    rows, _ = demonstrations(groups, History(screens=1), "answer_only")
    assert {row["gt"]["action"]["action"] for row in rows} == {"click"}
    assert all(parse_row(row, source="x", media_root=".").answer == row["answer"] for row in rows)


def test_the_click_is_on_what_shows_of_a_covered_button() -> None:
    """TWO lies over the middle of ONE, so the click is beside TWO; where it covers all of ONE there is none."""
    style = "position:absolute; padding:0; border:0;"
    browser = Browser(seconds=60.0)
    try:
        for width, wanted in ((20, True), (60, False)):
            one = f"<button id=subbtn style='{style} left:10px; top:60px; width:60px; height:30px'>ONE</button>"
            two = f"<button id=subbtn2 style='{style} left:{40 - width // 2}px; top:50px; width:{width}px; height:50px'>TWO</button>"
            page = own_page(browser, one + two)
            found = page.run(f"({_right()})('click-test-2', 'Click button ONE.')")
            assert (found is not None) == wanted
            if found is not None:
                hit = page.run(f"document.elementFromPoint({found[0]} + 0.5, {found[1]} + 0.5).id")
                assert hit == "subbtn"
                assert found[1] in (74, 75), "as near to its middle as can be"
            page.close()
    finally:
        browser.close()


def test_the_pixels_that_are_right() -> None:
    """Of every page: some are, most are not, and the solution's pixel is among them."""
    for name in ONE_CLICK:
        world = miniwob(pages=[name], patience=60.0, sandbox=False)
        try:
            world.reset({}, 5)
            right = world.right(1)
            solution = json.loads(world.solve() or "null")
            x, y = (math.floor(place / 1000 * side) for place, side in zip(solution["coordinate"], (WIDTH, HEIGHT), strict=True))
            assert (len(right), len(right[0])) == (HEIGHT, WIDTH)
            assert right[y][x], name
            assert 0 < sum(map(sum, right)) < HEIGHT * WIDTH / 2, name
        finally:
            world.close()


def test_other_pages_have_no_known_solution() -> None:
    with open_pool("miniwob", {"pages": "enter-text", "patience": 60.0}, settings=SETTINGS) as pool:
        episode = pool.episode({"id": "a", "page": "enter-text"}, 1)
        first = episode.reset().result()
        assert (first.optimum, episode.solve().result().action) == (None, None)
        episode.close()
