"""A dry step: each method that is not ours is called twice on two small made-up groups, so that `vlmrl check` finds what cannot run.

It tells code that fails on any step (a name or a field that does not exist, a call that does not fit) from code that these groups may not
suit: the first is a problem, the second a note. Rewards are tried on rows of the recipe instead; group losses, samplers, budgets,
strategies, environments and constraints are not called.
"""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.algo.needs import WHAT, token_stat_needs
from vlmrl.config.schema import Method, StageBase
from vlmrl.errors import ConfigError
from vlmrl.registry import Entry, Registry
from vlmrl.train.stage.algorithm import Bound, bind

ROWS, TOKENS = 8, 6
IDS = ("answer_N", "trajectory_N", "turn_N", "state_N", "node_N", "sample_N", "question_N", "ids_NT")
"""What methods may need and is no measure: whole numbers."""
CERTAIN = (AttributeError, NameError, ImportError)
"""What code raises that cannot run on any step. (A KeyError may be for a task or a column that other rows have.)"""


def call_methods(
    theirs: Iterable[tuple[StageBase, str, str, Method]], found: Mapping[str, Registry[Any]], problems: Iterable[str] = ()
) -> list[str]:
    """Call methods that are not ours.

    Args:
        theirs: stage, place, slot and method of each.
        found: the registries of the slots.
        problems: of these methods, that are known already.

    Returns:
        What they raised that may be due to the made-up groups.

    Raises:
        ConfigError: some cannot run; each with the recipe's place, and file and line of its code.
    """
    problems, notes = list(problems), list[str]()
    for stage, where, slot, method in theirs:
        if slot in _CALLS:
            bound = bind(found[slot], method)
            try:
                for _ in range(2):  # the second sees what the first has remembered
                    _CALLS[slot](bound, _advantage_inputs(stage, bound.needs), _loss_inputs(stage, bound.needs))
            except Exception as error:  # noqa: BLE001 (code of a plug-in: all that it raises is told)
                place = _place(found[slot].get(method.name), error)
                said = f"{where}: {slot} '{method.name}' on made-up groups: {type(error).__name__}: {error}{place}"
                (problems if _certain(error, bound.needs) else notes).append(said)
    if problems:
        raise ConfigError(problems)
    return notes


def _certain(error: Exception, needs: Sequence[str]) -> bool:
    """Whether code that raises this runs on no step. A TypeError may be for a need of which nobody knows here that it is a mask."""
    known = {*WHAT, *token_stat_needs(), *(one.name for one in dataclasses.fields(LossInputs))}
    return isinstance(error, CERTAIN) or (isinstance(error, TypeError) and known.issuperset(needs))


def _advantages(bound: Bound, x: AdvantageInputs, *more: Any) -> None:
    bound.call(bound.seeing(x), *more)
    bound.learn(x)


def _reweight(bound: Bound, x: AdvantageInputs) -> None:
    per_token = bound.extra.get("per") == "token"
    _advantages(bound, x, torch.ones(ROWS, TOKENS) if per_token else torch.ones(ROWS, dtype=torch.float64))


def _kl(bound: Bound, y: LossInputs) -> None:
    old = (y.logp_old_BT,) if "logp_old_BT" in bound.needs else ()
    bound.call(y.logp_BT, y.logp_old_BT - 0.1, *old)


def _shaping(bound: Bound, x: AdvantageInputs) -> None:
    seen = bound.seeing(x)
    bound.call(x.rewards_NK, x.valid_N, seen)
    bound.learn(x)


_CALLS: Mapping[str, Callable[[Bound, AdvantageInputs, LossInputs], object]] = {
    "reward_shaping": lambda bound, x, y: _shaping(bound, x),
    "filter": lambda bound, x, y: bound.call(x),
    "advantage": lambda bound, x, y: _advantages(bound, x),
    "reweight": lambda bound, x, y: _reweight(bound, x),
    "credit": lambda bound, x, y: _advantages(bound, x, torch.ones(ROWS, dtype=torch.float64), y.mask_BT),
    "policy_loss": lambda bound, x, y: bound.call(y),
    "auxiliary_loss": lambda bound, x, y: bound.call(y),
    "kl_estimator": lambda bound, x, y: _kl(bound, y),
    "reducer": lambda bound, x, y: bound.call(y.mask_BT),
    "importance_correction": lambda bound, x, y: bound.call(y.logp_old_BT, y.logp_old_BT - 0.1, y.mask_BT),
}


def _advantage_inputs(stage: StageBase, needs: tuple[str, ...]) -> AdvantageInputs:
    """Two groups of four answers of two lengths, half of them right by every reward."""
    columns = tuple(method.key for method in getattr(stage, "rewards", ())) or ("reward",)
    right_N = (torch.arange(ROWS) % 2).double()
    return AdvantageInputs(
        reward_N=right_N * len(columns),
        rewards_NK=right_N[:, None].repeat(1, len(columns)),
        valid_N=torch.ones(ROWS, dtype=torch.bool),
        group_N=torch.arange(ROWS) // 4,
        task_N=torch.zeros(ROWS, dtype=torch.int64),
        on_policy_N=torch.ones(ROWS, dtype=torch.bool),
        length_N=TOKENS - torch.arange(ROWS) % 2,
        columns=columns,
        tasks=("task",),
        weights_K=torch.ones(len(columns), dtype=torch.float64),
        provided={name: _made_up(name) for name in ("progress", *needs)},
    )


def _loss_inputs(stage: StageBase, needs: tuple[str, ...]) -> LossInputs:
    """A micro-batch of the same rows. The reference is there where the stage has one or the method needs it."""
    own = {name: _made_up(name) for name in ("logp_ref_BT", "entropy_BT") if name in needs}
    if getattr(stage, "beta", 0.0):
        own.setdefault("logp_ref_BT", _made_up("logp_ref_BT"))
    return LossInputs(
        logp_BT=_made_up("logp_BT").requires_grad_(),
        logp_old_BT=_made_up("logp_BT"),
        logp_ref_BT=own.pop("logp_ref_BT", None),
        adv_BT=((torch.arange(ROWS) % 2).float() - 0.5)[:, None].repeat(1, TOKENS),
        mask_BT=torch.arange(TOKENS) < (TOKENS - torch.arange(ROWS) % 2)[:, None],
        group_B=torch.arange(ROWS) // 4,
        offpolicy_B=torch.zeros(ROWS, dtype=torch.bool),
        task_B=torch.zeros(ROWS, dtype=torch.int64),
        tasks=("task",),
        provided={name: _made_up(name) for name in ("progress", "score_mean_B", *needs)},
        **own,
    )


def _made_up(name: str) -> torch.Tensor:
    """A value with the axes that a name ends in: N and B are rows, T tokens; a name without axes is one number."""
    axes = name.rpartition("_")[2]
    shape = [TOKENS if axis == "T" else ROWS for axis in axes] if axes.isupper() else []
    if name in IDS:
        return torch.zeros(shape, dtype=torch.int64)
    return torch.linspace(-1.0, -0.2, ROWS * TOKENS).reshape(ROWS, TOKENS) if len(shape) == 2 else torch.full(shape, 0.5)


def _place(entry: Entry[Any], error: Exception) -> str:
    """` (file:line)` of the last line of the method's own file that the error came through; nothing where it never came there."""
    code = getattr(inspect.unwrap(entry.function), "__code__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if code is not None and frame.filename == code.co_filename]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
