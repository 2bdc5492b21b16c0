"""The adapter of vlmrl: a job becomes a recipe and runs as `vlmrl train` runs it, from its audit of the rows to the update.

`optimizer_step` is what the step hands its minibatch to, rows and prompts with it. It is watched there: what the loss sees is written down,
and where a job says so the prompts lose their media in front of it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl.extras.pixels.job import RATE, Answer, Fault, Job, Row, Trained
from vlmrl.extras.pixels.ranks import across
from vlmrl.train import dist
from vlmrl.train.stage import grpo

if TYPE_CHECKING:
    from vlmrl.algo.inputs import LossInputs
    from vlmrl.policy.pack import Row as PackedRow
    from vlmrl.train.step import Learner, Minibatch, Objective, StepReport


class Vlmrl:
    """vlmrl itself."""

    name = "vlmrl"

    def version(self) -> str:
        """Name the installed version."""
        from vlmrl import __version__

        return __version__

    def lacks(self, fault: Fault) -> str | None:
        """Every fault applies."""
        del fault
        return None

    def train(self, job: Job) -> Trained:
        """Run the recipe of a job, in processes of their own where it wants several.

        Raises:
            VlmrlError, ValueError, RuntimeError: as a run.
        """
        if "RANK" not in os.environ:  # the process that a person started, and no rank of it
            rows = "".join(f"{json.dumps(row_of(row))}\n" for row in job.rows)
            Path(job.folder, "rows.jsonl").write_text(rows, encoding="utf-8")
            if job.ranks > 1:
                return across(job, "vlmrl.extras.pixels.own:Vlmrl")
        from rich.console import Console

        from vlmrl.config.load import load_mapping
        from vlmrl.methods import method_problems
        from vlmrl.run.start import Places, train_from
        from vlmrl.run.ui import Ui

        trained, heard = Trained(), io.StringIO()
        loaded = load_mapping(recipe_of(job), [], also=method_problems)
        with _watched(job, trained):
            train_from(loaded, Places(model=job.model, data=root_of(job)), Ui(Console(file=heard, width=2000)))
        trained.said += [line for line in heard.getvalue().splitlines() if "warning" in line]
        return trained


def root_of(job: Job) -> Path:
    """Find the folder with the media, in which the job's own folder lies."""
    return Path(job.rows[0].media[0]).parent


def row_of(row: Row) -> dict[str, Any]:
    """Write a row in our schema."""
    files = [os.path.basename(path) for path in row.media]
    return {
        "id": row.word,
        "task": "count",
        "answer_type": "number",
        f"{row.kind}s": files,
        "prompt": row.text,
        "answer": "3",
        "gt": {"number": 3},
    }


def recipe_of(job: Job) -> dict[str, Any]:
    """Write the recipe of a job: what it says, and nothing evaluated or tracked beside it."""
    bound = {} if job.most_prompt_tokens is None else {"max_prompt_tokens": job.most_prompt_tokens}
    rows = Path(job.folder, "rows.jsonl").relative_to(root_of(job))
    stage = {
        "name": "rl",
        "kind": "grpo",
        "source": {"path": str(rows)},
        "steps": job.steps,
        "answer_format": "answer_only",
        "optim": {"lr": RATE},
        "rollout": {"prompts_per_step": len(job.rows), "num_generations": job.group, "max_new_tokens": job.answer_tokens},
        "rewards": [{"name": "python", "label": "spread", "function": "vlmrl.extras.pixels.job:spread", "isolate": False}],
    }
    return {
        "run": {"name": "run", "root": job.folder, "trackers": [], "threads": 1},
        # `grid`: where transformers, and so the reference, has text go on behind a video
        "model": {"path": job.model, "device": "cpu", "dtype": "float32", "positions": "grid"},
        "data": {"root": str(root_of(job)), **bound},
        "media": {"fps": job.fps, "prefetch": False},
        "eval": {"at_start": False},
        "checkpoint": {"every": 1000},
        "stages": [stage],
    }


@contextmanager
def _watched(job: Job, trained: Trained) -> Iterator[None]:
    """Write down what the loss sees of every minibatch; take media out of the prompts on ranks that shall lose them."""
    ours, step = grpo.optimizer_step, 0

    def watched(learner: Learner, batch: Minibatch, objective: Objective) -> StepReport:
        nonlocal step
        weights = None if step == 0 else {name: value.detach().clone() for name, value in learner.policy.model.state_dict().items()}
        reported = batch.logp_sampled_NT
        sampled = {} if reported is None else {row.index: values for row, values in zip(batch.rows, reported, strict=True)}
        number = step

        def see(rows: Sequence[PackedRow], x: LossInputs) -> None:
            for n, row in enumerate(rows):
                known = sampled.get(row.index)
                count = len(row.response)
                trained.answers.append(
                    Answer(
                        prompt=row.prompt.ids,
                        ids=row.response,
                        logp=tuple(x.logp_BT[n, :count].detach().tolist()),
                        excluded=learner.forbidden,
                        step=number,
                        sampled=() if known is None else tuple(known[:count].tolist()),
                        weights=weights,
                    )
                )

        if dist.rank() in job.lost:
            rows = tuple(dataclasses.replace(row, prompt=dataclasses.replace(row.prompt, media=())) for row in batch.rows)
            batch = dataclasses.replace(batch, rows=rows)
        step += 1
        return ours(learner, dataclasses.replace(batch, see=see), objective)

    grpo.optimizer_step = watched
    try:
        yield
    finally:
        grpo.optimizer_step = ours
