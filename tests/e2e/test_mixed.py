"""Rows of every kind (video, pictures, screens, text alone) in one source and one batch, with every family of rewards live at once:
rules, a worker process, functions of other trainers and a judge over HTTP. Killed anywhere, the run ends with the same bits.

It is no recipe of `configs/recipes`, because no world of `vlmrl.extras.toy` mixes the kinds and its judge is a scripted server.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.judge_server import JudgeServer, ident_of, says
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.extras.judges.cache import VerdictCache
from vlmrl.extras.toy import gui, multitask
from vlmrl.extras.toy.kinds import tokenizer_corpus
from vlmrl.extras.toy.model import build_model
from vlmrl.extras.toy.picture import Item, png
from vlmrl.extras.toy.tasks import Scene, make_row, make_scene
from vlmrl.extras.toy.world import encode_mp4, render
from vlmrl.run.tracking import read_metrics

SEED = 3
VIDEOS, PICTURES, SCREENS = 4, 6, 2
"""Videos (each with a row of grounding and one of highlights), pictures of `toy.multitask`, and trajectories of `toy.gui`."""
WRITTEN: tuple[dict[str, Any], ...] = (
    {"task": "arithmetic", "answer_type": "math", "prompt": "What is 3/4 + 1/4?", "answer": "1"},
    {"task": "arithmetic", "answer_type": "math", "prompt": "What is 1 - 1/2?", "answer": "\\frac{1}{2}"},
    {
        "task": "quiz",
        "answer_type": "choice",
        "prompt": "Which of these is a colour?",
        "options": ["A. red", "B. circle", "C. square"],
        "answer": "A",
    },
    {"task": "quiz", "answer_type": "choice", "prompt": "Which comes last?", "options": ["A. one", "B. two", "C. six"], "answer": "C"},
    {"task": "chat", "answer_type": "exact_text", "prompt": "What is a red square?", "answer": "a red shape with four sides"},
)
"""Rows without media, by hand."""


def make_source(folder: Path) -> list[dict[str, Any]]:
    """Write `mixed.jsonl` with its media below `folder`; its rows."""
    rows: list[dict[str, Any]] = []
    for index in range(VIDEOS):
        scene = make_scene(SEED, "train", index)
        path = folder / scene.video
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_mp4(render(scene, SEED), scene.rate, scene.size))
        rows += [make_row(SEED, scene), _highlights(scene)]
    shown: list[Item] = [item for index in range(PICTURES) for item in multitask.items(SEED, "train", index)]
    shown += [item for index in range(SCREENS) for item in gui.items(SEED, "train", index)]
    for number, item in enumerate(shown):
        row = item.row | {"image": f"pictures/{number}.png"}
        path = folder / row["image"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(item.pixels))
        rows += [row, *_asked_otherwise(row)]
    rows += [row | {"id": f"text-{number}", "data_type": "text"} for number, row in enumerate(WRITTEN)]
    (folder / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _highlights(scene: Scene) -> dict[str, Any]:
    """The clips of a second in which the first event is on the screen."""
    start, end = scene.events[0].span
    best = [[start, 4.0], [end - 1.0, 3.0]] if end - start >= 2 else [[start, 4.0]]
    return {
        "id": f"{scene.id}-highlights",
        "task": "highlights",
        "answer_type": "highlight",
        "data_type": "video",
        "video": scene.video,
        "prompt": f"Which moments show the {scene.events[0].name}?",
        "gt": {"highlights": best, "clip_seconds": 1.0},
    }


def _asked_otherwise(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """More questions about the same picture: a point for a box, an open question, the text that a screen asks to type."""
    about = {"data_type": "image", "image": row["image"], "meta": row["meta"]}
    thing = row["meta"]["objects"][0]
    if row["answer_type"] == "bbox":
        (box,) = row["gt"]["boxes"]
        x, y = (box[0] + box[2]) // 2, (box[1] + box[3]) // 2
        question = f"Point at the {thing['color']} {thing['shape']}."
        gt = {"boxes": [box]}
        yield (
            about
            | {"id": f"{row['id']}-point", "task": "pointing", "answer_type": "point", "prompt": question, "gt": gt}
            | {"answer": f"[{x}, {y}]"}
        )
        other = {
            "id": f"{row['id']}-open",
            "task": "exact_text",
            "answer_type": "exact_text",
            "prompt": "What is there?",
            "gt": {"judged": True},
        }
        yield about | other | {"answer": f"a {thing['color']} {thing['shape']}"}
    elif row["answer_type"] == "action" and row["gt"]["action"]["action"] == "input_text":
        yield (
            about
            | {"id": f"{row['id']}-ocr", "task": "reading", "answer_type": "short_text", "prompt": row["prompt"]}
            | {
                "answer": row["gt"]["action"]["text"],
                "data_type": "gui",
            }
        )


def make_model(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A tiny model with a tokenizer that knows the words of the rows."""
    types = sorted({row["answer_type"] for row in rows})
    told = [f" {instruction(answer_format, kind)}" for answer_format in ANSWER_FORMATS for kind in types] * 16
    texts = [text for row in rows for text in (row["prompt"], f"<answer>{row.get('answer', '')}</answer>")]
    corpora = (tokenizer_corpus("grounding"), multitask.corpus(), gui.corpus(), told, texts * 4)
    build_model(folder, seed=0, corpus=itertools.chain(*corpora))


FOREIGN = '''
"""Rewards as users of TRL and verl write them."""


def short_enough(completions, solution, **kwargs):
    return [1.0 if len(c[0]["content"]) <= 4 * len(s) + 80 else 0.0 for c, s in zip(completions, solution)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source not in ("arithmetic", "quiz"):
        return None
    return {"score": float(f"<answer>{ground_truth}</answer>" in solution_str), "acc": 0.0}
'''
BY_RULE = (
    *("temporal_iou", "box_iou", "boxes_match", "giou", "point_in_box", "choice", "math", "count", "number", "ocr_anls"),
    *("open_rouge", "highlight", "format", "structure"),
)
STEPS, PROMPTS, ROWS = 20, 8, 4


def recipe(model: Path, data: Path, root: Path, url: str) -> dict[str, Any]:
    """Twenty steps on the mixture."""
    endpoint = {"url": url, "model": "scripted", "timeout": 30.0, "max_wait": 120.0}
    rewards: list[dict[str, Any]] = [{"name": name} for name in BY_RULE]
    rewards += [
        {"name": "gui_action", "profile": "os_atlas"},
        {"name": "click", "rule": "soft", "weight": 0.5},
        {"name": "repetition", "size": 1, "weight": 0.25},
        {"name": "overlong", "maximum": 40, "buffer": 16, "weight": 0.5},
        {"name": "python", "label": "trl", "function": f"{data / 'foreign.py'}:short_enough", "form": "trl", "weight": 0.25},
        {"name": "python", "label": "verl", "function": f"{data / 'foreign.py'}:compute_score", "form": "verl"},
        {"name": "judge", "endpoint": endpoint, "answer_types": ["exact_text"], "exact_first": False},
    ]
    stage = {
        "name": "rl",
        "kind": "grpo",
        "source": {"path": "mixed.jsonl"},
        "steps": STEPS,
        "freeze": ["vision"],
        "rollout": {
            "num_generations": ROWS,
            "prompts_per_step": PROMPTS,
            "generation_batch_size": PROMPTS // 2,
            "max_new_tokens": 40,
            "strategy": {"name": "offpolicy_gt", "gt_cot": "answer_only"},
        },
        "rewards": rewards,
        "reward_workers": {"count": 1, "deadline": 60.0},
        "advantage": {"name": "g2rpo"},
        "optim": {"lr": 1e-4, "warmup": 0.1},
    }
    return base_recipe(model, data, root) | {"stages": [stage]}


def base_recipe(model: Path, data: Path, root: Path) -> dict[str, Any]:
    """What lets the tiny model answer in form now and then."""
    optim = {"lr": 3e-3, "schedule": "cosine", "warmup": 0.1}
    stage = {"name": "sft", "kind": "sft", "source": {"path": "mixed.jsonl"}, "steps": 60, "batch": 12, "optim": optim}
    return {
        "run": {"name": "mixed", "root": str(root), "trackers": [], "threads": 1},
        "model": {"path": str(model), "device": "cpu"},
        "data": {"root": str(data)},
        "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 16},
        "eval": {"source": {"path": "mixed.jsonl"}, "limit": 6, "max_new_tokens": 8, "at_start": False},
        "checkpoint": {"every": 6},
        "stages": [stage],
    }


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The files, a judge that answers, and the run that nothing disturbed."""

    config: dict[str, Any]
    rows: list[dict[str, Any]]
    judge: JudgeServer
    outcome: dict[str, Any]

    def elsewhere(self, root: Path) -> dict[str, Any]:
        out = copy.deepcopy(self.config)
        out["run"]["root"] = str(root)
        return out


def opinion(body: dict[str, Any]) -> dict[str, Any]:
    """A score that is a function of the question."""
    return {"score": int(ident_of(body) or "0", 16) % 5 / 4}


def verdicts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the judge said, by question, as the run keeps it."""
    lines = [json.loads(line) for path in (runs.run_dir(config) / "judges").iterdir() for line in path.read_text().splitlines()]
    return {line["key"]: line["verdict"] for line in lines}


def result(config: Mapping[str, Any]) -> dict[str, Any]:
    return runs.outcome(config) | {"verdicts": verdicts(config)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    data, root = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("whole")
    rows = make_source(data)
    (data / "foreign.py").write_text(FOREIGN)
    make_model(data / "model", rows)
    base = base_recipe(data / "model", data, root / "base")
    assert runs.run(base) == 0
    with JudgeServer(otherwise=says(opinion)) as judge:
        config = recipe(runs.run_dir(base) / "final", data, root, judge.url)
        assert runs.run(config) == 0, (root / "error.txt").read_text()
        yield Whole(config=config, rows=rows, judge=judge, outcome=result(config))


def steps_of(outcome: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [line for line in outcome["metrics"] if line["stage"] == "rl" and "grad_norm" in line]


def test_one_batch_holds_every_kind_of_row(whole: Whole) -> None:
    kinds = {row["task"]: row["data_type"] for row in whole.rows}
    assert set(kinds.values()) == {"video", "image", "gui", "text"}
    prefix = "advantage/skewness/"
    seen = [{kinds[name[len(prefix) :]] for name in line if name.startswith(prefix)} for line in steps_of(whole.outcome)]
    assert len(seen) == STEPS
    assert any(of_step == {"video", "image", "gui", "text"} for of_step in seen)


def test_every_column_is_live_and_none_fails(whole: Whole) -> None:
    """Each one gave a sampled row something other than 0 at some step (the means are over sampled rows), and no fault was counted."""
    lines = steps_of(whole.outcome)
    assert all(line["grad_norm"] > 0 and line["reward_std"] > 0 for line in lines)
    assert not [name for line in lines for name in line if name.startswith("fault/")]
    columns = {*BY_RULE, "gui_action", "click", "repetition", "overlong", "trl", "verl", "judge"}
    told = {c: [line[f"rewards/{c}/mean"] for line in lines] for c in columns}
    dead = sorted(c for c, values in told.items() if not any(values))
    assert dead == []
    assert whole.outcome["verdicts"], "the judge was asked"
    assert whole.judge.calls >= len(whole.outcome["verdicts"])


CHAIN = ("rollout.chunk@7", "ckpt.after_tensors@1", "step.after_update@8")
"""Each in the process after the one before; a point counts from the start of its process."""
POINTS = (
    *(
        "rollout.scored@3",
        "run.opened@1",
        "stage.started@1",
        "rollout.chunk@1",
        "rollout.chunk@14",
        "rollout.scored@5",
        "step.before_update@9",
    ),
    *("step.after_update@13", "step.after_log@19", "ckpt.start@2", "ckpt.after_tensors@3", "ckpt.after_manifest@2"),
    *("ckpt.after_rename@1", "ckpt.after_retention@3", "stage.exported@1", "eval.record@3", "stage.finished@1"),
)


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_same_bits(whole: Whole, tmp_path: Path) -> None:
    mine = whole.elsewhere(tmp_path)
    for point in CHAIN:
        assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert result(mine) == whole.outcome


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(point: str, whole: Whole, tmp_path: Path) -> None:
    mine = whole.elsewhere(tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert result(mine) == whole.outcome


def test_what_the_judge_said_decides_what_is_learnt(whole: Whole, tmp_path: Path) -> None:
    """The test of the test: with other verdicts in the run's cache the same steps come out otherwise, so the judged column counts."""
    mine = whole.elsewhere(tmp_path)
    assert runs.run(mine, "run.opened@1:kill") == -9
    kept = VerdictCache(runs.run_dir(mine) / "judges", 0)
    for key, verdict in whole.outcome["verdicts"].items():
        kept.put(key, {"score": 1.0 - verdict["score"]})
    kept.close()
    assert runs.run(mine, "step.after_log@4:kill") == -9
    lines = [line for line in read_metrics(runs.run_dir(mine) / "metrics.jsonl") if "grad_norm" in line]
    told, expected = ([line["rewards/judge/mean"] for line in of] for of in (lines, steps_of(whole.outcome)[:4]))
    assert told != expected
    assert [line["reward_std"] for line in lines] != [line["reward_std"] for line in steps_of(whole.outcome)[:4]]
