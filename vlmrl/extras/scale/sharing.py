"""The groups of ranks that share packed rows (`train.sequence`), next to each other in rank order.

Every rank generates and keeps rows of its own, as without. Where a model scores or trains on them, the ranks of a group take turns: all of
them work on the first one's micro-batch, each on its columns (`scale.across`), then on the second one's, and so on. A rank's loss is that
of its own rows; what the others add to its gradient is in their weights' gradients, which are summed over all ranks anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch.distributed as torch_dist

from vlmrl.config.train import TrainSection
from vlmrl.errors import ConfigError
from vlmrl.extras.scale.sequence import Ranks, require_heads
from vlmrl.policy.model import Policy
from vlmrl.train import dist


def sharing(cfg: TrainSection) -> Callable[[Policy], None]:
    """What lets the ranks of this one's group share the packed rows of a policy. Called on every rank.

    Raises:
        ConfigError: see `ranks_of`.
    """
    return partial(share, ranks=ranks_of(cfg))


def ranks_of(cfg: TrainSection) -> Ranks | None:
    """The group of this rank; None where rows are not shared. Called on every rank.

    Raises:
        ConfigError: the ranks cannot be dealt into such groups, or the engine's passes cannot take turns.
    """
    size, world = cfg.sequence, dist.world()
    if size == 1:
        return None
    if world % size:
        raise ConfigError(f"train.sequence: {size} does not divide the {world} rank{'s' if world > 1 else ''} (torchrun starts several)")
    mine: Ranks | None = None
    for first in range(0, world, size):
        members = list(range(first, first + size))
        # objects go over the CPU, where a rank may wait for another that still reads media; who dies is noticed elsewhere
        control = torch_dist.new_group(members, backend="gloo", timeout=timedelta(hours=24))
        device = torch_dist.new_group(members, timeout=timedelta(seconds=cfg.patience))
        if dist.rank() in members:
            mine = Ranks(rank=dist.rank() - first, size=size, control=control, device=device)
    return mine


def share(policy: Policy, ranks: Ranks | None) -> None:
    """Let the ranks of a group share the packed rows of a policy.

    Raises:
        ConfigError: it has too few heads.
    """
    if ranks is not None:
        text = policy.model.config.get_text_config()
        require_heads(text.num_attention_heads, text.num_key_value_heads, ranks.size)
        policy.sequence = ranks
