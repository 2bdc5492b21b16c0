"""Muon (torch.optim.Muon) for the matrices inside the model, AdamW for everything else: embeddings, head, norms, convolutions, biases.

Muon takes as its step the nearest orthogonal matrix to a running mean of the gradient (arXiv:2502.16982), scaled so that its size is that
of an AdamW step: one learning rate serves both. It remembers one number per weight where AdamW remembers two, and needs each matrix whole.

Ours: both stand behind one optimizer with the groups of both, so that schedules, checkpoints and the check for what is not finite are those
of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vlmrl.config.section import OptimSection
from vlmrl.errors import ConfigError
from vlmrl.train.adamw import Made, names_of
from vlmrl.train.tensors import ADAM, Moments

MOMENTUM = "momentum_buffer"
"""What is remembered of a parameter."""
DECAY = 0.95
"""Of the running mean."""
_APART = ("embed", "lm_head", "lora_", "router")
"""Of names of matrices that are no maps between hidden states, or that are thin by design."""


def is_muon(group: Mapping[str, Any]) -> bool:
    """Whether a parameter group is Muon's: no other optimizer has that option."""
    return "adjust_lr_fn" in group


def takes(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon trains a parameter."""
    return parameter.ndim == 2 and min(parameter.shape) > 1 and not any(mark in name for mark in _APART)


def split(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of `adamw.groups_of`, each cut into what Muon trains and the rest.

    Raises:
        ConfigError: there is nothing for Muon.
    """
    out: list[dict[str, Any]] = []
    for group in groups:
        pairs = list(zip(group["names"], group["params"], strict=True))
        for mine in (True, False):
            members = [(name, p) for name, p in pairs if takes(name, p) is mine]
            if members:
                cut = group | {"params": [p for _, p in members], "names": [name for name, _ in members]}
                out.append(cut | ({"momentum": DECAY, "adjust_lr_fn": "match_rms_adamw"} if mine else {}))
    if not any(is_muon(group) for group in out):
        raise ConfigError(
            "optim.kind: 'muon' trains matrices inside the model, and none of them trains here (adapters are none); take adamw"
        )
    return out


def make(groups: Sequence[dict[str, Any]], cfg: OptimSection, *, fused: bool = False) -> Made:
    """The optimizer over the groups of `adamw.groups_of`.

    Raises:
        ConfigError: there is nothing for Muon.
    """
    del fused  # torch has no such kernel of it
    cut = split(groups)
    order = names_of(cut)
    return Muon(cut, cfg), order


class RunningMean(Moments):
    """The running mean of what Muon trains, and of the rest what AdamW remembers."""

    def __init__(self, mine: Sequence[torch.Tensor]):
        """`mine`: what Muon trains."""
        self._mine = {id(parameter) for parameter in mine}

    def kinds(self, parameter: torch.Tensor) -> tuple[str, ...]:
        return (MOMENTUM,) if id(parameter) in self._mine else ADAM.kinds(parameter)

    def needed(self, parameter: torch.Tensor) -> set[str]:
        return {MOMENTUM} if id(parameter) in self._mine else ADAM.needed(parameter)

    def room(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        return [torch.empty_like(parameter)] if id(parameter) in self._mine else ADAM.room(parameter)


class Muon(torch.optim.Optimizer):
    """Both in one. Groups are shared with the two, and so is the state."""

    def __init__(self, groups: Sequence[dict[str, Any]], cfg: OptimSection):
        super().__init__(list(groups), {"lr": cfg.lr})
        mine = [group for group in self.param_groups if is_muon(group)]
        rest = [group for group in self.param_groups if not is_muon(group)]
        self._muon = torch.optim.Muon(mine, lr=cfg.lr)
        self._adamw = torch.optim.AdamW(rest, lr=cfg.lr, betas=cfg.betas) if rest else None
        self._share()

    @property
    def moments(self) -> Moments:
        """What is remembered of each parameter."""
        return RunningMean([p for group in self.param_groups if is_muon(group) for p in group["params"]])

    def _share(self) -> None:
        self._muon.param_groups = [group for group in self.param_groups if is_muon(group)]
        self._muon.state = self.state
        if self._adamw is not None:
            self._adamw.param_groups = [group for group in self.param_groups if not is_muon(group)]
            self._adamw.state = self.state

    def load_state_dict(self, state_dict: Any) -> None:
        """Groups and state are new objects then."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Both steps."""
        del closure
        self._muon.step()
        if self._adamw is not None:
            self._adamw.step()
