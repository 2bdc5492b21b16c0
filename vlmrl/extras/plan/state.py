"""What stays on a rank from step to step, in bytes: weights, gradients, moments and a reference.

tests/unit/extras/plan holds it against real models, on the CPU to the byte and in the shapes of published ones without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from vlmrl.extras.plan.host import page_locked
from vlmrl.extras.plan.model import Tensor
from vlmrl.extras.plan.settings import Settings

BLOCK, SMALLEST = 256, 4096
"""Numbers that share a scale in moments of 8 bits, and of the smallest tensor that has such (`scale.adamw8bit`)."""
NF4_BLOCK = 64
"""Values of 4 bits that share a scale (`policy.nf4`)."""
APART = ("embed", "lm_head", "lora_", "router")
"""Of names of matrices that AdamW trains beside Muon (`scale.muon`)."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What stays from step to step on one rank."""

    weights: int
    gradients: int
    moments: int
    reference: int
    host: int
    """Bytes in the machine's memory instead, for each rank."""

    @property
    def total(self) -> int:
        """Bytes on the GPU while gradients are there."""
        return self.weights + self.gradients + self.moments + self.reference

    @property
    def between(self) -> int:
        """Bytes on the GPU between steps, when gradients are gone."""
        return self.total - self.gradients


def bytes_of(tensors: Iterable[Tensor], width: Callable[[Tensor], int], degree: int = 1) -> int:
    """Bytes of the weights that the first of `degree` ranks holds, cut as `shard` has it."""
    return sum(width(t) * shard((t,), degree) for t in tensors)


def shard(tensors: Iterable[Tensor], degree: int) -> int:
    """Numbers that the first of `degree` ranks holds where every tensor is cut along its first dimension (FSDP2)."""
    return sum(-(-t.size[0] // degree) * (t.count // t.size[0]) for t in tensors)


def moments_8bit(tensors: Iterable[Tensor]) -> int:
    """Bytes of both moments in 8 bits: 2 for each number and 8 for the scales of a block; tensors that are too small keep 8 for each."""
    return sum(2 * t.count + 8 * -(-t.count // BLOCK) if t.count >= SMALLEST else 8 * t.count for t in tensors)


def of_muon(t: Tensor) -> bool:
    """Whether Muon trains it (`scale.muon.takes`)."""
    return len(t.size) == 2 and min(t.size) > 1 and not any(mark in t.name for mark in APART)


def moments(s: Settings, own: int) -> int:
    """Bytes of the moments of `own` numbers that a rank holds: 8 for each. Without shards also `adamw8bit`, and Muon's one of 4 bytes."""
    if s.sharding not in ("none", "ddp") or s.optimizer == "adamw":
        return 8 * own
    trained = s.parameters.trained
    return moments_8bit(trained) if s.blocks else sum((4 if of_muon(t) else 8) * t.count for t in trained)


def nf4(t: Tensor) -> int:
    """Bytes of a weight in 4 bits: two values a byte, a scale of 8 bits for 64, one of 32 bits for 256 of those, their mean, and tables
    of 16 values and of the 256 that a scale can have."""
    scales = -(-t.count // NF4_BLOCK)
    return -(-t.count // 2) + scales + 4 * -(-scales // BLOCK) + 4 + 4 * (16 + 256)


def saved_by_nf4(s: Settings) -> int:
    """Bytes by which the weights are smaller than in the type that they would have."""
    return 0 if s.quantize == "none" else sum(s.width(t) * t.count - nf4(t) for t in s.parameters.frozen if t.quantised)


def unpacked(s: Settings) -> int:
    """Bytes of the largest of those weights while a product is made with it: in float32, and in the compute type beside it."""
    largest = max((t.count for t in s.parameters.frozen if t.quantised), default=0) if s.quantize != "none" else 0
    return largest * (4 + (s.numbers.compute if s.numbers.compute != 4 else 0))


def state(s: Settings, degree: int) -> State:
    """State of one rank under `degree` shards.

    none, ddp: 4 n_train + 2 n_frozen weights (4 in float32; `nf4`: about 0.52 for those of the decoder's layers) + 4 n_train gradients
    + 8 n_train moments (in 8 bits about 2 n_train; 4 for what Muon trains). fsdp: the same, divided. zero: the same weights (whole in stage
    2), 4 n_train / S gradients, and 12 n_train / S for the copy of the weights that the optimizer works on and its moments. A reference
    has 2 bytes a weight (4 in float32); one that moves has the types of the weights.
    """
    p = s.parameters
    every, still = s.weights, partial(s.width, frozen=not s.moves)
    if s.sharding in ("zero2", "zero3"):
        own, copies = -(-p.n_trained // degree), degree if s.sharding == "zero3" else 1
        weights, reference = -(-bytes_of(every, s.width) // copies), -(-bytes_of(every, still) // copies)
        gradients, held = 4 * own, 12 * own
    else:
        own = shard(p.trained, degree)
        weights, reference = bytes_of(every, s.width, degree) - saved_by_nf4(s), bytes_of(every, still, degree)
        gradients, held = 4 * own, moments(s, own)
    if not s.reference or s.lora is not None:
        reference = 0
    host = 0
    if s.offload != "none":
        host, held = host + held, 0
        if s.sharding in ("zero2", "zero3") or (s.offload == "all" and s.sharding == "fsdp"):
            # before its last micro-batch a copy of the weights keeps its own sums on the device
            waiting = s.sharding == "fsdp" and s.gpus > degree and len(s.rows) > 1
            down = page_locked(4 * shard((t,), degree) for t in p.trained) if s.sharding == "fsdp" else gradients
            host, gradients = host + down, gradients if waiting else 0
        if s.offload == "all" and s.sharding in ("fsdp", "zero3"):
            down = page_locked(bytes_of((t,), s.width, degree) for t in every) if s.sharding == "fsdp" else weights
            host, weights = host + down, 0
    return State(weights=weights, gradients=gradients, moments=held, reference=reference, host=host)
