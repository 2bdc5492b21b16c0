"""Asks the base model of a recipe in several wordings, and writes which is best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from vlmrl import fs
from vlmrl.config.schema import Config, RolloutStage, SourceSection
from vlmrl.errors import DataError
from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.models import LocalModel, compute_dtype, fingerprint_of
from vlmrl.evals.ask.rows import rows_suite
from vlmrl.evals.ask.run import SuiteResult, evaluate_model
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.table import interval_text, markdown
from vlmrl.extras.wording.wordings import Choice, Wording, choose, suite_of
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.run.session import Places

OVERRIDES, PAGE = "best.json", "prompts.md"
"""Files in the folder: a list of `key=value` for the recipe, and the table."""


def ask_in_wordings(
    cfg: Config,
    places: Places,
    wordings: Mapping[str, Wording],
    out: Path,
    *,
    rows: SourceSection | None = None,
    limit: int | None,
    say: Callable[[str], None],
) -> tuple[Choice, SuiteResult]:
    """Ask, choose, and write `best.json`, `prompts.md` and what an evaluation writes. Answers that are there are not asked again.

    Args:
        rows: which are asked; by default those of the last stage, none of which it has trained on yet.
        limit: rows that are asked, those with the smallest hashes of their ids; None for all.

    Raises:
        ConfigError: the model cannot be used, or an answer type has no evaluation.
        DataError: rows or media cannot be used, or nothing was measured.
    """
    last, m = cfg.stages[-1], cfg.model
    asking = Asking(
        media=cfg.media.of_task(),
        answer_format=last.answer_format,
        answer_type=None,
        frame=None,
        max_prompt_tokens=cfg.data.max_prompt_tokens,
        max_new_tokens=last.rollout.max_new_tokens if isinstance(last, RolloutStage) else cfg.eval.max_new_tokens,
        prompt=cfg.data.prompt,
    )
    (task,) = rows_suite(rows or last.source, places.data, asking, plugins=cfg.plugins, say=say).tasks
    suite = suite_of(wordings, task, limit=limit, plugins=tuple(cfg.plugins))
    bundle = load_processor(places.model, revision=m.revision, family=m.family, max_tiles=cfg.media.max_tiles)
    dtype = compute_dtype(m.device, m.dtype)
    policy = load_policy(places.model, bundle, device=m.device, dtype=dtype, attention=m.attention, positions=m.positions)
    model = LocalModel(name="base", policy=policy, fingerprint=fingerprint_of(policy, dtype))
    result = evaluate_model(model, suite, out, data_root=places.data)
    values = {one.id: value for one in suite.tasks if (value := result.primary(one)) is not None}
    if len(values) < len(wordings):
        raise DataError(f"{out}: nothing was measured for {', '.join(sorted(set(wordings) - set(values)))}")
    choice = choose(wordings, values, task.primary)
    fs.write_text(out / OVERRIDES, json.dumps(wordings[choice.best].overrides(cfg), indent=1, ensure_ascii=False) + "\n")
    fs.write_text(out / PAGE, page(choice, wordings, result))
    return choice, result


def page(choice: Choice, wordings: Mapping[str, Wording], result: SuiteResult) -> str:
    """The table of all wordings, and what each asks."""
    n = {name: summary.n for name, summary in result.summaries.items()}
    rows = [["wording", "n", LABELS[choice.metric], ""]]
    for name, value in choice.values.items():
        note = "best" if name == choice.best else "" if wordings[name].trainable else "not for training"
        rows.append([name, str(n[name]), interval_text(choice.metric, value), note])
    lines = [f"* {name}: {task.prompt or 'the question and our sentence'} ({task.asked})" for name, task in _tasks(result).items()]
    return (
        f"# The base model in {len(rows) - 1} wordings\n\n{markdown(rows)}\n" + "\n".join(line.replace("\n", " ") for line in lines) + "\n"
    )


def _tasks(result: SuiteResult) -> dict[str, Task]:
    return {task.id: task for task in result.suite.tasks}
