"""The tiny model and a world of all modalities that the checks run on: made from seeds, nothing is downloaded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmrl import fs
from vlmrl.config.schema import Config
from vlmrl.data.source import load_source
from vlmrl.extras.toy.kinds import GROUNDING, tokenizer_corpus
from vlmrl.extras.toy.model import build_model
from vlmrl.extras.toy.picture import png
from vlmrl.extras.toy.world import encode_mp4, grounding_clip
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze, load_policy, load_processor, quiet_transformers
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.media import open_media
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.replicas import ReplicaUpdates
from vlmrl.train.step import Learner, Minibatch, Sums
from vlmrl.train.updates import recompute
from vlmrl.types import PARTS, GenerationSettings, Prompt, Request, Rollout

MODALITIES = {"text": (), "image": ("image",), "video": ("video",), "mixed": ("image", "video")}
"""Task of a row -> its media."""
ROWS = 4
"""Of each modality."""


@dataclass(frozen=True)
class Files:
    """Folders of the model and of the world (`rows.jsonl` and media)."""

    model: Path
    world: Path


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A loaded tiny policy with its prompts by modality."""

    policy: Policy
    vision: VisionCache
    prompts: dict[str, list[Prompt]]


def make(work: Path) -> Files:
    """The files, made by whoever comes first."""
    files = Files(work / "toy" / "model", work / "toy" / "world")
    ready = work / "toy" / "READY"
    if not ready.exists():
        build_model(files.model, seed=0, corpus=tokenizer_corpus(GROUNDING))
        _make_world(files.world)
        fs.write_text(ready, "")
    return files


def _make_world(folder: Path) -> None:
    fs.mkdir(folder)
    rows: list[dict[str, Any]] = []
    for n in range(ROWS):
        draw = np.random.Generator(np.random.Philox(n))
        picture = draw.integers(0, 255, (2, 3, 3), dtype=np.uint8).repeat(28, 0).repeat(28, 1)
        fs.write_bytes(folder / f"{n}.png", png(picture))
        clip = grounding_clip(0, "train", n)
        fs.write_bytes(folder / f"{n}.mp4", encode_mp4(clip.frames(), clip.rate, clip.size))
        for task, kinds in MODALITIES.items():
            media = {kind: f"{n}.{'png' if kind == 'image' else 'mp4'}" for kind in kinds}
            question = f"What is {n + 1} and {n + 2}?" if task == "text" else "How many red things are there?"
            rows.append({"id": f"{task}-{n}", "task": task, "answer_type": "number", "prompt": question, "answer": str(2 * n + 3)} | media)
    fs.write_text(folder / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def fresh(folder: Path) -> Path:
    """A folder that an earlier check may have left is emptied: a finished run would be found, and nothing would be measured."""
    if folder.exists():
        fs.remove_tree(folder)
    return folder


def recipe(
    files: Files,
    root: Path,
    *,
    device: str,
    dtype: str = "float32",
    backend: str = "auto",
    steps: int,
    every: int = 1000,
    engine: str = "hf",
) -> Config:
    """RL on all modalities, the tower included. The row with the right answer gives every group a signal, which random weights do not."""
    rollout: dict[str, Any] = {"num_generations": 3, "prompts_per_step": 4, "generation_batch_size": 2, "max_new_tokens": 12}
    rollout["engine"] = engine
    if engine == "vllm":
        rollout["vllm"] = {"sleep": True}
    stage = {
        "name": "rl",
        "kind": "grpo",
        "source": {"path": "rows.jsonl"},
        "steps": steps,
        "rollout": rollout | {"strategy": {"name": "offpolicy_gt", "gt_cot": "answer_only"}},
        "rewards": [{"name": "format"}],
        "optim": {"lr": 1e-4},
    }
    return Config.model_validate(
        {
            "run": {"name": "check", "root": str(root), "trackers": [], "threads": 0 if device == "cuda" else 1},
            "model": {"path": str(files.model), "device": device, "dtype": dtype, "prefix_backend": backend},
            "data": {"root": str(files.world)},
            "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 32},
            "eval": {"at_start": False},
            "checkpoint": {"every": every},
            "stages": [stage],
        }
    )


def open_toy(files: Files, *, device: str, dtype: str = "float32", backend: str = "auto") -> Toy:
    """Load the policy and encode all rows."""
    quiet_transformers()
    cfg = recipe(files, files.world, device=device, dtype=dtype, backend=backend, steps=1)
    bundle = load_processor(cfg.model.path)
    store, encoder = open_media(cfg, bundle, files.world)
    policy = load_policy(cfg.model.path, bundle, device=device, dtype=dtype, prefix_backend=backend, trains=PARTS)
    samples = load_source(files.world / "rows.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    prompts: dict[str, list[Prompt]] = {task: [] for task in MODALITIES}
    for sample in samples:
        prompts[sample.task].append(encoder.encode(sample, "think_or_not"))
    return Toy(policy=policy, vision=VisionCache(store, budget_bytes=2**28), prompts=prompts)


def rows(toy: Toy, *, answers: int, tokens: int, per_modality: int = 1) -> list[Row]:
    """Rows with drawn answers, which no policy wrote, of every modality."""
    draw = np.random.Generator(np.random.Philox(0))
    out: list[Row] = []
    groups = [prompt for prompts in toy.prompts.values() for prompt in prompts[:per_modality]]
    for group, prompt in enumerate(groups):
        for _ in range(answers):
            length = int(draw.integers(2, tokens + 1))
            out.append(Row(index=len(out), group=group, prompt=prompt, response=tuple(int(i) for i in draw.integers(10, 250, length))))
    return out


def tokens(of: Sequence[Row]) -> int:
    """Answer tokens."""
    return sum(len(row.response) for row in of)


def logprobs(toy: Toy, of: Sequence[Row], *, layout: str = "shared_prefix", train: bool = False) -> Tensor:
    """Log-probs of all answer tokens in one pass, float32 [N, T] on the CPU, in the order of `of`."""
    way = LAYOUTS[layout]
    batch = way.pack(of, toy.policy.positions, toy.policy.device, pad_id=toy.policy.bundle.end_ids[0])
    with torch.set_grad_enabled(train):
        scored = way.forward(toy.policy, batch, toy.vision, temperature=1.0, forbidden=toy.policy.bundle.forbidden_ids, train=train)
    if train:
        scored.logp_BT.sum().backward()
    return scored.logp_BT.detach().float().cpu()


def logprobs_with_gradient(toy: Toy, of: Sequence[Row]) -> tuple[Tensor, bool]:
    """(log-probs, whether all gradients are finite), the tower included."""
    named = freeze(toy.policy, ())
    out = logprobs(toy, of, train=True)
    finite = all(p.grad is not None and bool(p.grad.isfinite().all()) for _, p in named)
    for _, p in named:
        p.grad = None
    return out, finite


def generate(toy: Toy, prompts: Sequence[Prompt], *, answers: int, tokens: int, temperature: float = 1.0) -> list[list[Rollout]]:
    """Answers of the policy."""
    requests = [
        Request(prompt=prompt, seeds=tuple(1000 * n + k for k in range(answers)), ks=tuple(range(answers)))
        for n, prompt in enumerate(prompts)
    ]
    settings = GenerationSettings(max_new_tokens=tokens, temperature=temperature)
    return HFEngine(toy.policy, toy.vision).generate(requests, settings)


def endless(toy: Toy) -> Toy:
    """The same policy with answers that cannot end, so that all have the full length."""
    bundle = toy.policy.bundle
    never = dataclasses.replace(bundle, forbidden_ids=tuple(sorted({*bundle.forbidden_ids, *bundle.end_ids})))
    return dataclasses.replace(toy, policy=dataclasses.replace(toy.policy, bundle=never))


class Plain:
    """The plainest policy gradient: minus the mean of advantage times ratio over all answer tokens of the step."""

    def total(self, mask_NT: Tensor) -> float:
        from vlmrl.train import dist

        return float(dist.sum_(mask_NT.sum().float()))

    def __call__(self, x: Any, slices: Any, total: float) -> tuple[Tensor, Sums]:
        ratio = (x.logp_BT - x.logp_old_BT).exp()
        adv_BT = x.adv_BT if x.adv_BT.ndim == 2 else x.adv_BT[:, None]
        return -(adv_BT * ratio * x.mask_BT).sum() / total, {}


def learner(policy: Policy, vision: VisionCache, *, budget: int, lr: float = 1e-4, checkpointing: bool = False) -> Learner:
    """What an update needs, everything trained."""
    from vlmrl.config.section import OptimSection

    named = freeze(policy, ())
    if checkpointing:
        recompute(policy.model)
    return Learner(
        policy=policy,
        vision=vision,
        updates=ReplicaUpdates(named, *make_optimizer(named, OptimSection(lr=lr), fused=policy.device.type == "cuda")),
        named=named,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=budget,
        forbidden=policy.bundle.forbidden_ids,
        checkpointing=checkpointing,
    )


def minibatch(of: Sequence[Row]) -> Minibatch:
    """Advantages of alternating sign."""
    mask = response_mask(of)
    sign = torch.tensor([1.0 if n % 2 == 0 else -0.5 for n in range(len(of))])
    return Minibatch(rows=tuple(of), adv_NT=sign[:, None].expand(mask.shape).contiguous(), mask_NT=mask)
