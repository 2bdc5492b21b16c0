"""Constraints and regularisers with a memory. Importing this package registers all of them."""

from vlmrl.algo.constraint import adaptive_kl, entropy_band, lagrangian
from vlmrl.algo.constraint.registry import PartialMean, constraint, merge

__all__ = ["PartialMean", "adaptive_kl", "constraint", "entropy_band", "lagrangian", "merge"]
