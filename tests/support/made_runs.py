"""A folder to look at, made without training: runs of a recipe over seeds with kept groups and held-out evaluations, evaluations of two
checkpoints with their comparison, and a data check. Answers tell a story: SFT forgets hard questions, RL raises them and thinks only there.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.kept import key_of, pixels
from tests.support.kept import record as kept_record
from tests.support.pages import keep_row, make_eval
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.records import Record, Think
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.write import KeptWriter
from vlmrl.types import MediaRef, Sample

COLOURS = ("red", "green", "blue", "white")
STAGES = ("base", "sft", "rl")
RIGHT = {"base": (1.0, 1.0), "sft": (0.9, 0.35), "rl": (1.0, 0.97)}
"""Chances of a right answer at easy and at hard questions."""
THINKS = {"base": (1.0, 1.0), "sft": (0.2, 0.2), "rl": (0.0, 1.0)}


def held_out(stage: str, count: int, seed: int, *, world: int = 0) -> list[Record]:
    """Answers after a stage to questions of two difficulties. `world`: questions of the same ids with other videos."""
    out: list[Record] = []
    for n in range(count):
        hard, draw = n % 2, random.Random(f"{stage} {n} {seed}")
        right, thinks = draw.random() < RIGHT[stage][hard], draw.random() < THINKS[stage][hard]
        gold = COLOURS[(n + world) % 4]
        answer = gold if right else COLOURS[(n + world + 1 + draw.randrange(3)) % 4]
        thought = "red, green, blue, red" if thinks else ""
        out.append(
            Record(
                **{"model": stage, "sample_id": f"q{n:03d}", "task": "shell", "cluster": f"videos/{world}-{n}.mp4"},
                **{
                    "sample_hash": f"{world:02d}{n:030d}",
                    "prompt_ids_hash": "p",
                    "answer_format": "think_or_not",
                    "answer_type": "exact_text",
                },
                **{"text": f"<think>{thought}</think><answer>{answer}</answer>", "answer": answer, "status": "ok", "format_ok": True},
                **{"pred": (), "gold": (), "scores": {"exact": float(right)}, "think": Think(has=thinks, tokens=7 if thinks else 0)},
                **{"n_in": 60, "n_out": 24 if thinks else 9, "finish": "stop", "unclosed": False, "fingerprint": f"weights-{stage}-{seed}"},
                settings={"max_new_tokens": 48, "temperature": 0.0, "top_p": 1.0},
                difficulty=str(2 + 5 * hard),
                category="hard" if hard else "easy",
            )
        )
    return out


def make_run(
    path: Path,
    *,
    seed: int = 0,
    world: int = 0,
    rewards: Sequence[str] = ("exact", "brief"),
    steps: int = 12,
    count: int = 40,
    groups: int = 4,
    finished: bool = True,
    evaluated: Sequence[str] = STAGES,
) -> Path:
    """A run: SFT of 5 steps, then RL."""
    (path / "eval").mkdir(parents=True)
    config = {
        "run": {"name": path.name, "seed": seed},
        "model": {"path": "toy"},
        "stages": [
            {"name": "sft", "kind": "sft", "steps": 5, "batch": 16},
            {"name": "rl", "kind": "grpo", "steps": steps, "rollout": {"num_generations": 8, "prompts_per_step": 8}}
            | {"rewards": [{"name": name} for name in rewards]},
        ],
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "run.json").write_text(json.dumps({"schema": 1, "fixed": {}, "history": [{"notes": []}]}))
    (path / "environment.json").write_text(json.dumps({"vlmrl": "0", "python": "3.11", "packages": {"torch": "2"}}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _metrics(seed, rewards, steps, finished, evaluated)))
    (path / "eval" / "order.json").write_text(json.dumps(list(evaluated)))
    for stage in evaluated:
        (path / "eval" / f"{stage}.jsonl").write_bytes(b"".join(r.line() for r in held_out(stage, count, seed, world=world)))
    _questions(path / "eval" / "frames", count, world)
    _groups(path, seed, world, steps, groups)
    if finished:
        (path / "FINISHED").touch()
    return path


def _metrics(seed: int, rewards: Sequence[str], steps: int, finished: bool, evaluated: Sequence[str]) -> list[dict[str, Any]]:
    draw, lines = random.Random(seed), list[dict[str, Any]]()

    def add(stage: str, step: int, whole: int, **values: float) -> None:
        lines.append({"stage": stage, "step": step, "global_step": whole, "wall": 1_700_000_000.0 + 3 * whole, **values})

    add("base", 0, 0, **{"eval/score": 1.0, "eval/exact": 1.0, "eval/think_rate": 1.0})
    for n in range(1, 6):
        add("sft", n, n, **{"loss": 2.0 / n, "tokens/forward": 900.0, "time/step_total": 1.0, "time/forward_backward": 0.8})
    if "sft" in evaluated:
        add("sft", 5, 5, **{"eval/score": 0.6, "eval/exact": 0.6, "eval/think_rate": 0.2})
    for n in range(1, steps + 1):
        share = 1 - math.exp(-3 * n / steps) + 0.02 * draw.random()
        parts = {f"rewards/{name}/mean": share for name in rewards}
        values = {"reward": sum(parts.values()), "loss": 0.01 * draw.random(), "frac_reward_zero_std": 0.9 * n / steps}
        shape = {"completions/think_rate": 0.5, "completions/mean_length": 30 - n, "completions/clipped_ratio": 0.0}
        time = {"time/step_total": 3.0, "time/rollout": 1.5, "time/update": 1.2, "tokens/forward": 5000.0, "tokens/saved": 20000.0}
        add("rl", n, 5 + n, **parts, **values, **shape, **time)
    if "rl" in evaluated:
        add("rl", steps, 5 + steps, **{"eval/score": 0.98, "eval/exact": 0.98, "eval/think_rate": 0.5})
    if finished:
        add("run", 5 + steps, 5 + steps, **{"time/step_total": 60.0, "time/load": 2.0})
    return lines


def _questions(folder: Path, count: int, world: int) -> None:
    """What is kept of an evaluation's questions: words of all, pixels of the first."""
    folder.mkdir(parents=True)
    for n in range(count):
        question, gold = f"Under which cup is the ball ({n})?", COLOURS[(n + world) % 4]
        line = {"hash": f"{world:02d}{n:030d}", "content": f"{world}c{n:018d}", "question": question, "gold": gold}
        if n < 6:
            sample = Sample(
                **{"id": f"q{n:03d}", "task": "shell", "question": question, "answer": gold, "answer_type": "exact_text"},
                **{"gt": {"text": gold}, "source": "rows.jsonl:1"},
                media=(MediaRef(kind="video", path=f"videos/{world}-{n}.mp4"),),
            )
            shown = pixels(key_of(1000 + 100 * world + n), count=8, colour=120 + 10 * n)
            keep_row(folder, line["hash"], sample, shown, content=line["content"])
        else:
            with (folder / "questions.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def _groups(path: Path, seed: int, world: int, steps: int, groups: int) -> None:
    """Kept groups of RL about ten questions, of which one is never solved and one is lost again."""
    writer = KeptWriter(path / "groups" / "rank-0", budget=1 << 30, last_step=0)
    for step in range(1, steps + 1):
        for place in range(groups):
            n = (step * groups + place) % 10
            draw, gold = random.Random(f"{seed} {step} {place}"), COLOURS[n % 4]
            chance = 0.0 if n == 0 else 1 - step / steps if n == 1 else step / steps
            right = [draw.random() < chance for _ in range(8)]
            texts = [f"<think>a, b</think><answer>{gold if one else COLOURS[(n + 1) % 4]}</answer>" for one in right]
            shown = pixels(key_of(100 * world + n), count=8, colour=100 + 10 * n)
            row = {"task": "shell", "answer_type": "exact_text", "answer": gold, "gt": {"text": gold}}
            made = kept_record(
                **{"step": step, "place": place, "texts": texts, "rewards": [float(one) for one in right], "sample": f"t{n}"},
                **{"media": [shown.handle], "surprise": abs(0.5 - sum(right) / 8), "question": f"Where is the ball ({n})?"},
                **row,
            )
            made["global_step"] = 5 + step
            writer.add(made, {shown.handle.key: media.encoded(shown, 8)} if writer.lacks([shown.handle.key]) else {})
    writer.sync()


def make_folder(path: Path) -> Path:
    """Five runs of which three are seeds of one recipe, two evaluations, their comparison, and a data check."""
    for seed in range(3):
        make_run(path / "runs" / f"dots-s{seed}", seed=seed)
    for seed in range(2):
        make_run(path / "runs" / f"plain-s{seed}", seed=10 + seed, rewards=("exact",), finished=seed == 0, evaluated=STAGES[: 3 - seed])
    sides = [
        make_eval(path / name, name, {"shell": held_out(stage, 40, 0)}, frames=False)
        for name, stage in (("before", "sft"), ("after", "rl"))
    ]
    compare_folders(*sides).write(path / "comparison")
    make_check(path / "check.html")
    return path


def make_check(path: Path) -> Path:
    """The page of a data check with good rows and rejected ones."""
    from tests.support.pages import ROWS
    from vlmrl.data.source import BadRow
    from vlmrl.extras.pages.documents.check import CheckRows
    from vlmrl.types import Prompt

    rows = CheckRows(budget=100)
    for name in ("box-1", "span-1", "point-1"):
        sample, shown = ROWS[name]
        rows.add("rows.jsonl", Prompt(sample=sample, ids=tuple(range(40)), media=(shown.handle,), spans=(), answer_format="think"), shown)
    sample, shown = ROWS["box-2"]
    rows.reject("rows.jsonl", sample, "too_long", "too_long: 300 tokens, more than 100", shown)
    rows.reject_unread("rows.jsonl", BadRow(file="rows.jsonl", line=7, reason="bad_json", message="not JSON", excerpt='{"id": 3'))
    return rows.write(path)
