"""The experts that vLLM's routers take while it answers (`rollout.router_replay`), as updates replay them.

vLLM hands them out with an answer (`enable_return_routed_experts`), by its newer model runner, which needs Triton and so does not run on a
CPU. There `Routes` keeps them inside its worker: vLLM's own capture sees what each router takes, and a row is kept for every slot of the
cache of keys and values. A column that the prefix cache has covered is not computed again. Its slot is then the one that was written when
it was, under the same weights (`inputs.Version`), so its experts are those that made its keys and values, whoever asked.

Either way an answer has a row for each column that was read: those of the prompt, and those of the answer but for its last token.

Letters: C columns, L layers, k experts that a column takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.vllm.inputs import Completion
from vlmrl.types import Prompt

OWN = {"enable_return_routed_experts": True}
"""What vLLM is started with where it hands them out itself."""


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

        def seen(hidden_states: torch.Tensor, num_scheduled_tokens: Any) -> Any:
            self._step(len(hidden_states))
            return own(hidden_states, num_scheduled_tokens)

        runner._get_prompt_logprobs_dict = seen
        return "", layers

    def _step(self, columns: int) -> None:
        table = self._runner.input_batch.block_table[self._group]
        self._kept[table.slot_mapping.gpu[:columns].cpu()] = self._seen.snapshot_routing_data(columns).cpu()

    def fetch(self, name: str, columns: int) -> np.ndarray | None:
        """Hand out the experts of a request's first columns, [C, L, k], all layers, before the next step; None where it is not there."""
        batch = self._runner.input_batch
        row = next((row for own, row in batch.req_id_to_index.items() if own.rpartition("-")[0] == name), None)
        if row is None:
            return None
        table = batch.block_table[self._group]
        place = np.arange(columns)
        slots = table.block_table.np[row, place // table.block_size].astype(np.int64) * table.block_size + place % table.block_size
        return self._kept[torch.from_numpy(slots)].numpy()


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
