"""What `vlmrl check` says of a recipe's methods beside whether they go together: where they were seen to pay, and where not."""

from __future__ import annotations

from collections.abc import Iterator

from vlmrl.cards import card
from vlmrl.config.methods import used
from vlmrl.config.schema import Config, RolloutStage


def experience(config: Config) -> list[str]:
    """List what runs and simulations have shown of the methods that a recipe names: a line each, with the page that has the numbers.

    Defaults of a slot are left out, and so are methods of which nothing was measured.
    """
    found = {(slot, method.name): card(slot, method.name) for _, slot, method in used(config)}
    lines = [f"{slot} '{name}' pays: {of.pays}" for (slot, name), of in found.items() if of.pays and "default" not in of.core]
    return [*lines, *_ungated(config)]


def _ungated(config: Config) -> Iterator[str]:
    """Stages that leave the thought to the policy after thought dropout, without a reward for leaving it out."""
    dropped = False
    for stage in config.stages:
        dropped |= bool(getattr(stage, "thought_dropout", None))
        if not isinstance(stage, RolloutStage) or not stage.rewards or stage.answer_format == "answer_only":
            continue
        if dropped and all(one.name != "right_without_thought" for one in stage.rewards):
            yield (
                f"stage '{stage.name}' follows thought_dropout and pays nothing for leaving a thought out: in small worlds most such runs "
                "ended with a thought on every question (docs/benchmarks/regimes.md); reward right_without_thought pays for it"
            )
