"""What no result shows and a GPU pays for, counted call by call: waits of the host, 16-bit copies of weights, writes that copy a cache."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.base import Report, Settings, at_most, told
from tests.support.pretend import Pretend
from vlmrl.policy.load import load_policy
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec
from vlmrl.policy.pack import to_device
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train.step import optimizer_step, score_rows
from vlmrl.types import GenerationSettings, Request

WAITS = 1.0
"""Most of a scoring pass for each micro-batch, and of an update: its results, and its metrics with the norm of the gradient."""
WAITS_CUDA = 2.0
"""The same where torch's own calls are counted with ours."""
COPIES = 0.05
"""Most bytes of 16-bit copies of frozen weights that a rollout holds at once, as a share of two bytes for each of them."""
SHORT, LONG = 6, 14


class Calls(TorchDispatchMode):
    """Counts what is called within.

    `frozen`: weights whose 16-bit copies are weighed.
    """

    def __init__(self, frozen: Iterable[Tensor] = ()):
        super().__init__()
        self._frozen = {weight.untyped_storage()._cdata for weight in frozen}
        self._copies: list[tuple[StorageWeakRef, int]] = []
        self.copied = 0
        """Most bytes of copies that were there at once."""
        self.apart = 0
        """Writes through index tensors that are not next to each other. In deterministic mode CUDA sorts such indices on a copy of the
        whole tensor with these dimensions in front, and copies it back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::index_put_", "aten::_index_put_impl_"):
            given = [n for n, index in enumerate(args[1]) if index is not None]
            self.apart += given != list(range(given[0], given[-1] + 1))
        elif name == "aten::_to_copy" and out.element_size() == 2 and args[0].untyped_storage()._cdata in self._frozen:
            self._copies = [(ref, size) for ref, size in self._copies if not ref.expired()]
            self._copies.append((StorageWeakRef(out.untyped_storage()), out.untyped_storage().nbytes()))
            self.copied = max(self.copied, sum(size for _, size in self._copies))
        return out


def waits(settings: Settings, files: toy.Files, report: Report, count: Any) -> None:
    """Waits of the host in a scoring pass and in an update of two micro-batches, the tower included. `count` does it on a GPU; on a CPU
    the model is on a device that is played, which counts what a real one would wait for."""
    opened = toy.open_toy(files, device=settings.device, backend="auto" if settings.cuda else "two_call")
    rows = toy.rows(opened, answers=3, tokens=12)
    sizes = [len(row.prompt.ids) + 3 * 12 for row in rows[::3]]
    budget = max(max(sizes), (sum(sizes) + 1) // 2)
    batch = dataclasses.replace(toy.minibatch(rows), logp_sampled_NT=torch.zeros(toy.minibatch(rows).mask_NT.shape))

    def measured(policy: Any, number: Any) -> tuple[float, float, int]:
        learner = toy.learner(policy, opened.vision, budget=budget)
        parts = len(toy.LAYOUTS[learner.layout].split(rows, budget))
        score_rows(learner, rows)
        optimizer_step(learner, batch, toy.Plain())
        return number(lambda: score_rows(learner, rows)) / parts, number(lambda: optimizer_step(learner, batch, toy.Plain())), parts

    if settings.cuda:
        scoring, update, parts = measured(opened.policy, lambda act: count(act, cuda=True).waits)
    else:
        scoring, update, parts = _played(opened.policy, measured)
    most = WAITS_CUDA if settings.cuda else WAITS
    report.line(
        "waits",
        at_most("per forward", scoring, most),
        at_most("per update", update, most),
        told("micro-batches", parts),
        note="" if settings.cuda else "on a device that is played",
    )


def _played(policy: Any, measured: Any) -> Any:
    own = copy.copy(policy)
    own.model = copy.deepcopy(policy.model)
    with Pretend() as fake:
        fake.move(own.model)
        own.device = fake.device

        def number(act: Any) -> int:
            fake.reset()
            act()
            return fake.total("wait")

        return measured(own, number)


def writes(settings: Settings, files: toy.Files, report: Report) -> None:
    """Writes of a decoded token that copy the cache in deterministic mode, while fewer answers run than there are places."""
    opened = toy.endless(toy.open_toy(files, device=settings.device, dtype="bfloat16" if settings.cuda else "float32"))
    prompts = opened.prompts["text"][:2]
    requests = [
        Request(prompt=prompt, seeds=tuple(range(10 * n, 10 * n + 4 - n)), ks=tuple(range(4 - n))) for n, prompt in enumerate(prompts)
    ]
    found: list[int] = []
    for tokens in (SHORT, LONG):
        with Calls() as calls:
            HFEngine(opened.policy, opened.vision).generate(requests, GenerationSettings(max_new_tokens=tokens))
        found.append(calls.apart)
    report.line("writes", at_most("that copy the cache, per token", (found[1] - found[0]) / (LONG - SHORT), 0.0))


def casts(settings: Settings, files: toy.Files, report: Report) -> None:
    """16-bit copies of frozen weights that a rollout holds beside them, with adapters in bfloat16."""
    opened = toy.open_toy(files, device=settings.device)
    policy = load_policy(str(files.model), opened.policy.bundle, device=settings.device, dtype="bfloat16")
    add_adapters(policy, LoraSpec(rank=4, alpha=8.0), seed_of=len, base="toy")
    frozen = [weight for weight in policy.model.parameters() if not weight.requires_grad]
    request = Request(prompt=opened.prompts["mixed"][0], seeds=(1, 2), ks=(0, 1))
    with Calls(frozen) as calls:
        HFEngine(policy, opened.vision).generate([request], GenerationSettings(max_new_tokens=SHORT))
    report.line("casts", at_most("16-bit copies / frozen weights", calls.copied / (2 * sum(w.numel() for w in frozen)), COPIES))


def patches(settings: Settings, files: toy.Files, report: Report) -> None:
    """Bytes of a patch's value in the store, which is how it goes to the device, and whether a copy there blocks."""
    opened = toy.open_toy(files, device="cpu")
    media = {handle.key: handle for prompts in opened.prompts.values() for prompt in prompts for handle in prompt.media}
    held = [opened.vision.pixels.get_key(key).pixel_values for key in media]
    numbers = [at_most("bytes of a value", max(values.itemsize for values in held), 1.0)]
    if settings.cuda:
        there = torch.zeros(1, device="cuda")
        torch.cuda._sleep(10**9)  # what is queued takes a while: a copy that blocks waits for it
        to_device(torch.from_numpy(held[0]), there.device)
        numbers.append(at_most("copy waits", float(torch.cuda.current_stream().query()), 0.0))
    report.line("patches", *numbers)
