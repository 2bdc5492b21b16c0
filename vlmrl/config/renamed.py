"""Recipe keys of earlier versions and what they are called now: an old key is an error that names the new one."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, Mapping[str, str]] = {
    "rollout": {
        "per_prompt": "num_generations",
        "prompts": "prompts_per_step",
        "chunk_prompts": "generation_batch_size",
        "slots": "max_num_seqs",
    },
    "stage": {
        "micro_tokens": "max_tokens_per_microbatch",
        "minibatches": "updates_per_step",
        "template": "answer_format",
        "shape": "reward_shaping",
        "select": "filters",
        "mismatch": "importance_correction",
        "refill": "dynamic_sampling.max_batches",
    },
    "reward": {"column": "label"},
    "method": {"column": "reward"},
}
"""Section -> old key -> new key, as it is to be written. `reward` is a reward's entry, `method` the arguments of any other method."""

SECTIONS: Mapping[str, str] = {"RolloutSection": "rollout", "SftSection": "stage", "GrpoSection": "stage"}
"""Model of `config.schema` -> section above."""


def renamed(model: str, key: str) -> str | None:
    """The present name of an old key of a model; None where the key was never one."""
    return RENAMED.get(SECTIONS.get(model, ""), {}).get(key)
