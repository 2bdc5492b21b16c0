"""How the rows of a group are made. Importing this package registers all strategies."""

from vlmrl.rollout.strategy import offpolicy_gt, plain

__all__ = ["offpolicy_gt", "plain"]
