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


MOVED: Mapping[str, Mapping[str, str]] = {
    "stage": {"average": "arguments of the method that needs an averaged reference (`every`, `decay`)"},
}
"""Section -> old key -> where its values are now."""


def renamed(model: str, key: str) -> str | None:
    """What to say of an old key of a model: `is now called 'x'`; None where the key was never one."""
    section = SECTIONS.get(model, "")
    if key in RENAMED.get(section, {}):
        return f"is now called '{RENAMED[section][key]}'"
    moved = MOVED.get(section, {}).get(key)
    return None if moved is None else f"is gone: its values are now {moved}"
