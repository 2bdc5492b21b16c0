"""Filter expressions of the viewer, read by the scripts of the page in a real browser, against a reading of the same trees in Python."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import pytest

from tests.support.browse import BROWSER
from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.process import Browser

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: put it on PATH, or name its program in VLMRL_BROWSER")
HOME = "http://127.0.0.1/"
ROW: dict[str, Any] = {
    "reward.sft": 0.25,
    "reward.rl": 1,
    "reward.dots-s0/rl": 0.5,
    "text": 'Where is the "Cup"?',
    "gold": "B",
    "never": False,
    "tokens.rl": None,
}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page that holds `filter.js` and nothing else."""
    script = resources.files("vlmrl.extras.pages.view").joinpath("static/filter.js").read_bytes()
    files = {HOME: (b'<script src="filter.js"></script>', "text/html"), f"{HOME}filter.js": (script, "text/javascript")}
    browser = Browser(program=BROWSER, seconds=60.0)
    made = Page(browser, files.get, width=200, height=200)
    made.open(HOME)
    yield made
    made.close()
    browser.close()


def asked(page: Page, texts: list[str], row: Mapping[str, Any] = ROW) -> list[Any]:
    """For each expression whether it holds for the row, or [what is wrong, where]."""
    return page.run(
        f"((row) => {json.dumps(texts)}.map((text) => {{ const f = readFilter(text, Object.keys(row));"
        f" return f.error ? [f.error, f.at] : f.test((name) => row[name]); }}))({json.dumps(row)})"
    )


HOLDS = [
    "",
    "reward.sft < 0.5 and reward.rl == 1",
    "reward.sft<.5",
    "reward.rl = 1.0",
    "reward.rl > reward.sft",
    "0 < reward.sft <= 0.25 < reward.rl",
    "not never",
    "not (never or reward.rl < 1)",
    'text contains "cup"',
    "text contains 'CUP' and not text contains 'plate'",
    "text not contains 'plate'",
    "gold in ('A', \"B\")",
    "gold not in ('A', 'C')",
    "reward.rl in (0, 1)",
    "tokens.rl == none",
    "tokens.rl != 3",
    'reward."dots-s0/rl" == 0.5',
    "reward.dots-s0/rl == 5e-1",
    "never == false",
    "never or reward.rl == 1 and reward.sft == 0.25",
    r'text contains "\"cup\""',
    "-1 < reward.sft",
]
FAILS = [
    "reward.sft >= 0.5",
    "never",
    "never and never or never",
    "text == 'where'",
    "gold == 1",
    "gold < 1",
    "tokens.rl < 5",
    "tokens.rl >= 0",
    "gold in ('b')",
    "not (reward.rl == 1)",
    "1 < reward.sft < 2",
    "never and reward.rl == 1 or never",
]
WRONG = {
    "reward.sft <": ("is wanted here, not the end", 12),
    "reward.sft < and 1": ('is wanted here, not "and"', 13),
    "(reward.rl == 1": ("a closing parenthesis", 15),
    "reward.rl == 1)": ("'and' or 'or'", 14),
    "reward.rl == 1 gold": ("'and' or 'or'", 15),
    "text == 'cup": ("quotation mark is not closed", 8),
    "reward.rl @ 1": ("@ is not understood", 10),
    "reward.rll == 1": ("no column is called reward.rll; near it: reward.sft, reward.rl", 0),
    "gold in 'A'": ("a list in parentheses", 8),
    "gold in ('A'": ("a comma or a closing parenthesis", 12),
    "gold not 'A'": ("'in' or 'contains'", 9),
    "constructor == 1": ("no column is called constructor", 0),
    "alert(1)": ("no column is called alert", 0),
}


def test_expressions(page: Page) -> None:
    assert asked(page, HOLDS) == [True] * len(HOLDS)
    assert asked(page, FAILS) == [False] * len(FAILS)


def test_what_is_wrong_is_said_with_its_place(page: Page) -> None:
    for (text, (words, at)), found in zip(WRONG.items(), asked(page, list(WRONG)), strict=True):
        assert isinstance(found, list), text
        assert (words in found[0], found[1]) == (True, at), (text, found)


SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def tree(draw: random.Random, depth: int) -> tuple[str, bool]:
    """An expression over four numbers, in the fewest parentheses that Python needs for it or in more, and its value."""
    kind = draw.choice(["compare", "compare", "not", "and", "or"]) if depth else "compare"
    if kind == "compare":
        names = [draw.choice(["a", "b", "c", "d"]), str(draw.randrange(3))]
        sign = draw.choice(list(SIGNS))
        return f"{names[0]} {sign} {names[1]}", SIGNS[sign](NUMBERS[names[0]], int(names[1]))
    if kind == "not":
        text, value = tree(draw, depth - 1)
        return f"not ({text})", not value
    parts = [tree(draw, depth - 1) for _ in range(draw.randint(2, 3))]
    value = all(one for _, one in parts) if kind == "and" else any(one for _, one in parts)
    loose = [f"({text})" if " or " in text or draw.random() < 0.3 else text for text, _ in parts]
    return f" {kind} ".join(loose), value


NUMBERS = {"a": 0, "b": 1, "c": 1, "d": 2}


def test_random_trees_bind_as_in_python(page: Page) -> None:
    draw = random.Random(0)
    made = [tree(draw, 4) for _ in range(400)]
    assert 100 < sum(value for _, value in made) < 300
    assert asked(page, [text for text, _ in made], NUMBERS) == [value for _, value in made]
