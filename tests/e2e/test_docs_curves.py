"""docs/reading_the_curves.md names keys that the trainer logs, and limits that the code has."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.support.documents import ROOT, inline, read
from tests.test_glossary import is_key
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.methods import registries
from vlmrl.run import hooks
from vlmrl.train.stage import grpo, rewards

PAGE = "docs/reading_the_curves.md"
FOLDERS = ("train", "run", "rollout", "rewards", "algo", "zoo", "extras", "evals")
"""Packages that put values into the log."""
WORDS = {"think_or_not", "sft", "contract", "crashed", "memory", "timeout", "concurrency", "constant", "examples"}
"""One-word marks that are values or reasons."""


def texts() -> Iterator[tuple[ast.expr, Mapping[str, str]]]:
    """What stands where a name of a metric does (a key of a mapping, an index, an argument, an item), with the module's constants."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "vlmrl" / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = {
                node.targets[0].id: node.value.value  # type: ignore[attr-defined]
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value)
            }
            for node in ast.walk(tree):
                found: list[ast.expr | None] = []
                if isinstance(node, ast.Dict):
                    found = list(node.keys)
                elif isinstance(node, ast.DictComp):
                    found = [node.key]
                elif isinstance(node, ast.Subscript):
                    found = [node.slice]
                elif isinstance(node, ast.Call):
                    found = list(node.args)
                elif isinstance(node, ast.Tuple):
                    found = list(node.elts)
                yield from ((one, names) for one in found if one is not None)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def shape(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """The text of a constant or an f-string, `<>` for what is filled in (`*` in what a report draws); None for anything else. `names`:
    the module's own constants."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("*", "<>")
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(part, names) for part in node.values)
    return None


def _part(part: ast.expr, names: Mapping[str, str]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return names.get(part.value.id, "<>") if isinstance(part.value, ast.Name) else "<>"


@functools.cache
def logged() -> frozenset[str]:
    found = {one for node, names in texts() if (one := shape(node, names)) is not None}
    return frozenset(one for one in found if re.fullmatch(r"[a-z_<>]+(/[a-z_<>]+)*", one))


def is_logged(mark: str) -> bool:
    """Whether a key, with `<name>` for what differs from run to run, is one that the code logs. What the code fills in where the key has
    a word must be a word of the code."""
    wanted = re.sub(r"<[^>]*>", "<>", mark)
    for one in logged():
        if set(one) - set("<>/"):
            pattern = (
                re.escape(one)
                .replace("<><>", "([a-z_]+|<>)(?:/<>)?")
                .replace("<>", "([a-z_]+|<>)")
                .replace("(?:/([a-z_]+|<>))?", "(?:/<>)?")
            )
            fits = re.fullmatch(pattern, wanted)
            if fits is not None and all(word in ("<>", None) or word in logged() for word in fits.groups()):
                return True
    return False


def marked() -> list[tuple[int, str]]:
    """Marks that look like keys of the log."""
    return [(line, mark) for line, mark in inline(PAGE) if re.fullmatch(r"[a-z_]+(/[a-z_<> ]+)+", mark)]


@pytest.mark.parametrize("item", marked(), ids=str)
def test_keys_of_the_log_exist(item: tuple[int, str]) -> None:
    assert is_logged(item[1])


@pytest.mark.parametrize("item", [i for i in inline(PAGE) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", i[1])], ids=str)
def test_other_words_are_keys_or_methods(item: tuple[int, str]) -> None:
    """Recipe keys, methods, rules of alarms, and what a step logs under one word."""
    from vlmrl.train import meter

    word = item[1]
    methods = {name for registry in registries().values() for name in registry.names()}
    rules = {rule.__name__ for rule in meter.RULES}
    known = is_key(word, GrpoSection) or is_key(word, Config) or word in methods | rules | WORDS
    assert known or word in logged(), word


@pytest.mark.parametrize(
    "mark", ["sampling/logp_gab", "rewards/<column>/median", "completions/parse_rate/x/y", "no_such/<>", "environment/luck"]
)
def test_a_key_that_nobody_logs_would_be_found(mark: str) -> None:
    assert not is_logged(mark)


def test_limits_are_those_of_the_code() -> None:
    text = " ".join(read(PAGE).split())
    numbers = {3: "three", 20: "20", 50: "50"}
    assert f"{numbers[hooks.MAX_SKIPPED_STEPS]} updates in a row that are not finite" in text
    assert f"{numbers[grpo.MAX_EMPTY_STEPS]} steps in a row in which nothing is left to train" in text
    assert f"scores nothing in {numbers[rewards.SILENT_STEPS]} steps" in text


def test_the_curves_of_a_report_are_on_the_page() -> None:
    """What a report draws is explained."""
    from vlmrl.extras.pages.documents.curves import LINES

    named = {re.sub(r"<[^>]*>", "*", mark) for _, mark in inline(PAGE)}
    assert {name for _, _, names in LINES for name in names} <= named
