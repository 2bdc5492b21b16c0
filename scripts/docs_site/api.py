"""The page of the Python API: what `import vlmrl` offers, and what a plug-in is written against; mkdocstrings fills it in."""

from __future__ import annotations

import vlmrl

PAGE = "reference/api.md"
PARTS: dict[str, tuple[str, ...]] = {
    "Nouns": (
        "vlmrl.types.Sample",
        "vlmrl.types.Prompt",
        "vlmrl.types.Rollout",
        "vlmrl.types.TurnRollout",
        "vlmrl.types.Group",
        "vlmrl.types.Scores",
        "vlmrl.types.ScoredGroup",
        "vlmrl.types.PlannedPrompt",
        "vlmrl.types.Request",
        "vlmrl.types.GenerationSettings",
    ),
    "What a method sees": ("vlmrl.algo.inputs.AdvantageInputs", "vlmrl.algo.inputs.LossInputs", "vlmrl.algo.inputs.LossOutput"),
    "Protocols": (
        "vlmrl.protocols.RewardContext",
        "vlmrl.protocols.Stateful",
        "vlmrl.protocols.PromptSampler",
        "vlmrl.protocols.RolloutEngine",
        "vlmrl.protocols.Strategy",
        "vlmrl.protocols.GuidingStrategy",
        "vlmrl.protocols.RememberingStrategy",
        "vlmrl.extras.agents.protocol",
        "vlmrl.answers.base.AnswerType",
    ),
    "Decorators and registries": (
        "vlmrl.registry.Registry",
        "vlmrl.registry.Entry",
        "vlmrl.algo.registries",
        "vlmrl.protocols.reward",
        "vlmrl.protocols.sampler",
        "vlmrl.protocols.budget",
        "vlmrl.protocols.environment",
        "vlmrl.answers.base.answer_type",
        "vlmrl.train.stage.provide.provides",
        "vlmrl.run.kinds.stage_kind",
        "vlmrl.run.engines.rollout_engine",
    ),
    "Errors": ("vlmrl.errors",),
}
TRAIN = "vlmrl.api.train"
"""What calling the package `vlmrl.train` does."""


def offered() -> dict[str, str]:
    """Name of `vlmrl.__all__` -> where it is defined; without the version."""
    where = {name: f"{module}.{name}" for module, names in vlmrl._FROM.items() for name in names}
    return {name: where.get(name, TRAIN) for name in vlmrl.__all__ if name != "__version__"}


def page() -> str:
    """The whole page."""
    out = ["# Python API", "", "Examples: `docs/python.md`. How to write a method: `docs/adding_a_method.md`.", "", "## vlmrl", ""]
    for name, place in offered().items():
        out += [f"`vlmrl.{name}`:", "", f"::: {place}", ""]
    for heading, places in PARTS.items():
        out += [f"## {heading}", ""]
        for place in places:
            out += [f"::: {place}", ""]
    return "\n".join(out)
