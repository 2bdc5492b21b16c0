"""Steps of a GRPO stage on answers that are written down, in this process: what does a method change of the gradient?

The parts are those of a run (`run.build`), from the recipe's section to the update. Two things are ours: the engine, which gives answers
from a table in place of sampling them, and the loop, which makes steps without hooks. Every stage begins with the same weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from vlmrl.answers.tags import FREE
from vlmrl.config.load import ResolvedRecipe, loaded
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.methods import method_problems
from vlmrl.rollout.in_place import Done, InPlace
from vlmrl.run import build
from vlmrl.run.engines import ENGINES, EngineKind
from vlmrl.run.loop import Loop
from vlmrl.run.machine import settled
from vlmrl.run.rundir import Options, open_run
from vlmrl.run.session import Places, Session, fixed_options, open_session
from vlmrl.run.silent import PREFIX, ZEROED
from vlmrl.run.ui import Ui
from vlmrl.sampling.ledger import Ledger
from vlmrl.train.stage.base import StepResult
from vlmrl.types import GenerationSettings, Request, Rollout, Sample

ROWS = 8
"""Rows of data: with four a step, the third step asks again what the first did."""
GROUP = 6
LONG = "first it is here, then it moves along, and then it stops"
SHORT = "it moves"
HINT = "Look at the moment in which it moves."

Row = tuple[str | None, str]
"""(thought, None for an answer without tags; which answer: `right`, `near`, `far`, `loose` for a right one in another form, `cut` where it
is cut off within its thought)."""
PATTERNS: Mapping[str, Sequence[Row]] = {
    "mixed": ((LONG, "right"), (SHORT, "far"), (SHORT, "near"), ("", "right"), (LONG, "cut"), (None, "near")),
    "short is right": ((SHORT, "right"), (LONG, "far"), (LONG, "near"), ("", "near"), (SHORT, "far"), (SHORT, "loose")),
    "failed": ((LONG, "far"), (SHORT, "far"), ("", "far"), (LONG + " again", "far"), (SHORT + " again", "far"), (SHORT, "far")),
    "solved": ((LONG, "right"), (SHORT, "right"), ("", "right"), (SHORT, "near"), (LONG + " again", "right"), (SHORT, "right")),
}
"""Kind of group -> its answers, in turn."""


def span(sample: Sample, which: str) -> str:
    """A time span that is right, overlaps with the right one, or does not."""
    start, end = (float(x) for x in sample.gt["time"])
    if which == "near":
        end = start + (end - start) * 0.7
    elif which == "far":
        start, end = end + 1, end + 3
    return f"{start:.1f} to {end:.1f}"


def answer(sample: Sample, row: Row) -> tuple[str, str]:
    """(text, why it ended) of one answer."""
    thought, which = row
    if which == "cut":
        return f"<think>{thought}", "length"
    if thought is None:
        return span(sample, which), "stop"
    return f"<think>{thought}</think><answer>{span(sample, which)}</answer>{' So.' if which == 'loose' else ''}", "stop"


class Written(InPlace):
    """Gives answers from the table: those of `mixed` to what is not a row's own question, and a hint where one is asked for."""

    def __init__(self, session: Session):
        super().__init__(session.policy, session.vision, 64)
        self.bundle = session.bundle

    def generate(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None) -> list[list[Rollout]]:
        out: list[list[Rollout]] = []
        for number, request in enumerate(requests):
            sample = request.prompt.sample
            again = sample.question != sample.meta["question"]
            rows = PATTERNS["mixed" if again else sample.meta["pattern"]]
            shift = 2 * sample.question.count(f"{HINT} again")  # another hint leads to other answers
            texts = [answer(sample, rows[(k + shift) % len(rows)]) for k in request.ks]
            if request.prompt.answer_format == FREE:
                texts = [(HINT, "stop") for _ in texts]
            elif "Write a short hint" in sample.question:
                texts = [(f"<think>so</think><answer>{HINT}{' again' * (k % 2)}</answer>", "stop") for k in request.ks]
            rollouts = [self._rollout(k, *one) for k, one in zip(request.ks, texts, strict=True)]
            out.append(rollouts)
            if done is not None:
                done(number, rollouts)
        return out

    def _rollout(self, k: int, text: str, finish: Any) -> Rollout:
        ids = tuple(self.bundle.tokenize(text)) + ((self.bundle.end_ids[0],) if finish == "stop" else ())
        # not those of the trainer: what corrects for the distance has something to do
        logprobs = tuple(-0.5 - 0.25 * ((7 * n + k) % 11) for n in range(len(ids)))
        return Rollout(k=k, ids=ids, logprobs=logprobs, text=text, finish=finish, policy_version=self.version)


@dataclass
class Steps:
    """What a stage came to."""

    gradients: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Of each update, flat and not clipped."""
    values: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """What each step logs."""
    warnings: list[str] = field(default_factory=list[str])

    def touched(self, method: str) -> float:
        """The largest share that is logged of what a method (`<slot>.<name>`) changed; NaN where nothing is."""
        names = {name for values in self.values for name in values if name.startswith(f"{PREFIX}{method}/") and not name.endswith(ZEROED)}
        return max((values[name] for values in self.values for name in names if name in values), default=math.nan)


def distance(a: Steps, b: Steps) -> float:
    """The largest relative distance between the gradients of two stages, update by update; 1 where one of them made more updates."""
    if len(a.gradients) != len(b.gradients):
        return 1.0
    pairs = zip(a.gradients, b.gradients, strict=True)
    return max((float((x - y).norm() / max(float(x.norm()), float(y.norm()), 1e-12)) for x, y in pairs), default=0.0)


class Bench:
    """A session of a run, whose stages are given one by one."""

    def __init__(self, session: Session, raw: Mapping[str, Any], patch: pytest.MonkeyPatch):
        self.session = session
        self.raw = raw
        self._patch = patch
        self._weights = {name: value.clone() for name, value in session.policy.model.state_dict().items()}
        self._known: dict[str, Steps] = {}

    def steps(self, **stage: Any) -> Steps:
        """Make the steps of a stage; the same stage is made once."""
        key = json.dumps(stage, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._made(stage)
        return self._known[key]

    def _made(self, stage: Mapping[str, Any]) -> Steps:
        s, out = self.session, Steps()
        for method in stage.get("reweight", ()):
            if isinstance(marker := method.get("marker"), str):  # a text, whose ids the tokenizer knows
                method["marker"] = s.bundle.tokenize(marker)
        cfg = Config.model_validate({**self.raw, "stages": [recipe_stage(**stage)]})
        (section,) = cfg.stages
        assert isinstance(section, GrpoSection)
        if problems := method_problems(cfg):
            raise ValueError("\n".join(problems))
        s.policy.model.load_state_dict(self._weights)
        s.state.start_stage(0)
        s.state.ledger = Ledger()
        s.state.global_step += 100  # journals of another stage are not replayed

        def run(loop: Loop, step: Any) -> None:
            kept = loop.stage
            loop.memories.complete()
            updates = kept.learner.updates
            finish = updates.finish

            def looked_at(max_norm: float) -> Any:
                parts = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for _, p in kept.learner.named]
                out.gradients.append(torch.cat(parts).clone())
                return finish(max_norm)

            updates.finish = looked_at
            assert kept.rewards is not None
            with kept.loader.running(), closing(kept.rewards.runner), loop.ends:
                while not kept.ended:
                    result: StepResult = step()
                    out.values.append(result.values)
                    out.warnings += result.warnings
                    assert result.report.applied
                    kept.state.step += 1
                    kept.state.global_step += 1

        with self._patch.context() as patch:
            patch.setattr(Loop, "run", run)
            build.grpo(s, section)
        return out


def recipe_stage(**stage: Any) -> dict[str, Any]:
    """A stage of plain GRPO. `rollout` is merged with what is here, everything else takes the place of it."""
    rollout = {"num_generations": GROUP, "prompts_per_step": 4, "generation_batch_size": 4, "max_new_tokens": 96, "graphs": False}
    return (
        {
            "name": "rl",
            "kind": "grpo",
            "source": {"path": "written.jsonl"},
            "steps": 1,
            "answer_format": "think",
            "freeze": ["vision", "projector"],
            "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}],
            "beta": 0.0,
            "optim": {"lr": 1e-3},
        }
        | stage
        | {"rollout": rollout | stage.get("rollout", {})}
    )


def opened_recipe(raw: Mapping[str, Any]) -> ResolvedRecipe:
    return settled(loaded(Config.model_validate(raw)), raw["model"]["path"])


def write_rows(world: Path) -> None:
    """Rows with all that methods read of them: kinds of groups, trajectories, hints, wordings."""
    lines = [json.loads(line) for line in (world / "train.jsonl").read_text().splitlines()[:ROWS]]
    kinds = list(PATTERNS)
    for i, line in enumerate(lines):
        line["meta"] = {**line.get("meta", {})} | {
            "question": line["prompt"],
            "pattern": kinds[i % len(kinds)],
            "trajectory": {"id": f"t{i // 2}", "step": i % 2, "length": 2 + 5 * (i % 2)},
            "level": i % 3,
            "paraphrases": [f"Tell me: {line['prompt']}"],
            "hints": ["It is near the end.", "It moves."],
            "solution": LONG,
        }
        line["thought"] = LONG
    (world / "written.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def bench(files: tuple[Path, Path], root: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Open a run on files of `tests.support.tiny`."""
    model, world = files
    write_rows(world)
    patch.setitem(ENGINES, "hf", EngineKind(make=lambda session, rollout: Written(session)))
    raw = {
        "run": {"name": "written", "root": str(root), "trackers": [], "threads": 1},
        "model": {"path": str(model), "device": "cpu", "gradient_checkpointing": False},
        "train": {"rehearse": False},
        "data": {"root": str(world)},
        "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 32, "prefetch": False},
        "eval": {},
        "keep": {"groups_per_step": 0},
    }
    recipe = opened_recipe({**raw, "stages": [recipe_stage()]})
    cfg = recipe.config
    with open_run(root, "written", Options(recipe.text, recipe.hash, fixed_options(cfg))) as run:
        session = open_session(cfg, recipe.hash, Places(model=str(model), data=world), run, Ui(quiet=True))
        session.open_policy()
        try:
            yield Bench(session, raw, patch)
        finally:
            session.tracker.close()
            session.store.close()
