"""Every option of a run, as frozen pydantic models. A description per field is its documentation (`vlmrl check --print`).

Method arguments are not here: they are the keyword-only parameters of the registered function that `name` names, and are
checked against its signature (`config.methods`). Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlmrl.types import CoordinateFrame


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(BaseModel):
    """A registered function and its arguments: `{name: ppo_clip, clip_high: 0.28}`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class RewardMethod(Method):
    """A reward and its weight in the sum."""

    weight: float = Field(default=1.0, description="Factor of this column in the weighted sum")
    label: str | None = Field(
        default=None, description="Name in logs and for shapings; by default the reward's. Lets one reward (`python`) stand twice"
    )
    isolate: bool | None = Field(
        default=None, description="Run it in a worker process with a deadline; by default what is not built in, or could hang"
    )

    @property
    def key(self) -> str:
        """Name of this reward in logs, tables and shapings."""
        return self.label or self.name


class AuxiliaryMethod(Method):
    """A regulariser and its weight in the loss."""

    weight: float = Field(default=1.0, description="Factor of the regulariser in the loss")


PositiveInt = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class RunSection(Section):
    name: str = Field(default="run", description="Name of the run; its directory is <root>/<name>")
    root: str = Field(default="runs", description="Folder that holds run directories")
    seed: int = Field(default=0, ge=0, description="The only source of randomness of the run")
    trackers: tuple[str, ...] = Field(
        default=("tensorboard",), description="accelerate trackers beside metrics.jsonl (tensorboard, wandb, ...)"
    )
    deterministic: bool = Field(default=True, description="Deterministic kernels where torch has them; needed for bit-exact resume")
    threads: int = Field(default=0, ge=0, description="torch CPU threads; 0 leaves torch's default")


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
    path: str = Field(description="Folder or hub id of a Qwen-VL-class model; 'toy' builds the tiny one")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the policy runs")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Compute type of the forward pass; parameters stay float32"
    )
    attention: Literal["sdpa", "flash_attention_2"] = Field(default="sdpa", description="Attention kernel of transformers")
    prefix_backend: Literal["auto", "dense", "merge", "two_call", "flash", "flex"] = Field(
        default="auto", description="Attention over packed rows; auto takes the fastest that runs here (docs/design/003)"
    )
    gradient_checkpointing: bool = Field(default=False, description="Recompute activations in backward: less memory, more time")
    positions: Literal["auto", "max", "grid"] = Field(
        default="auto", description="Where text resumes after a video (docs/design/002); auto: as the checkpoint was trained, else max"
    )
    revision: str | None = Field(default=None, description="Hub revision to pin")
    lora: LoraSection | None = Field(default=None, description="Train low-rank adapters instead of the weights; needs the peft package")


class MediaSection(Section):
    min_pixels: PositiveInt = Field(default=3136, description="Least pixels of a processed image or video frame")
    max_pixels: PositiveInt = Field(default=501760, description="Most pixels of a processed image or video frame")
    video_total_pixels: PositiveInt | None = Field(
        default=None, description="Most pixels of all frames of a video together; lowers max_pixels for long videos"
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
    decoder: Literal["auto", "decord", "pyav"] = Field(
        default="auto", description="Video decoder; auto is PyAV, which is faster than decord with its checks"
    )
    workers: int = Field(default=0, ge=0, description="Processes that decode media, for each rank; 0 decodes in the trainer's own")
    deadline: float = Field(default=20.0, gt=0, description="Seconds that a worker process may take to decode one medium")


class SourceSection(Section):
    path: str = Field(description="JSONL or Parquet file of rows, below data.root; also folders, #N and org/name@split (docs/data.md)")
    media_root: str = Field(default=".", description="Folder that media paths are relative to, relative to data.root")
    adapter: Literal["vlmrl", "trl", "verl", "easyr1", "messages", "vlm_r1", "video_r1"] | None = Field(
        default=None, description="Shape of the rows (docs/data.md); none: that of the first row whose keys are known"
    )
    answer_type: (
        Literal["choice", "number", "regression", "math", "short_text", "exact_text", "bbox", "point", "time_span"]
        | Literal["tracking", "spatio_temporal", "segmentation"]
        | None
    ) = Field(default=None, description="Answer type of rows of other trainers that do not say it")
    task: str | None = Field(default=None, description="Task of rows of other trainers that do not say it; none: their answer type")
    frame: CoordinateFrame | None = Field(default=None, description="Frame of their boxes and points; never guessed")
    axis: Literal["xyxy", "yxyx", "xywh"] | None = Field(default=None, description="Order of the numbers of a box; none: xyxy")
    to_frame: Literal["pixel", "norm1000"] = Field(default="norm1000", description="Frame that their boxes and points are converted to")
    time_unit: Literal["s", "ms", "mm:ss", "frames"] | None = Field(default=None, description="Unit of their bare times; never guessed")
    time_fps: float | None = Field(default=None, gt=0, description="Frames per second of time_unit: frames")
    instructions: Literal["drop", "keep"] = Field(
        default="drop", description="What to do with instructions about the answer format around their questions"
    )
    media_folder: str | None = Field(default=None, description="Folder below media_root that pictures inside rows are written to")

    @model_validator(mode="after")
    def _frames_need_a_rate(self) -> SourceSection:
        if (self.time_unit == "frames") != (self.time_fps is not None):
            raise ValueError("time_unit: frames and time_fps belong together; give both or neither")
        return self


class DataSection(Section):
    root: str = Field(default=".", description="Folder of the data; relative to the working directory, 'toy' is the generated world")
    max_bad_rows: Probability = Field(default=0.001, description="Largest share of bad rows and media before the run stops")
    dedupe: Literal["error", "keep_first"] = Field(default="error", description="What to do with a repeated id of the same content")
    max_prompt_tokens: PositiveInt = Field(default=8192, description="Longer prompts are dropped and counted, never truncated")
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
    max_seconds: float | None = Field(
        default=None, gt=0, description="Begin no further batch of an evaluation after this time; what is answered counts"
    )
    best: str | None = Field(
        default=None, description="Metric (`miou`, or `<task>/<metric>` of the suite) whose best weights are kept in <run>/best"
    )


class CheckpointSection(Section):
    every: PositiveInt = Field(default=50, description="Optimizer steps between checkpoints")
    keep: PositiveInt = Field(default=2, description="Checkpoints kept; the newest valid one is never deleted")


class OptimSection(Section):
    lr: NonNegative = Field(default=1e-6, description="Peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field(default="constant", description="Shape after warm-up, over the stage's steps")
    warmup: Probability = Field(default=0.0, description="Share of the stage's steps with rising learning rate")
    weight_decay: NonNegative = Field(default=0.0, description="AdamW weight decay (matrices only)")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradient clipping")


class StageBase(Section):
    name: str = Field(description="Unique name; checkpoints and tables use it")
    source: SourceSection = Field(description="Rows that this stage trains on")
    steps: PositiveInt = Field(description="Optimizer steps")
    answer_format: Literal["think", "answer_only", "think_or_not"] = Field(
        default="think_or_not", description="Answer format that the prompt asks for"
    )
    freeze: tuple[Literal["vision", "projector", "language"], ...] = Field(default=(), description="Parts that do not train")
    optim: OptimSection = OptimSection()
    max_tokens_per_microbatch: PositiveInt = Field(default=16384, description="Token budget of one micro-batch")
    forward: Literal["shared_prefix", "repeat"] = Field(
        default="shared_prefix", description="Training forward: prompts once per group in packed rows, or one padded row per answer"
    )
    checkpoint_every: PositiveInt | None = Field(default=None, description="Overrides checkpoint.every in this stage")


class SftSection(StageBase):
    kind: Literal["sft"]
    batch: PositiveInt = Field(default=8, description="Rows per optimizer step, over all ranks")
    thought_dropout: Probability = Field(
        default=0.0, description="TON (arXiv:2505.16854): chance that a thought is replaced by two newlines"
    )
    dropout_per_epoch: bool = Field(default=False, description="Draw thought dropout anew each epoch instead of once per row")


class RolloutSection(Section):
    engine: Literal["hf"] = Field(default="hf", description="What generates")
    num_generations: PositiveInt = Field(default=8, description="Rows per group, injected ones included (TRL: num_generations)")
    prompts_per_step: PositiveInt = Field(default=16, description="Prompts per step, over all ranks")
    max_new_tokens: PositiveInt = Field(default=1024, description="Longest answer")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature; log-probs use it throughout")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling; below 1 the training ratio is over the full distribution")
    generation_batch_size: PositiveInt = Field(
        default=16, description="Prompts generated together; the unit that is journalled and replayed"
    )
    max_num_seqs: PositiveInt = Field(
        default=256, description="Most answers that decode at a time; a place that is free goes to the next prompt"
    )
    strategy: Method = Field(default=Method(name="plain"), description="How a group's rows are made")


class DynamicSamplingSection(Section):
    """Generate again for groups that the filters dropped (DAPO, arXiv:2503.14476, section 3.2)."""

    max_batches: PositiveInt = Field(
        default=1,
        description="Batches generated at most per step while `filters` keep fewer than rollout.prompts_per_step groups; 1: never again",
    )


class RewardWorkersSection(Section):
    """Processes for rewards that could hang or do harm; started only if the stage has such a column."""

    count: int = Field(default=0, ge=0, description="Workers per rank; 0: two, or one on a machine with one core")
    deadline: float = Field(default=5.0, gt=0, description="Seconds that a column may take for a group; then its worker is killed")
    memory: PositiveInt = Field(default=1 << 30, description="Bytes that a worker may take beyond those of its imports (Linux)")
    calls: PositiveInt = Field(default=1000, description="Calls after which a worker is replaced")


class GrpoSection(StageBase):
    kind: Literal["grpo"]
    rollout: RolloutSection = RolloutSection()
    rewards: tuple[RewardMethod, ...] = Field(description="Reward columns; their weighted sum is the reward")
    max_invalid_rewards: Probability = Field(
        default=0.02, description="Largest share of unjudged rewards over 50 steps before the run stops"
    )
    reward_workers: RewardWorkersSection = RewardWorkersSection()
    sampler: Method = Field(default=Method(name="uniform"), description="Which prompts come next")
    reward_shaping: tuple[Method, ...] = Field(default=(), description="Reward shaping, in order, before the advantage")
    filters: tuple[Method, ...] = Field(default=(), description="Filters on groups, in order")
    advantage: Method = Field(default=Method(name="grpo"), description="Rewards to one advantage per rollout")
    reweight: tuple[Method, ...] = Field(default=(), description="Factors on advantages, in order: per rollout, or per token after credit")
    credit: Method = Field(default=Method(name="broadcast"), description="Advantage per rollout to advantage per token")
    loss: Method = Field(default=Method(name="ppo_clip"), description="Policy loss per token")
    group_loss: Method | None = Field(default=None, description="A loss that compares rollouts, in place of `loss` and `reduce`")
    importance_correction: Method = Field(default=Method(name="none"), description="Weights for a sampler that differs from the trainer")
    auxiliary_losses: tuple[AuxiliaryMethod, ...] = Field(default=(), description="Regularisers that are added to the loss")
    constraints: tuple[Method, ...] = Field(default=(), description="Constraints and regularisers with a memory")
    budget: Method = Field(default=Method(name="fixed"), description="Rollouts per prompt; prompts_per_step x num_generations is the total")
    dynamic_sampling: DynamicSamplingSection = DynamicSamplingSection()
    reduce: Method = Field(default=Method(name="seq_mean"), description="How token losses become one number")
    kl: Method = Field(default=Method(name="k3"), description="Estimator of the divergence from the reference")
    beta: NonNegative = Field(default=0.0, description="Weight of the divergence from the stage's starting weights; 0 keeps no reference")
    kl_every: int = Field(default=0, ge=0, description="With beta 0: measure the divergence every so many steps, for the curve; 0 never")
    updates_per_step: PositiveInt = Field(default=1, description="Optimizer updates per batch of rollouts")


Stage = Annotated[SftSection | GrpoSection, Field(discriminator="kind")]


class ToyWorldSection(Section):
    kind: Literal["video", "multitask", "spatial", "think", "gui"] = Field(
        default="video", description="What the world holds: temporal grounding in videos, or one family of tasks on pictures"
    )
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


class Config(Section):
    """A whole run: a recipe with its base and the overrides applied."""

    run: RunSection = RunSection()
    model: ModelSection
    media: MediaSection = MediaSection()
    data: DataSection = DataSection()
    stages: tuple[Stage, ...] = Field(min_length=1, description="Phases, in order")
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    toy: ToySection | None = Field(default=None, description="The embedded world and model; only with model.path: toy or data.root: toy")
    plugins: tuple[str, ...] = Field(default=(), description="Python modules to import, for their registrations")

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        return _tuples(value)


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
    out += [f"stages: name '{name}' is used twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if "final" in names or "toy" in names:
        out.append("stages: 'final' and 'toy' are reserved names")
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
    for i, stage in enumerate(cfg.stages):
        where = f"stages[{i}] ({stage.name})"
        if isinstance(stage, SftSection):
            if stage.thought_dropout > 0 and stage.answer_format == "answer_only":
                out.append(
                    f"{where}: thought_dropout ({stage.thought_dropout}) needs an answer format with thoughts, "
                    "not answer_format 'answer_only'"
                )
            continue
        if not stage.rewards:
            out.append(f"{where}: rewards is empty")
        if stage.rollout.num_generations < 2 and stage.advantage.name != "spo":
            out.append(
                f"{where}: rollout.num_generations ({stage.rollout.num_generations}) must be at least 2 for advantage "
                f"'{stage.advantage.name}', which compares rows of a group"
            )
        if stage.rollout.prompts_per_step % stage.updates_per_step:
            out.append(
                f"{where}: rollout.prompts_per_step ({stage.rollout.prompts_per_step}) is not a multiple of "
                f"updates_per_step ({stage.updates_per_step})"
            )
        if stage.rollout.strategy.name == "offpolicy_gt" and stage.rollout.num_generations < 3:
            out.append(
                f"{where}: rollout.strategy 'offpolicy_gt' replaces one of rollout.num_generations ({stage.rollout.num_generations}) "
                "rows; needs at least 3"
            )
        names_ = [r.key for r in stage.rewards]
        twice = sorted({n for n in names_ if names_.count(n) > 1})
        out += [f"{where}: reward '{n}' is listed twice; give one of them another 'label'" for n in twice]
    return out


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
    parts = {"language", "vision", "projector"} if lora.vision else {"language"}
    for i, stage in enumerate(cfg.stages):
        if parts <= set(stage.freeze):
            out.append(f"stages[{i}] ({stage.name}): freeze ({', '.join(stage.freeze)}) leaves none of the adapters of model.lora to train")
    return out
