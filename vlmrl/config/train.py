"""The sections `train` (how a run is spread over ranks) and `keep` (which of its groups can be looked at later)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vlmrl.config.section import PositiveInt, Section


class TrainSection(Section):
    sharding: Literal["ddp", "fsdp", "zero2", "zero3"] = Field(
        default="ddp",
        description="Where weights and moments lie: ddp, whole on every rank; fsdp, in shards (FSDP2); zero2, zero3, by DeepSpeed",
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        default="none",
        description="What lies in the machine's memory: optimizer (zero2, zero3), or all that is in shards (fsdp, zero3)",
    )
    offload_activations: bool = Field(
        default=False,
        description="Keep activations in the machine's memory from forward to backward (ddp): less memory on the GPU, more time, same bits",
    )
    shard_size: PositiveInt | None = Field(
        default=None, description="fsdp: ranks that share one copy of the weights, a divisor of all; none: all ranks"
    )
    rehearse: bool = Field(
        default=True,
        description="Begin a stage with its first step's largest rollout and micro-batch: too little memory shows at once",
    )
    sequence: Literal[1, 2, 4] = Field(
        default=1,
        description="Ranks that share each packed row in training, each with a share of its columns (ddp, fsdp): for very long rows",
    )
    patience: float = Field(
        default=600.0,
        gt=0,
        description="Seconds that a collective may take once all ranks have come to it; then the job ends (docs/launch.md)",
    )


class KeepSection(Section):
    """Kept groups: what `vlmrl view` shows. None of it changes what is trained."""

    groups_per_step: int = Field(
        default=8, ge=0, description="Most groups kept of a step, of all ranks together (docs/view.md); 0 keeps none"
    )
    every: PositiveInt = Field(default=1, description="Keep groups of every N-th step of a stage")
    bytes: PositiveInt = Field(
        default=2**29, description="Byte budget of kept groups and their media; beyond it the run is kept more thinly"
    )
    frames: PositiveInt = Field(default=24, description="Most frames kept of a video, evenly spaced")
    table: bool = Field(default=False, description="Send the kept answers of each step to run.trackers too, as the table 'completions'")
