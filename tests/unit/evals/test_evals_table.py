"""Tables: cells by hand, both forms, and text that stays text."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.evals.test_evals_summary import rows
from vlmrl.evals.score.paired import Gap, compare
from vlmrl.evals.score.summary import Interval, summarize
from vlmrl.evals.score.table import (
    comparison_cells,
    difference_text,
    interval_text,
    markdown,
    p_text,
    summary_cells,
    visible,
)
from vlmrl.evals.score.terminal import table
from vlmrl.evals.score.timeshare import time_cells, time_shares


def shown(renderable) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_texts():
    assert interval_text("miou", Interval(mean=0.41234, low=0.38, high=0.4456)) == "0.412 [0.380, 0.446]"
    assert interval_text("tokens", Interval(mean=41.26, low=40, high=42)) == "41.3 [40.0, 42.0]"
    gap = Gap(n=9, clusters=9, a=0.5, b=0.62, difference=0.12, low=-0.03, high=0.2, p=0.1, test="permutation")
    assert difference_text("miou", gap) == "+0.120 [-0.030, +0.200]"
    assert interval_text("miou", Interval(mean=0.5, low=None, high=None, why="all equal")) == "0.500 (all equal)"
    assert (p_text(0.03149), p_text(1e-9)) == ("0.031", "< 0.001")


def test_summary_and_comparison_tables():
    a, b = rows([0.0, 0.5, 1.0]), rows([0.5, 0.5, 1.0])
    cells = summary_cells({"base": summarize(a, 0), "rl": summarize(b, 0), "new": summarize([], 0)}, ("miou", "r1@0.5"))
    assert cells[0] == ["model", "n", "mIoU", "R1@0.5"]
    assert cells[1][:2] == ["base", "3"]
    assert cells[1][2:] == ["0.500 (no interval: 3 clusters)", "0.667 [0.208, 0.939]"]
    assert cells[2][3] == "1.000 [0.439, 1.000]"
    assert cells[3] == ["new", "0", "-", "-"]
    pairs = comparison_cells({("base", "rl"): compare(a, b, 0)}, ("miou", "tokens"))
    assert pairs[1][:3] == ["base -> rl", "3", "mIoU"]
    assert pairs[1][3:] == [
        "+0.167 (no interval: 3 clusters)",
        "1.000",
        "permutation",
    ]  # of three questions one differs, which proves nothing
    assert pairs[2][3:] == ["+0.0 (no interval: 3 clusters)", "1.000", "permutation"]
    assert "0.667 [0." in shown(table(cells, title="results"))


def test_time_table():
    cells = time_cells(time_shares([{"wall": 8.0, "time/step_total": 8.0, "time/rollout": 6.0}]))
    assert cells == [
        ["phase", "seconds", "share"],
        ["rollout", "6.0", "75.0%"],
        ["unexplained", "2.0", "25.0%"],
        ["wall", "8.0", "100.0%"],
    ]
    assert time_cells(time_shares([]))[-1] == ["wall", "0.0", "-"]


def test_markdown_form():
    assert markdown([["a", "b"], ["1 | 2", "x\ny"]]) == "| a | b |\n| --- | --- |\n| 1 \\| 2 | x y |\n"


def test_names_cannot_drive_the_terminal_or_the_markup():
    text = shown(table([["model"], ["\x1b[2J[red]x[/red]\u202e"]], title="[bold]t\x07"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\u001b[2J[red]x[/red]\\u202e" in text
    assert "[bold]t\\u0007" in text


@given(st.text())
def test_visible_text_is_printable_and_utf8(text):
    out = visible(text)
    assert all(c in "\n\t" or c.isprintable() or c.isspace() or ord(c) >= 0x80 for c in out)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in out)
    out.encode()
    plain = "".join(c for c in text if c.isascii() and c.isprintable())
    assert visible(plain) == plain
