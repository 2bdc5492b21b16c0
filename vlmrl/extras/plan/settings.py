"""What a plan depends on: the model, the machine and the recipe's numbers, and how they are read from a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast, get_args

from vlmrl.config.methods import of_stage
from vlmrl.config.schema import Config, GrpoSection, LoraSection, RolloutStage, SftSection, StageBase
from vlmrl.config.stages import PreferenceSection, VllmSection
from vlmrl.errors import ConfigError
from vlmrl.extras.plan.activations import AUTOCAST, BFLOAT16, FLOAT32, Numbers, PackedRow
from vlmrl.extras.plan.gpus import NETWORK, Gpu
from vlmrl.extras.plan.model import Lora, Parameters, Part, Shape, Tensor, parameters

Sharding = Literal["none", "ddp", "fsdp", "zero2", "zero3"]
Offload = Literal["none", "optimizer", "all"]
Engine = Literal["none", "hf", "vllm"]
TEXT = 64
"""Text tokens of a prompt that is otherwise pictures, where nothing else is said."""
SLACK = 2 * 10**9
"""Bytes of the driver's context and of what the allocator cannot use, where no run has measured them (`plan.slack`): a guess."""
UTILISATION = 0.4
"""Share of a GPU's rate that products reach: a goal. Published trainers of vision-language models reach 0.08 to 0.23."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One stage on one machine."""

    shape: Shape
    gpu: Gpu
    gpus: int
    gpus_per_node: int = 8
    network: float = NETWORK
    """Bytes per second between nodes for one GPU, one direction."""
    utilisation: float = UTILISATION
    sharding: Sharding = "none"
    shard_size: int | None = None
    """Ranks that share one copy of the state; none: a node's where that fits, else all."""
    sequence: int = 1
    """Ranks that share each packed row."""
    offload: Offload = "none"
    offload_activations: bool = False
    """Whether activations wait for backward in the machine's memory; whole weights only."""
    optimizer: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    recompute: bool = False
    vision_chunk: int | None = None
    """Bound of the patches of one pass of the tower; none: all media of a row at once."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    backend: str = "flash"
    """Attention over packed rows."""
    deterministic: bool = True
    """Whether backward adds up in a fixed order."""
    budget: int = 16384
    """Tokens of a micro-batch."""
    freeze: tuple[str, ...] = ()
    trains: tuple[str, ...] | None = None
    """Parts that train in some stage of the run, and so are kept in float32; none: those that train in this one."""
    lora: Lora | None = None
    quantize: Literal["none", "nf4"] = "none"
    """Form of the decoder's frozen layers under adapters."""
    groups: int = 2
    """Prompts per rank and step."""
    answers: int = 8
    """Answers of a prompt."""
    prompt: int = 8192
    """Tokens of the longest prompt."""
    answer: int = 1024
    """Tokens of the longest answer."""
    visual: int | None = None
    """Placeholder tokens of a prompt; none: all but 64."""
    engine: Engine = "hf"
    """What generates; `none` in supervised fine-tuning."""
    tp: int | None = None
    """GPUs that share one copy of the weights in vLLM; none: the fewest that fit."""
    vllm_keeps: float = 0.0
    """Share of the GPU that vLLM in the trainer's process keeps while the policy trains; 0: none, or nothing generates there."""
    running: int = 256
    """Answers that decode at a time."""
    together: int = 16
    """Prompts that are generated together."""
    turns: int = 1
    """Turns of an episode, each with a prompt of its own; 1: answers to prompts, without an environment."""
    grows: bool = False
    """Whether the prompt of a turn begins with the turn before it."""
    chained: bool = False
    """Whether training computes what an attempt's turns share once."""
    kept_bytes: int = 0
    """Keys and values that episodes may keep from turn to turn."""
    passes: float = 0.0
    """Scoring passes over all rows in a step: old log-probs and the reference's."""
    teacher: bool = False
    """Whether one of those passes is a teacher's, whose prompts are longer than is counted here."""
    reference: bool = False
    """Whether a second model is kept to compare with."""
    moves: bool = False
    """Whether that model's weights follow the policy's: then those that train are in float32."""
    vision_cache: int = 2**30
    """Bytes that the cache of features may take."""
    slack: int = SLACK
    """Bytes of the GPU that are not tensors."""

    @property
    def numbers(self) -> Numbers:
        """Sizes of numbers in the forward pass: 16-bit parameters with fsdp, autocast over those that train with the others."""
        if self.dtype == "float32":
            return FLOAT32
        return BFLOAT16 if self.sharding == "fsdp" else AUTOCAST

    @cached_property
    def parameters(self) -> Parameters:
        """Which tensors train."""
        return parameters(self.shape, freeze=self.freeze, lora=self.lora)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return (*self.parameters.trained, *self.parameters.frozen)

    @property
    def wide(self) -> frozenset[str]:
        """Parts whose weights are kept in float32."""
        parts = self.parameters.parts if self.trains is None else self.trains
        return frozenset(get_args(Part) if self.dtype == "float32" else () if self.lora is not None else parts)

    @property
    def language_wide(self) -> bool:
        """Whether the decoder's own weights are kept in float32."""
        return "language" in self.wide

    def width(self, t: Tensor, *, frozen: bool = False) -> int:
        """Bytes of a number of a weight, before it is quantised. `frozen`: in a model of which nothing trains."""
        if self.dtype == "float32" or not t.halved or ".lora_" in t.name:
            return 4
        return 4 if t.part in self.wide and not frozen else 2

    @property
    def blocks(self) -> bool:
        """Whether moments have 8 bits; shards always have 32."""
        return self.optimizer == "adamw8bit" and self.sharding in ("none", "ddp")

    @property
    def vision_blocks(self) -> bool:
        """Whether the tower's blocks train."""
        return "vision" in self.parameters.parts

    @property
    def vision_trains(self) -> bool:
        """Whether features of media carry gradient."""
        return bool(self.parameters.parts - {"language"})

    @property
    def language_trains(self) -> bool:
        """Whether the decoder's own weights or adapters train."""
        return "language" in self.parameters.parts

    @property
    def visual_tokens(self) -> int:
        """Placeholder tokens of a prompt."""
        return max(0, self.prompt - TEXT) if self.visual is None else min(self.visual, self.prompt)

    @property
    def patches(self) -> int:
        """Patches of a prompt's media."""
        return self.visual_tokens * self.shape.tower.merge**2

    def tower_passes(self, row: PackedRow) -> int:
        """Passes of the tower for the media of a row."""
        return 1 if self.vision_chunk is None else max(1, -(-len(row.groups) * self.patches // self.vision_chunk))

    @cached_property
    def rows(self) -> tuple[PackedRow, ...]:
        """The packed rows of a step on one rank, the largest first. Of episodes a row for each turn, or for each attempt where turns are
        chained: a last prompt with its answer, of which all answers are scored. That turns have prompts in common is not counted."""
        if self.turns == 1:
            return deal(self.groups, self.prompt, self.answers, self.answer, self.budget)
        attempts = self.groups * self.answers
        if not self.chained:
            return deal(attempts * self.turns, self.prompt, 1, self.answer, self.budget)
        said = min(self.turns * self.answer, self.prompt + self.answer - 1)
        return deal(attempts, self.prompt + self.answer - said, 1, said, self.budget)

    @property
    def asked(self) -> Settings:
        """The same as the engine sees a turn of episodes: a prompt for each attempt, with one answer."""
        if self.turns == 1:
            return self
        return self.changed(groups=self.groups * self.answers, together=self.together * self.answers, answers=1)

    @property
    def prompts(self) -> int:
        """Prompts of a step on one rank whose media differ: of episodes one for each attempt where prompts grow, else one for each turn."""
        return self.asked.groups * (1 if self.grows else self.turns)

    @property
    def row(self) -> PackedRow:
        """The largest packed row."""
        return self.rows[0]

    @property
    def node(self) -> int:
        """GPUs of a node that are used."""
        return min(self.gpus, self.gpus_per_node)

    def changed(self, **changes: Any) -> Settings:
        """The same with other values."""
        return replace(self, **changes)


def deal(groups: int, prompt: int, answers: int, answer: int, budget: int) -> tuple[PackedRow, ...]:
    """Equal groups in packed rows of at most `budget` tokens, as `policy.pack.partition` deals them: first fit, largest first; a group over
    the budget is cut between its answers, and a single answer with its prompt may exceed it. The largest row comes first."""
    held = max(1, min(answers, (budget - prompt) // answer)) if answer else answers
    sizes = [held] * (answers // held) + ([answers % held] if answers % held else [])
    rows: list[list[int]] = []
    room: list[int] = []
    least, full = prompt + min(sizes) * answer, 0
    for count in sorted((n for _ in range(groups) for n in sizes), reverse=True):
        size = prompt + count * answer
        while full < len(room) and room[full] < least:
            full += 1
        place = next((r for r in range(full, len(room)) if room[r] >= size), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(count)
        room[place] -= size
    out = [PackedRow(tuple((prompt, (answer,) * count) for count in row)) for row in rows]
    return tuple(sorted(out, key=lambda row: -row.tokens))


MOVES_REFERENCE = frozenset({"care_consistency"})
"""Methods that register with `moves_reference`: what registers imports torch, which a plan does without."""


# ---- from a recipe -------------------------------------------------------------------------------------------------------


def settings_of(
    cfg: Config, stage: StageBase, *, shape: Shape, gpu: Gpu, gpus: int, gpus_per_node: int = 8, given: dict[str, Any] | None = None
) -> Settings:
    """The settings of a stage. `given`: values of the command's options, which win over the recipe's.

    Raises:
        ConfigError: a value that is not known.
    """
    model = cfg.model
    dtype = "bfloat16" if model.dtype == "auto" else model.dtype  # a GPU is planned for
    values: dict[str, Any] = {
        "sharding": cfg.train.sharding if gpus > 1 else "none",
        "shard_size": cfg.train.shard_size,
        "sequence": cfg.train.sequence if gpus > 1 else 1,
        "offload": cfg.train.offload,
        "offload_activations": cfg.train.offload_activations,
        "optimizer": stage.optim.kind,
        "recompute": bool(model.gradient_checkpointing),  # 'auto' is true on a GPU
        "vision_chunk": model.vision_chunk_patches,
        "dtype": dtype,
        "deterministic": cfg.run.deterministic,
        "backend": ("flash" if dtype == "bfloat16" else "flex") if model.prefix_backend == "auto" else model.prefix_backend,
        "budget": stage.max_tokens_per_microbatch,
        "freeze": tuple(stage.frozen),
        "trains": cfg.trained,
        "lora": lora_of(model.lora),
        "quantize": model.quantize,
        "prompt": cfg.data.max_prompt_tokens,
        "vision_cache": cfg.media.cache_bytes,
        **_work(stage, gpus),
    }
    values |= {key: value for key, value in (given or {}).items() if value is not None}
    if not isinstance(stage, RolloutStage):
        values["engine"] = "none"
    elif values["engine"] == "vllm" and gpus == 1:
        vllm = stage.rollout.vllm or VllmSection()
        values["vllm_keeps"] = 0.0 if vllm.servers or vllm.sleep else vllm.memory
    for key, known in (("sharding", get_args(Sharding)), ("offload", get_args(Offload)), ("engine", get_args(Engine))):
        if values[key] not in known:
            raise ConfigError(f"--{key}: expected one of {', '.join(known)}, got '{values[key]}'")
    return Settings(shape=shape, gpu=gpu, gpus=gpus, gpus_per_node=gpus_per_node, **values)


def lora_of(section: LoraSection | None) -> Lora | None:
    """Adapters of a recipe."""
    return None if section is None else Lora(rank=section.rank, targets=tuple(section.targets), vision=section.vision)


def _taught(stage: GrpoSection) -> float:
    """Count the scoring passes of a stage with a teacher: its own where it is not on a server, and one of the policy where advantages are
    made of both, or its likeliest ids are asked for."""
    if stage.kind != "distill":
        return 0.0
    names = {method.name for method in (*stage.reweight, *stage.auxiliary_losses)}
    return float(not cast(Any, stage).teacher.served) + float(bool(names & {"teacher_reverse_kl", "teacher_topk_kl"}))


def _work(stage: StageBase, gpus: int) -> dict[str, Any]:
    """What a step of a stage does on one rank."""
    if isinstance(stage, PreferenceSection):  # two answers a row, scored by the reference and by the policy before the update
        return {"groups": -(-stage.batch // gpus), "answers": 2, "engine": "none", "reference": True, "passes": 2.0}
    if not isinstance(stage, RolloutStage):
        batch = cast(SftSection, stage).batch if isinstance(stage, SftSection) else gpus
        return {"groups": -(-batch // gpus), "answers": 1, "engine": "none"}
    rollout = stage.rollout
    out: dict[str, Any] = {
        "groups": -(-rollout.prompts_per_step // gpus),
        "answers": rollout.num_generations,
        "answer": rollout.max_new_tokens,
        "engine": rollout.engine,
        "running": rollout.max_num_seqs,
        "together": rollout.generation_batch_size,
    }
    if stage.environment is not None:
        grows = stage.history.screens is None or stage.history.every > 1
        out |= {"turns": stage.environment.max_turns, "grows": grows, "chained": grows and stage.forward in ("chains", "trees")}
        out["kept_bytes"] = rollout.kept_bytes if grows else 0
    if isinstance(stage, GrpoSection):
        moves = any(method.name in MOVES_REFERENCE for _, _, method in of_stage(stage))
        compared = 1.0 if stage.beta > 0 or moves else 1 / stage.kl_every if stage.kl_every else 0.0
        old = 1.0 if stage.updates_per_step > 1 else 0.0
        out |= {"reference": compared > 0, "moves": moves, "passes": compared + old + _taught(stage)}
        if stage.kind == "distill":
            here = not cast(Any, stage).teacher.served
            out |= {"reference": here or compared > 0, "teacher": here, "moves": moves or cast(Any, stage).teacher.moves}
    if stage.kind == "teacher_sft":  # a teacher of its own is counted as one of the policy's size; no pass scores its answers
        out |= {"reference": True, "teacher": True}
    return out
