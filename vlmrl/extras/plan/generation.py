"""Memory of generation by the reference engine beside the weights, in bytes: while it reads prompts, and while it decodes answers.

tests/unit/extras/plan/test_plan_rollout.py holds both against all bytes that are alive on a CPU. Media are not counted: their features are
cached (`memory.features`), and the tower's own pass is not.
"""

from __future__ import annotations

import math

from vlmrl.extras.plan.activations import INDEX
from vlmrl.extras.plan.settings import Settings

PREFILL = 32768
"""Prompt tokens that one pass reads (`rollout.engine_hf`)."""
ROOM = 64
"""Tokens of an answer that there is room for at first (`rollout.grid`)."""


def running(s: Settings) -> int:
    """Prompts whose answers decode at a time on one rank."""
    return max(1, min(together(s), s.asked.running // s.asked.answers))


def together(s: Settings) -> int:
    """Prompts of one call of the engine."""
    return min(s.asked.groups, s.asked.together)


def kv_token(s: Settings) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * s.numbers.compute * s.shape.layers * s.shape.kv


def drawn(s: Settings) -> int:
    """Bytes of uniforms, ids and log-probs of all answers of a call."""
    return together(s) * s.asked.answers * s.answer * (8 + INDEX + 4)


def reading(s: Settings) -> int:
    """Bytes while prompts are read: their keys and values and what a pass holds, beside the caches of the prompts that are there, with the
    first rooms of their answers, or with whole ones where prompts come in for others that have ended."""
    held, token = running(s), kv_token(s)
    room = s.answer if held < together(s) else min(ROOM, s.answer)
    most = max(1, min(held, PREFILL // s.prompt))
    before = s.prompt + s.asked.answers * room
    return drawn(s) + max((held - new) * before * token + new * s.prompt * (token + pass_token(s)) for new in (1, most))


def pass_token(s: Settings) -> int:
    """Bytes that a pass over prompts holds for each token beside keys and values, at its worst moment: embeddings, the stream before and
    behind attention and normed values, with three of the gate (with adapters also a product that theirs is added to) or with attention's
    own; cosines and sines, ids and positions."""
    shape, numbers = s.shape, s.numbers
    c, stream = numbers.compute, numbers.residual * shape.hidden
    gate = 4 * stream + (4 if s.lora is not None and "up_proj" in s.lora.targets else 3) * c * shape.mlp
    attend = 3 * stream + 6 * c * shape.q + (4 * (shape.q + shape.kv) if numbers.casts else 0)
    return max(gate, attend) + 2 * shape.head_dim * numbers.residual + 8 * INDEX


def decoding(s: Settings) -> int:
    """Bytes while answers decode: all keys and values, and the most of one layer's attention, drawing a token, and the rooms of one layer
    that are doubled for the last time."""
    held, answers = running(s), s.asked.answers
    cache = held * (s.prompt + answers * s.answer) * kv_token(s)
    grown = held * answers * last_room(s.answer) * kv_token(s) // s.shape.layers
    # logits and log-probs in float32, probabilities and their running sums in float64
    draw = held * answers * s.shape.vocab * (2 * 4 + 2 * 8)
    return drawn(s) + cache + max(attention(s), grown, draw)


def attention(s: Settings) -> int:
    """Bytes that one layer's attention of one token holds: float32 scores of prompts and answers twice, or once beside a float32 copy of
    the answers' keys where these have 16 bits."""
    rows = 4 * running(s) * s.asked.answers
    scores = rows * s.shape.heads * (s.prompt + s.answer)
    keys = rows * s.shape.kv * s.answer if s.numbers.compute == 2 else 0
    return scores + max(scores, keys)


def last_room(answer: int) -> int:
    """Tokens of the room that is left for the last one, of `answer` tokens; 0 if there is one alone."""
    return 0 if answer <= ROOM else ROOM * 2 ** (math.ceil(math.log2(answer / ROOM)) - 1)
