"""Pages of methods, one per slot, from the registries: what each does, formula and source, arguments, needs, and what it declares."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from scripts.docs_site.declarations import declared
from scripts.docs_site.marks import docstring, plain, table
from vlmrl.cards import Card, card
from vlmrl.config.methods import SLOTS
from vlmrl.registry import Entry, Registry, type_name

FOLDER = "reference/methods"
ROOT = Path(__file__).parents[2]
LISTS = ("reweight", "filters", "reward_shaping", "rewards", "auxiliary_losses", "constraints")
"""Fields of a stage that hold several methods."""


def field_of(slot: str) -> str:
    """Field of a stage that takes methods of a slot: `loss` of `policy_loss`."""
    return next((field for field, one in SLOTS.items() if one == slot), "rollout.strategy")


def in_a_recipe(slot: str, entry: Entry[Any]) -> str:
    """The line of a recipe that names the method, with the arguments that must be given."""
    given = "".join(f", {p.name}: ..." for p in entry.parameters.values() if p.required)
    field = field_of(slot)
    method = f"{{name: {entry.name}{given}}}"
    return f"{field.split('.')[-1]}: {f'[{method}]' if field in LISTS else method}"


def sourced(paper: str) -> str:
    """A citation with links to arXiv."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def paragraphs(text: str) -> list[str]:
    """A docstring behind its first line: paragraphs as prose, and what is indented (`Raises:`, formulas) as it stands there."""
    out: list[str] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        out += docstring(part) if "\n " in part else [plain(" ".join(part.split())), ""]
    return out


def known_of(one: Card) -> list[str]:
    """What the card of a method says, in sentences."""
    out = [f"Core: {', '.join(one.core)}."] if one.core else []
    out += [f"Read: {one.read}."] if one.read else []
    out += [f"Evidence: {one.evidence or 'tests with numbers computed by hand'}."]
    out += [f"When it pays: {plain(one.pays)}."] if one.pays else []
    return out + ([f"A guess that stays: {plain(one.stays)}."] if one.stays else [])


def section(slot: str, entry: Entry[Any]) -> list[str]:
    """One method."""
    function = inspect.unwrap(entry.function)
    first, _, rest = (inspect.getdoc(function) or "").partition("\n")
    out = [f"## {entry.name}", "", plain(first), ""]
    out += paragraphs(rest) if rest.strip() else []
    out += [f"`{in_a_recipe(slot, entry)}`", ""]
    facts = [f"Source: {sourced(entry.paper)}."] if entry.paper else []
    facts += ["Part of it is our guess; what, is said below."] if entry.proposed else []
    facts += known_of(card(slot, entry.name))
    if needs := entry.extra.get("needs"):
        facts.append(f"Needs {', '.join(f'`{need}`' for need in needs)}.")
    facts += declared(entry)
    out += [*(f"* {fact}" for fact in facts), ""] if facts else []
    if entry.parameters:
        rows = [
            (f"`{p.name}`", plain(type_name(p.annotation)), "required" if p.required else f"`{json.dumps(p.default)}`")
            for p in entry.parameters.values()
        ]
        out += [*table(("argument", "type", "default"), rows), ""]
    module = sys.modules[function.__module__]
    path = Path(str(module.__file__)).relative_to(ROOT).as_posix()
    out += [f"From `{path}`:", "", *docstring(inspect.getdoc(module) or "")]
    return out


def page(slot: str, registry: Registry[Any]) -> str:
    """All methods of a slot, the core first."""
    out = [f"# {slot}", "", f"In a stage of a recipe: `{field_of(slot)}`. Which goes with which: `docs/methods.md`.", ""]
    for name in sorted(registry.names(), key=lambda name: not card(slot, name).core):
        out += section(slot, registry.get(name))
    return "\n".join(out)


def pages() -> dict[str, str]:
    """Page -> text, of all slots."""
    from vlmrl.methods import registries

    found = registries()
    rows = [(f"[{slot}]({slot}.md)", f"`{field_of(slot)}`", str(len(registry.names()))) for slot, registry in found.items()]
    head = "Every method that a recipe can name, slot by slot, from the code: what it does, its formula and source, its arguments, and what"
    index = ["# Every method", "", f"{head} `vlmrl check` holds it to.", "", *table(("slot", "field of a stage", "methods"), rows), ""]
    return {f"{FOLDER}/index.md": "\n".join(index)} | {f"{FOLDER}/{slot}.md": page(slot, registry) for slot, registry in found.items()}
