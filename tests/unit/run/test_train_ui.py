"""Progress bars: one display at a time, whatever is opened within it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vlmrl.run.ui import Ui


def terminal() -> tuple[Ui, io.StringIO]:
    out = io.StringIO()
    return Ui(Console(file=out, force_terminal=True, width=160)), out


def test_a_bar_within_a_bar_joins_its_display() -> None:
    ui, out = terminal()
    with ui.bar("outer", 4) as outer:
        outer.update(2, {"loss": 0.5})
        with ui.bar("inner", 2) as inner:
            inner.update(2)
            assert inner.progress is outer.progress
            assert [task.description for task in outer.progress.tasks] == ["outer", "inner"]
        assert [task.description for task in outer.progress.tasks] == ["outer"]
        outer.update(4)
    with ui.bar("next", 1) as later:
        assert later.progress is not outer.progress
    assert "outer" in out.getvalue()


def test_an_error_within_leaves_no_display_behind() -> None:
    ui, _ = terminal()
    with pytest.raises(KeyError), ui.bar("outer", 4), ui.bar("inner", 2):
        raise KeyError("x")
    with ui.bar("again", 1) as bar:
        assert [task.description for task in bar.progress.tasks] == ["again"]


def test_in_a_log_each_bar_ends_with_a_line() -> None:
    out = io.StringIO()
    ui = Ui(Console(file=out))
    with ui.bar("outer", 4) as outer, ui.bar("inner", 2, done=1) as inner:
        inner.update(2)
        outer.update(4)
    lines = out.getvalue().splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["inner: 2/2", "outer: 4/4"]
