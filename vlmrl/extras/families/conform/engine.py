"""What vLLM makes of the same prompts (P14, with clips P18). It is asked as a run asks it, with our weights, our ids, and what the family's
own processor made of media, and its greedy answers are scored by our forward. Needs vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vlmrl.errors import ConfigError, EngineError, MediaError, NumericsError, RowError
from vlmrl.extras.families import family, layouts
from vlmrl.extras.families.conform.check import Check, broken
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.shelf import Desk, desk_of
from vlmrl.extras.families.conform.subject import Tried, own_logits
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PositionSpec
from vlmrl.registry import Catalogue
from vlmrl.types import GenerationSettings, Prompt, Rollout

ABOUT = "vLLM takes our weights and pictures, and has our log-probs of its answers"
CLIPS = "vLLM takes our clips, and has our log-probs of its answers"
ENGINES: Catalogue[Any] = Catalogue("rollout engine")
"""Who asks vLLM: another optional part."""
GREEDY = GenerationSettings(max_new_tokens=16, temperature=0.0)
HEAD = 32
"""Dimensions of a tiny decoder's heads: vLLM's attention on CPUs knows no smaller ones."""
LIMIT = 1e-3
"""Nats between log-probs in float32."""


def served(tried: Tried) -> list[Check]:
    """P14 and P18, of all prompts that training would make.

    Raises:
        ConfigError: vLLM is not installed, or there are no weights in files.
    """
    if tried.folder is None:
        raise ConfigError("--engine vllm: it loads weights from files; give a folder with weights, or a name with --tiny")
    ask, desk = ENGINES["vllm"].asked_once, desk_of(tried)
    prompts = {name: prompt for name in tried.prompts if (prompt := _encoded(tried, desk, name)) is not None}
    try:
        policy = _policy(tried, tried.folder)
        answers = ask(str(tried.folder), policy, desk.shelf, list(prompts.values()), GREEDY)
    except (*ERRORS, EngineError, NumericsError) as error:
        return [broken(promise, "all", "answers", error) for promise in ("P14", "P18")]
    out: list[Check] = []
    for name, answer in zip(prompts, answers, strict=True):
        if isinstance(answer, Rollout):
            out.append(_compared(_promise(prompts[name]), tried, name, answer, policy.bundle.forbidden_ids))
        else:
            out.append(broken(_promise(prompts[name]), name, "its media", answer))
    return out


def _promise(prompt: Prompt) -> str:
    return "P18" if any(handle.kind == "video" for handle in prompt.media) else "P14"


def _encoded(tried: Tried, desk: Desk, name: str) -> Prompt | None:
    """A prompt as training encodes it; None where training leaves such a row out."""
    try:
        return desk.prompt(tried.asked[name].messages, tried.asked[name].media)
    except (RowError, MediaError):
        return None


def _policy(tried: Tried, folder: Path) -> Policy:
    """The model under test, as a run has it."""
    bundle = family.given(tried.facts.model_type, str(folder)).bundle(tried.processor, str(folder))
    positions = PositionSpec(merge_size=1, tokens_per_second=None)
    return Policy(model=tried.subject.model, bundle=bundle, positions=positions, device=torch.device("cpu"), subject=tried.subject)


def _compared(promise: str, tried: Tried, name: str, answer: Rollout, forbidden: tuple[int, ...]) -> Check:
    """What our forward gives an answer."""
    with torch.no_grad():
        logits = own_logits(tried, tried.scored(name, [list(answer.ids)]), answer.ids)[tried.prompts[name].length - 1 : -1]
    scored = layouts.logprobs(logits.index_fill(1, torch.tensor(forbidden, dtype=torch.int64), -1e30), answer.ids)
    apart = (scored - torch.tensor(answer.logprobs, dtype=scored.dtype)).abs()
    return Check(promise, name, f"log-probs of its answer of {len(answer.ids)} tokens", float(apart.max()), LIMIT)
