"""What a step of episodes has to compute, counted: tokens through the decoder and pictures through the tower, on each side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counted:
    """What passes through the decoder and the tower in one step with one prompt group."""

    rollout: int
    """Tokens that are read; those that are drawn are the same on all sides."""
    update: int
    rollout_pictures: int
    update_pictures: int


def counted(side: str, *, prompt: int, answer: int, observation: int, turns: int, group: int) -> Counted:
    """Tokens of the first prompt, of an answer, and between two answers; on the sides `trl`, `trl-vllm`, `anew` and `kept`.

    The last token of an answer is drawn and not read, so a past that is kept leaves it to the next turn. TRL reads the first prompt once
    for each answer, and cuts and encodes all pictures of an attempt in every turn. Of `trl-vllm` the rollout is the least: that of a past
    which is kept to the token, and vLLM keeps whole blocks.
    """
    lengths = [prompt + t * (answer + observation) for t in range(turns)]
    whole = lengths[-1] + answer
    if side == "trl":
        return Counted(group * sum(lengths), group * whole, group * turns * (turns + 1) // 2, group * turns)
    pictures = 1 + group * (turns - 1)
    if side == "anew":
        rows = prompt + group * answer + group * sum(n + answer for n in lengths[1:])
        return Counted(prompt + group * sum(lengths[1:]), rows, pictures, pictures)
    read = prompt + group * (turns - 1) * (observation + 1)
    if side == "trl-vllm":
        return Counted(read, group * whole, pictures, group * turns)
    return Counted(read, prompt + group * (whole - prompt), pictures, pictures)
