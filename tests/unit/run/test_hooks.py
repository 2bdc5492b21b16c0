"""run.hooks: what happens after an update, and in which order. Without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vlmrl.config.schema import SftSection
from vlmrl.errors import EngineError, NumericsError, Preempted
from vlmrl.extras.publish.push import Publisher
from vlmrl.rollout.mismatch import Bounds
from vlmrl.run import hooks
from vlmrl.run.hooks import (
    AskToStop,
    Checkpoint,
    Evaluate,
    GapBounds,
    Log,
    Progress,
    SkippedStepCounter,
    count,
    hooks_of,
    next_clock,
    stop,
)
from vlmrl.train.memory import Memories
from vlmrl.train.memory_ledger import MemoryLedger
from vlmrl.train.meter import Clock, Counters, TokenCounter
from vlmrl.train.stage.base import StepResult, ended
from vlmrl.train.step import StepReport

GROUP = {"lr": 1e-3, "kind": "base"}


class Stage:
    """What the hooks ask of a stage of six steps."""

    def __init__(self, *, step: int = 0, **changes: Any):
        self.cfg = SftSection.model_validate({"kind": "sft", "name": "warm", "steps": 6, "source": {"path": "rows.jsonl"}} | changes)
        self.state = SimpleNamespace(
            step=step, global_step=step + 10, skipped_in_row=0, policy_version=0, max_tokens_per_microbatch=0, without_signal=0
        )
        self.state.held_out_score = None
        self.policy = SimpleNamespace(version=7)
        optimizer = SimpleNamespace(param_groups=[GROUP])
        self.learner = SimpleNamespace(
            max_tokens_per_microbatch=512, memory=MemoryLedger(), updates=SimpleNamespace(optimizer=optimizer), policy=self.policy
        )
        self.tokens, self.clock = TokenCounter(), Clock()

    @property
    def ended(self) -> bool:
        return ended(self.cfg, self.state.step, self.state.held_out_score)


def stage(**given: Any) -> Any:
    return Stage(**given)


def result(values: dict[str, float] | None = None, *, applied: bool = True) -> StepResult:
    return StepResult(report=StepReport(applied=applied, grad_norm=2.0, loss=0.5), values=dict(values or {}))


def session(**parts: Any) -> Any:
    cfg = SimpleNamespace(eval=SimpleNamespace(every=2), checkpoint=SimpleNamespace(every=4))
    base = {"cfg": cfg, "run": SimpleNamespace(stop_requested=False), "ui": SimpleNamespace(say=print)}
    base |= dict.fromkeys(("vision", "background", "publisher"))
    return SimpleNamespace(**base | {"tracker": SimpleNamespace(log=lambda *a, **k: None)} | parts)


def test_the_order() -> None:
    """A run that is killed anywhere between two of them goes on to the same bits (`tests/faults/test_resume.py`)."""
    made = hooks_of(
        session(background=object(), publisher=Publisher(SimpleNamespace(), SimpleNamespace(), print)),  # pyright: ignore
        stage(),
        memories=Memories(),
        counters=Counters({}),
        bar=SimpleNamespace(),  # pyright: ignore
        profiler=SimpleNamespace(),  # pyright: ignore
        keeper=SimpleNamespace(),  # pyright: ignore
        pipeline=SimpleNamespace(bounds=Bounds()),  # pyright: ignore
    )
    assert [getattr(hook, "__name__", type(hook).__name__) for hook in made] == [
        *("Lock", "GapBounds", "SkippedStepCounter", "count", "KeepGroups", "Log", "Alarms", "Progress", "next_clock", "Profile"),
        *("Evaluate", "Until", "AskToStop", "Checkpoint", "Settle", "upload", "stop"),
    ]


def test_what_a_stage_does_not_have_is_left_out() -> None:
    made = hooks_of(
        session(),
        stage(),
        memories=Memories(),
        counters=Counters({}),
        bar=SimpleNamespace(),  # pyright: ignore
        profiler=None,
        keeper=None,
        pipeline=None,
    )
    assert not {"GapBounds", "KeepGroups", "Profile", "Settle"} & {type(hook).__name__ for hook in made}


def test_a_gap_above_its_bound_stops_before_the_step_counts() -> None:
    hook, one = GapBounds(Bounds(warn=0.1, stop=0.5)), result({"sampling/logp_gap/text": 0.2})
    hook(stage(step=3), one)
    assert [text.startswith("the sampler's log-probs differ") for text in one.warnings] == [True]
    with pytest.raises(EngineError, match="stage 'warm', step 4: "):
        hook(stage(step=3), result({"sampling/logp_gap/text": 0.6}))


def test_the_third_refused_update_in_a_row_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "where_to_go_on", lambda s: "go on from step 1")
    hook, here = SkippedStepCounter(session()), stage()
    for applied in (False, False, True, False, False):
        hook(here, result(applied=applied))
    with pytest.raises(NumericsError, match=r"'warm': .*3 steps in a row \(last: loss 0.5, gradient norm 2.0\).*; go on from step 1"):
        hook(here, result(applied=False))


def test_a_step_counts_in_the_state() -> None:
    here = stage(step=3)
    count(here, result({"groups_with_signal": 0.0}))
    count(here, result({"groups_with_signal": 0.5}))
    s = here.state
    assert (s.step, s.global_step, s.policy_version, s.max_tokens_per_microbatch, s.without_signal) == (5, 15, 7, 512, 1)


class Asked:
    """A judge that was asked twice."""

    def read(self) -> dict[str, float]:
        return {"judge/calls": 2.0}


def test_a_line_says_what_was_measured_and_what_it_cost_once_what_is_said_once() -> None:
    lines: list[tuple[dict[str, float], dict[str, Any]]] = []
    hook = Log(
        log=lambda values, **where: lines.append((values, where)),
        counters=Counters({"work/media_decoded": lambda: 0}),
        once={"time/to_first_rl_step": lambda: 9.0},
        services=[Asked()],
    )
    here, first = stage(step=2), result({"reward": 0.5})
    here.clock.add("rollout", 1.5)
    hook(here, first)
    hook(here, result({"reward": 0.25}, applied=False))
    (one, where), (two, _) = lines
    assert where == {"stage": "warm", "step": 2, "global_step": 12}
    assert (one["reward"], one["grad_norm"], one["step/skipped"], one["time/rollout"], one["judge/calls"]) == (0.5, 2.0, 0.0, 1.5, 2.0)
    assert (one["time/to_first_rl_step"], two["step/skipped"], "time/to_first_rl_step" in two) == (9.0, 1.0, False)
    assert first.line["reward"] == 0.5
    assert not [name for name in first.line if name.startswith(("time/", "work/", "judge/"))]  # equal in a resumed run


def test_seconds_behind_the_line_belong_to_the_next_one() -> None:
    here = stage()
    here.clock.add("rollout", 1.5)
    next_clock(here, result())
    assert "time/rollout" not in here.clock.metrics()


def test_the_bar_shows_what_the_step_logged() -> None:
    shown: list[Any] = []
    one = result()
    one.line = {"reward": 0.5, "completions/mean_length": 12.0, "entropy": 1.0}
    Progress(SimpleNamespace(update=lambda *given: shown.append(given)))(stage(step=4), one)  # pyright: ignore
    assert shown == [(4, {"reward": 0.5, "mean_length": 12.0})]


def test_an_evaluation_every_few_steps_but_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hooks, "evaluate_stage", lambda s, name, *rest: asked.append(name))
    for step in range(1, 7):
        Evaluate(session())(stage(step=step), result())
    assert asked == ["warm@2", "warm@4"]


def test_a_checkpoint_when_due_at_the_end_and_for_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(hooks, "save", lambda s, learner, memories, pipeline: saved.append(s.step))
    for step in range(1, 7):
        for asked in (False, step == 3):
            s = session(step=step, run=SimpleNamespace(stop_requested=asked))
            one, here = result(), stage(step=step)
            AskToStop(s.run)(here, one)
            Checkpoint(s, Memories(), 4)(here, one)
            assert one.stop == asked
    assert saved == [3, 4, 4, 6, 6]


def test_a_signal_stops_a_stage_that_is_not_over() -> None:
    one = result()
    one.stop = True
    with pytest.raises(Preempted, match="stopped by a signal after step 3 of stage 'warm'; saved"):
        stop(stage(step=3), one)
    stop(stage(step=6), one)  # the run ends at its next step, or is over
    stop(stage(step=3), result())
