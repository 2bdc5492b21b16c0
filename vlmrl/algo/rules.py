"""Rules that a method brings along about the stage that names it: `refuses=rule` or `doubts=rule` in its registration.

What a rule yields is shown to the author of a recipe when it is checked: each text says what is wrong and what to do instead. `stage` is
the recipe's section (`config.stages`), of which a rule reads fields; a kind of stage without such a field gives the rule its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

Rule = Callable[[Mapping[str, Any], Any], Iterator[str]]
"""(the method's arguments in the recipe, stage) -> texts."""


def names(stage: Any, field: str) -> set[str]:
    """List the names of the methods in a field of a stage that holds one or several; empty where the stage has no such field."""
    value: object = getattr(stage, field, ())
    several = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    return {str(getattr(one, "name")) for one in several if hasattr(one, "name")}  # noqa: B009 (an object has no such attribute)


def strategy_of(stage: Any) -> Any:
    """Read the rollout strategy of a stage, with `name` and `arguments`; None where the stage has no such field."""
    return getattr(getattr(stage, "rollout", None), "strategy", None)


def needs_strategy(method: str, strategy: str) -> Rule:
    """Make a rule that refuses a method that reads what one strategy makes, in a stage with another; `method` is how the text calls it."""

    def rule(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
        found = getattr(strategy_of(stage), "name", None)
        if found not in (None, strategy):
            yield f"{method} does something for the groups of strategy '{strategy}' only, and the stage has '{found}'; name that strategy"

    return rule


def needs_environment(method: str) -> Rule:
    """Make a rule that refuses a method that reads what only turns of an environment have; `method` is how the text calls it."""

    def rule(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
        if getattr(stage, "environment", None) is None:
            yield f"{method} compares the turns of attempts in an environment, and the stage has none; name one (docs/environments.md)"

    return rule
