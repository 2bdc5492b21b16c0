"""A small vLLM in the test's process, on its CPU build."""

from __future__ import annotations

import os
from pathlib import Path

from vlmrl.policy.model import Policy

GIB = 2**30


def core(path: Path, policy: Policy, *, max_model_len: int = 1024, dtype: str = "float32", **options: bool):
    """vLLM for a tiny model: half a GiB of cache, blocks of 32 tokens. `options`: more of its `CoreOptions`."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vlmrl.extras.vllm.engine import Core, CoreOptions

    return Core(
        CoreOptions(
            path=str(path),
            revision=None,
            architecture=type(policy.model).__name__,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=64,
            memory=0.3,
            cache_bytes=GIB // 2,
            eager=True,
            block_size=32,
            **options,
            raw_pixels=policy.bundle.writer is None,
        )
    )
