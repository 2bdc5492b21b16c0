"""agents.evaluate: held-out episodes as records that resume, compare, and never count a fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from vlmrl.answers.episode import spl
from vlmrl.config.section import EnvironmentMethod, HistorySection
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError, RemoteError, RowError
from vlmrl.evals.ask.evaluate import EvalOptions
from vlmrl.evals.ask.models import RecordedModel
from vlmrl.evals.ask.run import Changes, evaluate_model, evaluate_suite
from vlmrl.evals.ask.suite import data_root_of, load_suite, suite_path
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import read_records
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import headline
from vlmrl.extras.agents.episodes import anew
from vlmrl.extras.agents.evaluate import Conditions, EpisodeResult, evaluate_episodes, of_environment, of_rows, read_episodes
from vlmrl.extras.agents.worlds.toy_desk import make_goal
from vlmrl.extras.pages.view.save import write_page
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import load_processor
from vlmrl.types import GenerationSettings, Request, Rollout

PIXELS = MediaSettings(
    min_pixels=3136, max_pixels=3136, video_total_pixels=None, fps=2.0, min_frames=4, max_frames=32, cache_bytes=1 << 24, decoder="auto"
)
WASTED = '{"action": "scroll", "direction": "left"}'


def solution(request: Request, k: int) -> str:
    """The right action, from the seed in the name of the prompt and the parts that the screen says are done."""
    seed = int(request.prompt.sample.id.split("-")[-3])
    text = request.prompt.sample.question
    goal, done = text.removeprefix("Task: ").split(". Done: ")
    parts = make_goal(seed, len(goal.split(", then ")))
    return parts[0 if done == "nothing." else len(done.split(", "))].action()


def late(request: Request, k: int) -> str:
    """As `solution`, but the second attempt wastes its turns."""
    return solution(request, k) if k == 0 else WASTED


def play(
    tiny_files: Any,
    out: Path,
    act: Callable[[Request, int], str] = solution,
    *,
    count: int = 3,
    samples: int = 1,
    batch: int = 2,
    turns: int = 5,
    print_: str = "weights",
    asked: list[str] | None = None,
    task: dict[str, Any] | None = None,
    **arguments: Any,
) -> EpisodeResult:
    bundle = load_processor(str(tiny_files[0]))

    def generate(requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        if asked is not None:
            asked.extend(request.prompt.sample.id for request in requests)
        return [[rollout(act(request, k), k) for k in request.ks] for request in requests]

    def rollout(action: str, k: int) -> Rollout:
        text = f"<answer>{action}</answer>"
        ids = (*bundle.tokenize(text), bundle.end_ids[0])
        return Rollout(k=k, ids=ids, logprobs=(0.0,) * len(ids), text=text, finish="stop", policy_version=0)

    conditions = Conditions(
        environment=EnvironmentMethod(name="toy_desk", max_turns=turns, workers=1, retries=0, **arguments),
        history=HistorySection(screens=1, actions=False),
        answer_format="answer_only",
        max_prompt_tokens=1024,
    )
    settings = GenerationSettings(max_new_tokens=64, temperature=1.0 if samples > 1 else 0.0)
    with closing(MediaStore.of(PIXELS, bundle)) as store:
        return evaluate_episodes(
            anew(generate),
            [dataclasses.replace(one, task={**one.task, **(task or {})}) for one in of_environment("toy_desk", count, 0)],
            conditions,
            EvalOptions(settings=settings, batch_prompts=batch, samples=samples, seed=3),
            out=out,
            bundle=bundle,
            store=store,
            fingerprint=print_,
            model="scripted",
        )


def test_success_weighted_by_the_length_of_the_path() -> None:
    assert spl(success=True, turns=4, fewest=3) == 0.75
    assert spl(success=True, turns=3, fewest=3) == 1
    assert spl(success=False, turns=3, fewest=3) == 0


def test_a_solver_reaches_every_optimum(tiny_files, tmp_path: Path) -> None:
    result = play(tiny_files, tmp_path / "a.jsonl")
    records = read_records(tmp_path / "a.jsonl")
    assert records == result.records
    assert [r.sample_id for r in records] == ["desk-0000", "desk-2-0001", "desk-4-0002"]
    for record in records:
        assert record.scores == {"success": 1.0, "valid_actions": 1.0, "spl": 1.0}
        assert record.pred == record.gold == (1.0, float(record.difficulty or "nan"))
    assert [r.difficulty for r in records[1:]] == ["2", "4"]
    assert {"success", "spl"} <= set(headline([summarize(records, 0)])) <= set(LABELS) - {"turns", "excess_turns", "return"}
    means = summarize(records, 0).means()
    assert (means["success"], means["excess_turns"], means["return"]) == (1, 0, 1)
    assert result.played.rate == 1
    kept = read_episodes(tmp_path / "a.episodes.jsonl")
    assert [name for name, _, _ in kept] == [r.sample_id for r in records]
    screens = {ref.path for _, _, one in kept for turn in one.turns for ref in turn.seen.media}
    assert screens <= {path.name for path in (tmp_path / "screens").iterdir()}


def test_seeds_of_an_episode_depend_on_nothing_else() -> None:
    few, many = of_environment("toy_desk", 3, 0), of_environment("toy_desk", 30, 0)
    assert many[:3] == few
    assert len({one.seed for one in many}) == 30
    assert of_environment("toy_desk", 3, 1)[0].seed != few[0].seed
    row = {"id": "x", "environment": {"length": 2}}
    (task,) = of_rows([parse_row({**_question("x"), "meta": {"environment": row["environment"]}}, source="r:1", media_root=".")], 0)
    assert task.task == {"id": "x", "length": 2}
    with pytest.raises(ConfigError, match="toy_dusk"):
        of_environment("toy_dusk", 1, 0)


def _question(name: str) -> dict[str, Any]:
    return {"id": name, "task": "t", "answer_type": "exact_text", "prompt": "An episode.", "answer": "none"}


def test_attempts_at_one_episode_count_as_one_and_give_pass_at_k(tiny_files, tmp_path: Path) -> None:
    result = play(tiny_files, tmp_path / "a.jsonl", late, samples=2, count=2)
    assert [(r.sample_id, r.k, r.scores["success"]) for r in result.records] == [
        ("desk-0000", 0, 1.0),
        ("desk-0000", 1, 0.0),
        ("desk-2-0001", 0, 1.0),
        ("desk-2-0001", 1, 0.0),
    ]
    assert [r.answer for r in result.records] == ["success", "turns"] * 2
    summary = summarize(result.records, 0)
    assert summary.n == 2
    assert (summary.metrics["success"].mean, summary.metrics["pass@2"].mean) == (0.5, 1.0)
    assert result.played.pass_at == {1: 0.5, 2: 1.0}


def test_what_is_there_is_not_played_again_and_the_bytes_are_the_same(tiny_files, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    play(tiny_files, out)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    asked: list[str] = []
    again = play(tiny_files, out, asked=asked)
    assert asked == []
    assert again.played.rate == 1
    lines = files["a.jsonl"].splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    play(tiny_files, out, asked=asked)
    assert {name.split("-")[0] + name.split("-")[1] for name in asked} == {"desk4"}
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == files
    play(tiny_files, out, asked=asked, print_="others")
    assert (tmp_path / "a.jsonl.superseded").read_bytes() == files["a.jsonl"]


def test_a_fault_has_no_record_and_is_in_no_denominator(tiny_files, tmp_path: Path) -> None:
    whole = play(tiny_files, tmp_path / "a" / "a.jsonl", count=9, batch=9)
    some = play(tiny_files, tmp_path / "b" / "a.jsonl", count=9, batch=9, crash_share=0.4, fault="raise", fault_attempts=99)
    lost = {one.seed for group in some.groups for one in group if one.fault is not None}
    assert 0 < len(lost) < 9
    assert len(some.records) == 9 - len(lost)
    assert all(r.scores["success"] == 1 for r in some.records)
    assert some.played.faults == {"raised:RuntimeError": len(lost)}
    assert some.played.attempts == len(some.records)
    assert [r.sample_id for r in some.records] == [
        r.sample_id for r, group in zip(whole.records, whole.groups, strict=True) if group[0].seed not in lost
    ]


def test_a_world_that_never_begins_is_an_error(tiny_files, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="none of 3 episodes begins; 'desk-0000': raised:ValueError"):
        play(tiny_files, tmp_path / "a.jsonl", task={"length": 9})


def test_the_suite_plays_and_two_results_compare(tiny_files, tmp_path: Path) -> None:
    suite = load_suite(suite_path("toy_desk"))
    assert data_root_of(suite, None) == Path()
    result = evaluate_suite(tiny_files[0], "toy_desk", tmp_path / "a", device="cpu", changes=Changes(limit=3, max_new_tokens=3))
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["tasks"]["toy_desk"]["n"] == 3
    assert summary["tasks"]["toy_desk"]["metrics"]["success"]["mean"] == 0
    assert any(note.startswith("toy_desk: success: 0.000 [0.000, 0.5") for note in result.notes)
    assert any("faults, in none of these numbers: none" in note for note in result.notes)
    assert "success by path length" in (tmp_path / "a" / "results.md").read_text()
    compared = compare_folders(tmp_path / "a", tmp_path / "a")
    assert compared.tasks[0].primary == "success"
    assert not compared.regressed
    assert "desk-0000" in write_page(tmp_path / "a").read_text()
    recorded = RecordedModel(name="model", bundle=load_processor(str(tiny_files[0])))
    with pytest.raises(ConfigError, match="episodes are played by the reference engine"):
        evaluate_model(recorded, suite, tmp_path / "a", changes=Changes(limit=3, max_new_tokens=3))


def test_a_comparison_pairs_episodes_and_counts_turns_as_a_cost(tiny_files, tmp_path: Path) -> None:
    for name, act in (("a", solution), ("b", lambda request, k: WASTED)):
        play(tiny_files, tmp_path / name / "t.jsonl", act, count=12, batch=12)
    compared = compare_folders(tmp_path / "a" / "t.jsonl", tmp_path / "b" / "t.jsonl")
    gap = compared.tasks[0].gaps["success"]
    assert (gap.n, gap.a, gap.b, gap.test) == (12, 1.0, 0.0, "McNemar")
    assert gap.p == 2 * 0.5**12
    assert compared.regressed == ("t",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer_type": "exact_text"}, "belong together; give both or neither"),
        ({"environment": None, "source": "x.jsonl"}, "belong together; give both or neither"),
        ({"environment": None, "answer_type": "exact_text"}, "source: is missing"),
        ({"environment": None, "answer_type": "exact_text", "source": "x", "history": {"screens": 1}}, "there is no environment"),
        ({"environment": {"name": "toy_desk", "crash": 1}}, "environment.crash: unknown 'crash'"),
        ({"history": {"every": 2}}, "give history.screens, or remove them"),
        ({"history": {"screen": 1}}, "unknown key 'screen'"),
    ],
)
def test_what_a_task_of_episodes_must_say(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    task = {
        "id": "desk",
        "environment": {"name": "toy_desk"},
        "answer_format": "answer_only",
        "answer_type": "episode",
        "max_new_tokens": 8,
    } | change
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({"id": "s", "version": 1, "tasks": [{k: v for k, v in task.items() if v is not None}]}))
    with pytest.raises(ConfigError) as caught:
        load_suite(path)
    assert said in str(caught.value)


def test_no_row_is_an_episode() -> None:
    with pytest.raises(RowError, match="rows of an environment are tasks"):
        parse_row({**_question("x"), "answer_type": "episode"}, source="r:1", media_root=".")
