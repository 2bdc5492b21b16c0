"""The engine that generates with a policy in place: the reference engine, or that of families which run through their own forward."""

from __future__ import annotations

from vlmrl.policy.foreign import foreign
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RolloutEngine
from vlmrl.rollout.engine_hf import KEPT_BYTES, HFEngine
from vlmrl.rollout.in_place import SLOTS


def own_engine(policy: Policy, vision: VisionCache, *, max_num_seqs: int = SLOTS, kept_bytes: int = KEPT_BYTES) -> RolloutEngine:
    """Make the engine that generates with a policy in place.

    Args:
        max_num_seqs: most answers that decode at a time.
        kept_bytes: of keys and values that a session of the reference engine keeps.

    Raises:
        ConfigError: the model's attention is not that of its family.
    """
    if policy.subject is not None:
        return foreign(policy.bundle.family).engine(policy, vision, max_num_seqs=max_num_seqs)
    return HFEngine(policy, vision, max_num_seqs=max_num_seqs, kept_bytes=kept_bytes)
