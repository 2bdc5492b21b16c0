"""The recurrence of gated delta nets in vLLM's CPU build, in float32: its own kernels take bfloat16 and heads of 64 or 128 alone.

What stands around it stays vLLM's own: projections, the state of each request and where it is kept, norms and gates. The recurrence is
that of transformers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vlmrl.extras.vllm.engine import platform


def core(mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor, layer_name: Any) -> None:
    """In place of `cpu_gdn_attention_core`."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule
    from vllm.forward_context import get_forward_context  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import _conv_buffer_view  # pyright: ignore[reportMissingImports]
    from vllm.utils.torch_utils import _resolve_layer_name  # pyright: ignore[reportMissingImports]

    context = get_forward_context()
    layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
    if context.attn_metadata is None:
        return
    told = context.attn_metadata[layer.prefix]
    taps, width = layer.conv1d.weight.view(layer.conv1d.weight.size(0), -1), layer.conv1d.weight.size(-1)
    columns, states = _conv_buffer_view(layer), layer.kv_cache[1]
    starts = told.non_spec_query_start_loc.tolist()
    for number in range(told.num_decodes + told.num_prefills):
        begin, end, slot = starts[number], starts[number + 1], int(told.non_spec_state_indices_tensor[number])
        known = number < told.num_decodes or bool(told.has_initial_state[number])
        state = states[slot].view(layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)
        before = columns[slot].clone() if known else torch.zeros_like(columns[slot])
        read = torch.cat([before, mixed_qkv[begin:end].T], 1)
        columns[slot] = read[:, -(width - 1) :]
        mixed = torch.nn.functional.silu((read.unfold(1, width, 1) * taps[:, None]).sum(-1)).T
        query, key, value = layer.rearrange_mixed_qkv(mixed)
        times = layer.num_v_heads // layer.num_k_heads
        query, key = (one.repeat_interleave(times, 2) for one in (query, key))
        decay = -layer.A_log.float().exp() * torch.nn.functional.softplus(a[begin:end].float() + layer.dt_bias)
        out, last = torch_recurrent_gated_delta_rule(
            query,
            key,
            value,
            g=decay[None],
            beta=b[begin:end].sigmoid()[None],
            initial_state=state[None].clone() if known else None,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        core_attn_out[begin:end] = out[0]
        state.copy_(last[0])


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have vLLM compute with it."""
    platform()  # what vLLM reads of the environment is set before it is imported
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention  # pyright: ignore[reportMissingImports]

    gdn_attention.register_cpu_gdn_attention_ops()
    monkeypatch.setattr(torch.ops.vllm, "cpu_gdn_attention_core", core)
