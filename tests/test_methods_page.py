"""docs/methods.md: tables of a slot have its core first, with what stands behind it, and the other methods behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vlmrl.cards import card, cards

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
SLOTS = {
    "advantage": "advantage",
    "reweight and auxiliary losses": "reweight",
    "loss": "policy_loss",
    "Pairs of rows": "group_loss",
    "reward_shaping": "reward_shaping",
    "filters": "filter",
    "rewards": "reward",
}
"""Heading -> slot of the methods in its tables."""


def tables() -> list[tuple[str, str, list[list[str]]]]:
    """(slot, head, cells of its rows) of every table whose first column is a method."""
    out: list[tuple[str, str, list[list[str]]]] = []
    heading = head = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line
            out.append((SLOTS.get(heading, ""), head, []))
        elif not line.startswith("|---"):
            out[-1][2].append([cell.strip() for cell in line.strip("|").split("|")])
    return [table for table in out if table[1].startswith("| name |")]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def evidence(slot: str, cell: str) -> str:
    """What the third column says: the evidence of the row's method, or of each of several that has some."""
    found = {name: said for name in names(cell) if (said := card(slot, name).evidence) and card(slot, name).core}
    return next(iter(found.values()), "") if len(names(cell)) == 1 else "; ".join(f"`{name}`: {said}" for name, said in found.items())


@pytest.mark.parametrize(("slot", "head", "rows"), tables(), ids=lambda value: value if isinstance(value, str) else "")
def test_tables_have_the_core_first(slot: str, head: str, rows: list[list[str]]) -> None:
    assert slot, "a heading with a table of methods stands in SLOTS"
    core = [row[0] for row in rows if any(card(slot, name).core for name in names(row[0]))]
    if head.endswith("| evidence |"):
        assert core == [row[0] for row in rows]
        assert [(row[0], row[2]) for row in rows] == [(row[0], evidence(slot, row[0])) for row in rows]
    else:
        assert core == [], "these belong into the table with evidence"


def test_every_heading_has_its_tables() -> None:
    found = tables()
    assert {slot for slot, _, _ in found} == set(SLOTS.values())
    assert all(rows for _, _, rows in found)
    assert len([head for _, head, _ in found if head.endswith("| evidence |")]) == len(SLOTS) - 1, "reweight has its core in prose"


def test_the_core_without_a_table_is_named_at_the_top() -> None:
    said = PAGE.read_text(encoding="utf-8").partition("\nCore without a table: ")[2].partition(".\n\n")[0]
    named = {(part.split()[0], name) for part in said.split(";") for name in names(part)}
    with_evidence = {slot for slot, head, _ in tables() if head.endswith("| evidence |")}
    assert named == {method for method, one in cards().items() if one.core and method[0] not in with_evidence}
