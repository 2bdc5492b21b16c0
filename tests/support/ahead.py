"""Small runs that sample ahead of their updates, and what is changed or written down in the child that runs them."""

from __future__ import annotations

import copy
import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support import runs

FOLDER = "VLMRL_TEST_AUDIT"
"""Variable that tells `audited` where to write."""


def config(files: tuple[Path, Path], root: Path, staleness: int, **stage: Any) -> dict[str, Any]:
    """The GRPO stage of `runs.small_config` alone, in six steps of two batches, saved after the second and fourth."""
    root.mkdir(parents=True, exist_ok=True)
    out = runs.small_config(*files, root)
    rl: dict[str, Any] = out["stages"][1]
    rl["rollout"] |= {"prompts_per_step": 4, "generation_batch_size": 2, "num_generations": 3, "max_new_tokens": 8, "staleness": staleness}
    rl |= {"steps": 6, "beta": 0.0, "importance_correction": {"name": "tis"}} | stage
    return out | {"eval": {}, "stages": [rl]}


def run(made: Mapping[str, Any], *changes: str, fault: str | None = None, timeout: float = 400) -> int:
    """Run in a child with these functions of this module applied first; its exit code."""
    child: Any = runs._CONTEXT.Process(target=_child, args=(made, fault, changes))
    child.start()
    child.join(timeout)
    if child.is_alive():
        child.kill()
        child.join()
        raise TimeoutError(f"the run did not end within {timeout} s")
    return child.exitcode


def run_ranks(made: Mapping[str, Any], *changes: str, world: int = 2, fault: str | None = None, timeout: float = 400) -> list[int]:
    """The same on several ranks over gloo; their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks: list[Any] = []
    for rank in range(world):
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(runs._CONTEXT.Process(target=_rank, args=(own, made, fault, changes)))
        ranks[-1].start()
    for one in ranks:
        one.join(timeout)
    late = [one for one in ranks if one.is_alive()]
    for one in late:
        one.kill()
        one.join()
    assert not late, f"{len(late)} ranks did not end within {timeout} s"
    return [one.exitcode for one in ranks]


def _rank(own: dict[str, Any], made: Mapping[str, Any], fault: str | None, changes: tuple[str, ...]) -> None:
    os.environ.update({name: str(value) for name, value in own.items()})
    _child(made, fault, changes)


def _child(made: Mapping[str, Any], fault: str | None, changes: tuple[str, ...]) -> None:
    for name in changes:
        globals()[name](Path(made["run"]["root"]))
    runs._run(made, fault)


def lines(made: Mapping[str, Any], name: str) -> list[Any]:
    """What a run wrote down."""
    return [json.loads(line) for line in Path(made["run"]["root"], name).read_text().splitlines()]


def _write(path: Path, value: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


# ---- changes -----------------------------------------------------------------------------------------------------------


def audit(root: Path) -> None:
    """Write down which groups each update trains: id, versions, and a hash of the answers and their scores."""
    from vlmrl.rollout.journal import scored_record
    from vlmrl.train.stage import grpo
    from vlmrl.types import digest

    before = grpo.credit_tokens

    def credit_tokens(algorithm: Any, batch: Any) -> Any:
        groups = [
            [scored.group.id, sorted({r.policy_version for r in scored.group.rollouts}), digest(scored_record(scored, {}))]
            for _, scored in batch.groups
        ]
        _write(root / "trained.jsonl", groups)
        return before(algorithm, batch)

    grpo.credit_tokens = credit_tokens


def without_queue(root: Path) -> None:
    """The order of a step before there was a queue: plan, generate and score it, train it."""
    from vlmrl.train import dist
    from vlmrl.train.pipeline import Pipeline

    def take(self: Any, *, prompts: int, first: int = 0) -> Any:
        stage, collector = self._stage, self.collector
        journal = self.journal(stage.state.step)
        taken = stage.loader.next_batch(stage.state.ledger, prompts=prompts, rollouts=collector.num_generations)
        prompts_ = [(first + place, prompt) for place, _, prompt in taken]
        sizes = [planned.num_generations for _, planned, _ in taken]
        lengths = {prompt.sample.id: stage.state.ledger.row(prompt.sample.id).mean_length or 0.0 for _, prompt in prompts_}
        plan = {"num_generations": sizes, "expected_tokens": lengths}
        with stage.policy.shards.whole():
            collected = dist.run_synchronized(lambda: collector.collect(prompts_, step=stage.state.step, journal=journal, **plan))
        return list(zip([place for place, _ in prompts_], collected.groups, strict=True)), collected

    Pipeline.take = take


def own_weights(root: Path) -> None:
    """An engine with a copy of the policy. Once it has been synchronised it waits for the next update to begin before it generates."""
    from vlmrl.policy.vision import VisionCache
    from vlmrl.rollout.engine_hf import HFEngine
    from vlmrl.run import engines
    from vlmrl.train.stage import grpo

    updating = threading.Event()
    update = grpo.optimizer_step

    def optimizer_step(*given: Any) -> Any:
        updating.set()
        _write(root / "order.jsonl", ["update", threading.current_thread() is threading.main_thread()])
        return update(*given)

    class Copy(HFEngine):
        beside_training = True

        def __init__(self, policy: Any, vision: Any, **options: Any):
            super().__init__(replace(policy, model=copy.deepcopy(policy.model)), VisionCache(vision.pixels, budget_bytes=2**28), **options)
            self.original, self.synced = policy, 0

        def sync(self) -> None:
            assert threading.current_thread() is threading.main_thread()
            updating.clear()
            self.policy.model.load_state_dict(self.original.model.state_dict())
            self.policy.version, self.policy.vision_version = self.original.version, self.original.vision_version
            self.synced += 1

        def generate(self, *given: Any, **more: Any) -> Any:
            main = threading.current_thread() is threading.main_thread()
            if self.synced and not main:
                assert updating.wait(120), "no update began while the engine had something to do"
            _write(root / "order.jsonl", ["generate", main, self.synced])
            return super().generate(*given, **more)

    engines.own_engine = Copy
    grpo.optimizer_step = optimizer_step
