"""train.pipeline: which weights a step samples from, what happens at the same time, and what a checkpoint holds of it. Without a model."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.errors import CheckpointError, ConfigError, NumericsError, RemoteError, RowError
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.guide import GuidedCollector
from vlmrl.rollout.journal import Journal
from vlmrl.rollout.strategy.hint import sage
from vlmrl.rollout.strategy.plain import plain
from vlmrl.sampling.ledger import Ledger
from vlmrl.train import dist, pipeline
from vlmrl.train.manifest import write_manifest
from vlmrl.train.memory_ledger import MemoryLedger
from vlmrl.train.meter import Clock
from vlmrl.train.pipeline import IN_FLIGHT, Pipeline
from vlmrl.types import GenerationSettings, PlannedPrompt, Prompt, Rollout, ScoredGroup, Scores
from vlmrl.zoo.sampling.replay import replay

PROMPT = group([], sample(id="a"), "answer_only").prompt
SAMPLES = {f"s{n}": replace(PROMPT.sample, id=f"s{n}") for n in range(40)}


def write(queue: Pipeline, folder: Path) -> None:
    for name, raw in queue.save().items():
        (folder / name).write_bytes(raw)
    write_manifest(folder, {})


class Stage:
    """What a pipeline needs of a stage. Samples are planned one after the other; `said` is what has happened."""

    def __init__(self, folder: Path, *, steps: int = 6):
        self.folder, self.said = folder, list[str]()
        self.cfg = SimpleNamespace(name="rl", steps=steps)
        self.state = SimpleNamespace(step=0, global_step=0, ledger=Ledger())
        self.policy = SimpleNamespace(version=0, shards=SimpleNamespace(whole=nullcontext))
        self.learner = SimpleNamespace(vision=SimpleNamespace(get_ready=lambda policy: None), memory=MemoryLedger(), rehearse_rollout=False)
        self.clock = Clock()
        self.loader = SimpleNamespace(next_batch=self.next_batch, samples=SAMPLES, answer_format="", encoder=SimpleNamespace(encode=encode))
        self.planned = 0
        self.ended = False

    def next_batch(self, ledger: Ledger, *, prompts: int, rollouts: int) -> list[Any]:
        names = [f"s{self.planned + n}" for n in range(prompts)]
        self.planned += prompts
        return [(n, PlannedPrompt(sample_id=name, num_generations=2), encode(SAMPLES[name], "")) for n, name in enumerate(names)]

    def timed_loader(self, step: int) -> Any:
        self.said.append(f"plan {step} at {self.state.step}")
        return nullcontext()

    def score(self, group: Any, *, step: int) -> ScoredGroup:
        rewards = tuple((float(step),) for _ in group.rollouts)
        return ScoredGroup(group=group, scores=Scores(columns=("r",), weights=(1.0,), rewards_GK=rewards))

    def train(self) -> None:
        self.said.append(f"train {self.state.step}")
        self.state.step += 1
        self.state.global_step += 1
        self.policy.version += 1


def encode(one: Any, answer_format: str) -> Prompt:
    return replace(PROMPT, sample=one)


class Engine:
    def __init__(self, stage: Stage):
        self.stage, self.fails = stage, False

    @property
    def version(self) -> int:
        return self.stage.policy.version

    def generate(self, requests: Any, settings: Any, done: Any = None) -> Any:
        if self.fails:
            raise NumericsError("logits not finite")
        self.stage.said.append(f"generate with {self.version}")
        for number, request in enumerate(requests):
            done(
                number,
                [Rollout(k=k, ids=(1,), logprobs=(-0.5,), text=str(k), finish="stop", policy_version=self.version) for k in request.ks],
            )
        return []

    @property
    def counts(self) -> dict[str, Any]:
        return {}

    def ready(self) -> Any:
        return nullcontext()

    def probes(self, temperature: float) -> list[Any]:
        return []

    def close(self) -> None: ...


def make(stage: Stage, staleness: int, *, engine: Any = None, strategy: Any = None, kind: Any = Collector, **more: Any) -> Pipeline:
    collector = kind(
        engine=engine or Engine(stage),
        strategy=strategy or plain(),
        score=lambda group, step: stage.score(group, step=step),
        say=stage.said.append,
        tokenize=lambda text: [],
        settings=GenerationSettings(max_new_tokens=4),
        num_generations=2,
        generation_batch_size=2,
        seed=1,
        stage="rl",
        **({"encode": encode} if kind is GuidedCollector else {}),
    )
    more = {"journal": stage.folder, "where_to_go_on": lambda: "go on"} | more
    return Pipeline(stage, collector, staleness=staleness, **more)  # pyright: ignore


def versions(groups: Any) -> list[int]:
    return sorted({r.policy_version for _, scored in groups for r in scored.group.rollouts})


def ids(groups: Any) -> list[str]:
    return [scored.group.id for _, scored in groups]


@pytest.mark.parametrize("staleness", [0, 1, 4, 9])
def test_in_lock_step_every_group_once(staleness: int, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    queue = make(stage, staleness)
    seen: list[str] = []
    for step in range(6):
        groups, _ = queue.take(prompts=3)
        assert versions(groups) == [max(0, step - staleness)]
        assert [place for place, _ in groups] == [0, 1, 2]
        assert all(scored.scores.rewards_GK[0] == (float(step),) for _, scored in groups), "progress is that of the step"
        seen += ids(groups)
        stage.train()
    assert seen == [f"rl/{step}/{place}/s{step * 3 + place}" for step in range(6) for place in range(3)]
    assert [line for line in stage.said if line.startswith("plan")] == [f"plan {t} at {max(0, t - staleness)}" for t in range(6)]


def test_without_staleness_nothing_is_in_flight_between_steps(tmp_path: Path) -> None:
    stage = Stage(tmp_path, steps=2)
    queue = make(stage, 0)
    for _ in range(2):
        queue.take(prompts=2)
        stage.train()
    assert stage.said == ["plan 0 at 0", "generate with 0", "train 0", "plan 1 at 1", "generate with 1", "train 1"]
    assert queue.save() == {}


@pytest.mark.parametrize("staleness", [1, 2])
def test_scores_are_awaited_while_later_steps_are_sampled_and_trained(staleness: int, tmp_path: Path) -> None:
    """A step's score waits until `staleness` later steps are sampled; without a queue that would never be."""
    stage = Stage(tmp_path)
    queue = make(stage, staleness)
    sampled = [threading.Event() for _ in range(6)]
    plain_score = stage.score
    engine: Any = queue.collector.engine
    generate = engine.generate

    def score(group: Any, *, step: int) -> ScoredGroup:
        assert sampled[min(step + staleness, 5)].wait(30)
        return plain_score(group, step=step)

    def generated(*given: Any) -> Any:
        out = generate(*given)
        sampled[int(given[0][0].prompt.sample.id[1:]) // 2].set()
        return out

    stage.score, engine.generate = score, generated
    for _ in range(6):
        queue.take(prompts=2)
        stage.train()


def test_more_groups_for_a_step_without_staleness_only(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "0")
    queue = make(stage, 0)
    first, _ = queue.take(prompts=2)
    more, _ = queue.take(prompts=1, first=2)
    assert [place for place, _ in more] == [2]
    assert ids(first + more) == ["rl/0/0/s0", "rl/0/1/s1", "rl/0/2/s2"]
    with pytest.raises(ValueError, match="the weights that sampled it are gone"):
        make(Stage(tmp_path / "1"), 1).take(prompts=2, first=2)


def test_strategies_that_need_what_comes_later_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples again once it knows the rewards"):
        make(Stage(tmp_path), 1, strategy=sage(), kind=GuidedCollector)
    with pytest.raises(ConfigError, match="its memory of all steps before"):
        make(Stage(tmp_path), 1, strategy=replay())
    make(Stage(tmp_path), 0, strategy=replay())


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_fault_of_the_engine_names_its_step(staleness: int, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    queue = make(stage, staleness)
    queue.take(prompts=2)
    stage.train()
    queue.collector.engine.fails = True  # pyright: ignore
    with pytest.raises(NumericsError, match=f"stage 'rl', step {2 + staleness}: logits not finite; go on"):
        queue.take(prompts=2)


class Own(Engine):
    """With weights of its own. In a thread it generates only once `free` is set."""

    beside_training = True

    def __init__(self, stage: Stage):
        super().__init__(stage)
        self.own, self.free, self.busy = 0, threading.Event(), False

    @property
    def version(self) -> int:
        return self.own

    def sync(self) -> None:
        assert not self.busy, "its weights change while it generates"
        self.own = self.stage.policy.version

    def generate(self, requests: Any, settings: Any, done: Any = None) -> Any:
        self.busy = True
        assert self.free.wait(30)
        out = super().generate(requests, settings, done)
        self.busy = False
        return out


def test_an_engine_with_its_own_weights_generates_while_the_policy_trains(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    engine = Own(stage)
    queue = make(stage, 1, engine=engine)
    engine.free.set()
    for step in range(6):
        groups, _ = queue.take(prompts=2)
        assert versions(groups) == [max(0, step - 1)]
        if step == 2:
            engine.free.clear()  # from here on it generates only after an update has ended
        stage.train()
        engine.free.set()
    assert stage.said.index("train 2") > stage.said.index("generate with 1")
    queue.close()


def test_a_checkpoint_waits_for_a_thread_and_raises_its_fault(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "journal")
    engine = Own(stage)
    engine.free.set()
    queue = make(stage, 1, engine=engine)
    queue.take(prompts=2)
    stage.train()
    engine.free.clear()
    queue.take(prompts=2)
    stage.train()
    threading.Timer(0.3, engine.free.set).start()
    write(queue, tmp_path)
    assert [step["step"] for step in json.loads((tmp_path / IN_FLIGHT.format(rank=0)).read_text())] == [2]
    engine.fails = True
    queue.take(prompts=2)
    stage.train()
    with pytest.raises(NumericsError, match="step 4"):
        write(queue, tmp_path)


# ---- checkpoints -------------------------------------------------------------------------------------------------------


def advanced(folder: Path, staleness: int, steps: int) -> tuple[Stage, Pipeline]:
    stage = Stage(folder)
    queue = make(stage, staleness)
    for _ in range(steps):
        queue.take(prompts=3)
        stage.train()
    return stage, queue


def later(stage: Stage, folder: Path) -> Stage:
    """The stage of a process that goes on from a checkpoint."""
    out = Stage(folder)
    out.state.step = out.state.global_step = stage.state.step
    out.policy.version, out.planned = stage.policy.version, stage.planned
    return out


@pytest.mark.parametrize("journals", ["kept", "lost"])
def test_a_checkpoint_brings_the_steps_in_flight_back(journals: str, tmp_path: Path) -> None:
    stage, queue = advanced(tmp_path / "journal", 2, 2)
    write(queue, tmp_path)
    rest = [queue.take(prompts=3)[0] for _ in range(1)]
    again = later(stage, tmp_path / ("journal" if journals == "kept" else "new"))
    back = make(again, 2, restored=tmp_path)
    groups, collected = back.take(prompts=3)
    assert groups == rest[0]
    assert collected.replayed == 3
    assert again.said == ["plan 4 at 2", "generate with 2", "generate with 2"], "only the step that is new is generated"
    again.train()
    assert versions(back.take(prompts=3)[0]) == [1]


def test_scores_that_a_checkpoint_does_not_hold_are_asked_for_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "journal")
    held = threading.Event()
    first = stage.score

    def score(group: Any, *, step: int) -> ScoredGroup:
        assert step == 0 or held.wait(30)
        return first(group, step=step)

    stage.score = score
    queue = make(stage, 1)
    queue.take(prompts=3)
    stage.train()
    write(queue, tmp_path)
    (step,) = json.loads((tmp_path / IN_FLIGHT.format(rank=0)).read_text())
    assert [item["record"]["scores"] for item in step["groups"]] == [None] * 3
    again = later(stage, tmp_path / "new")
    groups, _ = make(again, 1, restored=tmp_path).take(prompts=3)
    assert [scored.scores.rewards_GK[0] for _, scored in groups] == [(1.0,)] * 3
    held.set()
    queue.close()


def test_scores_that_have_come_are_in_the_checkpoint(tmp_path: Path) -> None:
    _, queue = advanced(tmp_path / "journal", 1, 1)
    for scoring in queue._queue[0].collection._begun:
        for future in scoring.futures:
            future.result(30)
    write(queue, tmp_path)
    (step,) = json.loads((tmp_path / IN_FLIGHT.format(rank=0)).read_text())
    assert all(item["record"]["scores"] is not None for item in step["groups"])
    assert [scored.scores.rewards_GK[0] for _, scored in queue.take(prompts=3)[0]] == [(1.0,)] * 3


def test_a_score_that_fails_ends_the_run_and_nothing_behind_it_is_asked(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    asked: list[int] = []

    def score(group: Any, *, step: int) -> ScoredGroup:
        asked.append(step)
        raise RemoteError("the judge is down")

    stage.score = score
    queue = make(stage, 1)
    with pytest.raises(RemoteError, match="the judge is down"):
        queue.take(prompts=8)
    queue.close()
    count = len(asked)
    time.sleep(0.2)
    assert len(asked) == count
    records = [Journal(tmp_path, step).replay() for step in (0, 1)]
    assert [len(of_step) for of_step in records] == [8, 8], "what was sampled is not lost"


def test_steps_in_flight_are_dealt_anew_to_another_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files, as two ranks with two and one of three groups would write them."""
    stage, queue = advanced(tmp_path / "journal", 1, 1)
    write(queue, tmp_path)
    whole = tmp_path / IN_FLIGHT.format(rank=0)
    (step,) = json.loads(whole.read_text())
    for rank, places in ((0, (0, 2)), (1, (1,))):
        part = [{"step": step["step"], "groups": [step["groups"][place] for place in places]}]
        (tmp_path / IN_FLIGHT.format(rank=rank)).write_text(json.dumps(part))
    write_manifest(tmp_path, {})
    groups, _ = make(later(stage, tmp_path / "alone"), 1, restored=tmp_path).take(prompts=3)
    assert [place for place, _ in groups] == [0, 1, 2]
    monkeypatch.setattr(dist, "world", lambda: 3)
    monkeypatch.setattr(dist, "rank", lambda: 1)
    monkeypatch.setattr(dist, "gather", lambda value: [value])
    (flight,) = make(later(stage, tmp_path / "three"), 1)._restore(tmp_path)
    assert [place for place, _ in flight.planned] == [1]


def test_a_stage_that_is_over_saves_nothing_and_says_what_it_drops(tmp_path: Path) -> None:
    stage, queue = advanced(tmp_path / "journal", 2, 2)
    stage.ended = True
    write(queue, tmp_path)
    queue.close()
    assert not list(tmp_path.glob("in_flight*"))
    assert stage.said[-1] == "rl: 2 steps that were sampled ahead are not trained: the stage is over"


def test_what_cannot_be_taken_up_is_refused(tmp_path: Path) -> None:
    stage, queue = advanced(tmp_path / "journal", 2, 2)
    write(queue, tmp_path)
    with pytest.raises(CheckpointError, match=r"does not hold the steps \[2\]"):
        make(later(stage, tmp_path / "b"), 1, restored=tmp_path).take(prompts=3)
    gone = later(stage, tmp_path / "c")

    def no_row(one: Any, answer_format: str) -> Prompt:
        raise RowError("too_long", "the prompt is too long")

    gone.loader.encoder = SimpleNamespace(encode=no_row)
    with pytest.raises(CheckpointError, match=r"step 3 was sampled before the checkpoint.*too long"):
        make(gone, 2, restored=tmp_path).take(prompts=3)


def test_another_number_of_steps_than_when_it_was_saved(tmp_path: Path) -> None:
    """What is in flight at a checkpoint ends with the stage: with more steps the rest is sampled now, with fewer some is not trained."""
    stage, queue = advanced(tmp_path / "journal", 2, 2)
    write(queue, tmp_path)
    fewer = later(stage, tmp_path / "a")
    fewer.cfg.steps = 3
    one = make(fewer, 2, restored=tmp_path)
    one.take(prompts=3)
    assert not one._queue, "step 3 was in flight, and is not trained"
    for file in tmp_path.glob("in_flight*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"in_flight\.rank-0\.json: missing, and steps were in flight"):
        make(later(stage, tmp_path / "b"), 2, restored=tmp_path).take(prompts=3)
    write_manifest(tmp_path, {})
    ended = make(later(stage, tmp_path / "b"), 2, restored=tmp_path)
    ended.take(prompts=3)
    assert [flight.step for flight in ended._queue] == [3, 4], "where the stage was to end nothing was in flight"


def test_what_was_sampled_after_the_checkpoint_is_held_against_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps in flight are not: their weights are gone. They come from the checkpoint, which is verified as a whole."""
    stage, queue = advanced(tmp_path / "journal", 1, 1)
    write(queue, tmp_path)
    again = later(stage, tmp_path / "journal")
    queue.take(prompts=3)
    seen: list[str] = []
    monkeypatch.setattr(pipeline, "check_replayed", lambda stage, groups, top_p, journal: seen.extend(g.id for g in groups))
    make(again, 1, restored=tmp_path).take(prompts=3)
    assert seen == [f"rl/2/{place}/s{6 + place}" for place in range(3)]
