"""Evaluate a checkpoint on a suite, from a folder of weights to a table. Answers already there are not generated again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs
from vlmrl.data.encode import Encoder
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError, DataError, MediaError, RowError
from vlmrl.evals.quick import evaluate
from vlmrl.evals.records import Record
from vlmrl.evals.suite import Suite, Task, load_suite
from vlmrl.evals.summary import Summary, summarize
from vlmrl.evals.table import markdown, summary_cells, table
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import Policy, ProcessorBundle, load_policy, load_processor, weights_fingerprint
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = 5
_SEED = 0
"""Of the bootstrap."""


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What `evaluate_suite` found; prints as tables in rich."""

    suite: Suite
    model: str
    fingerprint: str
    summaries: dict[str, Summary]
    """By task."""
    records: dict[str, list[Record]]
    out: Path

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*(table(self._cells(task), title=f"{self.suite.id} v{self.suite.version}: {task.id}") for task in self.suite.tasks))

    def markdown(self) -> str:
        """A heading and a table per task."""
        parts = [f"## {self.suite.id} v{self.suite.version}: {task.id}\n\n{markdown(self._cells(task))}" for task in self.suite.tasks]
        return "\n".join(parts)

    def json(self) -> dict[str, Any]:
        """Everything but the records, as JSON values."""
        return {
            "suite": self.suite.model_dump(mode="json"),
            "model": self.model,
            "fingerprint": self.fingerprint,
            "vlmrl": __version__,
            "tasks": {name: dataclasses.asdict(summary) for name, summary in self.summaries.items()},
        }

    def _cells(self, task: Task) -> list[list[str]]:
        return summary_cells({self.model: self.summaries[task.id]}, task.metrics)


def evaluate_suite(
    checkpoint: Path,
    suite: Path,
    out: Path,
    *,
    data_root: Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "sdpa",
    progress: Callable[[str, int, int], None] | None = None,
) -> SuiteResult:
    """Greedy answers of a checkpoint to every row of every task.

    Writes `<out>/<task>.jsonl` (records), `summary.json` and `results.md`.

    Args:
        checkpoint: model folder (`stages/<name>` or `final` of a run), or a finished run's directory.
        data_root: replaces the suite's; needed when that is `toy`.
        progress: called with (task, done, total).

    Raises:
        ConfigError: suite or checkpoint cannot be used.
        DataError: rows or media of a task cannot be used; nothing leaves the denominator in silence.
    """
    checked = load_suite(suite)
    root = _data_root(checked, data_root)
    folder = model_folder(checkpoint)
    bundle = load_processor(str(folder))
    policy = load_policy(str(folder), bundle, device=device, dtype=dtype, attention=attention)
    fingerprint = weights_fingerprint(policy)
    name = checkpoint.absolute().name
    fs.mkdir(out)
    records: dict[str, list[Record]] = {}
    for task in checked.tasks:
        store = open_store(task, bundle)
        records[task.id] = evaluate(
            engine=HFEngine(policy, VisionCache(store, budget_bytes=task.media.cache_bytes)),
            prompts=task_prompts(task, root, store, policy, out),
            settings=GenerationSettings(max_new_tokens=task.max_new_tokens, temperature=0.0),
            fingerprint=fingerprint,
            out=out / f"{task.id}.jsonl",
            stage=name,
            batch_prompts=checked.batch_prompts,
            tokenizer_len=lambda text: len(bundle.tokenize(text)),
            progress=None if progress is None else lambda done, total, task=task: progress(task.id, done, total),
        )
    summaries = {name_: summarize(rows, seed=_SEED) for name_, rows in records.items()}
    result = SuiteResult(suite=checked, model=name, fingerprint=fingerprint, summaries=summaries, records=records, out=out)
    fs.write_text(out / "summary.json", json.dumps(result.json(), indent=1, sort_keys=True) + "\n")
    fs.write_text(out / "results.md", result.markdown())
    return result


def model_folder(checkpoint: Path) -> Path:
    """The folder with a model's config and weights that `checkpoint` means.

    Raises:
        ConfigError: neither a model folder nor a run with a final model.
    """
    for folder in (checkpoint, checkpoint / "final"):
        if (folder / "config.json").is_file():
            return folder
    raise ConfigError(
        f"{checkpoint}: no model there (no config.json); give a model folder such as <run>/final or <run>/stages/<name>. "
        "Folders under <run>/checkpoints hold only what training changes and cannot be loaded alone"
    )


def open_store(task: Task, bundle: ProcessorBundle) -> MediaStore:
    """Media as the task says the model sees them."""
    return MediaStore(
        MediaSettings(**task.media.model_dump(exclude={"prefetch", "vision_cache_dir", "vision_cache_bytes"})),
        patchify=bundle.patchify,
        patch_size=bundle.patch_size,
        merge_size=bundle.merge_size,
        temporal_patch_size=bundle.temporal_patch_size,
        fingerprint=bundle.fingerprint,
        step_times=bundle.step_times,
    )


def task_prompts(task: Task, root: Path, store: MediaStore, policy: Policy, out: Path) -> list[Prompt]:
    """The task's rows as prompts, all of them.

    Raises:
        DataError: with the rows that cannot be used and why.
    """
    bundle = policy.bundle
    encoder = Encoder(
        tokenizer=bundle.tokenizer,
        media=store,
        data_root=root,
        pad_ids=bundle.pad_ids,
        special_ids=bundle.special_ids,
        max_prompt_tokens=task.max_prompt_tokens,
    )
    samples = load_source(
        root / task.source, media_root=task.media_root, dedupe="error", max_bad_rows=0.0, quarantine=out / f"{task.id}.quarantine.jsonl"
    )[: task.limit]
    prompts: list[Prompt] = []
    problems: list[str] = []
    for sample in samples:
        if sample.answer_type != task.answer_type:
            problems.append(f"row '{sample.id}' ({sample.source}): answer type '{sample.answer_type}', the task's is '{task.answer_type}'")
            continue
        try:
            prompts.append(encoder.encode(sample, task.template))
        except (MediaError, RowError) as error:
            problems.append(f"row '{sample.id}' ({sample.source}): {error}")
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listing = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise DataError(f"task '{task.id}': {len(problems)} of {len(samples)} rows cannot be evaluated; fix or remove them{listing}{more}")
    return prompts


def _data_root(suite: Suite, given: Path | None) -> Path:
    if given is not None:
        return given
    if suite.data_root == "toy":
        raise ConfigError(f"suite '{suite.id}': data_root is 'toy'; say where the generated world is (`vlmrl toy make` writes one)")
    return Path(suite.data_root).expanduser()
