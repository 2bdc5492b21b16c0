"""How many more prompts to plan when a filter dropped groups, and when to stop. DAPO's dynamic sampling, arXiv:2503.14476, section 3.2.

Groups are generated until `wanted` are kept or `max_attempts` batches were generated (10 in the released recipes). At the bound the
step trains on what it has; denominators count the kept groups. Groups beyond `wanted` are cut in plan order, or carried over by the
caller.

Ours: the paper generates a full batch again each time; here a refill asks for as many as the observed share of kept groups suggests,
at most `wanted` (a full batch), and a full batch while none was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Refill:
    """What to do next."""

    prompts: int
    """To plan now; 0 when stopping."""
    stop: Literal["full", "exhausted"] | None
    """None: go on. `full`: enough groups are kept. `exhausted`: the last allowed attempt is over; train on the kept ones."""
    surplus: int
    """Kept groups beyond `wanted`."""


def refill(*, wanted: int, kept: int, generated: int, attempts: int, max_attempts: int = 10, multiple: int = 1) -> Refill:
    """Decide after `attempts` batches with `generated` groups in all, of which `kept` passed the filters.

    Args:
        multiple: round the number of prompts up to a multiple of this (ranks, or prompts generated together).

    Raises:
        ValueError: counts that cannot be.
    """
    if wanted < 1 or max_attempts < 1 or multiple < 1 or attempts < 0 or not 0 <= kept <= generated or (attempts == 0) != (generated == 0):
        raise ValueError(
            f"refill: wanted {wanted}, kept {kept} of {generated}, attempts {attempts} of {max_attempts}, multiple {multiple} do not fit"
        )
    if kept >= wanted:
        return Refill(0, "full", kept - wanted)
    if attempts >= max_attempts:
        return Refill(0, "exhausted", 0)
    missing = wanted - kept
    # missing / (kept / generated), rounded up
    likely = -(-missing * generated // kept) if kept else wanted
    # rounded up to whole multiples; what is then too much is counted as surplus next time
    return Refill(-(-min(wanted, likely) // multiple) * multiple, None, 0)
