"""Rows with tools, played by an engine that writes what it is told: prompts, crops as pixels, rewards, the cost of calls."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.batches import batch_for
from tests.support.tiny import Tiny
from vlmrl.data.row import parse_row
from vlmrl.extras.agents.calls import Call
from vlmrl.extras.agents.episodes import anew, make_table, run_attempts
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.rows import PLACE, task_maker
from vlmrl.extras.agents.stripes import make_stripes, paint_stripes
from vlmrl.extras.agents.turns import turn_rollouts
from vlmrl.extras.toy.picture import png
from vlmrl.media.resize import resize
from vlmrl.protocols import RewardContext
from vlmrl.rewards.environment_reward import environment_reward
from vlmrl.rewards.tool_calls import tool_calls
from vlmrl.types import GenerationSettings, Group, Prompt, Request, Rollout, ScoredGroup, Scores
from vlmrl.zoo.reward_shaping.tool_cost import otc

SETTINGS = GenerationSettings(max_new_tokens=64, temperature=1.0)
TWICE = '<tool_call>{"name": "zoom", "arguments": {"box": [0, 0, 0, 0]}}</tool_call>'


def test_a_row_is_played_with_tools(tiny: Tiny, tmp_path: Path) -> None:
    shown = make_stripes(1)
    pixels = paint_stripes(shown)
    (tmp_path / "p.png").write_bytes(png(pixels))
    row = {"id": "r", "task": "t", "answer_type": "exact_text", "image": "p.png", "prompt": shown.question, "answer": shown.answer}
    sample = parse_row(row, source="r.jsonl:1", media_root=".")
    scripts = [[shown.call, f"<answer>{shown.answer}</answer>"], [TWICE, shown.call, f"<answer>{shown.answer}</answer>"]]
    asked: list[tuple[int, Prompt]] = []

    def generate(requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        out: list[list[Rollout]] = []
        for request in requests:
            out.append([])
            for k in request.ks:
                text = scripts[k][sum(other == k for other, _ in asked)]
                asked.append((k, request.prompt))
                ids = (*tiny.bundle.tokenize(text), tiny.bundle.end_ids[0])
                out[-1].append(Rollout(k=k, ids=ids, logprobs=(-1.0,) * len(ids), text=text, finish="stop", policy_version=0))
        return out

    with open_pool("image_tools", {"tools": ["zoom"]}, settings=PoolSettings(workers=1, start=120.0)) as pool:
        table = make_table(
            tiny.bundle,
            tiny.store,
            tmp_path / "screens",
            pool=pool,
            talk=anew(generate),
            settings=SETTINGS,
            history=History(),
            answer_format="answer_only",
            turns=4,
            whole=True,
        )
        task = task_maker("image_tools", root=tmp_path, answer_format="answer_only")(sample)
        ((one, two),) = run_attempts(table, [(task, 3)], 2, lambda place, k, turn: 0)
    assert [(turn.outcome, turn.reward) for turn in one.turns] == [("", 0.0), ("success", 1.0)]
    assert [(turn.outcome, turn.reward) for turn in two.turns] == [("invalid", 0.0), ("", 0.0), ("success", 1.0)]
    assert one.turns[0].seen == two.turns[0].seen
    assert one.turns[0].seen.state == two.turns[1].seen.state != one.turns[1].seen.state == two.turns[2].seen.state
    assert PLACE not in one.task
    # the first prompt is that of the single turn, with a sentence for the tool; the crop is resized by the same rule
    single = dataclasses.replace(tiny.encoder, data_root=tmp_path).encode(sample, "answer_only")
    rows = turn_rollouts(table, [one, two], 0)
    assert rows[0].prompt is not None
    assert rows[0].prompt.media == single.media
    assert rows[0].prompt is rows[2].prompt
    assert rows[1].prompt is not None
    x1, y1, x2, y2 = (value * 448 // 1000 for value in Call(**_arguments(shown.call)).arguments["box"])
    crop = np.ascontiguousarray(pixels[y1:y2, x1:x2])
    frames = tiny.store.get_key(rows[1].prompt.media[1].key).frames
    assert (frames == resize(crop[None], *tiny.store.sizing.target(*crop.shape[:2], frames=1))).all()
    assert rows[1].prompt.ids[: len(rows[0].prompt.ids)] == rows[0].prompt.ids
    # what calls cost: one attempt made one, the other two
    of_task = Group(id="g", prompt=single, rollouts=tuple(rows))
    columns = [environment_reward(of_task, RewardContext()), tool_calls(of_task, RewardContext())]
    scores = Scores(columns=("environment_reward", "tool_calls"), weights=(1.0, 0.0), rewards_GK=tuple(zip(*columns, strict=True)))
    x = batch_for([(0, ScoredGroup(group=of_task, scores=scores))], "trajectory_N", "sample_N").x
    x = dataclasses.replace(x, memory={})
    shaped = otc(x.rewards_NK, x.valid_N, x, reward="environment_reward", calls="tool_calls")[:, 0]
    assert torch.allclose(shaped, torch.tensor([0, 1, 0, 0, math.sin(2 * math.pi / 3)], dtype=torch.float64))


def _arguments(call: str) -> dict[str, Any]:

    return json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
