"""The sections `train` (how a run is spread over ranks), `export`, `keep` (which groups can be looked at later), one of `run.trackers`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

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


class ExportSection(Section):
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Type of the weights in final/ and best/; auto: bfloat16 where the base's are stored in it, else float32. "
        "Checkpoints, and stages that others begin from, stay float32",
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


class HubSection(Section):
    repo: str = Field(description="Repository on the model hub, OWNER/NAME; it is made where there is none")
    private: bool = Field(default=True, description="Make a new repository private")
    every: Literal["end", "stage", "checkpoint"] = Field(
        default="end",
        description="Upload the final weights; also those of each stage; also those at each checkpoint. Never the optimizer's",
    )
    license: str | None = Field(default=None, description="Of the weights, as the hub spells it; none: the card says unknown")


class TrackerSection(Section):
    """A tracker with what it is told. A plain name is one that is told nothing."""

    name: str = Field(description="tensorboard, wandb, trackio, swanlab, mlflow, or another one of accelerate's")
    project: str | None = Field(default=None, description="What holds its runs; none: the environment's (WANDB_PROJECT, ...), else vlmrl")
    run: str | None = Field(default=None, description="What it calls this run; none: the environment's (WANDB_NAME, ...), else run.name")
    group: str | None = Field(default=None, description="What its runs are put together by, such as the seeds of one experiment")
    tags: tuple[str, ...] = Field(default=(), description="Words to find the run by")


def _tracker(value: Any) -> Any:
    """A plain name, or a section; errors are those of the section alone."""
    return value if isinstance(value, str) else TrackerSection.model_validate(value)


TrackerEntry = Annotated[str | TrackerSection, BeforeValidator(_tracker)]
