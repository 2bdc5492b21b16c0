"""docs/architecture.md and the README name what exists: the reading order with its lines, and every part of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.step import trace_step

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vlmrl"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_readme_names_ten_files_in_the_order_of_the_page() -> None:
    order = trace_step.reading_order(ROOT / "docs" / "architecture.md")
    first = trace_step.reading_order(ROOT / "README.md")
    assert len(first) == 10
    assert first == [path for path in order if path in first]


def test_an_order_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## One training step\n\n`types.py`, `train/nothing.py`\n")
    with pytest.raises(SystemExit, match=r"train/nothing\.py"):
        trace_step.reading_order(page)
    page.write_text("# No such section\n")
    with pytest.raises(SystemExit, match="One training step"):
        trace_step.reading_order(page)


def test_lines_are_about_right() -> None:
    """Within a tenth, so that the page changes when a file does and not with every line."""
    rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| (\d+) \|", PAGE, re.M)
    assert len(rows) > 10
    wrong = [
        f"{name}: {count}, not {stated}"
        for name, stated in rows
        if abs((count := (PACKAGE / name).read_text(encoding="utf-8").count("\n")) - int(stated)) > max(10, count / 10)
    ]
    assert not wrong, "; ".join(wrong)


def test_every_part_has_a_row() -> None:
    table = PAGE.partition("\n## What lives where\n")[2].partition("\n## ")[0]
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert {name for name in re.findall(r"^\| `vlmrl/(\w+)`", table, re.M)} == parts


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md", "docs/adding_a_method.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """Paths with a folder of the repository; files that an errand is about to write are left out."""
    text = (ROOT / page).read_text(encoding="utf-8").partition("\n## Eight errands\n")[0]
    named = set(re.findall(r"`((?:docs|tests|examples|benchmarks|scripts|configs|evals|data|vlmrl|\.ci|\.github)/[\w./-]+)`", text))
    missing = sorted(name for name in named if not (ROOT / name.rstrip("/")).exists())
    assert not missing


def test_the_rules_of_contributing_are_tests() -> None:
    """Every rule names a test, and that test exists."""
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## House rules\n")[2].partition("\n## ")[0]
    layering = (ROOT / "tests" / "test_layering.py").read_text(encoding="utf-8")
    functions = re.findall(r"`(test_\w+)`", rules)
    assert len(functions) > 8
    assert [name for name in functions if f"def {name}(" not in layering] == []
