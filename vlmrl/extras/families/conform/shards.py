"""Weights in shards (P16): an update of two processes with `train.sharding: fsdp` against that of one.

What is tried is the way of training itself (`train.step`), on processes of this machine's CPU that are started for it, in float32. Ranks
have other media and unequal numbers of micro-batches: passes of the model are calls between ranks there, and a rank that made others than
its neighbour would wait for ever or sum what does not belong together. A model of more than `subject.LARGE` parameters is tried as a small
random one after its config, for whether passes agree is a matter of its code and not of its weights.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vlmrl.errors import MediaError, RowError, VlmrlError
from vlmrl.extras.families.conform.check import Check, broken, relative
from vlmrl.extras.families.conform.exact import ANSWERS
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.shelf import Desk, desk_of
from vlmrl.extras.families.conform.subject import LARGE, Tried
from vlmrl.extras.families.shrink import shrunk
from vlmrl.extras.families.tiny import randomise
from vlmrl.policy.pack import Row

RANKS = 2
LIMITS = {"loss": 1e-4, "norm of the gradient": 1e-4, "gradient": 1e-3}
"""Relative, of sums that are made in another order in float32."""
SECONDS = 600.0
"""For both ranks and all cases."""
PATIENCE = 60.0
"""Seconds of one call between the ranks."""
CONTEXT: Any = multiprocessing.get_context("spawn")
"""How their processes start."""


@dataclass(frozen=True)
class Case:
    """One update."""

    layout: str
    copies: bool = False
    """Whether each rank has all shards (`train.shard_size: 1`)."""
    recompute: bool = False

    @property
    def name(self) -> str:
        """In the report."""
        more = [", copies"] * self.copies + [", recomputed"] * self.recompute
        return "".join([self.layout, *more])


CASES = (Case("repeat"), Case("shared_prefix", recompute=True), Case("shared_prefix", copies=True))


@dataclass(frozen=True)
class Held:
    """What a media store says of a key, without frames."""

    argued: Any


@dataclass(frozen=True)
class Job:
    """An update that every process can make."""

    folder: str
    """Of the model."""
    ranks: tuple[tuple[Row, ...], ...]
    """Rows by rank."""
    media: Mapping[str, Held]
    black: Any
    """What the processor makes of a black picture."""
    text: tuple[tuple[int, ...], dict[str, tuple[int, ...]]]
    """Ids and kinds of a prompt without media."""
    end: int

    def get_key(self, key: str) -> Held:
        """As a media store."""
        return self.media[key]

    def render(self, messages: Sequence[Any]) -> str:
        """As a writer of prompts: of the only text that is asked for."""
        del messages
        return ""

    def expand(self, text: str, media: Sequence[Any]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
        """The same."""
        del text, media
        return self.text

    def argue(self, *medium: Any) -> Any:
        """The only medium that is asked for."""
        del medium
        return self.black


@dataclass(frozen=True)
class Update:
    """What came of one."""

    loss: float
    norm: float
    gradient: Mapping[str, np.ndarray]
    """Of all ranks together, by the name of the parameter; what is 0 everywhere is left out."""


def sharded(tried: Tried) -> list[Check]:
    """P16: the loss, the norm and the gradient of two ranks are those of one process that has all rows."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            job = _job(tried, folder)
            one = {case: made(job, case) for case in CASES if not case.copies}
            alone = made(job, CASES[0], [job.ranks[0]])
            found = _of_ranks(job)
        except (*ERRORS, RowError, MediaError, VlmrlError, TimeoutError, OSError, EOFError) as error:
            return [broken("P16", "two ranks", "an update", error)]
    out: list[Check] = []
    for case, ours in found.items():
        theirs = next(update for key, update in one.items() if key.layout == case.layout)
        values = (
            abs(ours.loss - theirs.loss) / abs(theirs.loss),
            abs(ours.norm - theirs.norm) / theirs.norm,
            _gap(ours, theirs),
        )
        out += [Check("P16", case.name, what, value, LIMITS[what]) for what, value in zip(LIMITS, values, strict=True)]
    control = _gap(alone, one[CASES[0]])
    return [*out, Check("P16", CASES[0].name, "control: rows of one rank left out", control, 100 * LIMITS["gradient"], control=True)]


def _gap(ours: Update, theirs: Update) -> float:
    names = sorted(theirs.gradient)
    if sorted(ours.gradient) != names:
        return float("inf")
    pairs = [[torch.from_numpy(one.gradient[name]) for name in names] for one in (ours, theirs)]
    return relative(*pairs)


def _job(tried: Tried, folder: str) -> Job:
    """Media and numbers of micro-batches differ from rank to rank; the model is saved for all of them."""
    from transformers import AutoModelForImageTextToText

    model = tried.subject.model
    if sum(p.numel() for p in model.parameters()) > LARGE:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForImageTextToText.from_config(shrunk(model.config), dtype=torch.float32)
        randomise(model, 1)
    model.save_pretrained(folder)
    desk = desk_of(tried)
    names = [name for name in ("image", "video", "two", "text") if name in tried.prompts and tried.prompts[name].copies == 1]
    rows = [_rows(tried, desk, name, group) for group, name in enumerate(names)]
    *first, last = rows
    return Job(
        folder=folder,
        ranks=(tuple(row for group in first for row in group), tuple(last)),
        media={key: Held(one.argued) for key, one in desk.shelf.kept.items()},
        black=desk.scribe.argue(torch.zeros(1, 64, 64, 3, dtype=torch.uint8).numpy(), "image", None, None),
        text=desk.scribe.expand(desk.scribe.render([{"role": "user", "content": [{"type": "text", "text": "."}]}]), ()),
        end=tried.facts.end_ids[0],
    )


def _rows(tried: Tried, desk: Desk, name: str, group: int) -> list[Row]:
    """Two answers to a prompt."""
    prompt = desk.prompt(tried.asked[name].messages, tried.asked[name].media)
    return [Row(index=2 * group + k, group=group, prompt=prompt, response=ANSWERS[(group + k) % len(ANSWERS)]) for k in range(2)]


def made(job: Job, case: Case, ranks: Sequence[Sequence[Row]] | None = None) -> Update:
    """One update, by this process alone or together with the others."""
    from vlmrl.algo.registries import reducer
    from vlmrl.config.section import OptimSection
    from vlmrl.config.train import TrainSection
    from vlmrl.policy.load import freeze
    from vlmrl.policy.pack import response_mask
    from vlmrl.policy.vision import VisionCache
    from vlmrl.train import dist
    from vlmrl.train.stage.loss import TokenObjective
    from vlmrl.train.stage.sft import negative_log_likelihood
    from vlmrl.train.step import Learner, Minibatch, optimizer_step
    from vlmrl.train.updates import open_engine, recompute

    policy = _policy(job)
    several = dist.world() > 1
    if case.recompute:
        recompute(policy.model)
    section = TrainSection(sharding="fsdp" if several else "ddp", shard_size=1 if several and case.copies else None)
    engine = open_engine(section, policy.device)
    engine.wrap(policy)
    named = freeze(policy, ())
    updates: Any = _Kept(policy, named, engine.updates(policy, named, OptimSection()))
    of_ranks = job.ranks if ranks is None else ranks
    rows = of_ranks[dist.rank()] if several else [row for rows in of_ranks for row in rows]
    learner = Learner(
        policy=policy,
        vision=VisionCache(job, budget_bytes=1 << 28),
        updates=updates,
        named=named,
        max_grad_norm=1e9,
        max_tokens_per_microbatch=max(len(row.prompt.ids) + 2 * len(row.response) for row in job.ranks[0]),
        layout=case.layout,
        checkpointing=case.recompute,
    )
    mask_NT = response_mask(rows) if rows else torch.zeros(0, 1, dtype=torch.bool)
    batch = Minibatch(rows=tuple(rows), adv_NT=torch.ones(mask_NT.shape), mask_NT=mask_NT)
    objective = TokenObjective(loss=negative_log_likelihood, reducer=reducer.bind("token_mean"))
    report = optimizer_step(learner, batch, objective)
    return Update(report.loss, report.grad_norm, updates.gradient)


def _policy(job: Job) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    from vlmrl.extras.families.family import GenericFamily
    from vlmrl.extras.families.generic import placeholders
    from vlmrl.policy.model import ProcessorBundle

    config = AutoConfig.from_pretrained(job.folder, trust_remote_code=False)
    family = GenericFamily(name=config.model_type, config=config, generation=None)
    bundle = ProcessorBundle(
        family=family,
        processor=SimpleNamespace(image_processor=None),
        tokenizer=None,
        patch_size=1,
        merge_size=1,
        temporal_patch_size=1,
        pad_ids=placeholders(config),
        special_ids=frozenset(),
        forbidden_ids=(),
        end_ids=(job.end,),
        fingerprint="",
        writer=job,
    )
    model: Any = AutoModelForImageTextToText.from_pretrained(job.folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
    return family.policy(model.eval(), bundle, device=torch.device("cpu"), compute=torch.float32)


class _Kept:
    """Updates of an engine (`train.updates.Updates`) that keep the gradient and apply nothing."""

    def __init__(self, policy: Any, named: Sequence[tuple[str, Any]], updates: Any):
        self._policy, self._named, self._updates = policy, named, updates
        self.gradient: dict[str, np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._updates, name)

    def finish(self, max_norm: float) -> Any:
        """Every rank gathers all of it."""
        norm = self._updates.finish(max_norm)
        held = {name: p.grad for name, p in self._named if p.grad is not None}
        # an idle pass leaves zeros where there is nothing without it
        whole = {name: self._policy.shards.full(gradient).numpy().copy() for name, gradient in held.items()}
        self.gradient = {name: gradient for name, gradient in whole.items() if gradient.any()}
        return norm

    def apply(self) -> None:
        """Nothing."""


# ---- the processes of the ranks -------------------------------------------------------------------------------------------


def _of_ranks(job: Job) -> dict[Case, Update]:
    """All cases by two processes.

    Raises:
        VlmrlError: a rank failed, with what it said.
        TimeoutError: they did not come to an end.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(RANKS)]
    processes = [CONTEXT.Process(target=_rank, args=(job, rank, port, pipe[1])) for rank, pipe in enumerate(pipes)]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that the end of a process is the end of its pipe
        found = _told([pipe[0] for pipe in pipes])
        for process in processes:
            process.join(PATIENCE)
        return found
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _told(pipes: Sequence[Connection]) -> dict[Case, Update]:
    from multiprocessing.connection import wait

    end = time.monotonic() + SECONDS
    out: dict[Case, Update] = {}
    open_pipes = list(pipes)
    while open_pipes:
        for pipe in wait(open_pipes, timeout=max(0.0, end - time.monotonic())) or _late():
            assert isinstance(pipe, Connection)
            try:
                said = pipe.recv()
            except EOFError:
                said = f"rank {pipes.index(pipe)} ended without a word"
            if isinstance(said, str):
                raise VlmrlError(said)
            out |= said
            open_pipes.remove(pipe)
    return out


def _late() -> Sequence[Connection]:
    raise TimeoutError(f"two ranks did not come to an end in {SECONDS:.0f} s")


def _rank(job: Job, rank: int, port: int, out: Connection) -> None:
    """One of the processes: sends what came of all cases, rank 0 with numbers, or a text with what went wrong."""
    own = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": RANKS,
        "LOCAL_WORLD_SIZE": RANKS,
        "RANK": rank,
        "LOCAL_RANK": rank,
    }
    os.environ |= {name: str(value) for name, value in own.items()} | {"CUDA_VISIBLE_DEVICES": ""}
    from vlmrl.compat import ensure_torchvision
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.train import dist

    ensure_torchvision()
    quiet_transformers()
    torch.set_num_threads(1)
    try:
        dist.start(PATIENCE)
        found = {case: made(job, case) for case in CASES}
        dist.stop()
    except Exception as error:
        out.send(f"rank {rank}: {type(error).__name__}: {error}")
        raise
    out.send(found if rank == 0 else {})
