"""The divergence from a teacher in the pass of the loss: in every layout and split the one of whole distributions, and nothing where the
teacher is the policy."""

from __future__ import annotations

import copy
import dataclasses
import math
import types
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.tiny import Tiny
from tests.unit.extras.distill.test_view import view
from tests.unit.train.test_step import batch, learner, weights
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import reducer
from vlmrl.errors import CheckpointError
from vlmrl.extras.distill.methods.scores import DIVERGENCE, TOPK, teacher_topk_kl
from vlmrl.extras.distill.server import ServedTeacher
from vlmrl.extras.distill.teacher import Teacher, TeacherJsd, TeacherScores
from vlmrl.extras.distill.topk import CHOSEN, Choose, Chosen, TopKDivergence
from vlmrl.policy.pack import Row
from vlmrl.policy.token_stats import HeadStat
from vlmrl.policy.vision import VisionCache
from vlmrl.train.stage.loss import TokenObjective
from vlmrl.train.step import Learner, StepReport, optimizer_step, score_rows, score_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole(HeadStat):
    """The log-probs of all tokens that may be drawn, the slow way."""

    into: list[Any]
    rows: Any = ()

    def of_rows(self, rows: Any) -> HeadStat:
        return dataclasses.replace(self, rows=rows)

    def at(self, hidden_MH: torch.Tensor, head_VH: torch.Tensor, **how: Any) -> torch.Tensor:
        z_MV = (hidden_MH @ head_VH.T).double() / how["temperature"]
        z_MV[:, list(how["forbidden"])] = float("-inf")
        parts = z_MV.log_softmax(1).split([len(row.response) for row in self.rows])
        self.into.extend([(row.index, part) for row, part in zip(self.rows, parts, strict=True)])
        return hidden_MH[:, 0] * 0


def student(tiny: Tiny, *, layout: str = "shared_prefix", budget: int = 10**6) -> Learner:
    one = learner(tiny, budget, layout)
    one.temperature, one.forbidden = 0.7, (tiny.bundle.end_ids[0], 3)
    return one


def teacher_of(tiny: Tiny, *, moved: float = 0.0, same: bool = False) -> TeacherScores:
    """The tiny policy, with weights that are scaled by 1 + `moved`, before larger frames."""
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1 + moved)
    seen = view(tiny)
    if same:
        seen = dataclasses.replace(seen, encoder=tiny.encoder, store=tiny.store)
    scores = TeacherScores(beta=0.5)
    scores.attach(Teacher(policy=policy, vision=VisionCache(seen.store, budget_bytes=2**28), view=seen), "start")
    return scores


def updated(one: Learner, scores: TeacherScores, data: Any, beta: float = 0.5) -> tuple[StepReport, torch.Tensor]:
    scores.score(one, scores.rows_of(data.rows))
    one.stats = {DIVERGENCE: TeacherJsd(scores=scores, beta=beta)}

    def loss(x: LossInputs) -> LossOutput:
        return LossOutput(x.need(DIVERGENCE, "m"))

    before = weights(one)
    report = optimizer_step(one, data, TokenObjective(loss=loss, reducer=reducer.bind("token_mean")))
    return report, weights(one) - before


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_teacher_jsd_is_that_of_whole_distributions_in_any_layout_and_split(beta: float, tiny: Tiny) -> None:
    data, scores = batch(tiny), teacher_of(tiny, moved=0.3)
    longest = max(len(r.prompt.ids) + len(r.response) for r in data.rows)
    of: list[dict[int, torch.Tensor]] = []
    assert isinstance(scores.teacher, Teacher)
    for policy, vision, rows in ((None, None, data.rows), (scores.teacher.policy, scores.teacher.vision, scores.rows_of(data.rows))):
        found: list[tuple[int, torch.Tensor]] = []
        score_tokens(student(tiny), rows, policy=policy, vision=vision, stats={"whole": Whole(into=found)})
        of.append(dict(found))
    q, p = (torch.cat([side[n] for n in range(len(data.rows))]) for side in of)
    keep = q[0].isfinite()
    q, p = q[:, keep], p[:, keep]
    m = q if beta == 0 else p if beta == 1 else (beta * p.exp() + (1 - beta) * q.exp()).log()
    forward, reverse = (p.exp() * (p - m)).sum(1).mean(), (q.exp() * (q - m)).sum(1).mean()
    expected = float(forward if beta == 0 else reverse if beta == 1 else beta * forward + (1 - beta) * reverse)
    assert expected > 1e-3
    moves = []
    for layout, budget in (("shared_prefix", 10**6), ("repeat", 10**6), ("shared_prefix", longest), ("repeat", longest * 3)):
        report, moved = updated(student(tiny, layout=layout, budget=budget), scores, data, beta)
        assert report.loss == pytest.approx(expected, rel=1e-4)
        moves.append(moved)
    assert float(moves[0].abs().max()) > 1e-4
    for moved in moves[1:]:
        torch.testing.assert_close(moved, moves[0], rtol=1e-3, atol=2e-6)


def test_a_teacher_that_is_the_policy_teaches_nothing(tiny: Tiny) -> None:
    data, scores = batch(tiny), teacher_of(tiny, same=True)
    one = student(tiny)
    rows = scores.rows_of(data.rows)
    assert torch.equal(scores.score(one, rows), score_rows(one, data.rows))
    report, _ = updated(one, scores, data)
    assert abs(report.loss) < 1e-6
    assert report.grad_norm < 1e-5


def test_a_prompt_is_made_once_for_its_group(tiny: Tiny) -> None:
    data, scores = batch(tiny), teacher_of(tiny)
    rows = scores.rows_of(data.rows)
    assert [row.response for row in rows] == [row.response for row in data.rows]
    assert len({id(row.prompt) for row in rows}) == len({row.group for row in data.rows}) == 4
    assert all(len(row.prompt.ids) > len(own.prompt.ids) for row, own in zip(rows, data.rows, strict=True))
    assert scores.rows_of(()) == list[Row]()


def test_the_tower_sees_a_prompt_once_and_the_model_reads_it_once_for_its_group(tiny: Tiny) -> None:
    """Counted where it happens: patches that the tower encodes, over two looks, and tokens that the language model reads in one."""
    data, scores = batch(tiny), teacher_of(tiny)
    assert isinstance(scores.teacher, Teacher)
    rows, read = scores.rows_of(data.rows), list[int]()
    language = scores.teacher.policy.core.language_model
    hook = language.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True)
    scores.score(student(tiny), rows)
    prompts = {row.group: row.prompt for row in rows}
    answers = sum(len(row.response) for row in rows)
    assert sum(read) == sum(len(prompt.ids) for prompt in prompts.values()) + answers
    scores.score(student(tiny), scores.rows_of(data.rows))
    hook.remove()
    patches = {handle.key: math.prod(handle.grid_thw) for prompt in prompts.values() for handle in prompt.media}
    assert scores.teacher.vision.patches_encoded == sum(patches.values())


def test_a_run_goes_on_with_the_same_teacher_alone(tiny: Tiny) -> None:
    scores = teacher_of(tiny)
    again = TeacherScores()
    again.load_state_dict(scores.state_dict())
    assert scores.teacher is not None
    again.attach(scores.teacher, "start")
    with pytest.raises(CheckpointError, match="not those that this run was begun with"):
        again.attach(scores.teacher, "other")


def test_a_teacher_may_be_the_policys_running_average(tiny: Tiny) -> None:
    """Of two moves by a half: 1/4 of the start, 1/4 of the first weights, 1/2 of the second; and a resumed one goes on from there."""
    scores, one = teacher_of(tiny), student(tiny)
    stage: Any = types.SimpleNamespace(learner=one, policy=types.SimpleNamespace(vision_trains=True))
    assert isinstance(scores.teacher, Teacher)
    own = dict(scores.teacher.policy.model.named_parameters())
    start = {name: own[name].detach().clone() for name, _ in one.named}
    version = scores.teacher.policy.vision_version
    scores.follow(stage, every=2, decay=0.5)
    for scale in (0.0, 3.0, 0.0, 5.0):
        with torch.no_grad():
            for name, weight in one.named:
                weight.copy_(start[name] * scale)
        scores.after_update()
    for name, _ in one.named:
        torch.testing.assert_close(own[name], start[name] * (0.25 + 0.25 * 3 + 0.5 * 5))
    assert scores.teacher.policy.vision_version == version + 2, "features of its tower are made again"
    again = teacher_of(tiny)
    again.load_state_dict(scores.state_dict())
    again.follow(stage, every=2, decay=0.5)
    assert isinstance(again.teacher, Teacher)
    resumed = dict(again.teacher.policy.model.named_parameters())
    assert all(torch.equal(resumed[name], own[name]) for name, _ in one.named)
    assert again.state_dict().keys() == scores.state_dict().keys()
    other = teacher_of(tiny)
    other.load_state_dict(scores.state_dict())
    with pytest.raises(CheckpointError, match="saved with every 2"):
        other.follow(stage, every=3, decay=0.5)


@dataclasses.dataclass
class InProcess:
    """Servers of a teacher, which is in this process."""

    teacher: Teacher
    learner: Learner
    fingerprint: str = "of the teacher"
    asked: list[Any] = dataclasses.field(default_factory=list[Any])

    def open(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def score(self, questions: Any, *, temperature: float, forbidden: Any) -> list[list[np.ndarray]]:
        self.asked.append((questions, temperature, tuple(forbidden)))
        out: list[list[np.ndarray]] = []
        for group, (prompt, answers) in enumerate(questions):
            rows = [Row(index=n, group=group, prompt=prompt, response=tuple(ids[:, 0].tolist())) for n, ids in enumerate(answers)]
            ids = {n: torch.from_numpy(ids[:, 1:].astype(np.int64)) for n, ids in enumerate(answers)}
            chosen = Chosen(k=ids[0].shape[1], ids=0, of_row=ids)
            own_NT = self.teacher.score(self.learner, rows, {}, chosen)
            out.append([torch.cat([own_NT[n, : len(row.response), None], chosen.told[n]], 1).numpy() for n, row in enumerate(rows)])
        return out


K = 6


def chosen_by(one: Learner, rows: Any, tiny: Tiny) -> Chosen:
    chosen = Chosen(k=K, ids=max(tiny.bundle.tokenizer.get_vocab().values()) + 1)
    score_tokens(one, rows, stats={CHOSEN: Choose(chosen=chosen)})
    return chosen


def test_a_teacher_on_servers_scores_as_one_that_is_here(tiny: Tiny) -> None:
    data, scores, one = batch(tiny), teacher_of(tiny, moved=0.3), student(tiny)
    scores.beta, here = None, scores.teacher
    assert isinstance(here, Teacher)
    rows = scores.rows_of(data.rows)
    scores.chosen = chosen_by(one, data.rows, tiny)
    expected = scores.score(one, rows)
    told = {n: of.clone() for n, of in scores.chosen.told.items()}
    servers = InProcess(here, one)
    scores.chosen.told.clear()
    scores.teacher = ServedTeacher(view=here.view, servers=servers)
    found = scores.score(one, scores.rows_of(data.rows))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert scores.chosen.told.keys() == told.keys() == {row.index for row in data.rows}
    for n, of in told.items():
        torch.testing.assert_close(scores.chosen.told[n], of, rtol=0, atol=1e-5)
    ((questions, temperature, forbidden),) = servers.asked
    assert len(questions) == len({row.group for row in data.rows}), "a prompt is sent once for its group"
    assert (temperature, forbidden) == (one.temperature, one.forbidden)
    scores.chosen = None
    torch.testing.assert_close(scores.score(one, rows), expected, rtol=0, atol=1e-5)


def test_teacher_topk_kl_is_that_of_whole_distributions_in_any_layout_and_split(tiny: Tiny) -> None:
    """Held against whole rows of both models' log-probs, and below the divergence over the whole vocabulary."""
    data, scores = batch(tiny), teacher_of(tiny, moved=0.3)
    scores.beta, here = None, scores.teacher
    assert isinstance(here, Teacher)
    of: list[dict[int, torch.Tensor]] = []
    for policy, vision, rows in ((None, None, data.rows), (here.policy, here.vision, scores.rows_of(data.rows))):
        found: list[tuple[int, torch.Tensor]] = []
        score_tokens(student(tiny), rows, policy=policy, vision=vision, stats={"whole": Whole(into=found)})
        of.append(dict(found))
    q, p = (torch.cat([side[n] for n in range(len(data.rows))]).exp() for side in of)
    best = q.topk(K, 1).indices
    ours, theirs = (torch.cat([side.gather(1, best), side.scatter(1, best, 0.0).sum(1, keepdim=True)], 1) for side in (q, p))
    expected = float((ours * (ours / theirs).log()).sum(1).mean())
    keep = q[0] > 0
    assert 1e-4 < expected <= float((q * (q / p).log())[:, keep].sum(1).mean())
    longest, moves = max(len(r.prompt.ids) + len(r.response) for r in data.rows), list[torch.Tensor]()
    for layout, budget in (("shared_prefix", 10**6), ("repeat", 10**6), ("shared_prefix", longest), ("repeat", longest * 3)):
        one = student(tiny, layout=layout, budget=budget)
        scores.chosen = chosen_by(one, data.rows, tiny)
        scores.score(one, scores.rows_of(data.rows))
        one.stats = {TOPK: TopKDivergence(chosen=scores.chosen)}
        before = weights(one)
        loss = TokenObjective(loss=lambda x: teacher_topk_kl(x, k=K), reducer=reducer.bind("token_mean"))
        report = optimizer_step(one, data, loss)
        assert report.loss == pytest.approx(expected, rel=1e-4)
        moves.append(weights(one) - before)
    assert float(moves[0].abs().max()) > 1e-4
    for moved in moves[1:]:
        torch.testing.assert_close(moved, moves[0], rtol=1e-3, atol=2e-6)
