"""Every folder of `data/`, found by listing: its card is whole, and its sample gives rows whose gold answers score in full.

What is special to a data set (numbers of rows, what is left out and why) is tested in the files beside this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import vlmrl.answers  # noqa: F401 (registers them)
from tests.support.samples import load_dataset, unpack
from tests.support.standins import fill
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.source import load_source
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Skipped, official_counts, prepare

DATA = Path(__file__).parents[4] / "data"
NAMES = sorted(path.name for path in DATA.iterdir() if (path / "prepare.py").is_file())
HEADINGS = ("Source", "Licence", "Splits and official counts", "Layout of the download", "Rows", "Prepare", "Not verified")
SCREENS = ("Layout", "Coordinates", "Rows")
"""Headings of the sets of screens, whose cards state source, licence and counts in a table at their top."""


@pytest.mark.parametrize("name", NAMES)
def test_card_is_whole(name: str) -> None:
    text = (DATA / name / "card.md").read_text(encoding="utf-8")
    for heading in SCREENS if "\n## Coordinates\n" in text else HEADINGS:
        assert text.partition(f"\n## {heading}\n")[2].split("\n## ")[0].strip(), f"card.md has nothing under '{heading}'"
    assert set(official_counts(DATA / name / "card.md")) == set(load_dataset(DATA / name).splits)
    assert f"| [`{name}`]({name}/card.md) | " in (DATA / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_of_the_sample_score_in_full(name: str, tmp_path: Path) -> None:
    """The first split that the sample has rows of, with the first value of each option and media made from their names."""
    dataset = load_dataset(DATA / name)
    options = {option: values[0] for option, values in dataset.options.items()}
    root = tmp_path / "download"
    unpack(DATA / name, root)
    for split in dataset.splits:
        try:
            records = [record for record in dataset.rows(root, split, **options) if not isinstance(record, Skipped)]
        except DataError:
            continue  # the sample has no file of this split
        if records:
            break
    else:
        pytest.fail("the sample has no row of any split")
    fill(root, records)
    done = prepare(dataset, root, tmp_path / "rows", split, allow_partial=True, **options)
    media = done.rpartition("media_root: ")[2]
    samples = load_source(tmp_path / "rows" / f"{split}.jsonl", media_root=media, dedupe="error", max_bad_rows=0.0, quarantine=None)
    assert samples
    for sample in samples:
        read, _, scores = ANSWER_TYPES[sample.answer_type].score(sample.answer, sample)
        assert read is not None, sample.id
        assert scores[ANSWER_TYPES[sample.answer_type].main] == pytest.approx(1, abs=1e-6), (sample.id, scores)
