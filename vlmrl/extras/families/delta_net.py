"""Gated delta nets (arXiv:2412.06464), the layers of linear attention of Qwen3.5, in packed rows and one token at a time.

Such a layer keeps of the past a matrix for each head and the last columns in front of its convolution. No mask can keep these from the
columns behind, so a packed row is computed run by run (`policy.runs`): runs without another above them begin with nothing, and every run
below goes on from copies of what the run above it ended with. Runs of one depth are rows of a batch, so a prompt is computed once whatever
the number of its answers, two prompts do not meet, and gradients of all answers add up in the one state that they began with. Weights,
projections and the rule itself are transformers' own, with its faster kernels where their packages are installed.

What stands behind the end of a shorter run decays nothing and writes nothing (g = 0, beta = 0), so a batch ends every run in its own state.

Letters: N columns of a packed row, R runs of a batch, T columns of the longest, K size of the convolution, C its channels, V value heads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlmrl.policy.pack import to_device
from vlmrl.policy.runs import RowLayout

CLASS = "Qwen3_5GatedDeltaNet"


class Carried(NamedTuple):
    """What a layer keeps of the columns before, for each of R rows."""

    inputs: Tensor
    """[R, K - 1, C], the last in front of the convolution; zeros before the first."""
    memory: Tensor
    """[R, V, key size, value size], the recurrent state, float32."""

    def rows(self) -> list[Carried]:
        """Part the rows, [1, ...] each."""
        return [Carried(*pair) for pair in zip(self.inputs.split(1), self.memory.split(1), strict=True)]

    def select(self, index: Tensor) -> Carried:
        """Copy rows by their places, int64."""
        return Carried(self.inputs.index_select(0, index), self.memory.index_select(0, index))

    @staticmethod
    def joined(parts: Sequence[Carried]) -> Carried:
        """Put rows one behind the other."""
        return Carried(torch.cat([part.inputs for part in parts]), torch.cat([part.memory for part in parts]))


class Projected(NamedTuple):
    """What a layer makes of each column by itself."""

    qkv: Tensor
    """[..., C], in front of the convolution."""
    z: Tensor
    """[..., V, value size], the gate of the output."""
    beta: Tensor
    """[..., V], how much is written."""
    g: Tensor
    """[..., V], logarithm of the decay, at most 0."""


def projected(layer: Any, hidden: Tensor) -> Projected:
    """Project hidden states [..., H]."""
    qkv, z, b, a = (part(hidden) for part in (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a))
    g = -layer.A_log.float().exp() * torch.nn.functional.softplus(a.float() + layer.dt_bias)
    return Projected(qkv, z.unflatten(-1, (-1, layer.head_v_dim)), b.sigmoid(), g)


def mixed(layer: Any, given: Projected, before: Carried | None, ends: Tensor | None) -> tuple[Tensor, Carried | None]:
    """Run convolution and delta rule over rows of columns.

    Args:
        given: [R, T, ...] each; `z` is not read.
        before: what the rows go on from; None: nothing.
        ends: int64 [R (K - 1)], places of the columns to keep among R (K - 1 + T), those of `before` first; None: nothing is kept.

    Returns:
        ([R, T, V, value size], what is kept for the columns behind or None).
    """
    from transformers.models.qwen3_5 import modeling_qwen3_5 as own

    rows, size = given.qkv.shape[0], layer.conv_kernel_size - 1
    past = given.qkv.new_zeros(rows, size, given.qkv.shape[2]) if before is None else before.inputs.to(given.qkv.dtype)
    columns = torch.cat([past, given.qkv], 1)
    filter_CK = layer.conv1d.weight.squeeze(1)
    found = own.causal_conv1d_fn(columns.transpose(1, 2), filter_CK, layer.conv1d.bias, activation=layer.activation)
    rule = own.torch_chunk_gated_delta_rule if given.qkv.shape[1] > 1 else own.torch_recurrent_gated_delta_rule
    # in 16 bits a state would lose what is written late; the kernels of other packages keep 32 bits too
    with torch.autocast(columns.device.type, enabled=False):
        out, memory = rule(
            *_heads(layer, found[:, :, size:].transpose(1, 2)),
            g=given.g,
            beta=given.beta,
            initial_state=None if before is None else before.memory,
            output_final_state=ends is not None,
            use_qk_l2norm_in_kernel=True,
        )
    if ends is None:
        return out, None
    return out, Carried(columns.flatten(0, 1).index_select(0, ends).unflatten(0, (rows, size)), memory)


def _heads(layer: Any, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [R, T, C] into queries and keys [R, T, V, key size], each repeated for the values that it serves, and values [R, T, V, value
    size]. The rule of transformers 5.19 asks for that; later ones repeat what is not."""
    q, k, v = qkv.split([layer.key_dim, layer.key_dim, layer.value_dim], -1)
    times = layer.num_v_heads // layer.num_k_heads
    q, k = (one.unflatten(-1, (-1, layer.head_k_dim)).repeat_interleave(times, 2) for one in (q, k))
    return q, k, v.unflatten(-1, (-1, layer.head_v_dim))


def gated(layer: Any, core: Tensor, z: Tensor) -> Tensor:
    """Norm, gate and output projection of [..., V, value size].

    Returns:
        [..., H]
    """
    out = layer.norm(core.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim))
    return layer.out_proj(out.view(*core.shape[:-2], -1))


def packed(layer: Any, hidden_1NH: Tensor, layout: RowLayout, *, keep: bool = False) -> tuple[Tensor, dict[int, Carried]]:
    """Run a layer over a packed row.

    Args:
        keep: whether what every run ends with is returned; else only what runs below it began with.

    Returns:
        ([1, N, H], place of a run -> what it ended with).

    Raises:
        RuntimeError: the row is not as long as its layout says.
    """
    if hidden_1NH.shape[:2] != (1, layout.tokens):
        raise RuntimeError(f"the packed row is {tuple(hidden_1NH.shape[:2])} and its layout describes {layout.tokens} tokens of one row")
    batches, order_N = _plan(layout, layer.conv_kernel_size - 1, hidden_1NH.device)
    own = projected(layer, hidden_1NH[0])
    ends: dict[int, Carried] = {}
    parts: list[Tensor] = []
    for batch in batches:
        qkv, beta, g = (x.index_select(0, batch.columns).unflatten(0, batch.real_RT.shape) for x in (own.qkv, own.beta, own.g))
        behind = ~batch.real_RT[..., None]
        given = Projected(qkv, own.z, beta.masked_fill(behind, 0), g.masked_fill(behind, 0))
        before = Carried.joined([ends[place] for place in batch.parents]) if batch.parents else None
        out, end = mixed(layer, given, before, batch.ends if keep or batch.goes_on else None)
        parts.append(out.flatten(0, 1).index_select(0, batch.places))
        ends |= {} if end is None else dict(zip(batch.runs, end.rows(), strict=True))
    return gated(layer, torch.cat(parts).index_select(0, order_N), own.z)[None], ends


def step(layer: Any, hidden_1NH: Tensor, before: Carried) -> tuple[Tensor, Carried]:
    """Run a layer over one new token of each of N answers.

    Args:
        before: what each answer has so far, N rows.

    Returns:
        ([1, N, H], what each has now).
    """
    given = projected(layer, hidden_1NH[0, :, None])  # a row for each answer, of one column
    count, size = len(given.qkv), layer.conv_kernel_size - 1
    last = torch.arange(count * (size + 1), device=given.qkv.device).view(count, -1)[:, 1:].reshape(-1)
    out, end = mixed(layer, given, before, last)
    assert end is not None
    return gated(layer, out, given.z)[:, 0][None], end


# ---- how a row is cut into batches -----------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Runs of one depth as padded rows."""

    runs: tuple[int, ...]
    parents: tuple[int, ...]
    """Runs above, one for each; none at the top."""
    goes_on: bool
    """Whether a run below begins with what one of these ends with."""
    real_RT: Tensor
    """bool: columns that are not behind the end of their run."""
    columns: Tensor
    """[R T], of the packed row; behind an end the run's last."""
    places: Tensor
    """Of the real columns in R T."""
    ends: Tensor
    """As `mixed` takes them."""


@functools.lru_cache(maxsize=4)
def _plan(layout: RowLayout, size: int, device: torch.device) -> tuple[tuple[_Batch, ...], Tensor]:
    """Cut a row into batches, from the top down.

    Returns:
        (batches, place of each column of the row in what they give one behind the other, int64 [N]).
    """
    depth: list[int] = []
    for run in layout.runs:
        depth.append(depth[run.parent] + 1 if run.parent >= 0 else 0)
    above = {run.parent for run in layout.runs}
    with torch.inference_mode(False):  # kept from one call to the next, and tensors of that mode cannot be saved for a backward
        batches: list[_Batch] = []
        columns = [torch.zeros(0, dtype=torch.int64)]
        for level in range(max(depth, default=-1) + 1):
            for runs in _alike(layout, [place for place, d in enumerate(depth) if d == level]):
                batch = _batch(layout, runs, size, goes_on=not above.isdisjoint(runs))
                columns.append(batch.columns[batch.places])
                batches.append(batch._replace(**{name: to_device(getattr(batch, name), device) for name in _TENSORS}))
        return tuple(batches), to_device(torch.cat(columns).argsort(), device)


_TENSORS = ("real_RT", "columns", "places", "ends")


def _alike(layout: RowLayout, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Part runs by their lengths, so that none is padded to more than twice its own; in the order of the row within a part."""
    length = {place: layout.runs[place].stop - layout.runs[place].start for place in places}
    waiting = sorted(places, key=lambda place: -length[place])
    while waiting:
        some = [place for place in waiting if 2 * length[place] >= length[waiting[0]]]
        yield tuple(sorted(some))
        waiting = waiting[len(some) :]


def _batch(layout: RowLayout, places: tuple[int, ...], size: int, *, goes_on: bool) -> _Batch:
    runs = [layout.runs[place] for place in places]
    starts, lengths = (torch.tensor(x)[:, None] for x in ([run.start for run in runs], [run.stop - run.start for run in runs]))
    within = torch.arange(int(lengths.max()))[None]
    real = within < lengths
    row = torch.arange(len(runs))[:, None] * (size + real.shape[1])
    return _Batch(
        runs=places,
        parents=tuple(run.parent for run in runs) if runs[0].parent >= 0 else (),
        goes_on=goes_on,
        real_RT=real,
        columns=(starts + within.minimum(lengths - 1)).reshape(-1),
        places=real.reshape(-1).nonzero()[:, 0],
        # the last columns of a run that is shorter than the convolution are those of the run above
        ends=(row + lengths + torch.arange(size)[None]).reshape(-1),
    )


# ---- the layers of a model -------------------------------------------------------------------------------------------------


def heed(model: Any) -> list[str]:
    """Let the layers of a model heed the keywords that its attention heeds (`policy.attention.prefix_attention`): a layout, a record of
    what runs end with, a cache of running answers. Without any of them they do what they did.

    Returns:
        The names of the layers.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module).__name__ == CLASS]
    for _, module in found:
        module.forward = MethodType(_forward, module)
    return [name for name, _ in found]


def _forward(
    self: Any,
    hidden_states: Tensor,
    cache_params: Any = None,
    attention_mask: Tensor | None = None,
    *,
    prefix_layout: RowLayout | None = None,
    prefix_columns: Any = None,
    record: list[Any] | None = None,
    decoding: Any = None,
    **kwargs: Any,
) -> Tensor:
    if decoding is not None:
        return decoding.step(self.layer_idx, self, hidden_states)
    if prefix_layout is None:
        return type(self).forward(self, hidden_states, cache_params, attention_mask, **kwargs)
    if cache_params is not None or attention_mask is not None or prefix_columns is not None:
        raise RuntimeError("a gated delta net takes a packed row whole, without attention mask and cache")
    out, ends = packed(self, hidden_states, prefix_layout, keep=record is not None)
    if record is not None:
        record.append(Carried.joined([ends[place] for place in range(len(prefix_layout.runs))]))
    return out
