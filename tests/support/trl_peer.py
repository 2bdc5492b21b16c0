"""TRL's own trainers, without a model: objects that hold what two of their methods read, so that these methods run on given tensors.

Generation, reward functions and the model's forward give what the test hands over; everything between is TRL's code. The arguments are
the defaults of TRL's own config class with the test's on top. `trl` is imported when a test asks for one of its classes: that takes seconds
and much memory, and whoever collects tests runs others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from vlmrl.compat import ensure_torchvision


class OneProcess:
    """An accelerator of one process, without the process-wide state of the real one."""

    device = torch.device("cpu")
    num_processes = 1
    process_index = 0
    is_main_process = True

    def gather(self, value: Tensor) -> Tensor:
        return value

    def reduce(self, value: Tensor, reduction: str) -> Tensor:
        return value


def of_trl(name: str) -> Any:
    ensure_torchvision()
    import trl

    return getattr(trl, name)


def defaults(config: str, **given: Any) -> SimpleNamespace:
    """The arguments of a TRL trainer by its config class, which itself would look for devices when it is made."""
    values = {f.name: f.default for f in dataclasses.fields(of_trl(config)) if f.default is not dataclasses.MISSING}
    unknown = set(given) - set(values)
    assert not unknown, f"{config} has no {sorted(unknown)}"
    return SimpleNamespace(**{**values, "report_to": [], **given})


def trainer(kind: type, config: str, *, columns: int = 1, micro_batches: int = 1, **given: Any) -> Any:
    """A trainer object with the attributes of `__init__` that the loss and the advantages read. No model, no tokenizer."""
    accumulation = {"gradient_accumulation_steps": micro_batches, "steps_per_generation": micro_batches}
    args = defaults(config, **accumulation, **given)
    out = kind.__new__(kind)
    out.args = args
    for name in vars(args):
        if not hasattr(kind, name):
            setattr(out, name, getattr(args, name))
    out.accelerator = OneProcess()
    out.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    out.ref_model = out.pad_to_multiple_of = None
    out.epsilon_low = args.epsilon
    out.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    out.current_gradient_accumulation_steps = micro_batches
    out.aux_loss_enabled = False
    out._entropy_bonus_enabled = False
    out._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    out._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
    out._pending_extra_logs, out._pending_metrics = defaultdict(list), defaultdict(list)
    out.environments = out.environment_factories = out.tools = None
    out._tokenizer = SimpleNamespace(pad_token_id=0)
    out.reward_func_names = [f"column_{k}" for k in range(columns)]
    out.reward_funcs = [None] * columns
    out.reward_weights = torch.ones(columns, dtype=torch.float64)
    return out


def grpo(**given: Any) -> Any:
    return trainer(of_trl("GRPOTrainer"), "GRPOConfig", **given)


def rloo(**given: Any) -> Any:
    return trainer(of_trl("RLOOTrainer"), "RLOOConfig", **{"beta": 0.0, **given})


@contextlib.contextmanager
def alone(peer: Any) -> Iterator[None]:
    """One process also for the function that TRL gathers its logs with."""
    with mock.patch(f"{type(peer).__module__}.gather_object", lambda value: value):
        yield


def scored(
    peer: Any, rewards_NK: Tensor, num_generations: int, lengths: Sequence[int], logp_NT: Tensor, sampled: list[list[float]] | None = None
) -> dict[str, Any]:
    """`_generate_and_score_completions`: the batch that TRL trains on, advantages included.

    Args:
        rewards_NK: float64, NaN where a column did not judge; rows of a prompt follow each other.
        lengths: response tokens of each row.
        logp_NT: what the forward gives for the old policy.
        sampled: what the engine reported; with `use_vllm` it is corrected for.
    """
    ids = [[1] * n for n in lengths]
    texts = ["answer"] * len(ids)
    prompts = [[1, 1]] * len(ids)
    made = (prompts, ids, texts) if isinstance(peer, of_trl("RLOOTrainer")) else (prompts, ids, None, texts, sampled, {}, None, None)
    peer._generate = lambda questions: made
    peer._calculate_rewards = lambda *a: rewards_NK
    peer._get_per_token_logps_and_entropies = lambda *a, **k: (logp_NT, None, None)
    peer.num_generations = num_generations
    with alone(peer):
        return peer._generate_and_score_completions([{"prompt": "question"} for _ in ids])


def loss(peer: Any, batch: dict[str, Any], logp_BT: Tensor) -> Tensor:
    """`_compute_loss` of one micro-batch when the model's forward gives `logp_BT`."""
    entropy_BT = torch.ones_like(logp_BT).detach()
    peer._get_per_token_logps_and_entropies = lambda *a, **k: (logp_BT, entropy_BT, None)
    return peer._compute_loss(None, batch)
