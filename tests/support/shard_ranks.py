"""One update of a tiny model by every training engine, on the ranks of a launcher: rows differ from rank to rank in media and number.

    torchrun --nproc-per-node 2 -m tests.support.shard_ranks FOLDER CASE [control]

Plain gradient descent with a rate of 1 takes the place of AdamW, so that the update is the gradient (times the rate of a part that has
one). Rank 0 writes it to FOLDER/gradients/<case>, and beside it the calls between ranks in the first update and their bytes.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.support import tiny
from tests.support.calls import Calls
from vlmrl.algo.inputs import LossOutput
from vlmrl.algo.registries import reducer
from vlmrl.config.section import OptimSection
from vlmrl.config.train import TrainSection
from vlmrl.extras.scale import fsdp, lockstep
from vlmrl.extras.scale import zero as zero_engine
from vlmrl.extras.scale.sharing import ranks_of, share
from vlmrl.policy.forward import TokenLogprobs
from vlmrl.policy.head import TokenStat
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.precision import settle_types
from vlmrl.policy.vision import VisionCache
from vlmrl.train import dist
from vlmrl.train import replicas as ddp
from vlmrl.train.adamw import PartOf, groups_of
from vlmrl.train.stage.loss import Auxiliary, TokenObjective
from vlmrl.train.stage.sft import negative_log_likelihood
from vlmrl.train.step import Learner, Minibatch, StepReport, optimizer_step
from vlmrl.train.updates import ENGINES, Named, open_engine
from vlmrl.types import PARTS, MediaRef

SHARDINGS: tuple[str, ...] = get_args(TrainSection.model_fields["sharding"].annotation)


@dataclasses.dataclass(frozen=True)
class Case:
    """Kinds of the rows' media by rank, and how they are trained."""

    ranks: tuple[tuple[str, ...], ...]
    budget: int = 10**6
    """Tokens of a micro-batch."""
    freeze: tuple[str, ...] = ()
    recompute: bool = False
    dtype: str = "float32"
    rehearse: bool = False
    offload: str = "none"
    lr: float = 1.0
    then: tuple[tuple[str, ...], ...] = ()
    """Rows of a second update."""
    parts: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Rates of parts; the rate of the others is 1."""
    shard_size: int | None = None
    chunk: int | None = None
    """Bound of the patches of one pass of the tower; one process makes one pass per kind."""
    sequence: int = 1
    """Ranks that share packed rows."""
    engines: tuple[str, ...] = SHARDINGS
    collision: bool = False
    """A loss with a quantity of the logits beside the log-probs."""

    def among(self, shardings: Sequence[str]) -> list[str]:
        """Those that can run it."""
        shardings = [name for name in shardings if name in self.engines]
        return [name for name in shardings if self.offload in ENGINES[name].offloads and (self.sequence == 1 or name in ("ddp", "fsdp"))]


APART = (("image", "video", "two_images", "text"), ("text",))
CASES = {
    "alike": Case((("video", "text"), ("text", "video"))),
    "apart": Case(APART),
    "unequal": Case(APART, budget=60),
    "idle rank": Case((("video", "image"), ())),
    "frozen tower": Case(APART, freeze=("vision", "projector")),
    "only the projector": Case(APART, freeze=("vision", "language")),
    "only the projector and text last": Case((("video", "text"), ("image", "text")), budget=60, freeze=("vision", "language")),
    "recomputed": Case(APART, budget=60, recompute=True),
    "bfloat16": Case(APART, dtype="bfloat16"),
    "bfloat16 and a frozen tower": Case(APART, dtype="bfloat16", freeze=("vision", "projector")),
    "bfloat16 and a frozen decoder": Case(APART, dtype="bfloat16", freeze=("language",)),
    "then text": Case(APART, lr=0.01, then=(("text",), ("text", "text"))),
    "rehearsed": Case(APART, budget=60, rehearse=True),
    "rates of parts": Case(APART, parts={"vision": 0.5, "projector": 2.0}),
    "shared rows": Case(APART, budget=60, sequence=2),
    "shared rows of one rank": Case((("video", "image"), ()), sequence=2, chunk=24, recompute=True),
    "tower by chunks": Case((("image",), ("video", "text")), chunk=24),
    "another quantity of the logits": Case((("video", "image", "text"), ()), budget=60, collision=True),
    "tower by chunks and recomputed": Case((("video", "image"), ("text",)), chunk=24, recompute=True),
}
FOUR = {
    "groups of two": Case((("video",), ("text", "image"), ("image",), ("text",)), shard_size=2),
    "rows shared by two": Case((("video",), ("text", "image"), ("image",), ()), budget=60, sequence=2),
    "rows shared by four": Case((("video",), ("text", "image"), (), ("text",)), sequence=4),
}
OFFLOADED = {
    "moments in the machine's memory": Case(APART, budget=60, rehearse=True, offload="optimizer"),
    "all in the machine's memory": Case(APART, budget=60, rehearse=True, offload="all"),
    "moments in the machine's memory then text": Case(APART, lr=0.01, offload="optimizer", then=(("text",), ("text", "text"))),
    "all in the machine's memory then text": Case(APART, lr=0.01, offload="all", then=(("text",), ("text", "text"))),
}
_EACH = Case(APART, budget=60, shard_size=1, engines=("fsdp",))
COPIES = {
    "copies with media first": replace(_EACH, ranks=(("video", "text", "text"), ("image", "text", "text")), rehearse=True),
    "copies with media last": replace(_EACH, ranks=(("text", "image"), ("text", "video")), offload="all"),
}
ALL = CASES | FOUR | OFFLOADED | COPIES


def make_files(folder: Path, family: Any) -> None:
    """Model, rows and two pictures."""
    _, data = tiny.make_files(folder, sft=2, train=4, test=2, family=family)
    draws = np.random.default_rng(0)
    for name, size in (("a.png", (112, 84)), ("b.png", (56, 112))):
        Image.fromarray(draws.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(data / name)


def units(folder: Path) -> int:
    """Units that FSDP makes of the model: blocks, tower, layers, and the rest."""
    config = json.loads((folder / "model" / "config.json").read_text())
    return config["vision_config"]["depth"] + config["text_config"]["num_hidden_layers"] + 2


def rows_of(world: tiny.Tiny, ranks: Sequence[Sequence[str]]) -> list[list[Row]]:
    """Rows by rank."""
    pictures = {"image": ("a.png",), "two_images": ("a.png", "b.png"), "text": ()}
    out: list[list[Row]] = []
    group = 0
    for kinds in ranks:
        rows: list[Row] = []
        for kind in kinds:
            sample = world.samples[0]
            if kind != "video":
                media = tuple(MediaRef(kind="image", path=name) for name in pictures[kind])
                sample = replace(sample, id=kind, media=media)
            prompt = world.encoder.encode(sample, "think_or_not")
            for k in range(2):
                text = "12.5 red" * (1 + (group + k) % 3)
                rows.append(Row(index=len(rows), group=group, prompt=prompt, response=tuple(world.bundle.tokenize(text))))
            group += 1
        out.append(rows)
    return out


def _descent(named: Named, cfg: OptimSection, *part_of: PartOf, fused: bool = False) -> tuple[torch.optim.Optimizer, list[str]]:
    del fused
    groups = groups_of(named, cfg, *part_of)
    order = [name for group in groups for name in group.pop("names")]
    return torch.optim.SGD(groups, lr=cfg.lr), order


_files = functools.cache(tiny.load)


def _loaded(folder: Path) -> tiny.Tiny:
    """A model of its own, with no features kept; files are read once in a process."""
    world = _files(folder / "model", folder / "world")
    policy = replace(world.policy, model=copy.deepcopy(world.policy.model))
    return replace(world, policy=policy, vision=VisionCache(world.store, budget_bytes=2**28))


def gradient(folder: Path, case: Case, sharding: str) -> tuple[dict[str, torch.Tensor], float, Calls]:
    """What one update subtracts from every weight, on rank 0, the norm of the gradient, and the calls of the first update. One process
    trains on the rows of all ranks."""
    world = _loaded(folder)
    before = {name: value.clone() for name, value in world.policy.state()}
    update = _update(world, case, sharding)
    with Calls() as calls:
        report = update(case.ranks)
    assert report.applied
    if case.then:
        assert update(case.then).applied
    after = {name: value.clone() for name, value in world.policy.state()}
    return {name: before[name] - after[name] for name in before}, report.grad_norm, calls


def updater(folder: Path, case: Case, sharding: str) -> Callable[[], StepReport]:
    """Makes one update at each call, always on the same rows."""
    update = _update(tiny.load(folder / "model", folder / "world"), case, sharding)
    return lambda: update(case.ranks)


def _update(world: tiny.Tiny, case: Case, sharding: Any) -> Callable[[Sequence[Sequence[str]]], StepReport]:
    """Makes an update with rows of these kinds on the ranks."""
    policy = world.policy
    policy.vision_chunk_patches = case.chunk if dist.world() > 1 else None
    policy.compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}[case.dtype]
    trains = [part for part in PARTS if part not in case.freeze]
    settle_types(policy.model, family=policy.bundle.family, compute=policy.compute, trains=trains)
    if case.recompute:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    of_fsdp = sharding == "fsdp"
    several = dist.world() > 1
    size, shared = case.shard_size if of_fsdp else None, case.sequence if several else 1
    offload = case.offload if several else "none"
    section = TrainSection.model_validate({"sharding": sharding, "shard_size": size, "offload": offload, "sequence": shared})
    engine = open_engine(section, policy.device)
    share(policy, ranks_of(section))
    engine.wrap(policy)
    named = freeze(policy, case.freeze)
    updates = engine.updates(policy, named, OptimSection.model_validate({"lr": case.lr, "parts": case.parts}))
    updates.start(None)
    learner = Learner(
        policy=policy,
        vision=world.vision,
        updates=updates,
        named=named,
        max_grad_norm=1e9,
        max_tokens_per_microbatch=case.budget,
        checkpointing=case.recompute,
        rehearse=case.rehearse,
        stats={"collision_BT": TokenStat(lambda logp_MV: (2 * logp_MV).exp().sum(1), gradient=True)} if case.collision else {},
    )
    beside = Auxiliary(name="collision", loss=lambda x: LossOutput(x.need("collision_BT", "collision")), weight=20.0)
    objective = TokenObjective(
        loss=negative_log_likelihood, reducer=reducer.bind("token_mean"), auxiliary=[beside] if case.collision else []
    )

    def update(kinds: Sequence[Sequence[str]]) -> StepReport:
        of_ranks = rows_of(world, kinds)
        rows = of_ranks[dist.rank()] if dist.world() > 1 else [row for rows in of_ranks for row in rows]
        mask_NT = response_mask(rows) if rows else torch.zeros(0, 1, dtype=torch.bool)
        return optimizer_step(learner, Minibatch(rows=tuple(rows), adv_NT=torch.ones(mask_NT.shape), mask_NT=mask_NT), objective)

    return update


def _without_idle_passes(control: str) -> None:
    """Break lockstep: idle passes of the tower left out, or made behind the language model."""

    def forward(turn: Any, layout: Any, policy: Any, batch: Any, *, train: bool, **options: Any) -> Any:
        def run() -> tuple[torch.Tensor, ...]:
            logp_BT, *others = layout.forward(policy, batch, turn.media, train=train, **options).tensors()
            zeros = [lockstep._idle_pass(policy, train=train) for _ in range(turn.idle)] if control == "behind" else []
            return logp_BT + sum(zeros), *others

        return TokenLogprobs.of(policy.shards.run(run), options.get("stats", {}))

    lockstep.RankPass.forward = forward


def main(folder: Path, names: Sequence[str], control: str | None = None, zero: Collection[str] | None = None) -> None:
    """`control`: `<what is broken>/<engine>`. `zero`: the cases that the engines of DeepSpeed run too; None: all."""
    dist.start()
    torch.use_deterministic_algorithms(True, warn_only=True)
    for module in (ddp, fsdp, zero_engine):
        module.make_optimizer = _descent  # pyright: ignore[reportPrivateImportUsage]
    shardings = SHARDINGS if dist.world() > 1 else ("ddp",)
    if control is not None:
        broken, engine = control.split("/")
        shardings = (engine,)
        _without_idle_passes(broken)
    for name in names:
        own = shardings if zero is None or name in zero else [one for one in shardings if not one.startswith("zero")]
        for sharding in own if dist.world() == 1 else ALL[name].among(own):
            found, norm, calls = gradient(folder, ALL[name], sharding)
            if dist.is_main():
                out = folder / "gradients" / f"{name} {sharding} {dist.world()}.safetensors"
                out.parent.mkdir(exist_ok=True)
                save_file(found | {"norm": torch.tensor(norm)}, out)
                out.with_suffix(".json").write_text(json.dumps([[*key, number, calls.bytes[key]] for key, number in calls.calls.items()]))
    dist.stop()


if __name__ == "__main__":
    import tests.support.preload  # noqa: F401

    main(Path(sys.argv[1]), sys.argv[2].split(","), *sys.argv[3:])
