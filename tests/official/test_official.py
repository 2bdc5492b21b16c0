"""Official annotation files give the counts and rows that the cases state. Needs fetched repositories (data/README.md)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import vlmrl.answers  # noqa: F401 (registers them)
from tests.official.case import Case, cases
from tests.official.layout import Absent, fill_by_links, lay_out
from tests.support.samples import load_dataset
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.source import load_source
from vlmrl.extras.importers.prepare.prepare import Skipped, prepare

DATA = Path(__file__).parents[2] / "data"
ALL = [pytest.param(name, case, id=f"{name} {case.name}") for name, of in cases().items() for case in of]


@pytest.mark.parametrize(("name", "case"), ALL)
def test_official_file(name: str, case: Case, tmp_path: Path) -> None:
    """Counts, reasons, the rows looked at, and that every gold answer scores in full."""
    root, out, dataset = tmp_path / "download", tmp_path / "rows", load_dataset(DATA / name)
    try:
        lay_out(case, root)
    except Absent as reason:
        pytest.skip(str(reason))
    records = list(dataset.rows(root, case.split, **case.options))
    assert reasons(case, [record.reason for record in records if isinstance(record, Skipped)]) == case.skipped
    fill_by_links(root, (record for record in records if not isinstance(record, Skipped)))
    done = prepare(dataset, root, out, case.split, allow_partial=bool(case.part), **case.options)
    read = re.search(r"(\d+) \S+ read", done)
    assert read is not None, done
    assert int(read[1]) == case.records, done
    rows = {row["id"]: row for row in map(json.loads, (out / f"{case.split}.jsonl").read_text(encoding="utf-8").strip().split("\n"))}
    assert len(rows) == case.rows, done
    for row_id, values in case.looks.items():
        assert part_of(rows[row_id], values) == values, row_id
    media = done.rpartition("media_root: ")[2]
    samples = load_source(out / f"{case.split}.jsonl", media_root=media, dedupe="error", max_bad_rows=0.0, quarantine=None)
    assert len(samples) == case.rows
    short = []
    for sample in samples:
        read, _, scores = ANSWER_TYPES[sample.answer_type].score(sample.answer, sample)
        if read is None or scores[ANSWER_TYPES[sample.answer_type].main] != pytest.approx(1, abs=1e-6):
            short.append((sample.id, sample.answer, scores))
    assert not short, f"{len(short)} gold answers do not score in full, such as {short[:5]}"


def reasons(case: Case, given: list[str]) -> dict[str, int]:
    """Reason -> how often, reasons that the case knows by their begin under that begin."""
    return dict(Counter(next((known for known in case.skipped if reason.startswith(known)), reason) for reason in given))


def part_of(value: Any, wanted: Any) -> Any:
    """`value`, objects within it cut down to the keys that `wanted` has."""
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return {key: part_of(value[key], inner) for key, inner in wanted.items() if key in value}
    return value
