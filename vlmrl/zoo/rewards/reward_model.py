"""Reward `reward_model`: the score of a reward model behind an endpoint (`judges.judges`) or in this process.

Ours. An in-process model is frozen, in float32, loaded from safetensors when it is first needed, and shared by all columns that name
it. It reads text only; a conversation is laid out by the model's own chat template if it has one, else as a pair.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from vlmrl.extras.judges.judges import Response
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.prompts import clean
from vlmrl.extras.judges.services import services
from vlmrl.extras.judges.verdicts import JudgeColumn, Problem, Tally, Unreadable, finite
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group

_loading = threading.Lock()


@reward("reward_model", service=True)
def reward_model(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any] | None = None,
    path: str | None = None,
    device: str = "cpu",
    label: int = 0,
    max_length: int = 4096,
    low: float = -100.0,
    high: float = 100.0,
    transform: Literal["none", "sigmoid"] = "sigmoid",
    with_pictures: bool = True,
) -> list[float | None]:
    """Score of a reward model for question and whole response; with `sigmoid` in (0, 1), with `none` as the model gives it.

    Give `endpoint` (a service) or `path` (a folder with a sequence classifier: with one label its logit, with several the log-odds of
    `label`, so that `sigmoid` gives its probability). A score outside [`low`, `high`], or a text of more than `max_length` tokens, is
    missing with its reason, never cut to fit. An empty response is scored like any other.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: not exactly one of `endpoint` and `path`, bounds out of order, or the prompt's pixels are not in `ctx.media`.
        OSError: no model in `path`.
    """
    if (endpoint is None) == (path is None):
        raise ValueError("reward_model: give either 'endpoint' (a service) or 'path' (a model folder)")
    if not low < high:
        raise ValueError(f"reward_model: low {low} must be below high {high}")
    question = group.prompt.sample.question
    texts = [rollout.text for rollout in group.rollouts]
    if endpoint is not None:
        seen = pictures(group, ctx) if with_pictures else ()
        items = [Response(question=clean(question), response=clean(text), pictures=seen) for text in texts]
        scores: Sequence[float | Problem] = services().scalar(endpoint, low=low, high=high).score_all("reward_model", items)
    else:
        assert path is not None
        scores = _local(path, device, label, max_length, question, texts, low, high)
    tally = Tally()
    change: Callable[[float], float] = _sigmoid if transform == "sigmoid" else float
    return JudgeColumn([tally.missing(s) if isinstance(s, Problem) else change(s) for s in scores], tally.reasons)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _local(
    path: str, device: str, label: int, max_length: int, question: str, texts: Sequence[str], low: float, high: float
) -> list[float | Problem]:
    with _loading:
        score = load(path, device)
    out: list[float | Problem] = []
    for text in texts:
        value = score(question, text, label, max_length)
        if isinstance(value, float):
            try:
                value = finite(value, "score", low, high)
            except Unreadable as error:
                value = Problem(reason=error.reason, detail=str(error))
        if isinstance(value, Problem):
            services().meters.unjudged("reward_model", value.reason)
        out.append(value)
    return out


@functools.cache
def load(path: str, device: str) -> Callable[[str, str, int, int], float | Problem]:
    """(question, response, label, most tokens) -> score, of the sequence classifier in a folder. Loaded once per process and device.

    Raises:
        OSError: there is no such model, or its weights are not safetensors.
    """
    import torch

    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        path, trust_remote_code=False, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    model.eval().requires_grad_(False).to(device)

    def score(question: str, response: str, label: int, most: int) -> float | Problem:
        if tokenizer.chat_template is not None:
            turns = [{"role": "user", "content": clean(question)}, {"role": "assistant", "content": clean(response)}]
            text = tokenizer.apply_chat_template(turns, tokenize=False)
            encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        else:
            encoded = tokenizer(clean(question), clean(response), return_tensors="pt")
        length = int(encoded["input_ids"].shape[1])
        if length > most:
            return Problem(reason="overlong", detail=f"question and response have {length} tokens, max_length is {most}")
        with torch.no_grad():
            logits = model(**encoded.to(device)).logits[0].double()
        if not 0 <= label < len(logits):
            raise ValueError(f"reward_model: label {label}, but the model in '{path}' has {len(logits)} labels")
        if len(logits) == 1:
            return float(logits[0])
        others = torch.cat([logits[:label], logits[label + 1 :]])
        return float(logits[label] - others.logsumexp(0))

    return score
