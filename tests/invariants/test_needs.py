"""Every registered method reads, of what is provided beyond rewards, what it declares in its `needs` and nothing else.

It gets no more here: with each choice of its arguments that is a literal, a flag or a number that may be left out, as some read more than
others.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.methods import registries
from vlmrl.registry import Entry, Parameter
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.provide import SCALARS, provided_fields

FOUND = registries()
N, T = 6, 3
SIZES = {"N": N, "B": N, "T": T, "S": 9, "J": 20}
"""Entries along an axis; S and J are the defaults of the methods that have them."""
ROWS = torch.arange(N)
NUMBERS = ("answer_N", "turn_N", "state_N", "sample_N", "paragraph_NT", "piece_NT", "item_NT", "cut_NS", "segment_BT", "item_BT")
IDS = {**dict.fromkeys(NUMBERS, 0), "ids_NT": 7, "question_N": 1}
"""Names of int64 tensors, with the number that they hold; other tensors hold 0.5."""
FLAGS = ("truncated_N", "routed_N", "trains_N")


class Undeclared(AssertionError):
    """A method asked for what it does not declare."""


class Declared(dict[str, Tensor]):
    """What the providers of a method's needs give. Asking for anything else is an error, also with `get` and `in`."""

    def __getitem__(self, name: str) -> Tensor:
        return super().__getitem__(self._checked(name))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(self._checked(name), default)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self._checked(str(name)))

    def _checked(self, name: str) -> str:
        if name not in self.keys():
            raise Undeclared(f"it reads '{name}', which is not in its needs ({', '.join(self) or 'none'})")
        return name


def value(name: str) -> Tensor:
    """What stands for a need, in the shape that its name says."""
    if name in SCALARS:
        return torch.tensor(0.5, dtype=torch.float64)
    if name in ("trajectory_N", "node_N"):
        return ROWS
    shape = [SIZES[axis] for axis in name.rpartition("_")[2]]
    if name in FLAGS:
        return torch.zeros(shape, dtype=torch.bool)
    if name in IDS:
        return torch.full(shape, IDS[name], dtype=torch.int64)
    return torch.full(shape, 0.5, dtype=torch.float64)


def provided(needs: Iterable[str]) -> Declared:
    return Declared({name: value(name) for name in needs if name in provided_fields()})


def advantage_inputs(needs: Iterable[str], **more: Any) -> AdvantageInputs:
    """Two groups of right and wrong rows; optional fields only where they are needed."""
    reward_N = torch.tensor([1.0, 0.0, 0.4, 1.0, 1.0, 0.2], dtype=torch.float64)
    optional: dict[str, Any] = {"tasks": ("one",), "weights_K": torch.ones(1, dtype=torch.float64)}
    return AdvantageInputs(
        reward_N=reward_N,
        rewards_NK=reward_N[:, None].clone(),
        valid_N=torch.ones(N, dtype=torch.bool),
        group_N=ROWS // 3,
        task_N=torch.zeros(N, dtype=torch.int64),
        on_policy_N=ROWS != 5,
        length_N=torch.full((N,), T),
        columns=("task",),
        **{name: given for name, given in optional.items() if name in needs},
        **more,
        provided=provided(needs),
    )


def loss_inputs(needs: Iterable[str]) -> LossInputs:
    """Two groups again, off the policy that sampled them, with the fields that every step fills."""
    logp_BT = torch.linspace(-1.0, -0.1, N * T, dtype=torch.float64).view(N, T).requires_grad_()
    return LossInputs(
        logp_BT=logp_BT,
        logp_old_BT=logp_BT.detach() + 0.1,
        logp_ref_BT=logp_BT.detach() - 0.1 if "logp_ref_BT" in needs else None,
        adv_BT=torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)[:, None].expand(N, T),
        mask_BT=torch.ones(N, T, dtype=torch.bool),
        group_B=ROWS // 3,
        offpolicy_B=ROWS == 5,
        task_B=torch.zeros(N, dtype=torch.int64),
        tasks=("one",),
        entropy_BT=torch.full((N, T), 0.5, dtype=torch.float64),
        provided=provided(needs),
    )


def given(parameter: Parameter) -> Any:
    """A value for an argument that must be given."""
    return {str: "task", list[int]: [7], dict[str, float]: {"task": 0.5}, float: 0.1, int: 1}[parameter.annotation]


def choices(parameter: Parameter) -> list[Any]:
    """Values beside the default that may make a method read something else."""
    kind = parameter.annotation
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if choice != parameter.default]
    if kind is bool:
        return [not parameter.default]
    return []


def variants(entry: Entry[Any]) -> Iterator[dict[str, Any]]:
    """Arguments: the required ones; with these each choice of each other one, and all numbers that may be left out."""
    least = {name: given(p) for name, p in entry.parameters.items() if p.required}
    yield least
    left_out = [name for name, p in entry.parameters.items() if not p.required and p.default is None and float in get_args(p.annotation)]
    yield least | dict.fromkeys(left_out, 0.1)
    for name, parameter in entry.parameters.items():
        if not parameter.required:
            yield from ({**least, name: choice} for choice in choices(parameter))


def call(slot: str, entry: Entry[Any], arguments: dict[str, Any]) -> None:
    """Call a method as the trainer does, and what it declares beside itself: its memory's update, a constraint's measure and term."""
    needs = entry.extra.get("needs", ())
    method: Callable[..., Any] = FOUND[slot].bind(entry.name, arguments)
    if slot in ("policy_loss", "auxiliary_loss"):
        method(loss_inputs(needs))
        return
    if slot == "constraint":
        duals = method({}, {})
        if entry.extra["acts_on"] == "advantage":
            entry.extra["measure"](advantage_inputs(needs), list(duals))
            entry.extra["apply"](advantage_inputs(needs), torch.ones(N, dtype=torch.float64), duals)
        elif entry.extra["acts_on"] == "loss":
            measured = entry.extra["measure"](loss_inputs(needs))
            entry.extra["term"](loss_inputs(needs), method(duals, measured), measured)
        return
    update = entry.extra.get("remembers")
    x = advantage_inputs(needs, memory=None if update is None else {})
    if slot == "reward_shaping":
        method(x.rewards_NK, x.valid_N, x)
    elif slot == "credit":
        method(x, torch.ones(N, dtype=torch.float64), torch.ones(N, T, dtype=torch.bool))
    elif slot == "reweight":
        method(x, torch.ones((N, T) if entry.extra.get("per") == "token" else N, dtype=torch.float64))
    else:
        method(x)
    if update is not None:
        known = inspect.signature(update).parameters
        update({}, dataclasses.replace(x, memory=None), **{name: one for name, one in arguments.items() if name in known})


SLOTS = ("advantage", "credit", "reward_shaping", "reweight", "filter", "policy_loss", "auxiliary_loss", "constraint")
METHODS = [
    (slot, entry)
    for slot in SLOTS
    for entry in map(FOUND[slot].get, FOUND[slot].names())
    if entry.function.__module__.startswith("vlmrl.")  # plug-ins of other tests may stand in the registries too
]


@pytest.mark.parametrize(("slot", "entry"), METHODS, ids=[f"{slot}-{entry.name}" for slot, entry in METHODS])
def test_a_method_reads_what_it_declares_and_nothing_else(slot: str, entry: Entry[Any]) -> None:
    for arguments in variants(entry):
        call(slot, entry, arguments)


@pytest.mark.parametrize("ask", [lambda x: x.provided["gaze_N"], lambda x: x.provided.get("gaze_N"), lambda x: "gaze_N" in x.provided])
def test_a_method_that_reads_what_it_does_not_declare_is_found(ask: Callable[[AdvantageInputs], Any]) -> None:
    with pytest.raises(Undeclared, match=r"reads 'gaze_N', which is not in its needs \(answer_N\)"):
        ask(advantage_inputs(("answer_N",)))
