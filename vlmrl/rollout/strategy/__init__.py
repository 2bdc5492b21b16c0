"""How the rows of a group are made. Importing this package registers all strategies of this folder."""

from vlmrl.rollout.strategy import demonstration, hint, offpolicy_gt, plain

__all__ = ["demonstration", "hint", "offpolicy_gt", "plain"]
