"""The evaluator: what is scored how, what is generated again and what is not, wherever an earlier run stopped."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.test_evals_records import make_prompt
from vlmrl import faults
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.errors import StorageError
from vlmrl.evals.ask.engines import EvalEngine, Generation, LocalEngine, answer_seed
from vlmrl.evals.ask.evaluate import EvalOptions, RecordBuilder, evaluate, status
from vlmrl.evals.score.records import Record, read_records
from vlmrl.evals.score.summary import summarize
from vlmrl.types import FinishReason, GenerationSettings, Prompt, Request, Rollout

SETTINGS = GenerationSettings(max_new_tokens=64, temperature=0.0)


class Parrot:
    """An engine whose answers depend on the prompt and on its company, as batched kernels may; it remembers its batches."""

    version = 0

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def generate(self, requests: Sequence[Request], settings: GenerationSettings, done: Any = None) -> list[list[Rollout]]:
        names = [r.prompt.sample.id for r in requests]
        assert all(len(r.seeds) == 1 and r.ks == (0,) for r in requests)
        assert settings == SETTINGS
        self.batches.append(names)
        return [[rollout(f"<think>{'+'.join(names)}</think><answer>1 to {int(name) + 2}</answer>")] for name in names]

    def close(self) -> None:
        pass


def rollout(text: str, *, finish: FinishReason = "stop", tokens: int = 7) -> Rollout:
    return Rollout(k=0, ids=(5,) * tokens, logprobs=(0.0,) * tokens, text=text, finish=finish, policy_version=0)


def prompts(count: int) -> list[Prompt]:
    return [make_prompt(str(n), ids=(1, 2, n)) for n in range(count)]


OPTIONS = {field.name for field in dataclasses.fields(EvalOptions)}


def asking(out: Path, engine: EvalEngine, asked: Sequence[Prompt], **given: Any) -> list[Record]:
    """`evaluate` with its options among the other arguments."""
    options = EvalOptions(**{name: value for name, value in given.items() if name in OPTIONS})
    return evaluate(engine, asked, options, out=out, model="rl", **{name: v for name, v in given.items() if name not in OPTIONS})


def run(out: Path, engine: Parrot, asked: Sequence[Prompt], *, fingerprint: str = "w", batch: int = 3, **kwargs):
    local = LocalEngine(engine, fingerprint=fingerprint)
    given = {"settings": SETTINGS, "batch_prompts": batch, "tokenizer_len": lambda text: len(text.split("+"))}
    return asking(out, local, asked, **given | kwargs)


def test_records_are_in_the_order_of_prompts_and_on_disk(tmp_path):
    engine, steps = Parrot(), []
    records = run(tmp_path / "r.jsonl", engine, prompts(7), progress=lambda d, t: steps.append((d, t)))
    assert engine.batches == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert [r.sample_id for r in records] == list("0123456")
    assert read_records(tmp_path / "r.jsonl") == records
    assert steps == [(0, 7), (3, 7), (6, 7), (7, 7)]
    # Gold is 1 to 3; answer n is 1 to n + 2.
    assert [r.scores["tiou"] for r in records] == pytest.approx([1 / 2, 1, 2 / 3, 2 / 4, 2 / 5, 2 / 6, 2 / 7])
    assert records[0].pred == (1.0, 2.0)
    assert records[0].gold == (1.0, 3.0)
    assert (records[0].cluster, records[0].n_in, records[0].n_out) == ("videos/1.mp4", 3, 7)
    assert (records[0].think.has, records[0].think.tokens) == (True, 3)


def test_a_second_evaluation_generates_nothing(tmp_path):
    first = run(tmp_path / "r.jsonl", Parrot(), prompts(7))
    engine = Parrot()
    content = (tmp_path / "r.jsonl").read_bytes()
    assert run(tmp_path / "r.jsonl", engine, prompts(7)) == first
    assert engine.batches == []
    assert (tmp_path / "r.jsonl").read_bytes() == content


@given(cut=st.integers(0, 10**6))
def test_numbers_do_not_depend_on_where_a_run_stopped(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("cut")
    whole = run(folder / "whole.jsonl", Parrot(), prompts(8))
    content = (folder / "whole.jsonl").read_bytes()
    part = content[: cut % (len(content) + 1)]
    (folder / "part.jsonl").write_bytes(part)
    engine = Parrot()
    assert run(folder / "part.jsonl", engine, prompts(8)) == whole
    assert (folder / "part.jsonl").read_bytes() == content
    complete = part.count(b"\n") // 3 if part.count(b"\n") < 8 else 3
    assert [batch[0] for batch in engine.batches] == ["0", "3", "6"][complete:]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_interrupted_evaluation_goes_on_with_the_next_batch(tmp_path, monkeypatch, place):
    whole = run(tmp_path / "whole.jsonl", Parrot(), prompts(8))
    monkeypatch.setenv("VLMRL_FAULT", f"eval.record@{place}:raise")
    monkeypatch.setattr(faults, "_passed", {})
    with pytest.raises(faults.InjectedFault):
        run(tmp_path / "r.jsonl", Parrot(), prompts(8))
    monkeypatch.delenv("VLMRL_FAULT")
    engine = Parrot()
    assert run(tmp_path / "r.jsonl", engine, prompts(8)) == whole
    assert len(engine.batches) == 3 - place


def test_a_batch_with_a_missing_record_is_made_again_as_a_whole(tmp_path):
    whole = run(tmp_path / "r.jsonl", Parrot(), prompts(8))
    lines = (tmp_path / "r.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_bytes(b"".join(lines[:4] + lines[5:]))
    engine = Parrot()
    assert run(tmp_path / "r.jsonl", engine, prompts(8)) == whole
    assert engine.batches == [["3", "4", "5"]]
    assert sorted(r.sample_id for r in read_records(tmp_path / "r.jsonl")) == list("01234567")


def test_other_weights_share_nothing_and_lose_nothing(tmp_path):
    first = run(tmp_path / "r.jsonl", Parrot(), prompts(4))
    engine = Parrot()
    second = run(tmp_path / "r.jsonl", engine, prompts(4), fingerprint="other")
    assert len(engine.batches) == 2
    assert read_records(tmp_path / "r.jsonl") == second
    assert (tmp_path / "r.jsonl.superseded").read_bytes() == b"".join(r.line() for r in first)


def test_no_prompts_give_an_empty_file(tmp_path):
    assert run(tmp_path / "r.jsonl", Parrot(), []) == []
    assert read_records(tmp_path / "r.jsonl") == []


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sample '1' is asked 2 times"):
        run(tmp_path / "r.jsonl", Parrot(), [*prompts(2), make_prompt("1")])
    with pytest.raises(ValueError, match="batch_prompts must be at least 1"):
        run(tmp_path / "r.jsonl", Parrot(), prompts(2), batch=0)
    with pytest.raises(ValueError, match=r"4 answers at temperature 0\.0: several greedy answers are all the same"):
        run(tmp_path / "r.jsonl", Parrot(), prompts(2), samples=4)
    with pytest.raises(ValueError, match=r"0 answers"):
        run(tmp_path / "r.jsonl", Parrot(), prompts(2), samples=0)
    assert not (tmp_path / "r.jsonl").exists()
    (tmp_path / "r.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(StorageError, match=r"r\.jsonl:1"):
        run(tmp_path / "r.jsonl", Parrot(), prompts(2))


def read(text: str, finish: FinishReason = "stop", **changes):
    options = EvalOptions(settings=SETTINGS, **changes)
    reading = RecordBuilder(options=options, fingerprint="w", model="s", tokenizer_len=lambda t: len(t.split()))
    return reading.record(make_prompt(), Generation(text=text, n_out=7, finish=finish))


@pytest.mark.parametrize(
    ("text", "finish", "expected", "tiou", "thinks"),
    [
        ("<think>it appears</think><answer>1 to 3</answer>", "stop", "ok", 1.0, True),
        ("<think>\n\n</think><answer>1 to 2</answer>", "stop", "ok", 0.5, False),
        ("<answer>3 to 1</answer>", "stop", "ok", 1.0, False),  # reversed: put in order
        ("<think>a</think><answer>1 to 3</answer> and so on", "length", "ok", 1.0, True),
        ("<think>a</think><answer>soon</answer>", "stop", "unparsable", 0.0, True),
        ('<think>a</think><answer>{"time": [NaN, 3]}</answer>', "stop", "unparsable", 0.0, True),
        ("<think>a</think>1 to 3", "stop", "no_tag", 0.0, True),
        ("1 to 3</think>", "stop", "no_tag", 0.0, False),
        ("", "stop", "no_tag", 0.0, False),
        ("<think>1 to 3 and", "stop", "truncated", 0.0, False),
        ("<THINKING>1 to 3 and", "stop", "truncated", 0.0, False),
        ("<think>a</think><answer>1 to", "length", "truncated", 0.0, True),
    ],
)
def test_how_answers_are_read(text, finish, expected, tiou, thinks):
    record = read(text, finish)
    assert (record.status, record.scores["tiou"], record.think.has) == (expected, pytest.approx(tiou), thinks)
    assert (record.pred is None) == (expected != "ok")
    assert record.text == text


def test_tokens_of_a_thought_and_its_form():
    record = read("<think>one two three</think><answer>1 to 3</answer>")
    assert (record.think.tokens, record.format_ok, record.unclosed) == (3, True, False)
    assert not read("noise <think>one</think><answer>1 to 3</answer>").format_ok
    assert read("<think>one").unclosed


@given(
    text=st.text(alphabet=st.sampled_from('<>/thinkanswer 123.,:to-{}[]"time\n'), max_size=60), finish=st.sampled_from(["stop", "length"])
)
def test_any_text_gets_a_record_that_can_be_written(text, finish):
    record = read(text, finish)
    assert 0 <= record.scores["tiou"] <= 1
    assert (record.status == "ok") == (record.pred is not None)
    assert record.line().endswith(b"\n")


def test_status_order():
    assert status("x", (1.0, 2.0), truncated=True) == "ok"
    assert status("x", None, truncated=True) == "unparsable"
    assert status(None, None, truncated=True) == "truncated"
    assert status(None, None, truncated=False) == "no_tag"


def test_a_foreign_model_may_answer_without_tags():
    assert read("From 1 to 3.").status == "no_tag"
    assert (read("From 1 to 3.", extraction="lenient").scores["tiou"], read("From 1 to 3.", extraction="lenient").format_ok) == (1.0, False)
    assert read("<think>1 to 3", extraction="lenient").status == "truncated"


class Sampler:
    """Answer k to question n depends on its seed alone; remembers what was asked."""

    fingerprint = "w"
    engine_name = "hf"

    def __init__(self, *, fail_after: int | None = None):
        self.asked: list[tuple[str, int]] = []
        self.fail_after = fail_after

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise StorageError("the machine went away")
        self.asked += [(prompt.sample.id, k) for prompt in prompts for k in range(samples)]
        return [
            [
                Generation(text=f"<answer>1 to {2 + answer_seed(seed, p.sample.id, k) % 5}</answer>", n_out=5, finish="stop")
                for k in range(samples)
            ]
            for p in prompts
        ]


SAMPLED = GenerationSettings(max_new_tokens=8, temperature=1.0)


def sampled(out: Path, engine: Sampler, count: int = 7, **changes) -> list[Record]:
    given = {"settings": SAMPLED, "samples": 4, "seed": 3, "batch_prompts": 2, "tokenizer_len": len} | changes
    return asking(out, engine, prompts(count), **given)


def test_four_answers_to_every_question(tmp_path):
    records = sampled(tmp_path / "r.jsonl", Sampler())
    assert [(r.sample_id, r.k) for r in records] == [(str(n), k) for n in range(7) for k in range(4)]
    assert {r.seed for r in records} == {3}
    assert read_records(tmp_path / "r.jsonl") == records
    summary = summarize(records, seed=0)
    assert summary.n == 7
    right = [sum(r.scores["tiou"] >= 1 for r in records if r.sample_id == str(n)) for n in range(7)]
    assert summary.metrics["pass@4"].mean == pytest.approx(sum(c > 0 for c in right) / 7)
    assert summary.metrics["pass@1"].mean == pytest.approx(sum(right) / 28)


@pytest.mark.parametrize("stop_at", [0, 8, 16, 24])
def test_killed_anywhere_the_rest_is_asked_and_nothing_twice(tmp_path, stop_at):
    whole = sampled(tmp_path / "whole.jsonl", Sampler())
    first, second = Sampler(fail_after=stop_at), Sampler()
    with pytest.raises(StorageError, match="went away"):
        sampled(tmp_path / "r.jsonl", first)
    assert sampled(tmp_path / "r.jsonl", second) == whole
    assert sorted(first.asked + second.asked) == sorted((str(n), k) for n in range(7) for k in range(4))
    assert (tmp_path / "r.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_another_seed_or_number_of_answers_is_another_evaluation(tmp_path):
    sampled(tmp_path / "r.jsonl", Sampler())
    for change in ({"seed": 4}, {"settings": GenerationSettings(max_new_tokens=8, temperature=0.5)}):
        engine = Sampler()
        sampled(tmp_path / "r.jsonl", engine, **change)
        assert len(engine.asked) == 28


def test_a_stop_between_batches_keeps_what_is_there(tmp_path):
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return len(calls) > 2

    engine = Sampler()
    part = sampled(tmp_path / "r.jsonl", engine, stop=stop)
    assert (
        [r.sample_id for r in part]
        == [str(n) for n in range(4) for _ in range(4)]
        == [r.sample_id for r in read_records(tmp_path / "r.jsonl")]
    )
    rest = Sampler()
    assert sampled(tmp_path / "r.jsonl", rest)[:16] == part
    assert {name for name, _ in rest.asked} == {"4", "5", "6"}


def test_answers_are_scored_again_without_asking(tmp_path, monkeypatch):
    first = sampled(tmp_path / "r.jsonl", Sampler())
    monkeypatch.setattr(ANSWER_TYPES["time_span"], "score", lambda answer, sample: (None, (), {"tiou": 0.25}))
    engine = Sampler()
    again = sampled(tmp_path / "r.jsonl", engine)
    assert engine.asked == []
    assert [(r.text, r.key) for r in again] == [(r.text, r.key) for r in first]
    assert {r.scores["tiou"] for r in again} == {0.25} == {r.scores["tiou"] for r in read_records(tmp_path / "r.jsonl")}
    assert not (tmp_path / "r.jsonl.superseded").exists()


class Together:
    """Ranks as threads of one process."""

    def __init__(self, world: int):
        self.size, self.barrier, self.values, self.own = world, threading.Barrier(world), [None] * world, threading.local()

    def rank(self) -> int:
        return self.own.rank

    def world(self) -> int:
        return self.size

    def gather(self, value):
        self.values[self.own.rank] = value
        self.barrier.wait()
        out = list(self.values)
        self.barrier.wait()
        return out

    def run_synchronized(self, fn):
        return fn()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_questions_and_give_what_one_gives(tmp_path, world):
    alone = sampled(tmp_path / "one.jsonl", Sampler())
    ranks, engines = Together(world), [Sampler() for _ in range(world)]

    def work(rank: int) -> list[Record]:
        ranks.own.rank = rank
        return sampled(tmp_path / "many.jsonl", engines[rank], collective=ranks)

    with ThreadPoolExecutor(world) as pool:
        found = list(pool.map(work, range(world)))
    assert found == [alone] * world
    assert (tmp_path / "many.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    asked = [question for engine in engines for question in engine.asked]
    assert sorted(asked) == sorted((str(n), k) for n in range(7) for k in range(4))
    assert all(engine.asked for engine in engines)
