"""What each method of a stage changes, measured where it is called: what goes in is compared with what comes out.

Every method that a recipe names beside the defaults is wrapped, and none knows of it. Logged with each step, as shares from 0 to 1 under
the method's name (`run.silent`):

    touched/strategy.offpolicy_gt/rows, /groups     rows that the policy did not sample by itself, groups that hold one
    touched/budget.knapsack/groups                  groups of another size than `rollout.num_generations`
    touched/filter.pods/rows, /groups               rows that it leaves out, groups that lose one
    touched/reward_shaping.product/rows, /groups    rows whose rewards it moves
    touched/advantage.g2rpo/rows, /groups           rows whose advantage is not the one of the default advantage
    touched/reweight.adora/rows, /groups            rows whose advantage it moves; registered with `per="token"`: /tokens, as of a credit
    touched/policy_loss.gspo/tokens                 tokens whose weight in the gradient is not the one that the default loss gives
    touched/auxiliary_loss.expo/tokens              tokens that get a gradient from it
    touched/<slot>.<name>/zeroed                    of the advantages that were not 0 before a reweight, those that are 0 behind it

Rewards and advantages are compared on the CPU, where they are. What is counted of losses stays on the device and is read with the
other metrics of the step, so that nothing waits for it. Shares are a function of the step, so a resumed run logs the same; how long a
method has been idle, and what was said of it, is in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vlmrl.algo import registries
from vlmrl.algo.inputs import AdvantageInputs, LossInputs, LossOutput
from vlmrl.config.schema import GrpoSection
from vlmrl.defaults import DEFAULTS
from vlmrl.protocols import GuidingStrategy, Strategy
from vlmrl.run.silent import AFTER, EMPTIED, PREFIX, ZEROED, by_method, changed_nothing, emptied, idle
from vlmrl.train import dist
from vlmrl.train.stage.algorithm import Algorithm, Bound, per_token
from vlmrl.train.stage.base import StepResult

Call = Callable[..., Any]
Wrap = Callable[[str, Call], Call]
"""(name in the log, what is called) -> what is called in its place."""
CLOSE = 1e-6
"""Relative difference of rewards and advantages that counts as none: a formula whose sums are made in another order."""
CLOSE_32 = 1e-4
"""The same of the weights of tokens, in float32."""


def differ(before: torch.Tensor, after: torch.Tensor, close: float = CLOSE) -> torch.Tensor:
    """Compare two tensors of a shape, entry by entry; NaN equals NaN. `close`: relative difference that counts as none.

    Returns:
        bool, on their device.
    """
    return ~torch.isclose(after.double(), before.double(), rtol=close, atol=close * 1e-3, equal_nan=True)


@dataclass(kw_only=True)
class Touched:
    """What the methods of a stage changed in the current step, and since when some have changed nothing."""

    watched: list[str] = field(default_factory=list[str])
    """Methods as `<slot>.<name>`; a second one of the same name has a number behind it."""
    num_generations: int | None = None
    """Rollouts of a group; None: no budget gives it another number."""
    given_rows: bool = False
    """Whether the share of groups with a row that the strategy adds is logged as `rollout/given_rows` too."""
    idle: Counter[str] = field(default_factory=Counter[str])
    """Method -> steps in a row, until now, in which it changed nothing."""
    emptied: Counter[str] = field(default_factory=Counter[str])
    """Method -> steps in a row, until now, in which it set everything to 0."""
    said: list[str] = field(default_factory=list[str])
    """What was said of a method, each text once in a stage."""
    shares: dict[str, float] = field(default_factory=dict[str, float])
    """Of the current step, by name in the log."""
    tokens: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Name in the log -> (changed, of how many), among the tokens of this rank."""

    def state_dict(self) -> dict[str, Any]:
        return {"idle": dict(self.idle), "emptied": dict(self.emptied), "said": list(self.said)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.idle, self.emptied, self.said = Counter(state["idle"]), Counter(state["emptied"]), list(state["said"])

    def around(self, step: Callable[[], StepResult]) -> Callable[[], StepResult]:
        """Make a step that says what the methods changed in it, and warns of those that have changed nothing for long."""

        def counted() -> StepResult:
            self.shares, self.tokens = {}, {}
            result = step()
            # what an auxiliary loss counted stands below its own name
            logged = {name[max(0, name.find(PREFIX)) :]: value for name, value in result.values.items()}
            result.values = logged | self.shares | self._of_all_ranks()
            result.warnings += self.look(result.values)
            return result

        return counted

    def look(self, values: Mapping[str, float]) -> list[str]:
        """Count a step's logged values in.

        Returns:
            What is to be said now.
        """
        out: list[str] = []
        for method, names in by_method(list(values)).items():
            # without an update a loss has no values, and nothing is known of it
            nothing = (self.idle, idle(values, names), AFTER, changed_nothing)
            everything = (self.emptied, values.get(f"{PREFIX}{method}/{ZEROED}") == 1.0, EMPTIED, emptied)
            for counter, holds, most, text in (nothing, everything):
                counter[method] = counter[method] + 1 if holds else 0
                found = text(method, f"in {most} steps in a row")
                if counter[method] == most and found not in self.said:
                    self.said.append(found)
                    out.append(found)
        return out

    def note_rows(self, method: str, changed_N: torch.Tensor, x: AdvantageInputs) -> None:
        """Note which rows of all ranks a method has changed, and with them the groups."""
        self.shares[f"{PREFIX}{method}/rows"] = float(changed_N.double().mean()) if len(changed_N) else 0.0
        self.shares[f"{PREFIX}{method}/groups"] = len(x.group_N[changed_N].unique()) / max(1, len(x.group_N.unique()))

    def note_tokens(self, method: str, before_NT: torch.Tensor, after_NT: torch.Tensor, inside_NT: torch.Tensor) -> None:
        """Note which tokens of this rank a method has changed, and which it has set to 0, within the responses."""
        live_NT = (before_NT != 0) & inside_NT
        changed = float((differ(before_NT, after_NT) & inside_NT).sum())
        self.tokens[f"{PREFIX}{method}/tokens"] = (changed, float(inside_NT.sum()))
        self.tokens[f"{PREFIX}{method}/zeroed"] = (float((live_NT & (after_NT == 0)).sum()), float(live_NT.sum()))

    def note_advantages(self, method: str, before_N: torch.Tensor, after_N: torch.Tensor, x: AdvantageInputs) -> None:
        """Note which advantages of all ranks a method has moved, and which it has set to 0."""
        self.note_rows(method, differ(before_N, after_N), x)
        live_N = before_N != 0
        self.shares[f"{PREFIX}{method}/zeroed"] = float((live_N & (after_N == 0)).sum()) / max(1, int(live_N.sum()))

    def note_made(self, strategy: Bound, budget: str, x: AdvantageInputs) -> None:
        """Note the rows that the strategy brought into a step, and the groups to which the budget gave another size."""
        if strategy.name != DEFAULTS["strategy"]:
            self.note_rows(f"strategy.{strategy.name}", ~x.on_policy_N, x)
        if self.given_rows:
            self.shares["rollout/given_rows"] = self.shares[f"{PREFIX}strategy.{strategy.name}/groups"]
        if self.num_generations is not None:
            sizes = torch.unique(x.group_N, return_counts=True)[1]
            self.shares[f"{PREFIX}budget.{budget}/groups"] = float((sizes != self.num_generations).double().mean())

    def _of_all_ranks(self) -> dict[str, float]:
        names = sorted(self.tokens)  # every rank makes the same calls, so these are the same on all
        ranks = dist.gather([self.tokens[name] for name in names]) if names else []
        sums = {name: (sum(rank[n][0] for rank in ranks), sum(rank[n][1] for rank in ranks)) for n, name in enumerate(names)}
        return {name: changed / max(1.0, of) for name, (changed, of) in sums.items()}

    def wrapped(self, method: Bound, wrap: Wrap, default: str | None = None) -> Bound:
        """Put a wrapper around a method, unless it is the default of the field `default`."""
        if default is not None and method.name == DEFAULTS[default]:
            return method
        # `wraps`: `two_pass.choice` reads the arguments of what it is given
        return dataclasses.replace(method, call=functools.wraps(method.call)(wrap(self.name(method), method.call)))

    def name(self, method: Bound) -> str:
        """Take up a method, under the name that it has in the log."""
        name = f"{method.slot}.{method.name}"
        same = sum(one.partition("-")[0] == name for one in self.watched)
        self.watched.append(f"{name}-{same + 1}" if same else name)
        return self.watched[-1]


def watched(algorithm: Algorithm, cfg: GrpoSection, strategy: Strategy) -> tuple[Algorithm, Touched]:
    """Wrap what a stage names beside the defaults. `strategy`: the one that completes its groups.

    Returns:
        The methods to call, and what keeps count of them; it watches none in a stage of defaults.
    """
    a, out = algorithm, Touched()
    if a.strategy.name != DEFAULTS["strategy"]:
        out.name(a.strategy)
        out.given_rows = bool(a.strategy.extra.get("injects_rows")) and not isinstance(strategy, GuidingStrategy)
    if cfg.budget.name != DEFAULTS["budget"] and cfg.environment is None:
        out.num_generations = cfg.rollout.num_generations
        out.watched.append(f"budget.{cfg.budget.name}")

    def of(wrap: Callable[[Touched, str, Call], Call]) -> Wrap:
        return functools.partial(wrap, out)

    wrapped = dataclasses.replace(
        a,
        reward_shaping=[out.wrapped(m, of(_shaping)) for m in a.reward_shaping],
        filters=[out.wrapped(m, of(_filter)) for m in a.filters],
        advantage=a.advantage if _one_turn(cfg) else out.wrapped(a.advantage, of(_advantage), "advantage"),
        reweight=[out.wrapped(m, of(_tokens if per_token(m) else _rows)) for m in a.reweight],
        credit=out.wrapped(a.credit, of(_credit), "credit"),
        loss=a.loss if a.group_loss is not None else out.wrapped(a.loss, _loss, "loss"),
        group_loss=None if a.group_loss is None else out.wrapped(a.group_loss, of(_group_loss)),
        auxiliary=[(out.wrapped(m, _auxiliary), weight) for m, weight in a.auxiliary],
        importance_correction=out.wrapped(a.importance_correction, _correction, "importance_correction"),
        constraints=[_constraint(out, m) for m in a.constraints],
    )
    if not out.watched:
        return algorithm, out
    call = wrapped.advantage.call

    def seen(x: AdvantageInputs) -> torch.Tensor:
        out.note_made(a.strategy, cfg.budget.name, x)
        return call(x)

    return dataclasses.replace(wrapped, advantage=dataclasses.replace(wrapped.advantage, call=seen)), out


def _one_turn(cfg: GrpoSection) -> bool:
    """Tell whether the advantage is `trajectory` because an environment asks for it, where attempts of one turn make it the default."""
    return cfg.environment is not None and cfg.environment.max_turns == 1 and cfg.advantage.name == "trajectory"


# ---- wrappers: on the CPU, over the rows of all ranks or the tokens of this one -------------------------------------------


def _filter(touched: Touched, name: str, call: Call) -> Call:
    def counted(x: AdvantageInputs) -> tuple[torch.Tensor, str]:
        keep_N, reason = call(x)
        touched.note_rows(name, ~keep_N, x)  # of the last call, which sees all groups of the step
        return keep_N, reason

    return counted


def _shaping(touched: Touched, name: str, call: Call) -> Call:
    def counted(rewards_NK: torch.Tensor, valid_N: torch.Tensor, x: AdvantageInputs) -> torch.Tensor:
        out_NK = call(rewards_NK, valid_N, x)
        touched.note_rows(name, differ(rewards_NK, out_NK).any(dim=1), x)
        return out_NK

    return counted


def _advantage(touched: Touched, name: str, call: Call) -> Call:
    plain = registries.advantage.bind(DEFAULTS["advantage"])

    def counted(x: AdvantageInputs) -> torch.Tensor:
        adv_N = call(x)
        touched.note_rows(name, differ(plain(x), adv_N) & x.valid_N, x)
        return adv_N

    return counted


def _rows(touched: Touched, name: str, call: Call) -> Call:
    def counted(x: AdvantageInputs, adv_N: torch.Tensor, *more: Any) -> torch.Tensor:
        out_N = call(x, adv_N, *more)
        touched.note_advantages(name, adv_N, out_N, x)
        return out_N

    return counted


def _tokens(touched: Touched, name: str, call: Call) -> Call:
    def counted(x: AdvantageInputs, adv_NT: torch.Tensor) -> torch.Tensor:
        out_NT = call(x, adv_NT)
        touched.note_tokens(name, adv_NT, out_NT, torch.arange(adv_NT.shape[1]) < x.length_N[:, None])
        return out_NT

    return counted


def _credit(touched: Touched, name: str, call: Call) -> Call:
    def counted(x: AdvantageInputs, adv_N: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
        out_NT = call(x, adv_N, mask_NT)
        touched.note_tokens(name, adv_N[:, None].expand(mask_NT.shape), out_NT, mask_NT)
        return out_NT

    return counted


def _group_loss(touched: Touched, name: str, call: Call) -> Call:
    """Counts the rows of all ranks whose score has a weight; a loss that compares answers may find nothing to compare."""

    def counted(score_N: torch.Tensor, *more: Any) -> torch.Tensor:
        loss = call(score_N, *more)
        found = torch.autograd.grad(loss, score_N, retain_graph=True, allow_unused=True)[0] if loss.requires_grad else None
        touched.shares[f"{PREFIX}{name}/rows"] = 0.0 if found is None or not len(found) else float((found != 0).double().mean())
        return loss

    return counted


def _constraint(touched: Touched, method: Bound) -> Bound:
    """Wraps what a constraint does to advantages, or adds to the loss; where it steers beta, its dual says so."""
    where = {"advantage": ("apply", functools.partial(_rows, touched)), "loss": ("term", _term)}.get(method.extra["acts_on"])
    if where is None:
        return method
    key, wrap = where
    return dataclasses.replace(method, extra={**method.extra, key: wrap(touched.name(method), method.extra[key])})


# ---- wrappers: within the micro-batches, on the device --------------------------------------------------------------------


def _gradients(loss_BT: torch.Tensor, x: LossInputs) -> list[torch.Tensor]:
    """Differentiate token losses by what comes out of the forward pass: log-probs, entropies, and whatever else has a gradient."""
    sources = [
        v for v in (x.logp_BT, x.entropy_BT, *x.provided.values()) if v is not None and v.requires_grad and v.shape == x.mask_BT.shape
    ]
    inside_BT = torch.where(x.mask_BT, loss_BT, torch.zeros_like(loss_BT))
    if not sources or not loss_BT.requires_grad:
        return []
    found = torch.autograd.grad(inside_BT.sum(), sources, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(loss_BT) if one is None else one for one in found]


def _counted(name: str, output: LossOutput, changed_BT: torch.Tensor, x: LossInputs) -> LossOutput:
    share = ((changed_BT & x.mask_BT).sum(), x.mask_BT.sum())
    return LossOutput(output.loss_BT, {**output.metrics, f"{PREFIX}{name}/tokens": share})


def _loss(name: str, call: Call) -> Call:
    plain = registries.policy_loss.bind(DEFAULTS["loss"])

    def counted(x: LossInputs) -> LossOutput:
        output: LossOutput = call(x)
        if not x.logp_BT.requires_grad:
            return output
        mine, default = _gradients(output.loss_BT, x), _gradients(plain(x).loss_BT, x)
        changed_BT = torch.zeros_like(x.mask_BT)
        for one_BT, other_BT in zip(mine or [torch.zeros_like(default[0])] * len(default), default, strict=True):
            changed_BT = changed_BT | differ(other_BT, one_BT, CLOSE_32)
        return _counted(name, output, changed_BT, x)

    return counted


def _auxiliary(name: str, call: Call) -> Call:
    def counted(x: LossInputs) -> LossOutput:
        output: LossOutput = call(x)
        changed_BT = torch.zeros_like(x.mask_BT)
        for one_BT in _gradients(output.loss_BT, x):
            changed_BT = changed_BT | (one_BT != 0)
        return _counted(name, output, changed_BT, x)

    return counted


def _term(name: str, call: Call) -> Call:
    def counted(x: LossInputs, *more: Any) -> LossOutput:
        return _auxiliary(name, lambda seen: LossOutput(call(seen, *more)))(x)

    return counted


def _correction(name: str, call: Call) -> Call:
    def counted(old_BT: torch.Tensor, sampled_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        weight_BT, metrics = call(old_BT, sampled_BT, mask_BT)
        changed = (differ(torch.ones_like(weight_BT), weight_BT, CLOSE_32) & mask_BT).sum()
        return weight_BT, {**metrics, f"{PREFIX}{name}/tokens": (changed, mask_BT.sum())}

    return counted
