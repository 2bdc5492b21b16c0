"""Bytes that the forward pass keeps for backward, by part: what torch's saved-tensor hooks see, each storage once.

The functions follow the operations of transformers' Qwen-VL layers and of the packed attention one by one: `x W` keeps x if W trains,
a norm keeps its input and, if its weight trains, the normed values, a gate keeps both of its factors. Which numbers are kept in which
size depends on how the forward runs (`Numbers`). tests/unit/extras/plan/test_plan_activations.py measures them on tiny models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from vlmrl.extras.plan.model import TARGETS, Lora, Shape

INDEX = 8
"""Bytes of an index (int64)."""
CHUNK_ROWS, CHUNK_VOCAB = 2048, 4096
"""Chunks of the output matrix (`policy.head`)."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Bytes of one number, by where it stands."""

    residual: int
    """In the decoder's stream of hidden states."""
    compute: int
    """In products and attention."""
    casts: bool = False
    """Autocast: parameters and the decoder's stream stay float32, and each linear layer keeps a 16-bit copy of its input."""

    @property
    def tower(self) -> int:
        """In the tower's stream: under autocast it starts as the 16-bit output of the patch embedding."""
        return self.compute


FLOAT32, AUTOCAST, BFLOAT16 = Numbers(4, 4), Numbers(4, 2, casts=True), Numbers(2, 2)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One packed row: (prompt tokens, tokens of each answer), group after group, as `policy.pack.layout_of` takes it."""

    groups: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def tokens(self) -> int:
        """Tokens through the model."""
        return sum(prompt + sum(answers) for prompt, answers in self.groups)

    @property
    def scored(self) -> int:
        """Answer tokens."""
        return sum(sum(answers) for _, answers in self.groups)

    @property
    def shared(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Groups with several answers; those with one are ordinary causal rows."""
        return tuple((prompt, answers) for prompt, answers in self.groups if len(answers) > 1)

    @property
    def pairs(self) -> int:
        """Query-key pairs of attention."""
        return sum(p * (p + 1) // 2 + sum(c * p + c * (c + 1) // 2 for c in answers) for p, answers in self.groups)


def rms_norm(width: int, given: int, *, trained: bool) -> int:
    """Bytes per token of an RMS norm over `width` numbers of `given` bytes: a float32 input (a copy if it comes in 16 bits), the inverse
    deviation, and the normed values if the weight trains."""
    return 4 * width + 4 + (given * width if trained else 0)


def layer_norm(width: int, given: int, *, casts: bool) -> int:
    """Bytes per token of a layer norm: its input, mean and inverse deviation. Autocast of CUDA makes the input float32; that of the CPU
    does not, and there a tower of Qwen2-VL or Qwen3-VL keeps 2 bytes less per number."""
    return (4 if casts else given) * width + 8


def linear_input(width: int, readers: int, numbers: Numbers, *, cast: bool = True) -> int:
    """Bytes per token of an input of `width` numbers that `readers` linear layers keep: one copy for each under autocast, else one for
    all. `cast`: whether the input still has to be cast."""
    return numbers.compute * width * (readers if numbers.casts and cast else min(readers, 1))


def decoder_layer(shape: Shape, numbers: Numbers, *, trained: bool = True, lora: Lora | None = None) -> int:
    """Bytes per token of one decoder layer, without what attention keeps (`attention`)."""
    keeps: Collection[str] = lora.targets if lora is not None else TARGETS if trained else ()
    own = trained and lora is None
    h, q, kv, f, c = shape.hidden, shape.q, shape.kv, shape.mlp, numbers.compute
    total = 2 * rms_norm(h, numbers.residual, trained=own)
    total += linear_input(h, sum(t in keeps for t in ("q_proj", "k_proj", "v_proj")), numbers)
    total += linear_input(q, int("o_proj" in keeps), numbers, cast=False)
    if shape.family == "qwen3_vl":
        total += (q + kv) * (4 + (c if own else 0)) + 4 * (shape.heads + shape.kv_heads)
    total += linear_input(h, sum(t in keeps for t in ("gate_proj", "up_proj")), numbers)
    total += 3 * c * f + linear_input(f, int("down_proj" in keeps), numbers, cast=False)
    return total + (c * lora.rank * len(lora.targets) if lora is not None else 0)


# ---- attention over a packed row -----------------------------------------------------------------------------------------


def attention(shape: Shape, row: PackedRow, numbers: Numbers, backend: str) -> int:
    """Bytes that one layer's attention over a packed row keeps. An unknown backend counts as `flash`."""
    return _BACKENDS.get(backend, _flash)(shape, row, numbers.compute)


def _repeated(shape: Shape, row: PackedRow, c: int) -> int:
    """Query, key and value of all tokens, the latter two with the query's number of heads."""
    return 3 * c * shape.q * row.tokens


def _first(shape: Shape, row: PackedRow, c: int) -> int:
    """Output and log-sum-exp of the causal calls: prompts, and whole groups with one answer."""
    tokens = row.tokens - sum(sum(answers) for _, answers in row.shared)
    return tokens * (c * shape.q + 4 * shape.heads)


def _merge(shape: Shape, row: PackedRow, c: int) -> int:
    """Query, key and value of all tokens, output and log-sum-exp. The kernel takes views of the former and shares heads by itself."""
    return row.tokens * (c * (2 * shape.q + 2 * shape.kv) + 4 * shape.heads)


def _two_call(shape: Shape, row: PackedRow, c: int) -> int:
    total = _repeated(shape, row, c) + _first(shape, row, c)
    for prompt, answers in row.shared:
        width = max(answers)
        padded = len(answers) * width
        total += 2 * c * shape.q * padded + 4 * shape.heads * padded
        total += 2 * c * shape.q * len(answers) * (prompt + width) + c * width * (prompt + width)
        total += INDEX * (sum(answers) + 3 * padded)
    return total


def _dense(shape: Shape, row: PackedRow, c: int) -> int:
    return _repeated(shape, row, c) + row.tokens * (c * shape.q + 4 * shape.heads) + c * row.tokens**2


def _flash(shape: Shape, row: PackedRow, c: int) -> int:
    keys = row.tokens + sum(prompt * len(answers) for prompt, answers in row.groups)
    return row.tokens * (2 * c * shape.q + 4 * shape.heads + INDEX) + keys * (2 * c * shape.kv + INDEX)


LONG = 1024
"""Tokens of a prompt from which on it and its answers may have calls of their own in an ordered backward, as in `policy.kernels`."""


def query_gradients(shape: Shape, row: PackedRow, multiprocessors: int) -> int:
    """Bytes of the float32 sums that flash attention's backward makes the queries' gradients from, in the larger of its two calls: prompts
    against themselves, and answers against all that they see. Each sequence has 128 rows more. In a fixed order of summation every share of
    the keys has sums of its own, as many as leave no multiprocessor idle, and a long prompt and its answers may have calls of their own
    (`policy.kernels`); 0 `multiprocessors`: in any order, one for all."""
    prompts = [prompt + (answers[0] if len(answers) == 1 else 0) for prompt, answers in row.groups]
    answers = [tokens for _, of_group in row.shared for tokens in of_group]
    alone = [[n] for prompt, of_group in row.shared for n in (prompt, sum(of_group)) if multiprocessors and prompt >= LONG]
    size = -(-shape.head_dim // 32) * 32
    return max(
        4 * max(1, -(-multiprocessors // (len(queries) * shape.heads))) * (sum(queries) + 128 * len(queries)) * shape.heads * size
        for queries in (prompts, answers, *alone)
        if queries
    )


def _flex(shape: Shape, row: PackedRow, c: int) -> int:
    tokens = -(-row.tokens // 128) * 128
    return tokens * (c * (2 * shape.q + 2 * shape.kv) + 4 * shape.heads)


_BACKENDS: dict[str, Callable[[Shape, PackedRow, int], int]] = {
    "merge": _merge,
    "two_call": _two_call,
    "dense": _dense,
    "flash": _flash,
    "flex": _flex,
}


# ---- the whole decoder ---------------------------------------------------------------------------------------------------


def decoder(
    shape: Shape,
    row: PackedRow,
    numbers: Numbers,
    *,
    backend: str,
    recompute: bool,
    trained: bool = True,
    lora: Lora | None = None,
) -> tuple[int, int]:
    """(bytes kept for all layers from forward to backward, bytes of the one layer that is recomputed)."""
    live = layer_live(shape, row, numbers, backend=backend, trained=trained, lora=lora)
    if recompute:
        return shape.layers * numbers.residual * shape.hidden * row.tokens, live
    return shape.layers * live, 0


def rotary(shape: Shape, row: PackedRow, numbers: Numbers) -> int:
    """Bytes of the cosines and sines, shared by all layers. With recomputation they are arguments that each layer holds on to, which
    saved-tensor hooks do not see."""
    return 2 * shape.head_dim * numbers.residual * row.tokens


def layer_live(shape: Shape, row: PackedRow, numbers: Numbers, *, backend: str, trained: bool = True, lora: Lora | None = None) -> int:
    """Bytes that one decoder layer keeps for a row."""
    return row.tokens * decoder_layer(shape, numbers, trained=trained, lora=lora) + attention(shape, row, numbers, backend)


def ends(shape: Shape, row: PackedRow, numbers: Numbers, *, trained: bool = True, visual: int = 0) -> int:
    """Bytes kept outside the layers, without the head: ids, places of features, the last norm."""
    total = INDEX * row.tokens * trained + row.tokens * rms_norm(shape.hidden, numbers.residual, trained=trained)
    return total + visual * INDEX * (1 + 4 * shape.tower.deepstack)


def head(shape: Shape, row: PackedRow, numbers: Numbers) -> int:
    """Bytes that the log-probs keep: hidden states of scored tokens, targets, log Z, and places; all probabilities where one chunk
    holds them (tiny vocabularies only)."""
    whole = row.scored <= CHUNK_ROWS and shape.vocab <= CHUNK_VOCAB
    return row.scored * (numbers.residual * shape.hidden + 4 * INDEX + 5 + (4 * shape.vocab if whole else 0))


def head_forward(shape: Shape, row: PackedRow) -> int:
    """Bytes of the chunks of logits that the head's forward holds."""
    return 2 * 4 * min(row.scored, CHUNK_ROWS) * min(shape.vocab, CHUNK_VOCAB)


def head_backward(shape: Shape, row: PackedRow, numbers: Numbers, *, trained: bool = True, wide: bool = True) -> int:
    """Bytes that the head's backward holds: a chunk of logits while the next is made (in 16 bits with copies in both types), a chunk of
    the output matrix (under autocast where it is `wide`: kept in 32 bits), the gradient of the hidden states, and if the matrix trains its
    whole gradient, beside that of the micro-batches before."""
    rows, columns = min(row.scored, CHUNK_ROWS), min(shape.vocab, CHUNK_VOCAB)
    next_one = columns if row.scored > CHUNK_ROWS else min(shape.vocab - columns, CHUNK_VOCAB)
    chunk = (4 if numbers.compute == 4 else 6) * rows * (columns + next_one)
    if numbers.compute == 2:
        chunk += (2 * wide if numbers.residual == 4 else 6) * columns * shape.hidden
    return chunk + 4 * row.scored * shape.hidden + (numbers.residual * shape.vocab * shape.hidden if trained else 0)


def passing(shape: Shape, row: PackedRow, numbers: Numbers) -> int:
    """Bytes of gradients on their way through one decoder layer, beside what it keeps."""
    return row.tokens * (numbers.compute * shape.mlp + numbers.residual * shape.hidden)


# ---- the tower -----------------------------------------------------------------------------------------------------------


def vision_block(shape: Shape, numbers: Numbers) -> int:
    """Bytes per patch of one block of the tower. The values hold on to the whole product of query, key and value."""
    h, f, c = shape.tower.hidden, shape.tower.mlp, numbers.compute
    norm = _vision_norm(shape, numbers, h)
    attend = linear_input(h, 1, numbers) + 3 * c * h + 2 * c * h + c * h + 4 * shape.tower.heads + c * h
    return (
        2 * norm
        + attend
        + {"qwen2_5_vl": linear_input(h, 2, numbers) + 4 * c * f}.get(
            shape.family, linear_input(h, 1, numbers) + (3 if shape.family == "qwen2_vl" else 2) * c * f
        )
    )


def _vision_norm(shape: Shape, numbers: Numbers, width: int) -> int:
    if shape.family == "qwen2_5_vl":
        return rms_norm(width, numbers.tower, trained=True)
    return layer_norm(width, numbers.tower, casts=numbers.casts)


def merger(shape: Shape, numbers: Numbers, *, norm: bool = True) -> int:
    """Bytes per patch of a merger: norm, input of the first product, of the gate and of the second product."""
    h, c = shape.tower.hidden, numbers.compute
    return (_vision_norm(shape, numbers, h) if norm else 0) + 3 * c * h


def tower(
    shape: Shape, patches: int, numbers: Numbers, *, recompute: bool, blocks: bool = True, chunk: int | None = None
) -> tuple[int, int]:
    """(bytes kept from forward to backward, bytes of what is recomputed at a time: one block, or one chunk of at most so many patches) of
    a tower that trains; `blocks`: false where only its mergers do."""
    t, c = shape.tower, numbers.compute
    if chunk is not None:
        one = min(chunk, patches)
        live = sum(tower(shape, one, numbers, recompute=recompute, blocks=blocks)) + (tower_rotary(shape, one) if blocks else 0)
        return patches * numbers.residual * shape.hidden // t.merge**2, live
    merged = numbers.residual * shape.hidden + (2 * INDEX if t.window else 0)  # features on their way into the row; window order
    per_patch = merger(shape, numbers) + t.deepstack * merger(shape, numbers, norm=False) + merged // t.merge**2
    if not blocks:
        return patches * per_patch, 0
    per_patch += c * t.pixels
    live = vision_block(shape, numbers)
    if recompute:
        return patches * (per_patch + t.depth * numbers.tower * t.hidden), patches * live
    return patches * (per_patch + t.depth * live), 0


def tower_rotary(shape: Shape, patches: int) -> int:
    """Bytes of the tower's cosines and sines, float32; as `rotary`."""
    return patches * 2 * 4 * (shape.tower.hidden // shape.tower.heads)


def features(shape: Shape, visual: int, numbers: Numbers) -> int:
    """Bytes of the features of `visual` placeholder tokens, as a cache keeps them."""
    return visual * shape.hidden * numbers.compute * (1 + shape.tower.deepstack)
