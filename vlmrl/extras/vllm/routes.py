"""The experts that vLLM's routers take while it answers (`rollout.router_replay`), as updates replay them.

vLLM hands them out with an answer (`enable_return_routed_experts`), by its newer model runner, which needs Triton and so does not run on a
CPU. There `Routes` keeps them inside its worker: vLLM's own capture sees what each router takes, and a row is kept for every slot of the
cache of keys and values. A column that the prefix cache has covered is not computed again. Its slot is then the one that was written when
it was, under the same weights (`inputs.Version`), so its experts are those that made its keys and values, whoever asked. They are copied to
the request while it runs, since its slots are another's once it has ended.

Either way an answer has a row for each column that was read: those of the prompt, and those of the answer but for its last token.

Letters: C columns, L layers, k experts that a column takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.vllm.inputs import Completion
from vlmrl.types import Prompt

OWN = {"enable_return_routed_experts": True}
"""What vLLM is started with where it hands them out itself."""
UNSEEN = "rollout.router_replay: vLLM's routers cannot be seen ({}); take rollout.engine: hf"
MOST_ENDED = 1024
"""Requests that have ended, of which experts wait to be fetched; nobody fetches those of one that was given up."""


class Routes:
    """Keeps the experts of every slot, in one worker."""

    def watch(self, runner: Any) -> tuple[str, list[int]]:
        """See every step of a runner from now on, where vLLM does not hand out experts itself.

        Returns:
            (why they cannot be seen, empty where they can; numbers of the layers that have a router).
        """
        from vllm.model_executor.layers.fused_moe.layer import MoERunner  # pyright: ignore[reportMissingImports]
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (  # pyright: ignore[reportMissingImports]
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )
        from vllm.v1.kv_cache_interface import FullAttentionSpec  # pyright: ignore[reportMissingImports]

        model, config = runner.get_model(), runner.vllm_config
        layers = sorted(int(module.layer_id) for module in model.modules() if isinstance(module, MoERunner))
        if getattr(runner, "aux_output_connector", None) is not None:
            return "", layers
        own = getattr(runner, "_get_prompt_logprobs_dict", None)
        groups = [group.kv_cache_spec for group in runner.kv_cache_config.kv_cache_groups]
        whole = next((number for number, spec in enumerate(groups) if isinstance(spec, FullAttentionSpec)), None)
        if own is None or whole is None:
            return "its model runner is one whose steps cannot be seen" if own is None else "none of its layers has full attention", layers
        self._runner, self._group = runner, whole
        try:
            self._seen = RoutedExpertsCapturer(config.scheduler_config.max_num_batched_tokens, config)
            bind_routed_experts_capturer(model, self._seen)
        except ValueError as error:
            return str(error), layers
        slots = runner.kv_cache_config.num_blocks * groups[whole].block_size
        self._kept = torch.zeros((slots, *self._seen.shape_per_token), dtype=self._seen.output_dtype)
        self._told: dict[str, list[np.ndarray]] = {}

        def seen(hidden_states: torch.Tensor, num_scheduled_tokens: Any) -> Any:
            self._step(len(hidden_states), num_scheduled_tokens)
            return own(hidden_states, num_scheduled_tokens)

        runner._get_prompt_logprobs_dict = seen
        return "", layers

    def _step(self, columns: int, scheduled: Mapping[str, int]) -> None:
        batch = self._runner.input_batch
        table = batch.block_table[self._group]
        self._kept[table.slot_mapping.gpu[:columns].cpu()] = self._seen.snapshot_routing_data(columns).cpu()
        for name, row in batch.req_id_to_index.items():
            told = self._told.setdefault(name, [])
            place = np.arange(sum(map(len, told)), int(batch.num_computed_tokens_cpu[row]) + scheduled.get(name, 0))
            slots = table.block_table.np[row, place // table.block_size].astype(np.int64) * table.block_size + place % table.block_size
            told.append(self._kept[torch.from_numpy(slots)].numpy())
        for name in [name for name in self._told if name not in batch.req_id_to_index][:-MOST_ENDED]:
            del self._told[name]

    def fetch(self, name: str) -> tuple[bytes, tuple[int, ...], str] | None:
        """Hand out the experts of a request that has ended, once: [C, L, k], all layers, as (bytes, shape, type). None: it is not known."""
        own = next((own for own in self._told if own.rpartition("-")[0] == name), None)
        if own is None:
            return None
        found = np.concatenate(self._told.pop(own))
        return found.tobytes(), found.shape, found.dtype.str


def experts_of(output: Any, fetched: Sequence[tuple[bytes, tuple[int, ...], str] | None], layers: Sequence[int]) -> np.ndarray | None:
    """The experts of an answer of vLLM, in layers that have a router, [C, L, k]; None: nobody has them.

    Args:
        fetched: what each worker says of the request (`Routes.fetch`), where vLLM has handed out none.
    """
    found = output.outputs[0].routed_experts
    for data, shape, kind in filter(None, fetched):
        found = np.frombuffer(data, dtype=kind).reshape(shape)
    return None if found is None else found[:, layers]


def require_routers(subject: Any, layers: int) -> None:
    """
    Args:
        subject: a policy's, whose family says what its routers are; None: a family without any.
        layers: those of vLLM's model that have a router.

    Raises:
        ConfigError: the trainer's model has others, or its routers are not replayed.
    """
    why = "it has no routers"
    if subject is not None:
        differ = f"its model in vLLM has routers in {layers} layers, and here in {subject.routers}" if layers != subject.routers else ""
        why = subject.unrouted or differ
    if why:
        raise ConfigError(f"rollout.router_replay: {why}; take it out")


def written(answer: Completion, prompt: Prompt, subject: Any) -> tuple[str, str]:
    """Write the experts of an answer as text: (those of its prompt, its own), as the policy's `subject` reads them.

    Raises:
        EngineError: they are not those of as many columns as were read.
    """
    read = len(prompt.ids) + len(answer.ids) - 1
    if answer.experts is None or len(answer.experts) != read:
        found = "none" if answer.experts is None else f"those of {len(answer.experts)}"
        raise EngineError(f"vLLM read {read} columns for an answer to '{prompt.sample.id}', and of their experts gave {found}")
    return subject.routes(prompt, answer.ids, torch.from_numpy(answer.experts.astype(np.int64)))
