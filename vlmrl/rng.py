"""Random seeds as functions of coordinates (step, sample, rollout), never of history.

`key(seed, "rollout", step, sample_id, k)` is the same number on every machine and after every restart, so no generator
state is ever stored, and there is nothing to forget at resume.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np


def key(seed: int, *coordinates: int | str) -> int:
    """A 63-bit integer that depends on the seed and on every coordinate (type and value)."""
    text = "\x1f".join([f"i{seed}", *(f"{type(c).__name__[0]}{c}" for c in coordinates)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *coordinates: int | str) -> np.random.Generator:
    """A fresh numpy generator (Philox: same stream on every platform) for these coordinates."""
    return np.random.Generator(np.random.Philox(key(seed, *coordinates)))


def uniform(seed: int, *coordinates: int | str) -> float:
    """One number in [0, 1) for these coordinates."""
    return key(seed, *coordinates) / 2**63


def permutation(n: int, seed: int, *coordinates: int | str) -> list[int]:
    """A permutation of range(n)."""
    return generator(seed, *coordinates).permutation(n).tolist()


def seed_step(seed: int, *coordinates: int | str) -> None:
    """Reseed the global generators, for the dropout inside third-party models. Nothing of ours draws from them."""
    import torch

    value = key(seed, "step", *coordinates)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
