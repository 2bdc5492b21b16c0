"""Routers: the experts that sampling took are kept, and updates take the same (rollout routing replay)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.given import load_given, make_model, make_rows
from tests.support.runs import small_config
from tests.support.tiny import Tiny
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.distill.section import Imitate
from vlmrl.extras.families import routing
from vlmrl.extras.families.engine_fork import ForkEngine
from vlmrl.extras.families.family import GenericFamily
from vlmrl.extras.families.qwen3_5 import QWEN3_5
from vlmrl.families.registry import FAMILIES
from vlmrl.policy.foreign import unproven
from vlmrl.policy.forward import layout_of
from vlmrl.policy.load import load_policy
from vlmrl.policy.pack import Row
from vlmrl.rollout.journal import rollout_from_json, rollout_to_json
from vlmrl.run.session import fixed_options
from vlmrl.train.step import score_rows
from vlmrl.train.updates import recompute
from vlmrl.types import PARTS, GenerationSettings, Request, Rollout

pytestmark = pytest.mark.not_fast  # builds models

FREE = routing.FREE
LAYOUTS = ("repeat", "fork", "shared_prefix")
SETTINGS = GenerationSettings(max_new_tokens=6, routes=True)

# ---- by hand


class Router(nn.Module):
    """Three experts of which a column takes two; its logits are what comes in."""

    def forward(self, logits_NE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p, experts = torch.softmax(logits_NE, -1).topk(2)
        return logits_NE, p / p.sum(-1, keepdim=True), experts


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Router()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Layer:
    monkeypatch.setattr(routing, "RULES", {"Router": routing._softmax})
    layer = Layer()
    assert routing.install(layer) == ""
    return layer


def test_replayed_experts_count_by_the_logits_of_now(by_hand: Layer) -> None:
    """Logits (ln 5, ln 3, ln 1): of its own choice {0, 1} expert 0 counts 5 / 8; of {0, 2} it counts 5 / 6."""
    logits = torch.tensor([[5.0, 3.0, 1.0]] * 3).log().requires_grad_()
    given = torch.tensor([[[0, 2]], [[1, 0]], [[FREE, FREE]]])
    with routing.tallied() as tally, routing.replayed(by_hand, given):
        _, weights, experts = by_hand.gate(logits)
    assert experts.tolist() == [[0, 2], [1, 0], [0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[5 / 6, 1 / 6], [3 / 8, 5 / 8], [5 / 8, 3 / 8]]))
    flips, calls = tally.share()[routing.FLIPS]
    assert (int(flips), int(calls)) == (1, 2), "the order of a choice is none, and a column that chooses itself does not count"
    # d ln(w_0) / d logit_i of w_0 = e^0 / (e^0 + e^2): 1 - 5/6 for itself, -1/6 for the other, nothing for the one left out
    (grown,) = torch.autograd.grad(weights[0, 0].log(), logits)
    torch.testing.assert_close(grown[0], torch.tensor([1 / 6, 0.0, -1 / 6]))


def test_a_router_chooses_itself_where_nothing_is_asked_for(by_hand: Layer) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    with routing.recorded() as recording:
        by_hand.gate(logits)
    assert recording.take().tolist() == [[[1, 2]]]
    with routing.replayed(by_hand, None):
        assert by_hand.gate(logits)[2].tolist() == [[1, 2]]
    assert by_hand.gate(logits)[2].tolist() == [[1, 2]]
    assert recording.kept == {}


def test_weights_of_the_other_kinds_of_routers_by_hand() -> None:
    chosen = torch.tensor([[2, 0]])
    logits = torch.tensor([[0.0, 5.0, 0.75]]).logit(eps=1e-3)  # sigmoids 0.001, 0.999, 0.75
    glm = SimpleNamespace(norm_topk_prob=True, routed_scaling_factor=2.0)
    torch.testing.assert_close(routing._sigmoid(glm, (logits,), chosen), 2 * torch.tensor([[0.75, 0.001]]) / 0.751)
    plain = SimpleNamespace(norm_topk_prob=False, routed_scaling_factor=1.0)
    torch.testing.assert_close(routing._sigmoid(plain, (logits,), chosen), torch.tensor([[0.75, 0.001]]))
    gemma = SimpleNamespace(per_expert_scale=torch.tensor([1.0, 1.0, 3.0]))
    torch.testing.assert_close(routing._scaled(gemma, (torch.tensor([[0.1, 0.6, 0.3]]),), chosen), torch.tensor([[3 * 0.75, 0.25]]))


def test_choices_are_laid_along_columns() -> None:
    prompt, answer = torch.tensor([[[1]], [[2]]]), torch.tensor([[[3]]])
    out = routing.columns([(prompt, 2), (answer, 2), (None, 1), (prompt, 3)])
    assert out is not None
    assert out[:, 0, 0].tolist() == [1, 2, 3, FREE, FREE, 1, 2, FREE]
    assert routing.columns([(None, 4)]) is None


@pytest.mark.parametrize(("experts", "size"), [(8, 1), (256, 1), (512, 2)])
def test_choices_come_back_from_text(experts: int, size: int) -> None:
    kept = torch.randint(experts, (5, 3, 2), generator=torch.Generator().manual_seed(0))
    kept[0, 0, 0] = experts - 1
    text = routing.written(kept, "of")
    back = routing.read(text, "of", 5)
    assert back is not None
    assert torch.equal(back, kept)
    assert text.startswith(f"of 3 2 {size} ")
    assert routing.read(text, "another", 7) is None
    with pytest.raises(RuntimeError):
        routing.read(text, "of", 6)
    nothing = routing.read(routing.written(kept[:0], "of"), "of", 0)
    assert nothing is not None
    assert nothing.shape == (0, 3, 2), "an answer of one token was never read"


def test_a_mark_tells_prompts_and_their_media_apart() -> None:
    marks = [routing.mark([1, 2]), routing.mark([1, 3]), routing.mark([1, 2], ["a"]), routing.mark([1, 2], ["b"])]
    assert len(set(marks)) == 4
    assert routing.mark((1, 2)) == marks[0]


# ---- models


@pytest.fixture(
    scope="module",
    params=["qwen3_vl_moe", "qwen3_5_moe", *(pytest.param(name, marks=pytest.mark.slow) for name in ("glm4v_moe", "gemma4_moe"))],
)
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp(request.param)
    return load_given(make_model(request.param, folder / "model"), make_rows(folder / "world", video=True, train=3))


def sampled(given: Tiny, settings: GenerationSettings = SETTINGS) -> tuple[list[Row], list[Rollout]]:
    """Answers to two prompts, as rows that replay, in another order than that of sampling."""
    ks = (0, 1, 2)
    asked = [Request(prompt=p, ks=ks, seeds=tuple(10 * n + k for k in ks)) for n, p in enumerate(given.prompts(2))]
    found = ForkEngine(given.policy, given.vision).generate(asked, settings)
    pairs = [(g, request.prompt, one) for g, (request, group) in enumerate(zip(asked, found, strict=True)) for one in group]
    pairs = [pairs[n] for n in (3, 0, 4, 1, 5, 2)]
    rows = [Row(index=n, group=g, prompt=p, response=one.ids, routes=one.routes) for n, (g, p, one) in enumerate(pairs)]
    return rows, [one for _, _, one in pairs]


def bare(rows: Sequence[Row]) -> list[Row]:
    return [dataclasses.replace(row, routes=()) for row in rows]


def scored(given: Tiny, rows: Sequence[Row], layout: str, *, train: bool = False) -> tuple[Tensor, dict[str, Any]]:
    how = layout_of(given.policy, layout)
    batch: Any = how.pack(rows, given.policy.positions, given.policy.device, pad_id=given.bundle.end_ids[0])
    out = how.forward(given.policy, batch, given.vision, temperature=1.0, forbidden=given.bundle.forbidden_ids, train=train)
    return out.logp_BT, {name: (int(number), int(of)) for name, (number, of) in batch.measured.items()}


def router_weights(given: Tiny) -> list[nn.Parameter]:
    return [getattr(router, "proj", router).weight for router in routing.routers_of(given.policy.model)]


@contextmanager
def moved(given: Tiny) -> Iterator[None]:
    """The routers as after an update that was large: about half of the choices are others."""
    weights = router_weights(given)
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for seed, weight in enumerate(weights):
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


def test_keeping_experts_changes_nothing_that_is_sampled(given: Tiny) -> None:
    _, kept = sampled(given)
    _, plain = sampled(given, dataclasses.replace(SETTINGS, routes=False))
    assert [dataclasses.replace(one, routes=()) for one in kept] == plain
    assert all(one.routes == () for one in plain)
    few = ForkEngine(given.policy, given.vision, max_num_seqs=1)
    prompt = given.prompts(1)[0]
    request = Request(prompt=prompt, ks=(0, 1), seeds=(1, 2))
    assert len({one.routes[0] for one in few.generate([request], SETTINGS)[0]}) == 1, "a prompt takes the same experts each time"
    assert [rollout_from_json(rollout_to_json(one)) for one in kept] == kept


def test_the_experts_of_sampling_are_those_that_the_layers_use(given: Tiny) -> None:
    """What the experts of each layer are called with, in a padded batch, under routers that would choose otherwise."""
    rows, rollouts = sampled(given)
    used: dict[str, Tensor] = {}
    layers = {name: m for name, m in given.policy.model.named_modules() if type(m).__name__.endswith("Experts")}

    def keep(name: str) -> Any:
        return lambda _, args: used.__setitem__(name, args[1].sort(-1).values)

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        with moved(given), torch.no_grad():
            scored(given, rows[:1], "repeat")
    finally:
        for hook in hooks:
            hook.remove()
    prompt, ids = rows[0].prompt, rows[0].response
    before = routing.read(rollouts[0].routes[0], routing.mark(prompt.ids, [h.key for h in prompt.media]), len(prompt.ids))
    behind = routing.read(rollouts[0].routes[1], routing.mark(ids), len(ids) - 1)
    assert before is not None
    assert behind is not None
    wanted = torch.cat([before, behind]).sort(-1).values
    assert len(used) == wanted.shape[1]
    for layer, name in enumerate(used):
        assert torch.equal(used[name][: len(wanted)], wanted[:, layer])


def test_without_a_flip_replay_gives_the_same_bits(given: Tiny) -> None:
    rows, rollouts = sampled(given)
    with torch.no_grad():
        for layout in LAYOUTS:
            mine, told = scored(given, rows, layout)
            flips, calls = told[routing.FLIPS]
            plain, silent = scored(given, bare(rows), layout)
            assert (flips, silent) == (0, {})
            assert calls > 0
            assert torch.equal(mine, plain)
            for logp_T, one in zip(mine, rollouts, strict=True):
                torch.testing.assert_close(logp_T[: len(one.ids)], torch.tensor(one.logprobs), rtol=0, atol=2e-4)


def test_with_other_routers_all_layouts_take_the_experts_of_sampling(given: Tiny) -> None:
    rows, _ = sampled(given)
    with moved(given), torch.no_grad():
        found = {layout: scored(given, rows, layout) for layout in LAYOUTS}
        plain, _ = scored(given, bare(rows), "repeat")
        mixed, _ = scored(given, [row if n % 2 else bare([row])[0] for n, row in enumerate(rows)], "shared_prefix")
    for layout in ("fork", "shared_prefix"):
        torch.testing.assert_close(found[layout][0], found["repeat"][0], rtol=0, atol=2e-4)
    assert found["fork"][1] == found["shared_prefix"][1]
    flips, calls = found["shared_prefix"][1][routing.FLIPS]
    assert 0.1 < flips / calls < 0.9
    assert (found["repeat"][0] - plain).abs().max() > 0.1, "their own experts give other log-probs"
    for n in range(len(rows)):  # a row without kept experts chooses itself, beside rows of its prompt that replay
        torch.testing.assert_close(mixed[n], (found["repeat"][0] if n % 2 else plain)[n], rtol=0, atol=2e-4)


def test_gradients_reach_the_routers_and_layers_that_are_computed_again_replay(given: Tiny) -> None:
    rows, _ = sampled(given)
    grown: dict[str, list[Tensor]] = {}
    weights = router_weights(given)
    model = given.policy.model
    with moved(given):
        for name, layout, again in (("repeat", "repeat", False), ("packed", "shared_prefix", False), ("again", "shared_prefix", True)):
            if again:
                recompute(model)
                model.train()
            try:
                logp, told = scored(given, rows, layout, train=True)
                grown[name] = list(torch.autograd.grad(logp.sum(), weights))
            finally:
                model.eval()
                recompute(model, False)
            assert told[routing.FLIPS][0] > 0
    for one in grown.values():
        assert all(float(part.abs().sum()) > 0 for part in one)
    size = sum(float(part.square().sum()) for part in grown["repeat"]) ** 0.5
    for name in ("packed", "again"):
        assert sum(float((a - b).square().sum()) for a, b in zip(grown[name], grown["repeat"], strict=True)) ** 0.5 < 2e-3 * size


def test_what_was_not_sampled_under_is_not_replayed(given: Tiny) -> None:
    """Another prompt or answer in the place of the one that was sampled, and another policy than the one that sampled."""
    rows, _ = sampled(given)
    row, prompt = rows[0], rows[0].prompt
    other = dataclasses.replace(row, prompt=dataclasses.replace(prompt, ids=(*prompt.ids[:-1], prompt.ids[-2])))
    shorter = dataclasses.replace(row, response=row.response[:-1])
    layers = len(router_weights(given))
    learner: Any = SimpleNamespace(
        policy=given.policy, vision=given.vision, layout="repeat", max_tokens_per_microbatch=10**6, temperature=1.0, forbidden=()
    )
    with moved(given), torch.no_grad():
        calls = [scored(given, [one], "repeat")[1][routing.FLIPS][1] for one in (row, other, shorter)]
        assert calls == [layers * n for n in (len(prompt.ids) + len(row.response) - 1, len(row.response) - 1, len(prompt.ids))]
        mine, theirs, plain = (
            score_rows(learner, some, policy=policy)
            for some, policy in ((rows, None), (rows, dataclasses.replace(given.policy)), (bare(rows), None))
        )
    assert torch.equal(theirs, plain)
    assert not torch.equal(mine, plain)


def test_in_bfloat16_replay_narrows_the_gap(tmp_path: Path) -> None:
    model = make_model("qwen3_5_moe", tmp_path / "model")
    given = load_given(model, make_rows(tmp_path / "world", video=True, train=3))
    half = dataclasses.replace(given, policy=load_policy(str(model), given.bundle, device="cpu", dtype="bfloat16", trains=PARTS))
    rows, rollouts = sampled(half, dataclasses.replace(SETTINGS, max_new_tokens=12))
    gap: list[float] = []
    with torch.no_grad():
        for some in (rows, bare(rows)):
            logp, told = scored(half, some, "shared_prefix")
            gap.append(float(torch.cat([(logp[n, : len(r.ids)] - torch.tensor(r.logprobs)).abs() for n, r in enumerate(rollouts)]).mean()))
            assert (told[routing.FLIPS][0] > 0) if len(gap) == 1 else routing.FLIPS not in told
    # the mean: the largest gap of an answer need not be at a column that flips, and which columns do is the processor's rounding
    assert gap[0] < gap[1]


# ---- recipes


def recipe(**rollout: Any) -> Config:
    config = small_config(Path("m"), Path("w"), Path("r"))
    config["stages"][1]["rollout"] |= {"router_replay": True} | rollout
    return Config.model_validate(config)


def family(name: str) -> GenericFamily:
    from vlmrl.extras.families.tiny import TINY

    return GenericFamily(name=name, config=TINY[name]()[0], generation=None)


def test_models_and_engines_that_cannot_replay_are_refused_by_name() -> None:
    assert unproven(family("qwen3_vl_moe"), recipe()) == []
    option = "stages[1].rollout.router_replay: True is not proven with"
    (problem,) = unproven(family("gemma3"), recipe())
    assert problem == f"{option} a 'gemma3' model under model.family 'generic'; take it out: it has no routers"
    (problem,) = unproven(family("llama4"), recipe())
    assert problem.endswith(f"take it out: its routers are Llama4Router; replayed are {', '.join(routing.RULES)}")
    (problem,) = unproven(family("qwen3_vl_moe"), recipe(engine="vllm"))
    assert problem.startswith("stages[1].rollout.engine: 'vllm' is not proven with"), "replay is, and P14 is not kept"
    problems = unproven(family("gemma4_moe"), recipe(engine="vllm"))
    assert problems[-1].endswith("take rollout.engine: hf, whose choices are kept; vLLM's are of qwen3_vl_moe, qwen3_5_moe, glm4v_moe")
    problems = unproven(family("gemma3"), recipe(engine="vllm"))
    assert problems[-1].startswith("stages[1].rollout.router_replay")
    (problem,) = unproven(QWEN3_5, recipe())
    assert problem == f"{option} a 'qwen3_5' model under model.family 'qwen_vl'; take it out: it has no routers"
    (problem,) = unproven(FAMILIES["qwen3_vl"], recipe())
    assert problem == "stages.rl.rollout.router_replay: a 'qwen3_vl' model has no routers; take it out"
    imitate = {"kind": "teacher_sft", "name": "t", "source": {"path": "x"}, "steps": 1, "rollout": {"router_replay": True}}
    assert any(one.startswith("rollout.router_replay: experts that a teacher took") for one in Imitate.model_validate(imitate).problems())


def test_an_engine_refuses_routers_that_it_cannot_keep(tmp_path: Path) -> None:
    given = load_given(make_model("llama4", tmp_path / "model"), make_rows(tmp_path / "world", video=False, train=1))
    with pytest.raises(ConfigError, match=r"rollout\.router_replay: its routers are Llama4Router"):
        sampled(dataclasses.replace(given, samples=given.samples * 2))


def test_runs_that_were_begun_before_there_was_a_choice_go_on() -> None:
    assert "router_replay" not in fixed_options(recipe(router_replay=False))["stages"][1]["rollout"]
    assert fixed_options(recipe())["stages"][1]["rollout"]["router_replay"] is True
    plain = Rollout(k=0, ids=(1,), logprobs=(-0.5,), text="", finish="stop", policy_version=0)
    assert "routes" not in rollout_to_json(plain)
    kept = dataclasses.replace(plain, routes=("a", "b"))
    assert rollout_from_json(rollout_to_json(kept)) == kept
