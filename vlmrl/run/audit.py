"""All data of a recipe, checked before the first GPU second: every row is read, its media decoded, its prompt measured, its gold
answer scored. Loads tokenizer and processors, never model weights. Every row is accounted for by reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlmrl.config.combinations import idle_for_rows, needing
from vlmrl.config.schema import Config, RolloutStage, SourceSection
from vlmrl.data.adapters import MIXED, ImportOptions
from vlmrl.data.encode import Encoder
from vlmrl.data.gold import check_answer, check_gold
from vlmrl.data.source import BadRow, read_source
from vlmrl.errors import MediaError, RowError
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.methods import registries
from vlmrl.policy.foreign import unproven
from vlmrl.policy.load import load_processor
from vlmrl.registry import Registry
from vlmrl.run.audit_leak import Hashes, HeldOutRows, held_out_sets, overlap, repeated_ids, told
from vlmrl.run.audit_report import AuditReport, SourceAudit
from vlmrl.run.columns import reward_problems
from vlmrl.run.evaluate import eval_problems
from vlmrl.run.media import open_media
from vlmrl.run.ui import Ui
from vlmrl.train.batch import trajectory_id
from vlmrl.types import Prompt, Sample


class RowsPage(Protocol):
    """Collects rows of sources for a page that shows them."""

    def wants(self, source: str) -> bool:
        """Whether one more good row of this source would be shown; its pixels need not be fetched otherwise."""
        ...

    def add(self, source: str, prompt: Prompt, media: ProcessedMedia | None) -> None:
        """Take a good row with its first medium, if it has any and `wants` said so."""
        ...

    def reject(self, source: str, sample: Sample, reason: str, message: str, media: ProcessedMedia | None = None) -> None:
        """Take a row that was read and cannot be used. `media` is its first medium, where that is not the fault."""
        ...

    def reject_unread(self, source: str, bad: BadRow) -> None:
        """Take a row that could not be read."""
        ...

    def write(self, path: Path) -> Path:
        """Write the page."""
        ...


def audit(cfg: Config, *, model: str, data: Path, ui: Ui, page: RowsPage | None = None, all_gold: bool = False) -> AuditReport:
    """Check every source of the stages, of their `until` and of the evaluation.

    Args:
        model: folder or hub id whose processor makes the prompts.
        data: folder that sources are relative to.
        page: collects rows with their pixels, to look at.
        all_gold: score the gold answers of all rows, also where no ground truth stands beside them (stages with rewards do so anyway).

    Raises:
        ConfigError: the processor cannot be loaded, or a suite to compare with is wrong.
        DataError: a source file is missing or cannot be read.
        MediaError: a medium vanished while it was looked at.
    """
    bundle = load_processor(model, revision=cfg.model.revision, family=cfg.model.family, max_tiles=cfg.media.max_tiles)
    store, encoder = open_media(cfg, bundle, data)
    shown = None if page is None else PageRows(page, store, encoder)
    report = AuditReport(problems=[*unproven(bundle.family, cfg), *eval_problems(cfg)])
    trained: dict[SourceSection, dict[str, Sample]] = {}
    done: dict[tuple[SourceSection, str], tuple[SourceAudit, list[Sample]]] = {}

    def visit(source: SourceSection, answer_format: str, used_by: str) -> tuple[SourceAudit, list[Sample]]:
        key = (source, answer_format)
        if key not in done:
            found = SourceAudit(path=source.path, answer_format=answer_format, used_by=[])
            done[key] = (found, _audit_source(found, source, cfg, data, encoder, ui, shown, all_gold=all_gold))
            report.sources.append(found)
            report.problems += _source_problems(found, cfg)
        done[key][0].used_by.append(used_by)
        return done[key]

    from vlmrl.rewards.run.here import here_notes

    for stage in cfg.stages:
        _, samples = visit(stage.source, stage.answer_format, stage.name)
        trained.setdefault(stage.source, {}).update((sample.id, sample) for sample in samples)
        if samples:
            report.problems += idle_for_rows(stage, registries(cfg.plugins), {sample.task for sample in samples})
        if isinstance(stage, RolloutStage) and samples and stage.rewards and stage.environment is None:
            report.notes += here_notes(stage.name, stage.rewards)
            report.problems += reward_problems(stage, cfg.plugins, samples)
            report.problems += without_turns(stage, registries(cfg.plugins), samples)
    held_out: dict[SourceSection, tuple[str, list[Sample]]] = {}
    if cfg.eval.source is not None:
        # The prompt of the last stage is the one that the trained model is asked with.
        _, samples = visit(cfg.eval.source, cfg.stages[-1].answer_format, "eval")
        held_out[cfg.eval.source] = (f"eval.source ({cfg.eval.source.path})", samples)
    for stage in cfg.stages:
        if stage.until is not None:
            _, samples = visit(stage.until.source, stage.answer_format, f"{stage.name} until")
            held_out.setdefault(stage.until.source, (f"stages.{stage.name}.until.source ({stage.until.source.path})", samples))
    _check_leaks(report, cfg, data, trained, list(held_out.values()))
    return report


@dataclass(frozen=True)
class PageRows:
    """Rows on their way to a page, with the pixels of their first medium."""

    page: RowsPage
    store: MediaStore
    encoder: Encoder

    def good(self, source: str, prompt: Prompt) -> None:
        media = self.store.get_key(prompt.media[0].key) if prompt.media and self.page.wants(source) else None
        self.page.add(source, prompt, media)

    def bad(self, source: str, sample: Sample, error: MediaError | RowError) -> None:
        whole = isinstance(error, RowError) and sample.media
        media = self.store.get(sample.media[0], self.encoder.root(sample)) if whole else None
        self.page.reject(source, sample, error.reason, str(error), media)


def _audit_source(
    found: SourceAudit,
    source: SourceSection,
    cfg: Config,
    data: Path,
    encoder: Encoder,
    ui: Ui,
    shown: PageRows | None,
    *,
    all_gold: bool,
) -> list[Sample]:
    """Fill `found` and return the good samples."""
    options = ImportOptions.of(source, data)
    read = read_source(data / source.path, media_root=source.media_root, dedupe=cfg.data.dedupe, options=options)
    if read.note is not None:
        ui.say(read.note)
    found.rows, found.shape = read.rows, read.shape
    name = f"{found.path} ({found.answer_format})"
    for bad in read.bad:
        found.reject(bad.reason, str(bad))
        if shown is not None:
            shown.page.reject_unread(name, bad)
    if read.duplicates:
        found.reasons["duplicate (kept first)"] += read.duplicates
    good: list[Sample] = []
    with ui.bar(f"check {Path(source.path).name}", len(read.samples)) as bar:
        for n, sample in enumerate(read.samples):
            try:
                prompt = encoder.encode(sample, found.answer_format)
                check_gold(sample, prompt)
                if all_gold:
                    check_answer(sample, found.answer_format, always=True)
            except (MediaError, RowError) as error:
                found.reject(error.reason, f"{sample.source}: {error}")
                if shown is not None:
                    shown.bad(name, sample, error)
            else:
                if shown is not None:
                    shown.good(name, prompt)
                good.append(sample)
                found.longest_prompt = max(found.longest_prompt, len(prompt.ids))
            bar.update(n + 1)
    found.good = len(good)
    return good


def _check_leaks(
    report: AuditReport,
    cfg: Config,
    data: Path,
    trained: Mapping[SourceSection, Mapping[str, Sample]],
    held_out: Sequence[tuple[str, Sequence[Sample]]],
) -> None:
    """Add what training rows have in common with held-out ones (name and rows of each set), and ids that mean different rows."""
    hashes = Hashes()
    sources = {source: list(samples.values()) for source, samples in trained.items()}
    report.problems += repeated_ids(sources, data, hashes)
    own = [HeldOutRows(name=name, rows=[hashes.shown(sample, data) for sample in samples]) for name, samples in held_out]
    sets = [*own, *held_out_sets(cfg, data, hashes)]
    if not sets:
        return
    for source, samples in sources.items():
        rows = [hashes.shown(sample, data) for sample in samples]
        for held in sets:
            problems, notes = told(source.path, held.name, overlap(rows, held.rows))
            report.problems += problems
            report.notes += notes
    for held in sets:
        if held.bad:
            left = f"{len(held.bad)} of {len(held.bad) + len(held.rows)} rows of {held.name} could not be compared with training rows"
            report.notes.append(f"warning: {left}; first: {held.bad[0]}")


def _source_problems(found: SourceAudit, cfg: Config) -> list[str]:
    # What the recipe asks to leave out is not a fault: long prompts (data.max_prompt_tokens) and kept-first repeats.
    bad = found.rows - found.good - found.reasons["overlong"] - found.reasons["duplicate (kept first)"]
    listed = "".join(f"\n    {line}" for line in found.examples)
    if not found.good:
        return [f"{found.path}: none of {found.rows} rows can be used{listed}"]
    if found.reasons[MIXED]:
        return [f"{found.path}: {found.reasons[MIXED]} rows of another shape than the first; split the file by shape{listed}"]
    if found.reasons["duplicate_id"]:
        return [f"{found.path}: {found.reasons['duplicate_id']} repeated ids; give every row its own, or see data.dedupe{listed}"]
    if bad > (most := cfg.data.max_bad_rows) * found.rows:
        return [f"{found.path}: {bad} of {found.rows} rows are bad ({bad / found.rows:.2%}); data.max_bad_rows allows {most:.2%}{listed}"]
    return []


def without_turns(stage: RolloutStage, known: Mapping[str, Registry[Any]], samples: Sequence[Sample]) -> list[str]:
    """Methods of turns, where the stage has no environment and its rows do not say which trajectory and step they are."""
    alone = next((sample for sample in samples if trajectory_id(sample) is None), None)
    if alone is None:
        return []
    said = f"row '{alone.id}' says no `trajectory.id`, and the stage has no environment"
    return [f"{where}: needs the turns of trajectories: {said}" for where in needing(stage, known, "trajectory_N", slot="advantage")]
