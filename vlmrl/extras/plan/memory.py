"""Memory of one rank by part, in bytes: state, working set, activations, tower, head, features and rollout, and the peak of each phase.

tests/unit/extras/plan holds the state, kept activations and the peaks of forward and backward and of a rollout against real models on the
CPU. Shards, buckets, generation with vLLM and slack are counted. Nothing here ran on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.extras.plan import activations as acts
from vlmrl.extras.plan.generation import decoding, kv_token, reading
from vlmrl.extras.plan.host import blocks
from vlmrl.extras.plan.model import count, decoder_layer
from vlmrl.extras.plan.settings import Settings
from vlmrl.extras.plan.state import State, bytes_of, of_muon, state, unpacked

USABLE = 0.9
"""Share of a GPU's memory up to which a plan fits; between this and all of it, it is tight."""
BUCKET = 2**26
"""Numbers that gradients are summed by (`train.dist.sum_gradients`)."""
ZERO_LIVE, ZERO_BUCKET = 10**9, 5 * 10**7
"""DeepSpeed's stage3_max_live_parameters and our reduce_bucket_size (`scale.zero`), in numbers."""
AHEAD = 2
"""Layers that FSDP holds whole at a time: the one that runs and the next."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Forward and backward of the largest row by part, without the state. Not all of it is there at the same time."""

    gathered: int
    """Whole layers under sharding, or what sums gradients without."""
    casts: int
    """16-bit copies of weights that last from forward to backward."""
    cached: int
    """Those that autocast caches until the end of forward."""
    one_layer: int
    """Those of a layer that is recomputed."""
    kept: int
    """What the decoder keeps."""
    layer: int
    """One layer that is recomputed, and gradients on their way through it."""
    tower: int
    """What the tower keeps."""
    block: int
    """One block of the tower that is recomputed, or one chunk."""
    head: int
    """What the log-probs keep."""
    head_forward: int
    head_backward: int
    host: int = 0
    """What waits in the machine's memory for backward; a tensor that several products keep is there once for each, which is not counted."""

    @property
    def moments(self) -> dict[str, int]:
        """Bytes when forward ends, when the head's backward runs, when a decoder layer's does, and when the tower's does."""
        both = self.gathered + self.tower
        decoder = both + self.kept + self.casts
        return {
            "end of forward": decoder + self.cached + self.head + self.head_forward,
            "head": decoder + self.head + self.head_backward,
            "decoder": decoder + self.one_layer + self.layer,
            "tower": both + self.block,
        }

    @property
    def peak(self) -> int:
        """Bytes of the worst moment."""
        return max(self.moments.values())


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    state: State
    training: Pass
    features: int
    """Cached features of media."""
    rollout: int
    update: int
    """What AdamW needs beside the state."""
    shard: int
    """Ranks that share one copy of the state."""
    slack: int
    """What is not tensors."""
    beside: int = 0
    """What vLLM keeps in every phase."""

    @property
    def tensors(self) -> dict[str, int]:
        """Bytes of tensors of one rank in each phase."""
        out = {"forward/backward": self.state.total + self.training.peak, "update": self.state.total + self.update}
        out |= {"rollout": self.state.between + self.rollout} if self.rollout else {}
        return {phase: size + self.features + self.beside for phase, size in out.items()}

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of one rank in each phase."""
        return {phase: size + self.slack for phase, size in self.tensors.items()}

    @property
    def host(self) -> int:
        """Bytes in the machine's memory, for each rank: of activations whole blocks."""
        return self.state.host + blocks(self.training.host)

    @property
    def peak(self) -> int:
        """Bytes of the worst phase."""
        return max(self.phases.values())

    @property
    def worst(self) -> str:
        """The phase of the peak."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def parts(self) -> dict[str, int]:
        """Every part at its largest, for tables; they are not all there at the same time."""
        t = self.training
        return {
            "state": self.state.total,
            "working set": t.gathered + t.casts + max(t.cached, t.one_layer),
            "activations": t.kept + t.layer,
            "tower": t.tower + t.block,
            "head": t.head + max(t.head_forward, t.head_backward),
            "features": self.features,
            "rollout": self.rollout,
        } | ({"vllm": self.beside} if self.beside else {})


def layer_numbers(s: Settings) -> int:
    """Parameters of one decoder layer."""
    return count(decoder_layer(s.shape, 0))


def layer_numbers_of_adapters(s: Settings) -> int:
    """Numbers of the adapters of one decoder layer."""
    return sum(t.count for t in s.parameters.trained if ".language_model.layers.0." in t.name)


def root_numbers(s: Settings) -> int:
    """Parameters outside the layers that FSDP gathers for the whole pass: embedding and head."""
    return s.shape.vocab * s.shape.hidden * (1 if s.shape.tied else 2)


def casts(s: Settings) -> tuple[int, int, int]:
    """16-bit copies of weights under autocast: (bytes that last until backward, bytes that are cached until forward ends, bytes of one
    layer). Those of matrices that train are cached; without recomputation the graph keeps them, and those of matrices of the decoder that
    train in another stage too. What never trains is in 16 bits already, or packed."""
    if not s.numbers.casts:
        return 0, 0, 0
    trained = sum(t.count for t in s.parameters.trained if t.matrix)
    others = sum(t.count for t in s.parameters.frozen if t.matrix and t.part == "language" and s.width(t) == 4)
    return (0, 2 * trained, layer_casts(s)) if s.recompute else (2 * (trained + others), 0, 0)


def layer_casts(s: Settings) -> int:
    """Bytes of the 16-bit copies of one decoder layer's matrices: none of those that never train."""
    if not s.numbers.casts:
        return 0
    return 2 * (layer_numbers(s) if s.language_wide else layer_numbers_of_adapters(s))


def gathered(s: Settings) -> int:
    """Bytes that a pass needs whole: layers, embedding and head under fsdp, buckets of DeepSpeed, or the buffer that sums gradients."""
    c, layer, root = s.numbers.compute, layer_numbers(s), root_numbers(s)
    n = s.parameters.n_trained + s.parameters.n_frozen
    if s.sharding == "fsdp":
        trains = s.language_trains and s.lora is None
        return c * AHEAD * layer + c * root * (2 if trains else 1) + ((c + 4) * layer if trains else 0)
    if s.sharding == "zero3":
        return 4 * (min(n, ZERO_LIVE) + 2 * min(n, ZERO_BUCKET))
    if s.sharding == "zero2":
        return 2 * 4 * min(n, ZERO_BUCKET)
    return 4 * min(BUCKET, s.parameters.n_trained) if s.gpus > 1 else 0


def training(s: Settings) -> Pass:
    """Forward and backward of the largest row. Ranks that share it divide what the decoder keeps; its owner has its media, all of its
    embeddings, and maybe all of its scored tokens, which stand at the end."""
    own, shape, row, numbers = s.language_trains, s.shape, s.row, s.numbers
    full = own and s.lora is None
    kept, live = acts.decoder(shape, row, numbers, backend=s.backend, recompute=s.recompute, trained=own, lora=s.lora if own else None)
    visual, patches = len(row.groups) * s.visual_tokens, len(row.groups) * s.patches
    kept += acts.rotary(shape, row, numbers) + acts.ends(shape, row, numbers, trained=full, visual=visual)
    live += acts.passing(shape, row, numbers)
    if s.backend == "flash":
        live += acts.query_gradients(shape, row, s.gpu.multiprocessors if s.deterministic else 0)
    if s.sequence > 1:
        kept, live = kept // s.sequence + numbers.residual * shape.hidden * row.tokens, live // s.sequence
    tower, block = 0, 0
    if s.vision_trains:
        tower, block = acts.tower(shape, patches, numbers, recompute=s.recompute, blocks=s.vision_blocks, chunk=s.vision_chunk)
        tower += acts.tower_rotary(shape, patches) if s.vision_blocks and s.vision_chunk is None else 0
    lasting, cached, one_layer = casts(s)
    if s.offload_activations and s.sharding in ("none", "ddp"):
        return _offloaded(s, kept=kept, live=live, tower=tower, block=block, casts=(lasting, cached, one_layer))
    return Pass(
        gathered=gathered(s),
        casts=lasting,
        cached=cached,
        one_layer=one_layer,
        kept=kept,
        layer=live + unpacked(s),
        tower=tower,
        block=block,
        head=acts.head(shape, row, numbers),
        head_forward=acts.head_forward(shape, row),
        # under fsdp the gradient of the output matrix is among what is gathered
        head_backward=acts.head_backward(shape, row, numbers, trained=full and s.sharding != "fsdp", wide=s.language_wide),
    )


def _offloaded(s: Settings, *, kept: int, live: int, tower: int, block: int, casts: tuple[int, int, int]) -> Pass:
    """What is left on the GPU of a pass whose activations wait elsewhere: one layer, one block, what recomputed layers hold on to (cosines
    and sines), and the head's, which come back first. Without recomputation 16-bit copies of weights wait there too."""
    shape, row, numbers, full = s.shape, s.row, s.numbers, s.language_trains and s.lora is None
    lasting, cached, one_layer = casts
    stays = acts.rotary(shape, row, numbers) if s.recompute else 0
    if not s.recompute:
        layer = acts.layer_live(
            shape, row, numbers, backend=s.backend, trained=s.language_trains, lora=s.lora if s.language_trains else None
        )
        live += layer // s.sequence
        block += -(-tower // max(1, shape.tower.depth)) if s.vision_trains else 0
        cached = 2 * sum(t.count for t in s.parameters.trained if t.matrix) if numbers.casts else 0
        one_layer = layer_casts(s)
    return Pass(
        gathered=gathered(s),
        casts=0,
        cached=cached,
        one_layer=one_layer,
        kept=stays,
        layer=live + unpacked(s),
        tower=0,
        block=block,
        head=acts.head(shape, row, numbers),
        head_forward=acts.head_forward(shape, row),
        head_backward=acts.head_backward(shape, row, numbers, trained=full, wide=s.language_wide),
        host=kept - stays + tower + lasting,
    )


def features(s: Settings) -> int:
    """Bytes of cached features: those of a step while the tower trains, up to the budget."""
    step = s.prompts * acts.features(s.shape, s.visual_tokens, s.numbers)
    return min(s.vision_cache, step) if s.vision_trains else (s.vision_cache if s.visual_tokens else 0)


def group_kv(s: Settings, tp: int) -> int:
    """Bytes that keys and values of one prompt with all its answers take on each of `tp` GPUs; there are no more parts than key heads."""
    return (s.prompt + s.asked.answers * s.answer) * kv_token(s) // min(tp, s.shape.kv_heads)


def vllm_room(s: Settings, between: int, tp: int) -> float:
    """Bytes left for keys and values beside the trainer's state, the weights and vLLM's own needs, or in the share that vLLM keeps."""
    n = s.parameters.n_trained + s.parameters.n_frozen
    if s.vllm_keeps:
        return s.vllm_keeps * s.gpu.memory - s.slack - 2 * n
    return USABLE * s.gpu.memory - between - features(s) - 2 * s.slack - 2 * n / tp


def tensor_parallel(s: Settings, between: int) -> int:
    """GPUs that share one copy of the weights in vLLM: the fewest of 1, 2, 4, ... in a node that leave room for one group."""
    if s.tp is not None:
        return s.tp
    tp = 1
    while 2 * tp <= s.node and group_kv(s, tp) > vllm_room(s, between, tp):
        tp *= 2
    return tp


def vllm_groups(s: Settings, between: int) -> int:
    """Groups that one replica of vLLM holds at a time: all of its own, or as many as there is room for, but one."""
    tp = tensor_parallel(s, between)
    return max(1, min(s.asked.groups * tp, int(vllm_room(s, between, tp) // group_kv(s, tp))))


def kept(s: Settings) -> int:
    """Bytes of keys and values that episodes keep from turn to turn: of the last prompt and answer of every attempt of a generation batch
    (what attempts share counts for each), and no more than `rollout.kept_bytes`. Those of running answers come on top."""
    if s.engine != "hf" or s.turns == 1:
        return 0
    return min(s.kept_bytes, min(s.asked.groups, s.asked.together) * (s.prompt + s.answer) * kv_token(s))


def rollout(s: Settings, between: int) -> int:
    """Bytes of generation beside the state.

    hf: the policy generates in place: the larger of `reading` prompts and `decoding` answers, keys and values that episodes keep, and
    weights gathered whole (sharded), or cast where they train (autocast; the output matrix too). vllm: 16-bit weights / tp, and keys and
    values of the groups that there is room for; nothing where it keeps its share in all phases.
    """
    if s.engine == "none" or s.vllm_keeps:
        return 0
    n, numbers = s.parameters.n_trained + s.parameters.n_frozen, s.numbers
    if s.engine == "vllm":
        tp = tensor_parallel(s, between)
        return 2 * n // tp + vllm_groups(s, between) * group_kv(s, tp) + s.slack
    whole = {"fsdp": numbers.compute * n, "zero3": bytes_of(s.weights, s.width)}.get(s.sharding, 0)
    return max(reading(s), decoding(s)) + kept(s) + whole + rollout_casts(s) + unpacked(s)


def rollout_casts(s: Settings) -> int:
    """Bytes of the 16-bit copies of weights that the reference engine holds: of what trains, the output matrix among it."""
    if not s.numbers.casts:
        return 0
    own = sum(t.count for t in s.parameters.trained if t.halved and "embed_tokens" not in t.name and "lm_head" not in t.name)
    return 2 * own + (2 * s.shape.vocab * s.shape.hidden if s.language_wide else 0)


def update(s: Settings, degree: int) -> int:
    """Bytes that an update needs beside the state. AdamW's kernel changes everything in place; in shards torch's loop over many tensors
    at once (`foreach`) takes its place, and needs one more set of float32 numbers. With moments of 8 bits tensors go one by one, in place.
    Muon's go one by one too: its step in float32, twice more in 16 bits, and two products of its shorter side with itself."""
    if s.offload != "none" or s.blocks:
        return 0
    if s.optimizer == "muon" and s.sharding in ("none", "ddp"):
        trained = s.parameters.trained
        largest = max((8 * t.count + 4 * min(t.size) ** 2 for t in trained if of_muon(t)), default=0)
        return max(largest, 4 * sum(t.count for t in trained if not of_muon(t)))
    if s.optimizer == "adamw" and s.sharding in ("none", "ddp"):
        return 0
    return 4 * -(-s.parameters.n_trained // degree)


def measured_at(s: Settings, degree: int) -> Memory:
    """Memory under `degree` shards."""
    held = state(s, degree)
    return Memory(
        state=held,
        training=training(s),
        features=features(s),
        rollout=rollout(s, held.between),
        update=update(s, degree),
        shard=degree,
        slack=s.slack,
        beside=round(s.vllm_keeps * s.gpu.memory),
    )


def memory(s: Settings) -> Memory:
    """Memory of one rank. `shard_size: auto` shares the state inside a node where that fits, else over all ranks."""
    if s.sharding in ("none", "ddp"):
        return measured_at(s, 1)
    if s.sharding in ("zero2", "zero3"):
        return measured_at(s, s.gpus)
    if s.shard_size is not None:
        return measured_at(s, min(s.shard_size, s.gpus))
    inside = measured_at(s, s.node)
    return inside if inside.peak <= USABLE * s.gpu.memory or s.gpus == s.node else measured_at(s, s.gpus)
