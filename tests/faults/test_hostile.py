"""The hostile corpus through the production path: rows, audit from headers, decoding in a worker, prompt. Every case is accounted for."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.hostile import WEAKER, MediaCase, good_row, media_cases, row_cases
from tests.support.tiny import Tiny
from vlmrl.data.encode import Encoder
from vlmrl.data.source import read_source
from vlmrl.errors import MediaError
from vlmrl.media.sampling import TICK
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.media.video import LEVELS
from vlmrl.media.workers import MEMORY
from vlmrl.types import MediaRef, Sample

SHOWN = "shown"


def store_of(tiny: Tiny, workers: int) -> MediaStore:
    chosen = dataclasses.replace(tiny.store.settings, workers=workers, deadline=120.0, min_pixels=28 * 28, max_pixels=112 * 112)
    return MediaStore.of(chosen, tiny.bundle)


@dataclasses.dataclass
class Fate:
    """What became of one medium."""

    planned: str
    outcome: str
    entry: ProcessedMedia | None = None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    root = tmp_path_factory.mktemp("hostile") / "media"
    root.mkdir()
    return root, media_cases(root)


@pytest.fixture(scope="module")
def fates(tiny: Tiny, corpus: tuple[Path, list[MediaCase]]) -> tuple[list[Fate], MediaStore]:
    """Each case as a sample: planned from headers as the audit does, then encoded whatever the plan said."""
    root, cases = corpus
    store = store_of(tiny, workers=1)
    encoder = dataclasses.replace(tiny.encoder, media=store, data_root=root, max_prompt_tokens=100_000)
    out = [_fate(encoder, store, case, n) for n, case in enumerate(cases)]
    yield out, store  # type: ignore[misc]
    store.close()


def _fate(encoder: Encoder, store: MediaStore, case: MediaCase, number: int) -> Fate:
    ref = MediaRef(kind=case.kind, path=case.path)
    sample = Sample(id=str(number), task="vqa", answer_type="exact_text", question="What?", media=(ref,), answer="x", gt={})
    planned, outcome, said = SHOWN, SHOWN, case.path
    plan = entry = None
    try:
        plan = encoder.plan(sample, "think_or_not")
    except MediaError as error:
        planned = error.reason
    try:
        prompt = encoder.encode(sample, "think_or_not")
        entry = store.get_key(prompt.media[0].key)
        assert plan is not None, f"{case.path}: refused by its headers ({planned}) and shown nevertheless"
        assert plan.ids == prompt.ids, f"{case.path}: counted as {len(plan.ids)} tokens from headers, {len(prompt.ids)} when decoded"
    except MediaError as error:
        outcome = error.reason
        said = str(error)
    assert repr(case.path)[1:60] in said or case.path[:60] in said, f"the message does not name the file: {said}"
    return Fate(planned, outcome, entry)


def table(cases: list[MediaCase], fates: list[Fate]) -> str:
    """Counts by fault of the catalogue and outcome."""
    counts = collections.Counter((case.group, fate.outcome) for case, fate in zip(cases, fates, strict=True))
    groups, outcomes = sorted({group for group, _ in counts}), sorted({outcome for _, outcome in counts})
    lines = ["fault " + "".join(f"{outcome:>11}" for outcome in outcomes) + "      total"]
    for group in groups:
        row = [counts[group, outcome] for outcome in outcomes]
        lines.append(f"{group:<6}" + "".join(f"{count or '':>11}" for count in row) + f"{sum(row):>11}")
    total = [sum(counts[group, outcome] for group in groups) for outcome in outcomes]
    return "\n".join([*lines, "all   " + "".join(f"{count:>11}" for count in total) + f"{sum(total):>11}"])


def test_every_medium_is_shown_or_left_out_for_the_right_reason(
    corpus: tuple[Path, list[MediaCase]], fates: tuple[list[Fate], MediaStore], capsys: pytest.CaptureFixture[str]
) -> None:
    cases, (found, store) = corpus[1], fates
    assert len(cases) >= 200
    assert len(found) == len(cases)
    wrong = []
    for case, fate in zip(cases, found, strict=True):
        right = set(case.reasons) | ({SHOWN} if not case.reasons or case.may_show is not None else set())
        if fate.outcome not in right:
            wrong.append(f"{case.group} {case.path[:60]}: {fate.outcome}, right would be {sorted(right)}")
    with capsys.disabled():
        print("\n" + table(cases, found))
    assert not wrong, "\n".join(wrong)
    assert store.pool is not None
    assert (store.pool.stats.crashes, store.pool.stats.timeouts, store.pool.stats.started) == (0, 0, 1), "no medium ended its worker"


def looks_like(entry: ProcessedMedia, model: ProcessedMedia) -> bool:
    """The same pictures at the same times. Lossless within a decoder: the undamaged file was decoded by the same one."""
    if entry.frames.shape != model.frames.shape or np.abs(entry.frames.astype(int) - model.frames).max() > 0:
        return False
    return entry.times is None or (model.times is not None and np.allclose(entry.times, model.times, atol=TICK))


def is_head(entry: ProcessedMedia, model: ProcessedMedia) -> bool:
    """Every frame but the last two is the undamaged file's at that time."""
    assert entry.times is not None
    assert model.times is not None
    for time, frame in list(zip(entry.times, entry.frames, strict=True))[:-2]:
        place = int(np.searchsorted(model.times, time + TICK, side="right")) - 1
        if abs(float(model.times[place]) - time) <= TICK and np.abs(frame.astype(int) - model.frames[place]).max() > LEVELS:
            return False
    return True


def test_a_damaged_file_is_shown_as_what_it_was_or_not_at_all(
    corpus: tuple[Path, list[MediaCase]], fates: tuple[list[Fate], MediaStore], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every damaged medium that is shown is compared with the undamaged file. Where a format has no checksums that can fail; then
    the case must be of a kind that `WEAKER` states, and the weaker statement holds."""
    cases, (found, _) = corpus[1], fates
    whole = {case.path: fate.entry for case, fate in zip(cases, found, strict=True)}
    same, other, wrong = 0, collections.Counter[str](), []
    for case, fate in zip(cases, found, strict=True):
        if fate.entry is None or not case.may_show:
            continue
        model = whole[case.may_show]
        assert model is not None
        if looks_like(fate.entry, model):
            same += 1
        elif case.weaker is None or not holds(case.weaker, fate.entry, model):
            wrong.append(f"{case.path} is shown and does not look like {case.may_show} ({case.weaker})")
        else:
            other[case.weaker] += 1
    with capsys.disabled():
        print(f"\ndamaged and shown: {same} look like the undamaged file; others: {dict(other)}")
    assert not wrong, "\n".join(wrong)
    assert same >= 10
    assert set(other) <= set(WEAKER)
    assert {case.weaker for case in cases} - {None} == set(WEAKER), "a statement without a case"


def holds(weaker: str, entry: ProcessedMedia, model: ProcessedMedia) -> bool:
    """Whether the weaker statement holds."""
    if weaker in ("head", "tail"):
        return is_head(entry, model)
    # pixels may differ, but what is shown is a whole picture of the size that the file says
    return entry.frames.shape[-1] == 3 and entry.frames.size > 0 and entry.original_size[0] > 0


def test_turned_pictures_and_videos_are_shown_upright(corpus: tuple[Path, list[MediaCase]], fates: tuple[list[Fate], MediaStore]) -> None:
    whole = {case.path: fate.entry for case, fate in zip(corpus[1], fates[0], strict=True)}
    first, second = whole["turned-0.mp4"], whole["turned-90.mp4"]
    assert first is not None
    assert second is not None
    assert first.original_size == second.original_size[::-1]
    for kind in ("png", "jpeg", "webp"):
        plain, turned = whole[f"turn-1.{kind}"], whole[f"turn-6.{kind}"]
        assert plain is not None
        assert turned is not None
        assert plain.original_size == turned.original_size[::-1] == (60, 84)


def test_the_worker_stays_within_its_memory(fates: tuple[list[Fate], MediaStore]) -> None:
    pool = fates[1].pool
    assert pool is not None
    assert pool.stats.base <= pool.stats.peak < pool.stats.base + MEMORY / 4, "the corpus needs far less than the cap"


def test_what_headers_refuse_decoding_refuses_too(corpus: tuple[Path, list[MediaCase]], fates: tuple[list[Fate], MediaStore]) -> None:
    for case, fate in zip(corpus[1], fates[0], strict=True):
        if fate.planned != SHOWN:
            assert fate.outcome != SHOWN, case.path


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    cases = row_cases()
    assert len(cases) >= 60
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(case.line for case in cases))
    report = read_source(path, media_root=".")
    assert report.rows == len(cases)
    assert report.blank == report.duplicates == 0
    reasons: dict[int, str | None] = {row.line: row.reason for row in report.bad}
    found = [(n, reasons.get(n)) for n in range(1, len(cases) + 1)]
    assert found == [(n, case.reason) for n, case in enumerate(cases, 1)]
    assert {sample.id for sample in report.samples} == {json.loads(case.line)["id"] for case in cases if case.reason is None}
    assert all(len(row.excerpt) <= 200 for row in report.bad)


def test_a_whole_file_of_hostile_media_leaves_the_good_rows(tiny: Tiny, corpus: tuple[Path, list[MediaCase]], tmp_path: Path) -> None:
    """Rows and audit together, as a run loads them: each row is kept or is in the quarantine with its reason."""
    from vlmrl.config.schema import DataSection, SourceSection
    from vlmrl.run.rows import load_rows
    from vlmrl.run.ui import Ui

    root, cases = corpus
    rows = [good_row(str(n), **({"image": ...} | {case.kind: case.path})) for n, case in enumerate(cases)]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = dataclasses.replace(tiny.encoder, media=store_of(tiny, workers=0), data_root=root, max_prompt_tokens=100_000)
    quarantine = tmp_path / "quarantine.jsonl"
    section = DataSection(root=str(root), max_bad_rows=1.0)
    ui = Ui(quiet=True)
    kept = load_rows(SourceSection(path="rows.jsonl"), section, root, "think_or_not", encoder, quarantine=quarantine, ui=ui)
    bad = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert len(kept.samples) + len(bad) == len(cases)
    honest = {str(n) for n, case in enumerate(cases) if not case.reasons}
    assert honest <= set(kept.samples)
    assert all(line["reason"] for line in bad)
