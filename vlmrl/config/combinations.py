"""Combinations of methods that cancel or contradict each other. Every rule says what happens and what to do instead.

Errors are combinations in which a part of the recipe would do nothing, or the opposite of its name. Warnings are combinations that
run as written but rarely mean what their author wants. Derived from the formulas; see docs/papers.md for the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vlmrl.config.schema import Config, GrpoSection

RANKS = frozenset({"g2rpo", "gs_gdpo"})
"""Advantages that see only the order of rewards."""
SCALED = frozenset({"grpo", "batch_std", "reinforce_pp_baseline", "gdpo", "g2rpo", "gs_gdpo", "ema_grpo", "mc_grpo", "ngrpo", "unlikely"})
"""Advantages that divide by a deviation."""
Rule = Callable[[GrpoSection], Iterator[str]]


def _names(stage: GrpoSection) -> tuple[set[str], set[str], set[str]]:
    """Names of (shapes, selects, constraints)."""
    return {m.name for m in stage.reward_shaping}, {m.name for m in stage.filters}, {m.name for m in stage.constraints}


def cancelled_shaping(stage: GrpoSection) -> Iterator[str]:
    shapes, _, _ = _names(stage)
    if stage.advantage.name in RANKS and "tempsamp_nonlinear" in shapes:
        yield (
            f"advantage '{stage.advantage.name}' uses ranks only, so "
            "reward_shaping 'tempsamp_nonlinear' (strictly monotone) would do nothing; remove one of them"
        )
    for method in stage.reward_shaping:
        global_rates = not any(key.startswith("unparsed_") and value is not None for key, value in method.arguments.items())
        if method.name == "noisy_verifier" and global_rates and stage.advantage.name in SCALED:
            yield (
                f"reward_shaping 'noisy_verifier' with one pair of rates is linear, and advantage '{stage.advantage.name}' divides by the "
                "deviation: the correction cancels; "
                "give unparsed_false_positive and unparsed_false_negative, or an advantage without a deviation"
            )


def ignored_with_group_loss(stage: GrpoSection) -> Iterator[str]:
    if stage.group_loss is None:
        return
    _, selects, constraints = _names(stage)
    ignored = [name for name, on in (("beta", stage.beta > 0), ("importance_correction", stage.importance_correction.name != "none")) if on]
    ignored += sorted(constraints & {"entropy_band", "adaptive_kl"})
    if ignored:
        yield f"group_loss '{stage.group_loss.name}' has a constraint of its own and ignores {', '.join(ignored)}; remove them"
    if stage.group_loss.name == "disco" and "zero_variance" in selects:
        yield "group_loss 'disco' averages over all questions, those without signal too; remove filter 'zero_variance'"


def constraint_columns(stage: GrpoSection) -> Iterator[str]:
    names = [m.name for m in stage.constraints]
    yield from (f"constraint '{name}' is listed twice" for name in sorted({n for n in names if names.count(n) > 1}))
    weights = {r.name: r.weight for r in stage.rewards}
    for method in stage.constraints:
        thresholds = method.arguments.get("thresholds")
        if method.name != "lagrangian" or not isinstance(thresholds, dict):
            continue
        for column in thresholds:  # pyright: ignore[reportUnknownVariableType]
            if column not in weights:
                yield f"constraint 'lagrangian': no reward '{column}' (rewards: {', '.join(weights)}); add it with weight 0"
            elif weights[str(column)] != 0:  # pyright: ignore[reportUnknownArgumentType]
                yield (
                    f"constraint 'lagrangian': reward '{column}' has weight {weights[str(column)]}; a constraint that is also a reward "  # pyright: ignore[reportUnknownArgumentType]
                    "counts twice; give it weight 0"
                )


def refill_without_filter(stage: GrpoSection) -> Iterator[str]:
    if stage.dynamic_sampling.max_batches > 1 and not stage.filters:
        yield (
            f"dynamic_sampling.max_batches ({stage.dynamic_sampling.max_batches}) without any `filters` never has anything to generate "
            "again; add a filter or set it to 1"
        )


def consistency_instead_of_kl(stage: GrpoSection) -> Iterator[str]:
    if "care_consistency" in _names(stage)[0] and (stage.beta > 0 or "adaptive_kl" in _names(stage)[2]):
        yield (
            "reward_shaping 'care_consistency' takes the place of the divergence term, and its reference moves; "
            "set beta to 0 and no adaptive_kl"
        )


def unscaled_losses(stage: GrpoSection) -> Iterator[str]:
    if stage.loss.name in ("opmd", "asymre", "luffy") and stage.advantage.name in SCALED:
        yield (
            f"loss '{stage.loss.name}' is derived for advantages that are not divided by a deviation; "
            f"advantage '{stage.advantage.name}' is: dr_grpo or rloo are not"
        )
    if stage.loss.name == "opmd" and stage.reduce.name != "seq_sum":
        yield f"loss 'opmd' is derived for reduce 'seq_sum'; with '{stage.reduce.name}' the pull depends on the answer's length"


def thinking(stage: GrpoSection) -> Iterator[str]:
    if stage.answer_format == "think_or_not" and stage.reduce.name == "token_mean":
        yield "reduce 'token_mean' weakens the push to short answers that answer_format 'think_or_not' relies on; seq_mean keeps it"
    for method in stage.reward_shaping:
        bands = method.arguments.get("bands")
        if method.name == "length_envelope" and stage.answer_format == "think_or_not" and isinstance(bands, dict):
            low = {task: band[0] for task, band in bands.items() if band and band[0] > 0}  # pyright: ignore[reportUnknownVariableType]
            if low:
                yield f"reward_shaping 'length_envelope' punishes a skipped thought for {', '.join(map(str, low))} (band starts above 0)"  # pyright: ignore[reportUnknownArgumentType]


def pivots(stage: GrpoSection) -> Iterator[str]:
    if stage.advantage.name == "mc_grpo" and "mc_grpo_pivot" not in _names(stage)[1]:
        yield "advantage 'mc_grpo' without filter 'mc_grpo_pivot' trains on its pivot with advantage 0, a row that could be left out"


def twice_difficulty(stage: GrpoSection) -> Iterator[str]:
    if stage.advantage.name == "a_grae" and stage.sampler.name in ("vas", "vade"):
        yield f"sampler '{stage.sampler.name}' and advantage 'a_grae' both weigh difficulty; compare with each alone"


def format_outweighs(stage: GrpoSection) -> Iterator[str]:
    others = sum(abs(r.weight) for r in stage.rewards if r.name != "format")
    form = sum(abs(r.weight) for r in stage.rewards if r.name == "format")
    if form and others and form >= others:
        yield f"reward 'format' weighs {form}, the others together {others}: a well-formed wrong answer can beat a right one"


ERRORS: tuple[Rule, ...] = (
    cancelled_shaping,
    ignored_with_group_loss,
    constraint_columns,
    refill_without_filter,
    consistency_instead_of_kl,
)
WARNINGS: tuple[Rule, ...] = (unscaled_losses, thinking, pivots, twice_difficulty, format_outweighs)


def _told(cfg: Config, rules: tuple[Rule, ...]) -> list[str]:
    stages = [(i, stage) for i, stage in enumerate(cfg.stages) if isinstance(stage, GrpoSection)]
    return [f"stages[{i}] ({stage.name}): {text}" for i, stage in stages for rule in rules for text in rule(stage)]


def contradictions(cfg: Config) -> list[str]:
    """Combinations that are refused; empty when there is none."""
    adapters = cfg.model.lora is not None
    moved = [s.name for s in cfg.stages if isinstance(s, GrpoSection) and adapters and "care_consistency" in _names(s)[0]]
    return _told(cfg, ERRORS) + [
        f"stages ({name}): reward_shaping 'care_consistency' averages the reference's weights, and with model.lora the reference has "
        "none of its own"
        for name in moved
    ]


def doubts(cfg: Config) -> list[str]:
    """Combinations that are allowed and pointed out."""
    return _told(cfg, WARNINGS)
