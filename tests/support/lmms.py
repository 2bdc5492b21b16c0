"""A tiny checkpoint that answers in the asked form, and a suite of three tasks, for agreement with lmms-eval."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from vlmrl.config.schema import ToyWorldSection
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.evals.ask.models import LocalModel, open_store
from vlmrl.evals.ask.run import task_prompts
from vlmrl.evals.ask.suite import Suite, load_suite
from vlmrl.extras.toy.model import build_model
from vlmrl.extras.toy.multitask import items
from vlmrl.extras.toy.tasks import tokenizer_corpus
from vlmrl.extras.toy.world import make_world
from vlmrl.policy.pack import Row
from vlmrl.policy.repeat import pack, repeat
from vlmrl.policy.vision import VisionCache
from vlmrl.run.export import export

ROWS = 5
MEDIA = "{min_pixels: 3136, max_pixels: 4704, max_frames: 32}"
SUITE = f"""
id: three
version: 1
data_root: toy
batch_prompts: 2
tasks:
  - id: spans
    source: video/test.jsonl
    media_root: video
    media: {MEDIA}
    max_new_tokens: 48
    answer_format: think_or_not
    answer_type: time_span
  - id: boxes
    source: images/boxes.jsonl
    media_root: images
    media: {MEDIA}
    max_new_tokens: 48
    answer_format: answer_only
    answer_type: bbox
  - id: choices
    source: images/choices.jsonl
    media_root: images
    media: {MEDIA}
    max_new_tokens: 48
    answer_format: think
    answer_type: choice
"""


def make_rows(root: Path) -> Suite:
    """Videos and pictures of the toy worlds with five rows of each task, and the suite over them."""
    make_world(root / "video", ToyWorldSection(pretrain=1, sft=1, train=1, validation=1, test=ROWS))
    folder = root / "images"
    made = [item for index in range(3 * ROWS) for item in items(0, "test", index)]
    rows: dict[str, list[dict[str, object]]] = {"boxes": [], "choices": []}
    for item in made:
        path = folder / str(item.row["image"])
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, item.pixels)
        if item.row["task"] == "toy_boxes":
            rows["boxes"].append(item.row)
        elif item.row["task"] == "toy_counting":
            letter = "ABCD"[int(item.row["gt"]["count"]) - 1]
            choice = {"answer_type": "choice", "options": ["A. 1", "B. 2", "C. 3", "D. 4"], "answer": letter, "gt": {}}
            rows["choices"].append({**item.row, **choice})
    for name, own in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    (root / "suite.yaml").write_text(SUITE)
    return load_suite(root / "suite.yaml")


def answers(root: Path) -> dict[str, str]:
    """What the checkpoint is taught to answer to every row of a task: the truth of one row, so right for some and wrong for others."""
    boxes, choices = (
        [json.loads(line)["answer"] for line in (root / "images" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("boxes", "choices")
    )
    return {
        "spans": "<think>red</think><answer>2.0 to 5.0</answer>",
        "boxes": f"<answer>{boxes[2]}</answer>",
        "choices": f"<think>\n\n</think><answer>{choices[2]}</answer>",
    }


def save(path: Path, pixels: object) -> None:
    from PIL import Image

    Image.fromarray(pixels).save(path)  # type: ignore[arg-type]


def make_checkpoint(folder: Path, suite: Suite, root: Path, steps: int = 36) -> Path:
    """A tiny model that gives `answers`, taught on the first row of each task."""
    start, wanted = folder / "start", answers(root)
    torch.manual_seed(0)
    texts = [instruction(t, kind) for t in ANSWER_FORMATS for kind in ("time_span", "bbox", "choice")] + list(wanted.values())
    build_model(start, seed=0, corpus=tokenizer_corpus(texts))
    model = LocalModel.load(start, device="cpu")
    batches = []
    for task in suite.tasks:
        store = open_store(task, model.bundle)
        prompt = task_prompts(task, root, store, model.bundle, None)[0][0]
        ids = (*model.bundle.tokenize(wanted[task.id]), model.bundle.end_ids[0])
        batch = pack([Row(index=0, group=0, prompt=prompt, response=ids)], model.policy.positions, model.policy.device, pad_id=0)
        batches.append((batch, VisionCache(store, budget_bytes=2**28)))
    optimizer = torch.optim.Adam(model.policy.model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        for batch, vision in batches:
            repeat(model.policy, batch, vision, temperature=1.0, forbidden=(), train=False).logp_BT.sum().neg().backward()
        optimizer.step()
    export(model.policy, folder / "taught")
    return folder / "taught"
