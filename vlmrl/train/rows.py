"""The rows of a stage, audited from media headers before the first step; what is bad goes to the quarantine with its reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl import fs
from vlmrl.config.schema import DataSection, SourceSection
from vlmrl.data.encode import Encoder
from vlmrl.data.gold import check_gold
from vlmrl.data.source import load_source
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.train import dist
from vlmrl.train.import_options import import_options
from vlmrl.train.ui import Ui
from vlmrl.types import Sample


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Audited rows of a source under one answer format."""

    samples: Mapping[str, Sample]
    prompt_tokens: Mapping[str, int]
    """Length of each sample's prompt, known from media headers."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Id of a row that cannot be used -> where it is and why."""


def quarantine_row(path: Path, sample: Sample, reason: str, message: str) -> None:
    """Append one bad row; every rank may meet a different one, and appends are small single writes."""
    line = {"id": sample.id, "source": sample.source, "reason": reason, "message": message[:500]}
    fs.append(path, json.dumps(line, sort_keys=True).encode() + b"\n")


def load_rows(
    source: SourceSection, data: DataSection, root: Path, answer_format: str, encoder: Encoder, *, quarantine: Path, ui: Ui
) -> Rows:
    """Samples by id in file order: parsed, their media present and within limits by header, their prompts short enough, their answers in
    agreement with their ground truth and its times within the video.

    Overlong prompts are dropped and counted (data.max_prompt_tokens says so); other faults count against data.max_bad_rows.

    Raises:
        DataError: too many bad rows, or none left.
    """
    samples = load_source(
        root / source.path,
        media_root=source.media_root,
        dedupe=data.dedupe,
        max_bad_rows=data.max_bad_rows,
        quarantine=quarantine if dist.is_main() else None,
        options=import_options(source, root),
        say=ui.say,
    )
    good: dict[str, Sample] = {}
    tokens: dict[str, int] = {}
    bad: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    with ui.bar(f"audit {Path(source.path).name}", len(samples)) as bar:
        for n, sample in enumerate(samples):
            try:
                prompt = encoder.plan(sample, answer_format)
                check_gold(sample, prompt)
                tokens[sample.id] = len(prompt.ids)
                good[sample.id] = sample
            except (MediaError, RowError) as error:
                bad.setdefault(error.reason, []).append(f"{sample.source}: {error}")
                left_out[sample.id] = f"{sample.source}: {error}"
                if dist.is_main():
                    quarantine_row(quarantine, sample, error.reason, str(error))
            bar.update(n + 1)
    faulty = sum(len(lines) for reason, lines in bad.items() if reason != "overlong")
    if bad:
        counts = ", ".join(f"{len(lines)} {reason}" for reason, lines in sorted(bad.items()))
        ui.say(f"{source.path}: left out {counts}; see {quarantine}")
    if faulty > data.max_bad_rows * len(samples) or not good:
        first = next(iter(next(iter(bad.values()))), "no rows")
        raise DataError(
            f"{source.path}: {faulty} of {len(samples)} rows have unusable media or prompts, {len(good)} are left; "
            f"data.max_bad_rows is {data.max_bad_rows}; first: {first}; all are in {quarantine}"
        )
    return Rows(samples=good, prompt_tokens=tokens, left_out=left_out)
