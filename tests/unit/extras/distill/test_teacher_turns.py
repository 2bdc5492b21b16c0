"""The teacher's prompts of turns: the past that the sampler was given, over the screens as the teacher sees them."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.builders import sample
from tests.support.tiny import Tiny
from tests.unit.extras.agents.test_episodes import SETTINGS, play
from tests.unit.extras.distill.test_teacher_scores import student, teacher_of
from tests.unit.extras.distill.test_view import LARGER
from vlmrl.data.encode import Encoder
from vlmrl.errors import DataError
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.extras.agents.turns import EpisodeCollector, FaultWatch, turn_rollouts
from vlmrl.extras.distill.section import TeacherSection
from vlmrl.extras.distill.turns import TURNS, TurnsView
from vlmrl.extras.distill.view import SeenRecord, TeacherView, settings_of
from vlmrl.media.store import MediaStore
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.train.step import score_rows
from vlmrl.types import Group, Prompt, ScoredGroup, Scores

TASK = dataclasses.replace(sample(id="desk", source="tasks.jsonl:1"), meta={"way": "look left"})
Groups = list[tuple[int, ScoredGroup]]


@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes of a step, as the provider of the teacher's scores finds them."""

    view: TurnsView
    rows: list[Row]
    groups: Groups

    def taught(self) -> list[Row]:
        return self.view.rows_of(self.rows, self.groups)

    def of(self, prompts: Sequence[Prompt]) -> Groups:
        """The same group with other prompts of the student."""
        (place, scored), *_ = self.groups
        rollouts: Any = scored.group.rollouts
        changed = tuple(dataclasses.replace(one, prompt=prompt) for one, prompt in zip(rollouts, prompts, strict=True))
        return [(place, dataclasses.replace(scored, group=dataclasses.replace(scored.group, rollouts=changed)))]


def played(tiny: Tiny, folder: Path, history: str, teacher: TeacherSection = LARGER, lost: int | None = None) -> Played:
    """Three turns of two attempts at each of two tasks. `lost`: an attempt with a fault."""
    made, _, table = play(tiny, folder / "screens", history)
    made = [[met(one, other[0]) for one in of_task] for of_task, other in zip(made, reversed(made), strict=True)]
    if lost is not None:
        fault = Trajectory(task=made[0][0].task, seed=made[0][0].seed, k=lost, turns=(), fault="timeout")
        made = [[fault if one.k == lost else one for one in of_task] for of_task in made]
    rows: list[Row] = []
    groups: Groups = []
    for place, of_task in enumerate(made):
        rollouts = tuple(turn_rollouts(table, of_task, 0))
        prompt = Prompt(sample=TASK, ids=(1,), media=(), spans=(), answer_format="free")
        group = Group(id=f"g{place}", prompt=prompt, rollouts=rollouts)
        groups.append((place, ScoredGroup(group=group, scores=Scores(columns=(), weights=(), rewards_GK=((),) * len(rollouts)))))
        rows += [Row(index=len(rows) + n, group=place, prompt=one.prompt, response=one.ids) for n, one in enumerate(rollouts)]
    unused: Any = None
    collector = EpisodeCollector(
        engine=unused,
        strategy=unused,
        score=unused,
        tokenize=unused,
        settings=SETTINGS,
        num_generations=2,
        generation_batch_size=2,
        seed=0,
        stage="rl",
        table=table,
        watch=FaultWatch(0.0),
    )
    collector.played[4] = {f"g{place}": of_task for place, of_task in enumerate(made)}
    loop: Any = types.SimpleNamespace(
        session=types.SimpleNamespace(run=types.SimpleNamespace(path=folder)),
        stage=types.SimpleNamespace(state=types.SimpleNamespace(step=4)),
        pipeline=types.SimpleNamespace(collector=collector),
    )
    store = MediaStore.of(settings_of(tiny.store.settings, teacher), tiny.bundle) if teacher.media.resizes else tiny.store
    again = TURNS["again"](loop, lambda screens: Encoder.of(tiny.bundle, store, screens, max_prompt_tokens=sys.maxsize))
    view = TeacherView(encoder=again.encoder, store=store, own=tiny.store, hint=teacher.hint)
    return Played(TurnsView(again=again, view=view, record=SeenRecord.of(folder / "teacher" / "seen.jsonl")), rows, groups)


def met(attempt: Trajectory, other: Trajectory) -> Trajectory:
    """An attempt that saw the screen of another one in its second turn: the tiny model's answers change none."""
    first, second, *rest = attempt.turns
    return dataclasses.replace(attempt, turns=(first, dataclasses.replace(second, seen=other.turns[1].seen), *rest))


def words(tiny: Tiny, prompt: Prompt) -> list[int]:
    """Ids without what stands for pixels."""
    return [token for token in prompt.ids if token not in tiny.bundle.pad_ids.values()]


@pytest.mark.parametrize("history", ["all", "1", "2/2"])
def test_the_same_past_over_larger_screens(history: str, tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, history)
    taught = one.taught()
    assert len(taught) == 12
    for row, own in zip(taught, one.rows, strict=True):
        assert (row.index, row.group, row.response) == (own.index, own.group, own.response)
        assert words(tiny, row.prompt) == words(tiny, own.prompt), "also the sampled ids of the turns before"
        assert len(row.prompt.media) == len(own.prompt.media) > 0
        assert all(mine.tokens > 2 * theirs.tokens for mine, theirs in zip(row.prompt.media, own.prompt.media, strict=True))
    sharing = [[id(rows[n].prompt) == id(rows[m].prompt) for n in range(12) for m in range(n)] for rows in (taught, one.rows)]
    assert sharing[0] == sharing[1]
    assert any(sharing[0])


def test_each_screen_is_on_record_with_both_keys(tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, "all")
    one.taught()
    lines = [json.loads(line) for line in (tmp_path / "teacher" / "seen.jsonl").read_text().splitlines()]
    names = [line["row"] for line in lines]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "screens").iterdir() if path.name in names)
    assert len(set(names)) == len(names) == 2
    keys = {side: {key for line in lines for key in line[side]["media"]} for side in ("student", "teacher")}
    assert keys["student"] == {handle.key for row in one.rows for handle in row.prompt.media}
    assert not keys["student"] & keys["teacher"]
    again = SeenRecord.of(tmp_path / "teacher" / "seen.jsonl")
    dataclasses.replace(one.view, record=again).rows_of(one.rows, one.groups)
    assert len((tmp_path / "teacher" / "seen.jsonl").read_text().splitlines()) == len(lines), "a resumed run writes no line twice"


@pytest.mark.parametrize("layout", ["shared_prefix", "chains", "trees", "repeat"])
def test_a_teacher_that_is_the_policy_has_its_log_probs_at_every_turn(layout: str, tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, "all", TeacherSection())
    taught = one.taught()
    assert [(row.prompt.ids, row.prompt.media, row.prompt.spans) for row in taught] == [
        (row.prompt.ids, row.prompt.media, row.prompt.spans) for row in one.rows
    ]
    learner = student(tiny, layout=layout)
    scores = teacher_of(tiny, same=True)
    torch.testing.assert_close(scores.score(learner, taught), score_rows(learner, one.rows), rtol=0, atol=0)
    assert sum(len(part) for part in scores.hidden.values()) == sum(len(row.response) for row in one.rows)


@pytest.mark.parametrize("layout", ["chains", "trees"])
def test_layouts_of_turns_give_the_teachers_log_probs_of_a_row_per_turn(layout: str, tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, "all")
    taught, vision = one.taught(), VisionCache(one.view.view.store, budget_bytes=2**28)
    whole, shared = (score_rows(student(tiny, layout=name), taught, vision=vision) for name in ("repeat", layout))
    assert whole.abs().sum() > 1
    torch.testing.assert_close(shared, whole, rtol=0, atol=2e-5)


def test_an_attempt_with_a_fault_has_no_rows_and_changes_no_other(tiny: Tiny, tmp_path: Path) -> None:
    whole, lost = played(tiny, tmp_path / "whole", "all"), played(tiny, tmp_path / "lost", "all", lost=0)
    expected = [row.prompt.ids for n, row in enumerate(whole.taught()) if n // 3 % 2 == 1]
    assert [row.prompt.ids for row in lost.taught()] == expected


@pytest.mark.parametrize(("history", "begins"), [("all", 1), ("1", 3), ("2/2", 2)])
def test_a_hint_stands_behind_the_question_that_a_prompt_begins_with(history: str, begins: int, tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, history, TeacherSection(hint="meta.way"))
    (_, scored), *_ = one.groups
    texts = [tiny.bundle.piece(prompt.ids) for prompt in one.view.of(scored.group)]
    assert all(text.count("\nHint: look left") == 1 for text in texts)
    firsts = {text.partition("\nHint: look left")[0] for text in texts[:3]}
    assert len(firsts) == begins
    with pytest.raises(DataError, match=r"row 'desk' \(tasks.jsonl:1\): teacher.hint 'meta.other', and the row has none"):
        played(tiny, tmp_path / "other", history, TeacherSection(hint="meta.other")).taught()


def test_a_screen_that_the_student_did_not_see_is_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, "all")
    prompts = [row.prompt for row in one.rows if row.group == 0]
    foreign = dataclasses.replace(prompts[2].media[0], key="0" * 64)
    prompts[2] = dataclasses.replace(prompts[2], media=(foreign, *prompts[2].media[1:]))
    with pytest.raises(DataError, match=r"row 'desk' \(tasks.jsonl:1\): the teacher was shown another content of \w+\.png than"):
        one.view.rows_of(one.rows[:6], one.of(prompts))
    fewer = [dataclasses.replace(prompt, media=prompt.media[1:]) for prompt in prompts]
    with pytest.raises(DataError, match=r"row 'desk'.*1 media in the row, 0 seen by the student, 1 by the teacher"):
        one.view.rows_of(one.rows[:6], one.of(fewer))


def test_a_file_that_is_another_screen_by_now_is_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    one = played(tiny, tmp_path, "all")
    first, second, *_ = sorted((tmp_path / "screens").glob("*.png"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataError, match=rf"row 'desk' .*a turn of its episodes cannot be shown to the teacher: .*{first.name}"):
        one.taught()
