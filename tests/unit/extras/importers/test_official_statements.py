"""What cards and the list of data sets say of official files is what the cases of `tests/official` hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.official.case import Case, cases
from tests.official.statements import HEADING, NOT_MET, card_section, readme_part, statement, table
from tests.support.samples import load_dataset
from vlmrl.extras.importers.prepare.prepare import official_counts

DATA = Path(__file__).parents[4] / "data"
NAMES = sorted(path.name for path in DATA.iterdir() if (path / "prepare.py").is_file())
MET = cases()
ALL = [pytest.param(name, case, id=f"{name} {case.name}") for name, of in MET.items() for case in of]


def test_cases_are_of_data_sets_that_there_are() -> None:
    assert set(MET) <= set(NAMES)
    assert all(MET.values())


@pytest.mark.parametrize("name", NAMES)
def test_card_says_whether_official_files_were_met(name: str) -> None:
    text = (DATA / name / "card.md").read_text(encoding="utf-8")
    section = card_section(text)
    assert "\n## " not in text.partition(f"\n{HEADING}\n")[2], "it is the last section"
    if name in MET:
        assert section == statement(name, MET[name]), "run `python -m tests.official.statements`"
    else:
        assert section.startswith(NOT_MET), f"no case in tests/official: '{HEADING}' has to say 'Not met: ' and why"
        assert len(section) > len(NOT_MET) + 20


def test_list_of_data_sets_says_what_was_met() -> None:
    assert readme_part((DATA / "README.md").read_text(encoding="utf-8")) == table(MET), "run `python -m tests.official.statements`"


@pytest.mark.parametrize(("name", "case"), ALL)
def test_case_fits_script_and_card(name: str, case: Case) -> None:
    dataset = load_dataset(DATA / name)
    assert case.split in dataset.splits
    assert all(value in dataset.options[key] for key, value in case.options.items())
    if not dataset.unit:
        assert case.rows + sum(case.skipped.values()) == case.records
    if not case.part:
        assert official_counts(DATA / name / "card.md")[case.split] == case.records


def test_no_case_is_there_twice() -> None:
    for name, of in MET.items():
        assert len({(case.name, case.part) for case in of}) == len(of), name
