"""The stages of a recipe: a section per kind, chosen by its `kind`. A plug-in may add one (`run.kinds.stage_kind`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field, SerializeAsAny
from pydantic_core import PydanticCustomError

from vlmrl.config.addresses import address_of, is_loopback
from vlmrl.config.names import StageName
from vlmrl.config.section import (
    AuxiliaryMethod,
    EnvironmentMethod,
    HistorySection,
    Method,
    NonNegative,
    OptimSection,
    PositiveInt,
    Probability,
    RewardMethod,
    Section,
    SourceSection,
    default,
)
from vlmrl.defaults import DEFAULTS
from vlmrl.plugins import import_plugins
from vlmrl.registry import Catalogue
from vlmrl.types import Part


class UntilSection(Section):
    """The end of a stage by a score on held-out rows, with the stage's `steps` as its bound."""

    source: SourceSection = Field(description="Held-out rows that the score is of")
    score: Probability = Field(description="Mean score of the greedy answers with which the stage ends")
    every: PositiveInt = Field(default=20, description="Steps from one look at the score to the next")
    limit: PositiveInt = Field(default=100, description="Rows that are asked, from the first")
    max_new_tokens: PositiveInt = Field(default=64, description="Longest answer")


class StageBase(Section):
    """What every kind of stage has. A kind of its own derives from this, with `kind: Literal["..."]`, and is registered with
    `run.kinds.stage_kind`."""

    kind: Any
    """A `Literal` of one name in every section."""
    name: StageName = Field(description="Unique name of letters, digits and . _ -, at most 64; folders, records and tables use it")
    source: SourceSection = Field(description="Rows that this stage trains on")
    steps: int = Field(default=0, ge=0, description="Optimizer steps; with `until` the most. 0: given by `epochs`")
    epochs: float | None = Field(default=None, gt=0, description="In place of `steps`: as often as the source's rows are to be taken")
    until: UntilSection | None = Field(default=None, description="End earlier, once held-out rows are answered this well")
    answer_format: Literal["think", "answer_only", "think_or_not"] = Field(
        default="think_or_not", description="Answer format that the prompt asks for"
    )
    freeze: tuple[Part, ...] = Field(default=(), description="Parts that do not train")
    optim: OptimSection = OptimSection()
    max_tokens_per_microbatch: PositiveInt = Field(default=16384, description="Token budget of one micro-batch")
    forward: Literal["shared_prefix", "chains", "trees", "repeat"] = Field(
        default="shared_prefix",
        description="Training forward: prompts once per group in packed rows; chains: turns of an episode share their past too; trees: "
        "whatever episodes of a group begin with in common stands once; repeat: a padded row per answer",
    )
    checkpoint_every: PositiveInt | None = Field(default=None, description="Overrides checkpoint.every in this stage")

    @property
    def frozen(self) -> tuple[Part, ...]:
        """Parts that do not train: those of `freeze`, and those whose learning rate in `optim.parts` is 0."""
        return (*self.freeze, *(part for part, rate in self.optim.parts.rates.items() if rate == 0 and part not in self.freeze))

    def length_problems(self) -> list[str]:
        """What is wrong with how the stage says when it ends."""
        if self.steps and self.epochs is not None:
            return [f"steps ({self.steps}) and epochs ({self.epochs:g}) both say when the stage ends; give one of them"]
        return (
            []
            if self.steps or self.epochs is not None
            else ["neither steps (1 or more) nor epochs says when the stage ends; give one of them"]
        )

    def problems(self) -> list[str]:
        """Contradictions between this stage's fields, each naming both. Empty when there is none."""
        return []


class VllmSection(Section):
    """vLLM in the trainer's process, on the same device, or on servers (docs/rollout.md)."""

    servers: tuple[str, ...] = Field(default=(), description="HOST:PORT of each `vlmrl serve --rollouts`; none: in the trainer's process")
    token_file: str | None = Field(default=None, description="File with the token of the servers, readable by its owner alone")
    tensor_parallel: PositiveInt = Field(default=1, description="Devices that share the model on a server that this recipe starts")
    transfer: Literal["auto", "gloo", "nccl"] = Field(default="auto", description="How weights get to servers; auto: nccl between GPUs")
    patience: float = Field(default=600.0, gt=0, description="Seconds without any server after which the run ends with exit code 69")
    memory: float = Field(default=0.4, gt=0, lt=1, description="Share of the device's memory that it may take, its weights included")
    cache_bytes: PositiveInt | None = Field(default=None, description="Bytes of its keys and values; none: what is left of `memory`")
    max_model_len: PositiveInt | None = Field(
        default=None, description="Most tokens of a prompt with its answer; none: data.max_prompt_tokens + rollout.max_new_tokens"
    )
    sleep: bool = Field(default=False, description="In the trainer's process, on CUDA: give its memory back while the policy trains")
    eager: bool = Field(default=False, description="Without CUDA graphs: starts faster, decodes slower; on a CPU always")
    block_size: Literal[16, 32, 64, 128] | None = Field(
        default=None, description="Tokens that its prefix cache keeps together; none: vLLM's own choice"
    )
    sync_probe_every: PositiveInt = Field(
        default=20, description="Updates of its weights from one look at fixed prompts, one per kind of media, to the next"
    )

    def problems(self) -> list[str]:
        """What is wrong with the servers."""
        out: list[str] = []
        for server in self.servers:
            try:
                host, _ = address_of(server)
            except ValueError as error:
                out.append(f"rollout.vllm.servers: {error}")
                continue
            if self.token_file is None and not is_loopback(host):
                out.append(f"rollout.vllm.servers: {server} is on another machine, and rollout.vllm.token_file is not given")
        out += [f"rollout.vllm.servers: {twice} is there twice" for twice in sorted({s for s in self.servers if self.servers.count(s) > 1})]
        if self.token_file is not None and not self.servers:
            out.append("rollout.vllm.token_file is given, but rollout.vllm.servers is empty")
        if self.sleep and self.servers:
            out.append("rollout.vllm.sleep is of vLLM in the trainer's process, and rollout.vllm.servers names others")
        return out


class MaxGapSection(Section):
    """Bounds on the mean |log-prob of the trainer - of the sampler|, in nats per token, for each kind of media apart."""

    warn: float | None = Field(default=None, gt=0, description="Say so; none: 0.02 with engine vllm, else never")
    stop: float | None = Field(default=None, gt=0, description="End the run; none: 0.2 with engine vllm, else never")


class RolloutSection(Section):
    engine: Literal["hf", "vllm"] = Field(default="hf", description="What generates: the policy itself, or vLLM beside it")
    vllm: VllmSection | None = Field(default=None, description="How vLLM runs, with engine vllm; none: all defaults")
    max_gap: MaxGapSection = MaxGapSection()
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
    kept_bytes: int = Field(
        default=2**31,
        ge=0,
        description="With engine hf: bytes of keys and values that episodes keep from turn to turn, per process; 0: none",
    )
    graphs: bool | Literal["auto"] = Field(
        default="auto",
        description="With engine hf: steps of fixed shape, on CUDA recorded once and replayed; auto: on CUDA where they can be recorded",
    )
    router_replay: bool = Field(default=False, description="Mixture of experts: updates take the experts that sampling took (R3)")
    replay_gap: float | None = Field(
        default=None,
        gt=0,
        description="Largest mean |log-prob now - log-prob when sampled| of a group replayed after a crash; none: 1e-4, bfloat16 0.1",
    )
    staleness: int = Field(
        default=0, ge=0, description="Steps of updates between the weights that sample a step's answers and those that it trains"
    )
    strategy: Method = Field(default=default("strategy"), description="How a group's rows are made")
    forks: dict[int, PositiveInt] = Field(
        default_factory=dict[int, int],
        description="With an environment, turn: ways. Attempts are one until they fork at that turn; what they share is sampled once",
    )

    def problems(self) -> list[str]:
        """Contradictions between fields, each naming both."""
        out: list[str] = []
        if self.vllm is not None and self.engine != "vllm":
            out.append(f"rollout.vllm is given, but rollout.engine is '{self.engine}'; set rollout.engine: vllm, or remove it")
        if self.graphs is True and self.engine != "hf":
            out.append(f"rollout.graphs is for the engine 'hf', and rollout.engine is '{self.engine}'; vLLM records its own")
        if self.vllm is not None and self.vllm.max_model_len is not None and self.vllm.max_model_len <= self.max_new_tokens:
            text = f"rollout.vllm.max_model_len ({self.vllm.max_model_len}) leaves no room for a prompt before rollout.max_new_tokens"
            out.append(f"{text} ({self.max_new_tokens})")
        out += [] if self.vllm is None else self.vllm.problems()
        if self.max_gap.warn is not None and self.max_gap.stop is not None and self.max_gap.warn > self.max_gap.stop:
            out.append(f"rollout.max_gap.warn ({self.max_gap.warn}) is above rollout.max_gap.stop ({self.max_gap.stop})")
        return out


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


class SftSection(StageBase):
    kind: Literal["sft"]
    batch: PositiveInt = Field(default=8, description="Rows per optimizer step, over all ranks")
    thought_dropout: Probability | dict[str, Probability] = Field(
        default=0.0, description="TON (arXiv:2505.16854): chance that a thought becomes two newlines, or one for each category of rows"
    )
    dropout_per_epoch: bool = Field(default=False, description="Draw thought dropout anew each epoch instead of once per row")

    def problems(self) -> list[str]:
        if self.thought_dropout and self.answer_format == "answer_only":
            return [f"thought_dropout ({self.thought_dropout}) needs an answer format with thoughts, not answer_format 'answer_only'"]
        return []


class PreferenceSection(StageBase):
    """Pairs of a chosen and a rejected answer."""

    kind: Literal["preference"]
    batch: PositiveInt = Field(default=8, description="Rows (pairs) per optimizer step, over all ranks")
    group_loss: Method = Field(description="The loss of pairs, such as that of DPO")


class RolloutStage(StageBase):
    """What every stage has that generates answers and scores them."""

    rollout: RolloutSection = RolloutSection()
    rewards: tuple[RewardMethod, ...] = Field(description="Reward columns; their weighted sum is the reward")
    max_invalid_rewards: Probability = Field(
        default=0.02, description="Largest share of unjudged rewards over 50 steps before the run stops"
    )
    reward_workers: RewardWorkersSection = RewardWorkersSection()
    sampler: Method = Field(default=default("sampler"), description="Which prompts come next")
    budget: Method = Field(default=default("budget"), description="Rollouts per prompt; prompts_per_step x num_generations is the total")
    environment: EnvironmentMethod | None = Field(
        default=None, description="World that the policy acts in, turn by turn (docs/environments.md); rows are then its tasks"
    )
    history: HistorySection = HistorySection()

    def problems(self) -> list[str]:
        out = [] if self.rewards else ["rewards is empty"]
        out += self.rollout.problems()
        names = [r.key for r in self.rewards]
        twice = sorted({n for n in names if names.count(n) > 1})
        out += [f"reward '{n}' is listed twice; give one of them another 'label'" for n in twice]
        if self.rollout.staleness and "importance_correction" not in type(self).model_fields:
            out.append(
                f"rollout.staleness ({self.rollout.staleness}): a stage of kind '{self.kind}' has no importance_correction; set it to 0"
            )
        return out + self._turn_problems()

    def _turn_problems(self) -> list[str]:
        """Contradictions of episodes of several turns."""
        history, out = self.history, self._fork_problems()
        if self.environment is None and self.forward in ("chains", "trees"):
            out.append(f"forward: {self.forward} packs the turns of episodes, and there is no environment; use shared_prefix")
        if self.environment is None:
            return out + ["history says what of an episode's turns stands in a prompt, and there is no environment"] * (
                history != HistorySection()
            )
        if history.screens is None and (history.every != 1 or not history.actions):
            out.append("history.every and history.actions are of prompts that begin anew; give history.screens, or remove them")
        if self.rollout.strategy != default("strategy"):
            name = self.rollout.strategy.name
            out.append(f"rollout.strategy '{name}' completes groups of answers to one prompt, and with an environment a group is episodes")
        return out

    def _fork_problems(self) -> list[str]:
        forks, attempts = self.rollout.forks, self.rollout.num_generations
        if self.environment is None:
            return ["rollout.forks is of attempts in an environment, and there is none; remove it"] * bool(forks)
        last, leaves = self.environment.max_turns - 1, prod(forks.values())
        out = [f"rollout.forks: {at}: {ways} does not fork; take 2 ways or more, or remove it" for at, ways in forks.items() if ways < 2]
        out += [f"rollout.forks: turn {at} is none of 1 to {last} (environment.max_turns - 1)" for at in forks if not 1 <= at <= last]
        if attempts % leaves:
            out.append(f"rollout.forks makes {leaves} attempts of each; rollout.num_generations ({attempts}) must be a multiple of that")
        return out


class GrpoSection(RolloutStage):
    kind: Literal["grpo"]
    reward_shaping: tuple[Method, ...] = Field(default=(), description="Reward shaping, in order, before the advantage")
    filters: tuple[Method, ...] = Field(default=(), description="Filters on groups, in order")
    advantage: Method = Field(default=default("advantage"), description="Rewards to one advantage per rollout")
    reweight: tuple[Method, ...] = Field(default=(), description="Factors on advantages, in order: per rollout, or per token after credit")
    credit: Method = Field(default=default("credit"), description="Advantage per rollout to advantage per token")
    loss: Method = Field(default=default("loss"), description="Policy loss per token")
    group_loss: Method | None = Field(default=None, description="A loss that compares rollouts, in place of `loss` and `reduce`")
    importance_correction: Method = Field(
        default=default("importance_correction"), description="Weights for a sampler that differs from the trainer"
    )
    auxiliary_losses: tuple[AuxiliaryMethod, ...] = Field(default=(), description="Regularisers that are added to the loss")
    constraints: tuple[Method, ...] = Field(default=(), description="Constraints and regularisers with a memory")
    dynamic_sampling: DynamicSamplingSection = DynamicSamplingSection()
    reduce: Method = Field(default=default("reduce"), description="How token losses become one number")
    kl: Method = Field(default=default("kl"), description="Estimator of the divergence from the reference")
    beta: NonNegative = Field(default=0.0, description="Weight of the divergence from the stage's starting weights; 0 keeps no reference")
    kl_every: int = Field(default=0, ge=0, description="With beta 0: measure the divergence every so many steps, for the curve; 0 never")
    updates_per_step: PositiveInt = Field(default=1, description="Optimizer updates per batch of rollouts")

    def problems(self) -> list[str]:
        out = super().problems()
        if self.rollout.prompts_per_step % self.updates_per_step:
            out.append(
                f"rollout.prompts_per_step ({self.rollout.prompts_per_step}) is not a multiple of "
                f"updates_per_step ({self.updates_per_step})"
            )
        if self.dynamic_sampling.max_batches > 1 and not self.filters:
            out.append(
                f"dynamic_sampling.max_batches ({self.dynamic_sampling.max_batches}) without any `filters` never has anything to generate "
                "again; add a filter or set it to 1"
            )
        return out + self._ahead_problems()

    def _ahead_problems(self) -> list[str]:
        """Why answers cannot be sampled ahead of the updates before them."""
        if not self.rollout.staleness:
            return []
        given, out = f"rollout.staleness ({self.rollout.staleness})", list[str]()
        if self.group_loss is not None:
            out.append(f"{given}: group_loss '{self.group_loss.name}' takes no importance_correction for older answers; set it to 0")
        elif self.importance_correction.name == DEFAULTS["importance_correction"]:
            out.append(
                f"{given} with importance_correction '{self.importance_correction.name}': the answers are of older weights than those that "
                "they train, and nothing corrects for that; choose a correction, or set rollout.staleness to 0"
            )
        if self.dynamic_sampling.max_batches > 1:
            out.append(
                f"{given} and dynamic_sampling.max_batches ({self.dynamic_sampling.max_batches}): when it is known that a step needs more "
                "groups, the weights that sampled it are gone; set max_batches to 1, or rollout.staleness to 0"
            )
        return out


_OURS: dict[str, type[StageBase]] = {"sft": SftSection, "preference": PreferenceSection, "grpo": GrpoSection}
SECTIONS: Catalogue[type[StageBase]] = Catalogue("section of a stage", _OURS)
"""`kind` -> section. A plug-in's kind comes in with `register_section`."""


def register_section(section: type[StageBase]) -> str:
    """Make a kind of stage known to recipes, and return its name.

    Raises:
        ValueError: `kind` is not a single literal, or another section has it.
    """
    names = get_args(section.model_fields["kind"].annotation)
    if len(names) != 1:
        raise ValueError(f'{section.__name__}: give it `kind: Literal["..."]` with one name')
    if SECTIONS.setdefault(names[0], section) is not section:
        raise ValueError(f"stage kind '{names[0]}' has a section already ({SECTIONS[names[0]].__name__})")
    return names[0]


def know_kinds(kinds: Iterable[Any], plugins: Sequence[str]) -> None:
    """Import a recipe's plug-ins if one of its stages is of a kind that nobody has registered yet."""
    if any(isinstance(kind, str) and kind not in SECTIONS for kind in kinds):
        import_plugins(plugins)


def _section(value: Any) -> Any:
    """A stage by its `kind`, for pydantic: errors are those of the kind's own section."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    kind = fields.get("kind")
    if kind not in SECTIONS:
        raise PydanticCustomError("stage_kind", f"kind must be one of {', '.join(sorted(SECTIONS))}; got {kind!r}")  # pyright: ignore[reportArgumentType]
    return SECTIONS[str(kind)].model_validate(fields)


Stage = Annotated[SerializeAsAny[StageBase], BeforeValidator(_section)]
