"""The list of papers: every paper once, what is in is named by a recipe, and what is not in says why."""

from __future__ import annotations

from collections import Counter

from vlmrl.config.schema import Config
from vlmrl.config.stages import SECTIONS
from vlmrl.methods import paper_list, registries

LISTED = paper_list()
FOUND = registries()
LEAST = 96
"""Papers that are in; a change that takes one out has to say so here."""


def test_enough_papers_are_in() -> None:
    assert LISTED["in_scope"] == 135
    assert LISTED["in"] >= LEAST, f"{LISTED['in']} papers of {LISTED['in_scope']} are in"


def test_every_paper_stands_once() -> None:
    titles = Counter(paper["title"] for paper in LISTED["papers"])
    assert [title for title, count in titles.items() if count > 1] == []
    assert len(titles) == 188


def test_what_is_in_can_be_named_in_a_recipe() -> None:
    for paper in LISTED["papers"]:
        for method in paper["methods"]:
            slot, _, name = method.partition(" ")
            if slot == "stage":
                kind, _, key = name.partition(".")
                assert key in SECTIONS[kind].model_fields, method
            elif method.startswith("model."):
                section = Config.model_fields["model"].annotation
                assert section is not None
                assert method.partition(".")[2] in section.model_fields, method
            else:
                assert name in FOUND[slot].names(), f"{paper['title']}: {method}"


def test_what_is_not_in_says_why() -> None:
    assert [paper["title"] for paper in LISTED["papers"] if paper["status"] != "in" and not paper["why"]] == []
    assert [paper["title"] for paper in LISTED["papers"] if paper["status"] == "not in" and paper["methods"]] == []


def test_a_method_that_is_a_guess_or_inspired_is_never_the_work_of_two_papers() -> None:
    """A guess at one paper's formula says nothing of another's."""
    guesses = Counter(m for paper in LISTED["papers"] for m in paper["methods"] if m.endswith("_proposed"))
    assert [name for name, count in guesses.items() if count > 1] == []
