"""A plan: memory and time of one stage, whether it fits, and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmrl.extras.plan.memory import USABLE, Memory, memory
from vlmrl.extras.plan.settings import Settings
from vlmrl.extras.plan.time import Time, time

Fits = Literal["yes", "tight", "no"]
GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a stage needs on one rank and takes per step."""

    settings: Settings
    memory: Memory
    time: Time

    @property
    def fits(self) -> Fits:
        """yes: within 0.9 of the GPU's memory; tight: within all of it."""
        share = self.memory.peak / self.settings.gpu.memory
        return "yes" if share <= USABLE else "tight" if share <= 1 else "no"

    @property
    def tokens_per_second(self) -> float:
        """Trained tokens per second and GPU."""
        return self.time.tokens / self.time.step if self.time.step else 0.0

    @property
    def largest_part(self) -> str:
        """The part that takes most of the peak's memory."""
        parts = self.memory.parts
        if self.memory.worst == "update":
            return "state"
        left_out = {"rollout"} if self.memory.worst != "rollout" else {"working set", "activations", "tower", "head"}
        return max((name for name in parts if name not in left_out), key=lambda name: parts[name])

    def json(self) -> dict[str, Any]:
        """Numbers in bytes and seconds."""
        s, p = self.settings, self.settings.parameters
        return {
            "computed": "not measured on a GPU",
            "gpu": asdict(s.gpu),
            "gpus": s.gpus,
            "parameters": {"trained": p.n_trained, "frozen": p.n_frozen},
            "settings": {
                "sharding": s.sharding,
                "shard_size": self.memory.shard,
                "offload": s.offload,
                "offload_activations": s.offload_activations,
                "optimizer": s.optimizer,
                "recompute": s.recompute,
                "dtype": s.dtype,
                "engine": s.engine,
                "quantize": s.quantize,
                "lora_rank": None if s.lora is None else s.lora.rank,
                "freeze": list(s.freeze),
                "max_tokens_per_microbatch": s.budget,
                "prompt": s.prompt,
                "answer": s.answer,
                "answers": s.answers,
                "groups_per_rank": s.groups,
                "turns": s.turns,
                "kept_bytes": s.kept_bytes,
            },
            "microbatches": [row.tokens for row in s.rows],
            "memory_bytes": {
                "parts": self.memory.parts,
                "state": asdict(self.memory.state),
                "phases": self.memory.phases,
                "slack": self.memory.slack,
                "peak": self.memory.peak,
                "host": self.memory.host,
            },
            "seconds": {**self.time.phases, "step": self.time.step, "shard_traffic_hidden_too": self.time.traffic},
            "tokens_per_second_per_gpu": self.tokens_per_second,
            "dominates": {"memory": self.largest_part, "phase_of_peak": self.memory.worst, "time": self.time.dominates},
            "fits": self.fits,
        }


def plan(settings: Settings) -> Plan:
    """Memory, then time, of a stage."""
    needed = memory(settings)
    return Plan(settings=settings, memory=needed, time=time(settings, needed))
