"""AdamW over named parameters, in groups: matrices and the rest, and parts of the model with learning rates of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vlmrl.config.section import OptimSection
from vlmrl.errors import ConfigError
from vlmrl.families.qwen_vl import part_of
from vlmrl.registry import Catalogue
from vlmrl.train.tensors import moments_of
from vlmrl.train.updates import Named
from vlmrl.types import Part

Made = tuple[torch.optim.Optimizer, list[str]]
"""An optimizer, and the names of its parameters in its order."""
PartOf = Callable[[str], Part]
"""Part of a parameter, by its name; the default is that of the Qwen-VL families."""


def groups_of(named: Named, cfg: OptimSection, part_of: PartOf = part_of) -> list[dict[str, Any]]:
    """Sort parameters into groups in which only matrices decay, as is usual for transformers.

    Returns:
        Groups of torch's optimizers, with `names` beside their `params`; those of parts with a learning rate of their own come last and
        have a `part`.

    Raises:
        ConfigError: nothing trains of such a part.
    """
    of_part = {name: part_of(name) for name, _ in named}
    own: list[Part] = [part for part, rate in cfg.parts.rates.items() if rate > 0]
    out: list[dict[str, Any]] = []
    wanted: list[Part | None] = [None, *own]
    for part in wanted:
        members = [(n, p) for n, p in named if (of_part[n] == part if part else of_part[n] not in own)]
        if part and not members:
            has = ", ".join(sorted(set(of_part.values())))
            raise ConfigError(f"optim.parts.{part}: nothing of this part trains, only {has}; take it out, or look at freeze and model.lora")
        matrices, rest = [(n, p) for n, p in members if p.ndim >= 2], [(n, p) for n, p in members if p.ndim < 2]
        for of, decay in ((matrices, cfg.weight_decay), (rest, 0.0)):
            group = {"params": [p for _, p in of], "weight_decay": decay, "names": [n for n, _ in of]}
            out += [group | ({"lr": cfg.parts.rates[part], "part": part} if part else {})] if of else []
    return out


@contextmanager
def occupied(optimizer: Any) -> Iterator[None]:
    """`Updates.occupied` for an optimizer that makes its moments with the first update."""
    held: list[torch.Tensor] = []
    moments = moments_of(optimizer)
    try:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.zeros_like(p)
            if not optimizer.state.get(p):
                held += moments.room(p)  # the memory alone: nothing is put into the optimizer's state
        yield
    finally:
        held.clear()
        optimizer.zero_grad(set_to_none=True)


def make_optimizer(named: Named, cfg: OptimSection, part_of: PartOf = part_of, *, fused: bool = False) -> Made:
    """Make the optimizer that `optim.kind` names, with the parameter names in its order.

    Args:
        fused: AdamW goes through the memory once, not once for each of its operations. It rounds otherwise.

    Raises:
        ConfigError: a part of `optim.parts` has nothing that trains, the package of `optim.kind` is not there, or Muon has no matrix.
    """
    return KINDS[cfg.kind](groups_of(named, cfg, part_of), cfg, fused=fused)


def names_of(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Take the names of parameters out of their groups."""
    return [name for group in groups for name in group.pop("names")]


def make(groups: list[dict[str, Any]], cfg: OptimSection, *, fused: bool = False) -> Made:
    """AdamW of torch over the groups of `groups_of`."""
    order = names_of(groups)
    # None and not False, which would also switch off torch's loop over many tensors at once
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, fused=fused or None), order


KINDS: Catalogue[Callable[..., Made]] = Catalogue("optimizer", {"adamw": make})
"""What `optim.kind` names."""
