"""Time of one step by phase, in seconds: operations over the GPU's rate, bytes over its links. All of it is counted, nothing measured.

Treat a factor of 1.5 as noise: the share of the rate that products reach is a goal (`UTILISATION`), stragglers are left out, and so are
the decoding of media and the waiting for rewards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlmrl.extras.plan.activations import PackedRow
from vlmrl.extras.plan.generation import kv_token, running
from vlmrl.extras.plan.memory import Memory, tensor_parallel, vllm_groups
from vlmrl.extras.plan.model import decoder_layer, tensors, vision_block
from vlmrl.extras.plan.settings import Settings
from vlmrl.extras.plan.state import bytes_of, nf4

READ = 0.7
"""Share of the memory's bandwidth that decoding reaches."""
HIDDEN = 0.9
"""Share of the computing time behind which gathering can hide, and of the traffic that can hide at all."""
FRAME = 1024
"""Patches of a temporal step, for attention of the tower."""
KERNELS, LAUNCH = 80, 8e-6
"""Kernels of one layer and token in the reference engine (counted with a tiny model) and seconds for each (an estimate)."""
VLLM_STEP = 8e-3
"""Least seconds of a decoding step in vLLM (an estimate)."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds of a step by phase."""

    prefill: float
    decode: float
    sync: float
    score: float
    forward_backward: float
    traffic: float
    """Shard traffic, all of it."""
    exposed: float
    """Of that what does not hide behind computing."""
    tokens: int
    """Tokens of a step on one rank that go through training."""

    @property
    def phases(self) -> dict[str, float]:
        """Seconds that add up to the step."""
        return {
            "rollout": self.prefill + self.decode + self.sync,
            "score": self.score,
            "forward/backward": self.forward_backward,
            "shard traffic": self.exposed,
        }

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return sum(self.phases.values())

    @property
    def dominates(self) -> str:
        """The longest phase."""
        return max(self.phases, key=lambda name: self.phases[name])


def decoder_ops(s: Settings, row: PackedRow) -> float:
    """Operations of one forward pass of the decoder's layers: 2 per weight and token, 4 q per layer and pair of attention."""
    weights = s.shape.layers * sum(t.count for t in decoder_layer(s.shape, 0) if t.matrix)
    return 2.0 * weights * row.tokens + 4.0 * s.shape.layers * s.shape.q * row.pairs


def head_ops(s: Settings, scored: int) -> float:
    """Operations of the output matrix for `scored` tokens."""
    return 2.0 * s.shape.hidden * s.shape.vocab * scored


def tower_ops(s: Settings, patches: int) -> float:
    """Operations of one forward pass of the tower: 2 per weight and patch (mergers: per merged token), 4 h per pair of attention."""
    t = s.shape.tower
    block = sum(x.count for x in vision_block(s.shape, 0) if x.matrix)
    mergers = sum(x.count for x in tensors(s.shape) if x.part == "projector" and x.matrix)
    frame = min(patches, FRAME)
    window = min(frame, (t.window // t.patch) ** 2) if t.window else frame
    keys = t.full * frame + (t.depth - t.full) * window if t.window else t.depth * frame
    return 2.0 * patches * (t.depth * block + t.pixels * t.hidden + mergers / t.merge**2) + 4.0 * t.hidden * patches * keys


def rate(s: Settings) -> float:
    """Operations per second that are counted on."""
    return s.utilisation * (s.gpu.bf16 if s.dtype == "bfloat16" else s.gpu.fp32)


def training_ops(s: Settings) -> float:
    """Operations of forward and backward of a step on one rank.

    Backward is twice forward, or once where weights are frozen (gradients of inputs only); recomputation adds one forward, and chunks of
    the tower one more of it. The head makes its logits again in backward. A frozen tower costs nothing: its features are cached.
    """
    trained = s.language_trains and s.lora is None
    again, chunked = int(s.recompute), int(s.vision_chunk is not None)
    total = 0.0
    for row in s.rows:
        total += decoder_ops(s, row) * ((3 if trained else 2) + again)
        total += head_ops(s, row.scored) * (4 if trained else 3)
        if s.vision_trains:
            # of the ranks that share rows one encodes, and the others wait
            total += s.sequence * tower_ops(s, len(row.groups) * s.patches) * (((3 + again) if s.vision_blocks else 1) + chunked)
    return total


def scoring_ops(s: Settings) -> float:
    """Operations of the passes for old and reference log-probs."""
    total = sum(decoder_ops(s, row) + head_ops(s, row.scored) for row in s.rows)
    if s.vision_trains:
        total += s.sequence * s.prompts * tower_ops(s, s.patches)
    return s.passes * total


def prefill(s: Settings) -> float:
    """Seconds to read the prompts of a step once, their media included while the tower trains. Of episodes those of every turn, or of the
    last one where the engine keeps what it has read."""
    if s.engine == "none":
        return 0.0
    once = s.grows and (s.engine == "vllm" or s.kept_bytes > 0)
    one = decoder_ops(s, PackedRow(((s.prompt, ()),))) + (tower_ops(s, s.patches) if s.vision_trains else 0.0)
    return s.asked.groups * (1 if once else s.turns) * one / rate(s)


def weight_bytes(s: Settings) -> int:
    """Bytes read for the weights in one decoding step of the reference engine: of those that train 16-bit copies, made once in a rollout
    under autocast; those that never train as they are kept. What is in 32 bits for another stage is cast in every step (read in 32 bits,
    written and read again in 16), and what is in 4 bits made anew (in 32 bits, from there in 16)."""
    p, c = s.parameters, s.numbers.compute
    if not s.numbers.casts and s.quantize == "none":
        return c * (p.n_trained + p.n_frozen)
    out = c * p.n_trained
    for t in p.frozen:
        if s.quantize != "none" and t.quantised:
            out += nf4(t) + (4 + 4 + (2 * c if c != 4 else 0)) * t.count
        else:
            out += (8 if c != 4 and t.matrix and s.width(t) == 4 else c) * t.count
    return out


def decode(s: Settings, memory: Memory) -> float:
    """Seconds to generate the answers of a step, each `answer` tokens long, turn after turn. vLLM reads a prompt's keys and values once
    per answer, the reference engine once per prompt, its keys through a float32 copy."""
    if s.engine == "none":
        return 0.0
    bandwidth = READ * s.gpu.bandwidth
    if s.engine == "vllm":
        n = s.parameters.n_trained + s.parameters.n_frozen
        tp, held = tensor_parallel(s, memory.state.between), vllm_groups(s, memory.state.between)
        read = held * s.asked.answers * (s.prompt + s.answer / 2) * kv_token(s) / min(tp, s.shape.kv_heads)
        waves = math.ceil(s.asked.groups * tp / held)
        return s.turns * waves * s.answer * (max(VLLM_STEP, 2 * n / tp / bandwidth) + read / bandwidth)
    prompts = running(s)
    copies = 3.0 if s.numbers.compute == 2 else 1.0  # values 2 bytes; keys 2, and 4 written and read
    held = prompts * (s.prompt + s.asked.answers * s.answer / 2) * kv_token(s) * copies
    step = max(KERNELS * LAUNCH * s.shape.layers, weight_bytes(s) / bandwidth) + held / bandwidth
    return s.turns * math.ceil(s.asked.groups / prompts) * s.answer * step


def link(s: Settings, ranks: int) -> float:
    """Bytes per second of a collective over `ranks` neighbouring ranks, for each."""
    return s.gpu.link if ranks <= s.gpus_per_node else min(s.gpu.link, s.network)


def between_copies(s: Settings, degree: int) -> float:
    """Bytes that a rank sends to sum gradients over whole copies of the weights, each on `degree` ranks: once a step, after the last
    micro-batch; of the tower once for each of its chunks there."""
    copies = s.gpus // degree
    numbers = s.parameters.n_trained
    if s.vision_trains:
        numbers += sum(t.count for t in s.parameters.trained if t.part != "language") * (s.tower_passes(s.rows[-1]) - 1)
    return 8 * numbers / degree * (copies - 1) / copies


def traffic(s: Settings, memory: Memory) -> tuple[float, float]:
    """(seconds of shard traffic that may hide behind computing, seconds that cannot) of a step.

    fsdp, zero3: the weights are gathered for forward and for backward of each micro-batch and each scoring pass, and once for the
    reference engine; gradients are reduced per micro-batch in float32. The tower's are so for each of its chunks, and gathered once more
    to recompute it. Ranks that share rows make every pass once for each of them, and exchange queries, keys, values and outputs. Between
    nodes that hold whole copies, gradients are summed once (`between_copies`). ddp sums all gradients once, after the last backward.
    Offloading moves gradients down and weights up once; activations that wait in the machine's memory go down and up with each row.
    """
    p, c, degree = s.parameters, s.numbers.compute, memory.shard
    n, batches = p.n_trained + p.n_frozen, s.sequence * len(s.rows)
    whole = c * n if s.sharding == "fsdp" else bytes_of(s.weights, s.width)
    c = c if s.sharding == "fsdp" else 4  # DeepSpeed's weights that train and gradients are float32
    share, fast = (degree - 1) / degree, link(s, degree)
    hides, stays = 0.0, 0.0
    if s.sharding in ("fsdp", "zero3"):
        gathers = 2 * batches + s.passes * batches + (1 if s.engine == "hf" else 0)
        hides += whole * gathers * share / fast
        hides += 4 * p.n_trained * batches * share / fast
        if s.vision_trains and s.vision_chunk is not None:
            visual, passes = (
                sum(t.count for t in tensors(s.shape) if t.part != "language"),
                s.sequence * sum(s.tower_passes(row) for row in s.rows),
            )
            hides += visual * (c * (3 * passes - 2 * batches) + 4 * (passes - batches)) * share / fast
        hides += between_copies(s, degree) / link(s, s.gpus)
    elif s.sharding == "zero2":
        hides += c * p.n_trained * batches * share / fast
        stays += c * p.n_trained * share / fast
    elif s.gpus > 1:
        stays += 8 * p.n_trained * (s.gpus - 1) / s.gpus / link(s, s.gpus)
    if s.sequence > 1:
        passes, heads = 2 + int(s.recompute) + s.passes, 2 * s.shape.q + 2 * max(s.shape.kv, s.sequence * s.shape.head_dim)
        moved = sum(row.tokens for row in s.rows) * s.shape.layers * heads * s.numbers.compute
        stays += passes * moved * (s.sequence - 1) / s.sequence / link(s, s.sequence)
    if s.offload != "none":
        stays += 8 * p.n_trained / degree / s.gpu.host
    if s.offload == "all" and s.sharding in ("fsdp", "zero3"):
        hides += bytes_of(s.weights, s.width) / degree * 2 * batches / s.gpu.host
    stays += 2 * memory.training.host * sum(row.tokens for row in s.rows) / s.row.tokens / s.gpu.host
    return hides, stays


def time(s: Settings, memory: Memory) -> Time:
    """Seconds of a step by phase."""
    training, scoring = training_ops(s) / rate(s), scoring_ops(s) / rate(s)
    hides, stays = traffic(s, memory)
    computing = HIDDEN * (training + scoring)
    exposed = stays + (1 - HIDDEN) * hides + max(0.0, HIDDEN * hides - computing)
    n = s.parameters.n_trained + s.parameters.n_frozen
    return Time(
        prefill=prefill(s),
        decode=decode(s, memory),
        sync=2 * n / link(s, s.gpus) if s.engine == "vllm" else 0.0,
        score=scoring,
        forward_backward=training,
        traffic=hides + stays,
        exposed=exposed,
        tokens=sum(row.tokens for row in s.rows),
    )
