"""The list of papers: every paper once, what is in is named by a recipe, and what is not in says why."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from vlmrl.config.load import load
from vlmrl.config.schema import Config
from vlmrl.config.stages import SECTIONS
from vlmrl.methods import paper_list, registries

LISTED = paper_list()
FOUND = registries()
RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
LINES = {
    "MM-Zero": ("toy_grounding", ["stages.rl.rewards=[{name: majority_vote}, {name: format, weight: 0.1}]"]),
    "Prune as You Generate": ("toy_grounding", ["stages.rl.filters=[{name: pods, keep: 4}]"]),
    "Training-Free": ("toy_grounding", ["data.prompt='Known so far: look at the ends first. {{ question }} {{ instruction }}'"]),
    "Training Language Models to Critique": ("dpo", []),
    "SLEA-RL": ("toy_desk_gigpo", []),
}
"""Beginning of a title -> shipped recipe, and lines on top, that do what its reason says of a recipe."""
LEAST = 96
"""Papers that are in; a change that takes one out has to say so here."""


def test_enough_papers_are_in() -> None:
    assert LISTED["in_scope"] == 135
    assert LISTED["in"] >= LEAST, f"{LISTED['in']} papers of {LISTED['in_scope']} are in"


def test_every_paper_stands_once() -> None:
    titles = Counter(paper["title"] for paper in LISTED["papers"])
    assert [title for title, count in titles.items() if count > 1] == []
    assert len(titles) == 188


def is_known(said: str) -> bool:
    """Whether a recipe can say it: `slot name`, `stage kind` or `stage kind.key`, a key of a section, or `recipe name` of a shipped one."""
    slot, _, name = said.partition(" ")
    if slot == "stage":
        kind, _, key = name.partition(".")
        return kind in SECTIONS and (not key or key in SECTIONS[kind].model_fields)
    if slot == "recipe":
        return (RECIPES / f"{name}.yaml").is_file()
    if not name:
        first, _, key = said.partition(".")
        section = getattr(Config.model_fields.get(first), "annotation", None)
        return key in getattr(section, "model_fields", {})
    return slot in FOUND and name in FOUND[slot].names()


def test_what_is_in_can_be_named_in_a_recipe() -> None:
    unknown = [f"{paper['title']}: {method}" for paper in LISTED["papers"] for method in paper["methods"] if not is_known(method)]
    assert not unknown


def test_what_a_reason_names_is_there() -> None:
    named = [(paper["title"], said) for paper in LISTED["papers"] for said in re.findall(r"`([^`]+)`", paper["why"] or "")]
    assert len(named) >= 9
    assert [one for one in named if not is_known(one[1])] == []
    assert not any(map(is_known, ("advantage gigpa", "stage sft.answer", "stage nothing.x", "data.prompts", "recipe none", "nothing")))


@pytest.mark.parametrize("name", sorted(LINES))
def test_the_lines_of_a_reason_load(name: str) -> None:
    recipe, lines = LINES[name]
    assert any(paper["status"] == "not in" and paper["title"].startswith(name) for paper in LISTED["papers"])
    assert load(RECIPES / f"{recipe}.yaml", ["data.root=.", *lines]).config.stages


def test_what_is_not_in_says_why() -> None:
    assert [paper["title"] for paper in LISTED["papers"] if paper["status"] != "in" and not paper["why"]] == []
    assert [paper["title"] for paper in LISTED["papers"] if paper["status"] == "not in" and paper["methods"]] == []


def test_a_method_that_is_a_guess_or_inspired_is_never_the_work_of_two_papers() -> None:
    """A guess at one paper's formula says nothing of another's."""
    guesses = Counter(m for paper in LISTED["papers"] for m in paper["methods"] if m.endswith("_proposed"))
    assert [name for name, count in guesses.items() if count > 1] == []
