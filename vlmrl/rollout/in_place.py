"""What engines share that generate with the training policy in place: its version, its weights on every rank, and what they count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

SLOTS = 256
"""Answers that decode at a time, at most."""
Done = Callable[[int, list[Rollout]], None]
"""Called with a request's number and rollouts as soon as its last answer has ended."""


class InPlace:
    """Generates with the training policy: weights are always current, and `version` is the policy's."""

    def __init__(self, policy: Policy, vision: VisionCache, max_num_seqs: int):
        """`max_num_seqs`: most answers that decode at a time."""
        self.policy = policy
        self.vision = vision
        self.max_num_seqs = max_num_seqs
        self.prefilled_prompts = 0
        self.prefilled_tokens = 0
        self.kept_tokens = 0
        self.decoded_steps = 0

    @property
    def version(self) -> int:
        return self.policy.version

    def close(self) -> None:
        """Nothing to release: the policy belongs to the trainer."""

    def ready(self) -> AbstractContextManager[None]:
        """Gather all weights on every rank, so that no rank asks another for weights, and each generates as many tokens as it likes."""
        return self.policy.shards.whole()

    def probes(self, temperature: float) -> list[tuple[Prompt, Rollout]]:
        """Give no probes: the weights are the trainer's own."""
        del temperature
        return []

    def rehearse(self, requests: Sequence[Request], settings: GenerationSettings) -> None:
        """Take the memory that generation takes at most, of as many of these requests as run together, if each answer is as long as it may
        be; for a few tokens, of which nothing is kept or counted. Does nothing where caches are those of the model's own code."""

    @property
    def counts(self) -> Mapping[str, Callable[[], float]]:
        """Counts of prompts that were prefilled, of their tokens that were read and that a session had kept, and of decoding steps, each a
        token of all running answers."""
        return {
            "work/prefilled_prompts": lambda: self.prefilled_prompts,
            "work/prefilled_tokens": lambda: self.prefilled_tokens,
            "work/kept_tokens": lambda: self.kept_tokens,
            "work/decode_steps": lambda: self.decoded_steps,
        }
