"""What vLLM makes of the same prompts (P14): its ids, and the log-probs of its own greedy answers under our forward. Needs vLLM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlmrl.errors import ConfigError
from vlmrl.extras.families import generic
from vlmrl.extras.families.conform.check import Check, broken, equal
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.subject import Tried, alone

ABOUT = "vLLM has our ids, and our log-probs of its answers"
ANSWER = 16
"""Tokens of its answers."""
HEAD = 32
"""Dimensions of a tiny decoder's heads: vLLM's attention on CPUs knows no smaller ones."""
LONGEST = 2048
"""Tokens of a prompt with its answer: enough that no tile is left out to make room."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def served(tried: Tried) -> list[Check]:
    """P14: of every prompt without a clip.

    Raises:
        ConfigError: vLLM is not installed, or there are no weights in files.
    """
    if tried.folder is None:
        raise ConfigError("--engine vllm: it loads weights from files; give a folder with weights, or a name with --tiny")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import ModelRegistry  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError as error:
        raise ConfigError(f"--engine vllm: it does not load here ({error}); docs/rollout.md names versions that work together") from error
    name = tried.facts.architecture
    known = ModelRegistry.models.get(name)
    out = [equal("P14", "registry", "vLLM knows the architecture", known is not None, f"no {name} in its registry")]
    if known is None:
        return out
    try:
        # looked at here: vLLM would start a process to import it, where torchvision next to a CPU-only torch does not load
        ModelRegistry.register_model(name, known.load_model_cls())
    except ERRORS as error:
        return [*out, broken("P14", "all", "its class", error)]
    names = [name for name, asked in tried.asked.items() if name in tried.prompts and all(isinstance(m, np.ndarray) for m in asked.media)]
    try:
        answers = _answers(tried.folder, [_request(tried, name) for name in names])
    except ERRORS as error:
        return [*out, broken("P14", "all", "answers", error)]
    for name, answer in zip(names, answers, strict=True):
        out += _compared(tried, name, *answer)
    return out


def _compared(tried: Tried, name: str, prompt: Sequence[int], ids: Sequence[int], theirs: Sequence[float]) -> list[Check]:
    """The ids of a prompt, and what our forward gives its answer."""
    ours = tried.prompts[name].ids_P.tolist()
    first = next((i for i, (a, b) in enumerate(zip(ours, prompt, strict=False)) if a != b), min(len(ours), len(prompt)))
    note = f"{len(ours)} ids, {len(prompt)} in vLLM; they part at {first}"
    out = [equal("P14", name, "ids of vLLM's prompt", ours == list(prompt), note)]
    with torch.no_grad():
        scored = alone(tried, tried.scored(name, [list(ids)]), list(ids))
    apart = (scored - torch.tensor(theirs, dtype=scored.dtype)).abs()
    return [*out, Check("P14", name, f"log-probs of its answer of {len(ids)} tokens", float(apart.max()), 1e-3)]


def _request(tried: Tried, name: str) -> Mapping[str, Any]:
    """A prompt as vLLM takes it: the rendered text, placeholders not expanded, with decoded pictures."""
    from PIL import Image

    asked = tried.asked[name]
    text = generic.rendered(tried.processor, asked.messages)
    ids = tried.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    pictures = [Image.fromarray(medium) for medium in asked.media if isinstance(medium, np.ndarray)]
    return {"prompt_token_ids": [int(i) for i in ids]} | ({"multi_modal_data": {"image": pictures}} if pictures else {})


def _answers(folder: Path, requests: Sequence[Mapping[str, Any]]) -> list[tuple[list[int], list[int], list[float]]]:
    """(ids of the prompt, ids of the greedy answer, their log-probs) of each request, in float32."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    small: dict[str, Any] = {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 1 << 28, "block_size": 32}
    engine: Any = LLM(
        model=str(folder),
        dtype="float32",
        seed=0,
        max_model_len=LONGEST,
        max_num_seqs=8,
        enforce_eager=True,
        limit_mm_per_prompt={"image": 4, "video": 0},
        skip_mm_profiling=True,
        disable_log_stats=True,
        **({} if torch.cuda.is_available() else small),
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=ANSWER, logprobs=1)
    out: list[tuple[list[int], list[int], list[float]]] = []
    for done in engine.generate(list(requests), greedy, use_tqdm=False):
        one = done.outputs[0]
        told = [float(place[token].logprob) for token, place in zip(one.token_ids, one.logprobs, strict=True)]
        out.append((list(done.prompt_token_ids), list(one.token_ids), told))
    engine.llm_engine.engine_core.shutdown()
    return out
