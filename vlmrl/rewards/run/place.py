"""Where a reward of a recipe runs: in this process, or in a worker (`rewards.run.workers`), which most runs need not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlmrl.protocols import RewardContext
from vlmrl.protocols import reward as registry
from vlmrl.registry import Entry
from vlmrl.types import Group

if TYPE_CHECKING:
    from vlmrl.rewards.run.workers import RewardPool


def in_worker(entry: Entry[Any], isolate: bool | None) -> bool:
    """Decide whether a reward runs in a worker: as the recipe says, else what is not ours and what is registered with `worker=True`.

    A column that asks a server (`service=True`) has time limits of its own and runs in the trainer, and so does one of a script or a
    notebook, which a worker would not know (`rewards.run.here`).

    Raises:
        ConfigError: such a column is to be isolated.
    """
    from vlmrl.rewards.run.here import stays_here

    if stays_here(entry, isolate):
        return False
    if isolate is not None:
        return isolate
    return bool(entry.extra.get("worker", not entry.ours))


def place(
    name: str, arguments: Mapping[str, Any], *, isolate: bool | None, pool: RewardPool | None, plugins: Sequence[str] = ()
) -> Callable[[Group, RewardContext], Sequence[float | None]]:
    """Bind a reward of a recipe to its arguments: the function itself, or a column of `pool` (see `in_worker`).

    `imports=("sympy",)` at registration names what the function imports when it is called: a worker does it before the first
    call, so that the deadline is not spent on it.

    Args:
        pool: of the workers; needed by a reward that runs in one.
        plugins: modules of the recipe; a worker imports them, in order.

    Returns:
        (group, context) -> one number, or None, per rollout.

    Raises:
        ConfigError: see `in_worker`.
        KeyError, TypeError: the reward or an argument does not exist.
    """
    entry = registry.get(name)
    bound = registry.bind(name, arguments)
    if not in_worker(entry, isolate):
        return bound
    assert pool is not None, f"reward '{name}' runs in a worker"
    # a plug-in may register a function that lives elsewhere, and answer types that ours score; what none of them registers (a script
    # has imported it) the module does that has registered it here
    modules = [entry.function.__module__, *plugins] if entry.ours else list(dict.fromkeys([*plugins, entry.module]))
    return pool.column(name, arguments, [*modules, *entry.extra.get("imports", ())])
