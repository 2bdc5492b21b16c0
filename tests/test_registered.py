"""What holds for every registered method: it can be found in the documentation, and what it declares is true."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.cards import Read, card, cards
from vlmrl.config.methods import SLOTS
from vlmrl.methods import registries
from vlmrl.registry import Entry, fits
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.provide import provided_fields

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "papers.md"
FOUND = registries()
OURS: list[tuple[str, Entry[Any]]] = [
    (slot, registry.get(name)) for slot, registry in FOUND.items() for name in registry.names() if registry.get(name).ours
]
"""(slot, method) of the package; plug-ins of other tests may stand in the registries too."""
IDS = [f"{slot}-{entry.name}" for slot, entry in OURS]
INPUTS = {
    **dict.fromkeys(("advantage", "credit", "reward_shaping", "reweight", "filter"), AdvantageInputs),
    **dict.fromkeys(("policy_loss", "kl_estimator", "auxiliary_loss"), LossInputs),
}
"""Slot -> the inputs that its methods see."""
every_method = pytest.mark.parametrize(("slot", "entry"), OURS, ids=IDS)


def documents() -> str:
    """Recipes and written documentation, without the generated list."""
    paths = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(paths) if p != GENERATED)


def is_mentioned(name: str, text: str) -> bool:
    """As `name: x` of a recipe, or in code marks: a plain word (`number`, `none`) proves nothing."""
    return re.search(rf"(?:name: |`){re.escape(name)}(?:`|[,}}\s])", text) is not None


def test_mentions_are_more_than_words():
    assert is_mentioned("exact", "use `exact` here")
    assert is_mentioned("exact", "rewards: [{name: exact}]")
    assert is_mentioned("exact", "{name: exact, weight: 2}")
    assert not is_mentioned("exact", "an exact answer")
    assert not is_mentioned("exact", "`exact_match`, {name: exactly}")


def test_every_method_is_used_or_documented():
    text = documents()
    missing = [f"{slot} '{entry.name}'" for slot, entry in OURS if not is_mentioned(entry.name, text)]
    assert not missing, f"say in docs/methods.md what these are for, or use them in a recipe: {', '.join(missing)}"


def test_every_slot_is_listed_and_can_be_named_in_a_recipe():
    assert set(FOUND) == {*SLOTS.values(), "strategy"}
    assert all(registry.names() for registry in FOUND.values())


def test_registries_of_the_package_are_all_listed():
    """A registry that nobody added to `vlmrl.methods.registries` would be checked and shown nowhere."""
    pattern = re.compile(r"\bRegistry\(\s*\"(\w+)\"")
    made = {slot for path in (ROOT / "vlmrl").rglob("*.py") for slot in pattern.findall(path.read_text(encoding="utf-8"))}
    assert made == set(FOUND)


@every_method
def test_summary_and_source(slot, entry):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", entry.name)
    assert re.match(r"[A-Z0-9`\w]", entry.summary)
    assert len(entry.summary) <= 140
    assert entry.paper is None or entry.paper == entry.paper.strip() != ""
    assert inspect.getdoc(inspect.getmodule(entry.function)), "the module says what is ours and what is the source's"


@every_method
def test_defaults_have_their_declared_type_and_fit_a_recipe(slot, entry):
    for parameter in entry.parameters.values():
        if not parameter.required:
            assert fits(parameter.default, parameter.annotation), f"{parameter.name} = {parameter.default!r}"
            json.dumps(parameter.default)


@every_method
def test_needs_are_fields_of_the_inputs_or_have_a_provider(slot, entry):
    needs = entry.extra.get("needs", ())
    assert isinstance(needs, tuple)
    if slot in INPUTS:
        assert set(needs) <= {field.name for field in dataclasses.fields(INPUTS[slot])} | provided_fields()


def test_an_optional_input_that_is_read_is_declared():
    """A method that asks for something (`need`, `x.need`) names it in its `needs`.

    A field of losses, which is always there, may stand in the docstring instead, where an argument asks.
    """
    asks = re.compile(r"need\((?:x, )?\"(\w+)\"")
    missing = [
        f"{slot} '{entry.name}': {field}"
        for slot, entry in OURS
        if slot in INPUTS
        for field in asks.findall(inspect.getsource(entry.function))
        if field not in entry.extra.get("needs", ())
        and not (hasattr(INPUTS[slot], field) and f"`{field}`" in (inspect.getdoc(entry.function) or ""))
    ]
    assert not missing


@every_method
def test_a_card_says_what_of_the_paper_was_read(slot, entry):
    read = card(slot, entry.name).read
    assert (read is None) == (entry.paper is None), "vlmrl/cards.yaml says what was read of each method with a source, and of no other"
    assert read is None or read in get_args(Read)


def test_a_guess_says_why_it_stays_and_nothing_else_does():
    said = {(slot, name) for (slot, name), one in cards().items() if one.stays}
    guesses = {(slot, entry.name) for slot, entry in OURS if entry.proposed}
    assert guesses <= said, "a method whose name ends in _proposed says in vlmrl/cards.yaml why it stays"
    assert {name for _, name in said - guesses} == set()


def test_no_card_is_orphaned():
    known = {(slot, entry.name) for slot, entry in OURS}
    assert [f"{slot} '{name}'" for slot, name in cards() if (slot, name) not in known] == []


def test_what_pays_names_the_page_that_says_so():
    paying = {name: one.pays for (_, name), one in cards().items() if one.pays}
    pages = {name: re.findall(r"docs/[\w/]+\.md", text) for name, text in paying.items()}
    assert [name for name in paying if not pages[name] or not all((ROOT / page).is_file() for page in pages[name])] == []


def test_the_list_of_papers_is_fresh():
    """In a process of its own: plug-ins of other tests must not appear in it."""
    done = subprocess.run(
        [sys.executable, "-m", "vlmrl.cli", "list", "--papers"], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True
    )
    assert GENERATED.read_text(encoding="utf-8") == done.stdout, "run: vlmrl list --papers > docs/papers.md"
