"""Every option of a run, as frozen pydantic models. A description per field is its documentation (`vlmrl check --print`).

Method arguments are not here: they are the keyword-only parameters of the registered function that `name` names, and are
checked against its signature (`config.methods`). Nothing here imports torch.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field, model_validator

from vlmrl.config import tree
from vlmrl.config.names import RunName, reserved_problem, same_names
from vlmrl.config.section import (
    AuxiliaryMethod,
    Method,
    NonNegative,
    OptimSection,
    PositiveInt,
    Probability,
    RewardMethod,
    Section,
    SourceSection,
)
from vlmrl.config.stages import (
    SECTIONS,
    GrpoSection,
    RolloutSection,
    RolloutStage,
    SftSection,
    Stage,
    StageBase,
    know_kinds,
    register_section,
)
from vlmrl.config.train import ExportSection, HubSection, KeepSection, TrackerEntry, TrainSection
from vlmrl.types import PARTS, Part

__all__ = [
    "SECTIONS",
    "AuxiliaryMethod",
    "CheckpointSection",
    "Config",
    "DataSection",
    "EvalSection",
    "ExportSection",
    "GrpoSection",
    "KeepSection",
    "LoraSection",
    "MediaSection",
    "Method",
    "ModelSection",
    "OptimSection",
    "RewardMethod",
    "RolloutSection",
    "RolloutStage",
    "RunMediaSection",
    "RunSection",
    "Section",
    "SftSection",
    "SourceSection",
    "Stage",
    "StageBase",
    "ToySection",
    "ToyWorldSection",
    "TrainSection",
    "know_kinds",
    "register_section",
    "validate",
]


class RunSection(Section):
    name: RunName = Field(default="run", description="Name of the run; its directory is <root>/<name>")
    root: str = Field(default="runs", description="Folder that holds run directories")
    seed: int = Field(default=0, ge=0, description="The only source of randomness of the run")
    trackers: tuple[TrackerEntry, ...] = Field(
        default=("tensorboard",), description="Trackers beside metrics.jsonl: tensorboard, wandb, ..., or {name: wandb, project: p}"
    )
    deterministic: bool = Field(default=True, description="Deterministic kernels where torch has them; needed for bit-exact resume")
    threads: int = Field(
        default=0,
        ge=0,
        description="torch CPU threads; 0: on a CPU measured when a run begins, unless OMP_NUM_THREADS is set; elsewhere torch's default, "
        "with the rank's share of cores for an optimizer in the machine's memory",
    )
    push_to_hub: HubSection | None = Field(default=None, description="Upload weights to a model hub beside training (docs/serving.md)")


LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraSection(Section):
    """Low-rank adapters (arXiv:2106.09685); they alone train, the reference policy is the same model without them."""

    rank: PositiveInt = Field(default=16, description="Inner size of the adapters")
    alpha: float = Field(default=32.0, gt=0, description="The update of a weight is scaled by alpha / rank")
    dropout: NonNegative = Field(default=0.0, description="Must be 0: log-probs of the same tokens have to be the same twice")
    targets: tuple[LoraTarget, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Linear layers of the language model with an adapter",
    )
    vision: bool = Field(default=False, description="Adapters on all linear layers of the vision tower and its mergers too")


class ModelSection(Section):
    path: str = Field(description="Folder or hub id of a model (docs/families.md says which train); 'toy' builds the tiny one")
    family: str = Field(
        default="auto", description="Code that runs it: auto goes by the model type; generic takes any, by its own processor and forward"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the policy runs")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Type of the forward pass and of weights that no stage trains; those that train stay float32; "
        "auto: bfloat16 on a GPU that has it, else float32",
    )
    attention: Literal["sdpa", "flash_attention_2"] = Field(default="sdpa", description="Attention kernel of transformers")
    prefix_backend: Literal["auto", "dense", "merge", "two_call", "flash", "flex"] = Field(
        default="auto", description="Attention over packed rows; auto takes the fastest that runs here (docs/design/003)"
    )
    kernels: Literal["auto", "torch", "liger"] = Field(
        default="auto",
        description="RMSNorm and SwiGLU: torch's, or liger-kernel's on CUDA; auto: liger's where they are for the model",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        default="auto", description="Recompute activations in backward: less memory, more time; auto: on CUDA"
    )
    vision_chunk_patches: PositiveInt | None = Field(
        default=None,
        description="Encode videos by whole frames, so many patches a pass, again in backward if the tower trains; none: all at once",
    )
    positions: Literal["auto", "max", "grid"] = Field(
        default="auto", description="Where text resumes after a video (docs/design/002); auto: as the checkpoint was trained, else max"
    )
    revision: str | None = Field(default=None, description="Hub revision to pin")
    quantize: Literal["none", "nf4"] = Field(
        default="none",
        description="Frozen weights of the decoder's linear layers: nf4, in 4 bits under the adapters of lora (QLoRA, arXiv:2305.14314)",
    )
    lora: LoraSection | None = Field(default=None, description="Train low-rank adapters instead of the weights; needs the peft package")


OF_THE_MACHINE = frozenset({"cache_bytes", "prefetch", "vision_cache_dir", "vision_cache_bytes", "workers", "deadline"})
"""Settings of media that decide how fast things go, and no pixel."""


class MediaSection(Section):
    min_pixels: PositiveInt = Field(default=3136, description="Least pixels of a processed image or video frame")
    max_pixels: PositiveInt = Field(default=501760, description="Most pixels of a processed image or video frame")
    video_total_pixels: PositiveInt | None = Field(
        default=None,
        description="Most pixels of all frames of a video together; lowers max_pixels for long videos. "
        "`total_pixels` of qwen-vl-utils counts one frame of each two that the model takes together: give twice as much here",
    )
    fps: float = Field(default=2.0, gt=0, description="Frames per second, chosen by presentation time")
    min_frames: PositiveInt = Field(default=4, description="Fewest frames of a video")
    max_frames: PositiveInt = Field(default=768, description="Most frames of a video; longer videos are sampled more thinly")
    cache_bytes: PositiveInt = Field(default=2**30, description="Byte budget of the cache of processed media")
    prefetch: bool = Field(default=True, description="Decode the next step's media in the background, within half of the cache")
    vision_cache_dir: str | None = Field(
        default=None, description="Folder that keeps a frozen tower's features from run to run; none: memory only"
    )
    vision_cache_bytes: PositiveInt = Field(default=2**34, description="Byte budget of that folder")
    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = Field(
        default="auto", description="Video decoder; auto is PyAV, by which the frames of the others are checked"
    )
    workers: int = Field(default=0, ge=0, description="Processes that decode media, for each rank; 0 decodes in the trainer's own")
    deadline: float = Field(default=20.0, gt=0, description="Seconds that a worker process may take to decode one medium")


class RunMediaSection(MediaSection):
    """What a recipe says of media. An exported model carries `max_tiles` in its processor's files, so a suite's tasks do not have it."""

    max_tiles: PositiveInt | None = Field(
        default=None,
        description="Most tiles that the family's processor cuts a picture into, without the whole beside them; none: as its files say",
    )

    def of_task(self) -> MediaSection:
        """What a task of a suite, or somebody who asks an exported model, says of media."""
        return MediaSection.model_validate(self.model_dump(exclude={"max_tiles"}))


class DataSection(Section):
    root: str = Field(default=".", description="Folder of the data; relative to the working directory, 'toy' is the generated world")
    max_bad_rows: Probability = Field(default=0.001, description="Largest share of bad rows and media before the run stops")
    dedupe: Literal["error", "keep_first"] = Field(default="error", description="What to do with a repeated id of the same content")
    max_prompt_tokens: PositiveInt = Field(default=8192, description="Longer prompts are dropped and counted, never truncated")
    prompt: str | None = Field(
        default=None, description="Jinja text of what is asked, around {{ question }} (docs/data.md); none: the question and our sentence"
    )
    changed: Literal["refuse", "accept"] = Field(
        default="refuse", description="Rows or media that changed since the run began: stop, or go on with the new content and note it"
    )
    check_against: tuple[str, ...] = Field(
        default=(),
        description="Held-out sets that 'vlmrl check' looks for training rows in: suites (.yaml), or files of rows below data.root",
    )


class EvalSection(Section):
    source: SourceSection | None = Field(default=None, description="Held-out rows for the evaluation between stages")
    limit: PositiveInt | None = Field(default=None, description="Use only the first N rows")
    max_new_tokens: PositiveInt = Field(default=256, description="Longest answer in evaluation (greedy)")
    batch_prompts: PositiveInt = Field(default=64, description="Prompts generated for at a time")
    at_start: bool = Field(default=True, description="Also evaluate the model before the first stage")
    every: PositiveInt | None = Field(default=None, description="Also evaluate after every N steps of a stage, as STAGE@STEP")
    suite: str | None = Field(default=None, description="Evaluate on this suite as well: a file, or the name of one in evals/suites")
    data_root: str | None = Field(default=None, description="Folder of the suite's data, instead of its own")
    max_seconds: float | None = Field(default=None, gt=0, description="Begin no further batch after this time; what is answered counts")
    best: str | None = Field(
        default=None, description="Metric (`miou`, or `<task>/<metric>` of the suite) whose best weights are kept in <run>/best"
    )


class CheckpointSection(Section):
    every: PositiveInt = Field(default=50, description="Optimizer steps between checkpoints")
    keep: PositiveInt = Field(default=2, description="Checkpoints kept; the newest valid one is never deleted")
    asynchronous: bool = Field(default=False, description="Write checkpoints in the background, from copies in memory (docs/resume.md)")
    mirror: str | None = Field(
        default=None, description="URL of a folder that also keeps them (file://, s3://, ...); an empty run folder is filled from there"
    )


class ToyWorldSection(Section):
    kind: (
        Literal["grounding", "shell", "shell_stays", "shell_slips", "shell_way", "multitask", "spatial", "think", "gui", "click"]
        | Literal["zoom", "stripes", "clip", "lake", "pages"]
    ) = Field(default="grounding", description="Temporal grounding or one of four shell games in videos, or tasks on pictures")
    pretrain: PositiveInt = Field(default=1600, description="Videos for pretraining, loosely labelled")
    sft: PositiveInt = Field(default=300, description="Videos for supervised fine-tuning, loosely labelled, with thoughts")
    train: PositiveInt = Field(default=600, description="Videos for RL, exactly labelled")
    validation: PositiveInt = Field(default=64, description="Videos of the validation split")
    test: PositiveInt = Field(default=200, description="Videos of the held-out split")
    seed: int = Field(default=0, ge=0, description="Seed of the world; independent of run.seed")


class ToySection(Section):
    cache: str = Field(default="~/.cache/vlmrl", description="Folder where worlds and base models are kept by the hash of their recipe")
    world: ToyWorldSection = ToyWorldSection()
    base: SftSection | None = Field(default=None, description="How the tiny model is pretrained from nothing")
    base_seed: int = Field(default=0, ge=0, description="Seed of the tiny model's initial weights")
    base_width: PositiveInt = Field(default=128, multiple_of=64, description="Hidden size of the tiny model; its tower follows")
    base_media: RunMediaSection | None = Field(default=None, description="How it sees media while it is pretrained; none: as `media`")


class Config(Section):
    """A whole run: a recipe with its base and the overrides applied."""

    run: RunSection = RunSection()
    model: ModelSection
    train: TrainSection = TrainSection()
    media: RunMediaSection = RunMediaSection()
    data: DataSection = DataSection()
    stages: tuple[Stage, ...] = Field(min_length=1, description="Phases, in order")
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    export: ExportSection = ExportSection()
    keep: KeepSection = KeepSection()
    toy: ToySection | None = Field(default=None, description="The embedded world and model; only with model.path: toy or data.root: toy")
    plugins: tuple[str, ...] = Field(default=(), description="Python modules to import, for their registrations")

    @property
    def trained(self) -> tuple[Part, ...]:
        """Parts whose own weights train in some stage: with adapters none."""
        return () if self.model.lora is not None else tuple(part for part in PARTS if any(part not in s.frozen for s in self.stages))

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        fields = _tuples(value)
        if isinstance(fields, dict):
            known = cast("dict[str, object]", fields)
            stages, plugins = known.get("stages"), known.get("plugins")
            kinds = [cast("dict[str, object]", one).get("kind") for one in _items(stages) if isinstance(one, dict)]
            know_kinds(kinds, [name for name in _items(plugins) if isinstance(name, str)])
        return cast("Any", fields)


def _items(value: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()


def _tuples(value: Any) -> Any:
    """YAML has lists where the frozen models have tuples."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return tuple(_tuples(v) for v in cast("list[Any]", value))
    return value


def validate(cfg: Config) -> list[str]:
    """Contradictions between fields, each naming both. Empty when there is none."""
    out: list[str] = []
    names = [stage.name for stage in cfg.stages]
    where = [f"stages.{tree.segment([*names], place)}.name" for place in range(len(names))]
    out += [f"{where[place]}: {problem}" for place, name in enumerate(names) if (problem := reserved_problem(name)) is not None]
    for place, first in same_names(names).items():
        also = "" if names[place] == names[first] else "; some file systems do not tell upper from lower case"
        out.append(f"{where[place]}: {names[place]!r} is used twice, by stages {first} and {place}{also}; give one of them another name")
    if cfg.media.min_pixels > cfg.media.max_pixels:
        out.append(f"media.min_pixels ({cfg.media.min_pixels}) is larger than media.max_pixels ({cfg.media.max_pixels})")
    if cfg.media.min_frames > cfg.media.max_frames:
        out.append(f"media.min_frames ({cfg.media.min_frames}) is larger than media.max_frames ({cfg.media.max_frames})")
    uses_toy = cfg.model.path == "toy" or cfg.data.root == "toy"
    if uses_toy and cfg.toy is None:
        out.append("model.path or data.root is 'toy' but there is no 'toy' section")
    if cfg.model.path == "toy" and cfg.toy is not None and cfg.toy.base is None:
        out.append("model.path is 'toy' but toy.base does not say how to pretrain it")
    out += _lora_problems(cfg)
    out += _quantize_problems(cfg)
    out += _part_problems(cfg)
    if cfg.train.sharding != "ddp":
        out += [
            f"stages[{i}] ({stage.name}): optim.kind '{stage.optim.kind}' needs whole weights on every rank, as train.sharding 'ddp' has "
            f"them, not '{cfg.train.sharding}'; take adamw, whose moments are divided over the ranks"
            for i, stage in enumerate(cfg.stages)
            if stage.optim.kind != "adamw"
        ]
        out += [
            f"stages[{i}] ({stage.name}): rollout.graphs records steps over weights that lie in one place, as train.sharding 'ddp' has "
            f"them, not '{cfg.train.sharding}'; leave it out"
            for i, stage in enumerate(cfg.stages)
            if isinstance(stage, RolloutStage) and stage.rollout.graphs is True
        ]
        if cfg.train.offload_activations:
            out.append(
                f"train.offload_activations: not proven with train.sharding '{cfg.train.sharding}', whose weights come and go within a "
                "pass; take ddp, or train.offload"
            )
    if cfg.data.prompt is not None:
        out += [
            f"data.prompt: stages[{i}] ({stage.name}) has an environment, which says itself what is asked; remove one of them"
            for i, stage in enumerate(cfg.stages)
            if isinstance(stage, RolloutStage) and stage.environment is not None
        ]
    out += _sequence_problems(cfg)
    if cfg.model.positions == "grid":
        out += [
            f"stages[{i}] ({stage.name}): rollout.engine 'vllm' knows the positions 'max' only, and model.positions is 'grid'"
            for i, stage in enumerate(cfg.stages)
            if isinstance(stage, RolloutStage) and stage.rollout.engine == "vllm"
        ]
    for i, stage in enumerate(cfg.stages):
        out += [f"stages[{i}] ({stage.name}): {problem}" for problem in (*stage.length_problems(), *stage.problems())]
    return out


def _sequence_problems(cfg: Config) -> list[str]:
    size, sharding = cfg.train.sequence, cfg.train.sharding
    if size == 1:
        return []
    out = [f"train.sequence ({size}): rows cannot be shared under train.sharding '{sharding}'; take ddp or fsdp"] * (
        sharding not in ("ddp", "fsdp")
    )
    return out + [
        f"stages[{i}] ({stage.name}): train.sequence ({size}) shares packed rows, and forward: repeat has none; take shared_prefix"
        for i, stage in enumerate(cfg.stages)
        if stage.forward == "repeat"
    ]


def _lora_problems(cfg: Config) -> list[str]:
    lora = cfg.model.lora
    if lora is None:
        return []
    out: list[str] = []
    if lora.dropout > 0:
        out.append(
            f"model.lora.dropout ({lora.dropout}): must be 0, because the policy ratio compares log-probs of the same tokens from "
            "passes that would each drop other units; use optim.weight_decay or a smaller model.lora.rank against overfitting"
        )
    for i, stage in enumerate(cfg.stages):
        if _parts_of_adapters(lora) <= set(stage.frozen):
            out.append(f"stages[{i}] ({stage.name}): freeze ({', '.join(stage.frozen)}) leaves none of the adapters of model.lora to train")
    return out


def _quantize_problems(cfg: Config) -> list[str]:
    kind = cfg.model.quantize
    if kind == "none":
        return []
    out: list[str] = []
    if cfg.model.lora is None:
        out.append(f"model.quantize ({kind}): weights in 4 bits do not train, and nothing else would; set model.lora, or leave it out")
    if cfg.train.sharding != "ddp":
        out.append(
            f"model.quantize ({kind}): weights in 4 bits are not cut into shards, as train.sharding '{cfg.train.sharding}' would; take ddp"
        )
    if len(cfg.stages) > 1:
        out.append(
            f"model.quantize ({kind}): a second stage would start from merged weights, and rounding these to 4 bits again loses most of "
            f"what the first has learnt; keep one of the {len(cfg.stages)} stages, and begin another run from its folder 'final'"
        )
    for i, stage in enumerate(cfg.stages):
        rollout = stage.rollout if isinstance(stage, RolloutStage) else None
        if rollout is not None and rollout.engine == "vllm":
            out.append(
                f"stages[{i}] ({stage.name}): rollout.engine 'vllm' would hold the weights in 16 bits beside those in 4 (model.quantize); "
                "take hf"
            )
        if rollout is not None and rollout.graphs is True:
            out.append(f"stages[{i}] ({stage.name}): rollout.graphs is not proven over weights in 4 bits (model.quantize); leave it out")
    return out


def _parts_of_adapters(lora: LoraSection) -> set[Part]:
    return set(PARTS) if lora.vision else {"language"}


def _part_problems(cfg: Config) -> list[str]:
    """Learning rates of parts of which nothing trains."""
    out: list[str] = []
    lora = cfg.model.lora
    for i, stage in enumerate(cfg.stages):
        where = f"stages[{i}] ({stage.name}): optim.parts"
        for part, rate in stage.optim.parts.rates.items():
            if rate > 0 and part in stage.freeze:
                out.append(f"{where}.{part} ({rate:g}): freeze names this part too; take one of them out")
            elif rate > 0 and lora is not None and part not in _parts_of_adapters(lora):
                out.append(f"{where}.{part} ({rate:g}): with model.lora only adapters train, and this part has none; set model.lora.vision")
        if not cfg.model.lora and set(PARTS) <= set(stage.frozen):
            out.append(f"stages[{i}] ({stage.name}): freeze and optim.parts leave nothing to train")
    return out
