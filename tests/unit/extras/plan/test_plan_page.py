"""docs/plan.md and docs/scaling.md: formulas are those of the code, the table is what a plan computes now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.memory import scaling_table, small_cards
from tests.support.documents import Table, tables
from vlmrl.extras.plan import activations as acts
from vlmrl.extras.plan.model import FAMILIES, Shape, Tower

ROOT = Path(__file__).parents[4]
NUMBERS = {"float32": acts.FLOAT32, "autocast": acts.AUTOCAST, "bfloat16": acts.BFLOAT16}


def under(page: str, heading: str) -> Table:
    return next(table for table in tables(page) if table.heading == heading)


def value(formula: str, **letters: float) -> float:
    """A formula of the page: numbers and letters next to each other are multiplied."""
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    return eval(product, {"__builtins__": {}}, letters)


def shape(family: str) -> Shape:
    tower = Tower(depth=3, hidden=48, heads=3, mlp=112)
    return Shape(
        family=family,  # pyright: ignore[reportArgumentType]
        hidden=80,
        layers=3,
        heads=6,
        kv_heads=2,
        head_dim=16,
        mlp=224,
        vocab=50,
        tied=False,
        tower=tower,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(NUMBERS))
def test_layer(family: str, kind: str) -> None:
    table, s = under("docs/plan.md", "What one decoder layer keeps"), shape(family)
    formula = next(row for row in table.rows if row[0] == kind)[2 if family == "qwen3_vl" else 1]
    written = value(formula, h=s.hidden, q=s.q, k=s.kv, f=s.mlp, heads=s.heads, kv_heads=s.kv_heads)
    assert written == acts.decoder_layer(s, NUMBERS[kind])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(NUMBERS))
def test_tower(family: str, kind: str) -> None:
    table, s = under("docs/plan.md", "What the tower keeps"), shape(family)
    formula = next(row for row in table.rows if row[0] == kind)[1 + FAMILIES.index(s.family)]
    assert value(formula, h=s.tower.hidden, f=s.tower.mlp, heads=s.tower.heads) == acts.vision_block(s, NUMBERS[kind])


@pytest.mark.parametrize("backend", ["merge", "two_call", "dense", "flash", "flex"])
def test_attention(backend: str) -> None:
    table, s = under("docs/plan.md", "What attention keeps"), shape("qwen2_5_vl")
    formula = next(row for row in table.rows if row[0] == backend)[1].partition(",")[0]
    prompt, answers, length = 168, 4, 22
    row = acts.PackedRow(((prompt, (length,) * answers),))
    assert row.tokens == 256
    letters = {"c": 2, "q": s.q, "k": s.kv, "heads": s.heads, "T": 256, "P": prompt, "G": answers, "C": length, "M": answers * length}
    assert value(formula, **letters) == acts.attention(s, row, acts.BFLOAT16, backend)


def test_the_table_is_what_is_computed_now() -> None:
    page = scaling_table.PAGE.read_text(encoding="utf-8")
    assert scaling_table.written(page) == scaling_table.table()
    assert "**Computed, not measured.**" in page


def test_the_table_has_every_case() -> None:
    rows = under("docs/scaling.md", "Four models on 1, 8 and 64 GPUs").rows
    assert len({(row[0], row[1].partition(" ")[0], row[2]) for row in rows}) == 4 * 3 * 3 == len(rows)


def test_the_page_of_small_cards_is_what_a_plan_computes() -> None:
    assert small_cards.PAGE.read_text(encoding="utf-8") == small_cards.rendered()
    peaks = [small_cards.peak("qwen2.5-vl-3b", way, small_cards.SIZES["pictures (512 + 256 tokens)"]) for way in small_cards.WAYS.values()]
    assert peaks == sorted(peaks), "what trains less needs less"
