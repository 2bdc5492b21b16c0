"""Rollout, scoring, every loss and the update on a device that is not the host's: nothing mixes the two, and little waits."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import kernels as emulated
from tests.support import tiny as tiny_module
from tests.support.pretend import Pretend
from vlmrl.algo import registries
from vlmrl.algo.constraint.registry import constraint as constraints
from vlmrl.algo.inputs import LossInputs
from vlmrl.config.schema import Method, OptimSection
from vlmrl.policy import attention, windows
from vlmrl.policy.average import AveragedWeights
from vlmrl.policy.forward import layout_of
from vlmrl.policy.load import freeze
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.replicas import ReplicaUpdates
from vlmrl.train.stage.algorithm import bind
from vlmrl.train.stage.loss import Auxiliary, TokenObjective, constrained, group_objective
from vlmrl.train.step import Learner, MicroSlices, Minibatch, optimizer_step, score_rows
from vlmrl.types import GenerationSettings, Request, Rollout

HALF = ("flash", "flash-attn")


@dataclasses.dataclass
class There:
    """A tiny model on the pretended device, and its twin on the CPU."""

    fake: Pretend
    policy: Any
    here: Any
    tiny: tiny_module.Tiny
    vision: VisionCache

    def hidden(self) -> list[str]:
        """Copies of indices that nobody wrote down, but for transformers' order of the tower's windows and its backward."""
        lines = self.fake.lines("hidden")
        return [
            line for line in lines if not line.startswith("policy/vision.py") and not (line.startswith("train/replicas") and "put" in line)
        ]

    def learner(self, layout: str = "shared_prefix", budget: int = 400) -> Learner:
        named = freeze(self.policy, ())
        optimizer, names = make_optimizer(named, OptimSection())
        assert len(names) == len(named)
        return Learner(
            policy=self.policy,
            vision=self.vision,
            updates=ReplicaUpdates(named, optimizer, names),
            named=named,
            max_grad_norm=1.0,
            max_tokens_per_microbatch=budget,
            layout=layout,
            forbidden=self.tiny.bundle.forbidden_ids,
        )

    def batch(self) -> Minibatch:
        """Four prompts with two answers each, all that a minibatch may have."""
        prompts = self.tiny.prompts(4)
        texts = ["12.5 red" * (1 + n % 3) for n in range(8)]
        rows = tuple(
            Row(index=n, group=n // 2, prompt=prompts[n // 2], response=tuple(self.tiny.bundle.tokenize(text)))
            for n, text in enumerate(texts)
        )
        mask = response_mask(rows)
        old = torch.full(mask.shape, -1.0)
        return Minibatch(
            rows=rows,
            adv_NT=torch.linspace(-1, 1, 8)[:, None] * mask,
            mask_NT=mask,
            logp_old_NT=old,
            logp_ref_NT=old - 0.1,
            logp_sampled_NT=old + 0.1,
            statistics_N=torch.ones(8, dtype=torch.bool),
            given_old_NT=torch.full(mask.shape, float("nan")),
            fields={"offpolicy_B": torch.zeros(8, dtype=torch.bool), "task_B": torch.arange(8) % 2},
            tasks=("a", "b"),
        )

    def generate(self, policy: Any, settings: GenerationSettings, count: int = 2, answers: int = 3) -> list[list[Rollout]]:
        requests = [
            Request(prompt=p, ks=tuple(range(answers)), seeds=tuple(100 * n + k for k in range(answers)))
            for n, p in enumerate(self.tiny.prompts(count))
        ]
        vision = self.vision if policy is self.policy else VisionCache(self.tiny.store, budget_bytes=2**26)
        return HFEngine(policy, vision, max_num_seqs=8).generate(requests, settings)


@pytest.fixture
def there(tiny: tiny_module.Tiny) -> Iterator[There]:
    with moved(tiny) as there:
        yield there


@contextmanager
def moved(tiny: tiny_module.Tiny, lora: LoraSpec | None = None) -> Iterator[There]:
    here = copy.copy(tiny.policy)
    here.prefix_backend = "two_call"
    policy = copy.copy(here)
    policy.model = copy.deepcopy(tiny.policy.model)
    if lora is not None:
        add_adapters(policy, lora, seed_of=len, base="the-base")
    with Pretend() as fake:
        fake.move(policy.model)
        policy.device = fake.device
        yield There(fake, policy, here, tiny, VisionCache(tiny.store, budget_bytes=2**26))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (1.3, 0.8)])
def test_rollouts_are_those_of_the_cpu(there: There, temperature: float, top_p: float) -> None:
    settings = GenerationSettings(max_new_tokens=8, temperature=temperature, top_p=top_p)
    got, expected = there.generate(there.policy, settings), there.generate(there.here, settings)
    assert [[r.ids for r in group] for group in got] == [[r.ids for r in group] for group in expected]
    for one, other in zip((r for g in got for r in g), (r for g in expected for r in g), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert there.hidden() == []


def test_a_token_waits_once(there: There) -> None:
    """Two lengths of the same rollouts: what the longer one has more is decoding."""
    seen: list[tuple[int, int, int]] = []
    for tokens in (4, 12):
        engine = HFEngine(there.policy, there.vision)
        requests = [Request(prompt=p, ks=(0, 1), seeds=(n, 50 + n)) for n, p in enumerate(there.tiny.prompts(2))]
        there.fake.reset()
        engine.generate(requests, GenerationSettings(max_new_tokens=tokens))
        seen.append((engine.decoded_steps, there.fake.total("wait", "rollout/"), there.fake.total("to device", "rollout/")))
    (few, waits, copies), (many, more_waits, more_copies) = seen
    assert many > few
    assert more_waits - waits == many - few, there.fake.lines("wait")
    # one for those that are left and three for the grid, whenever answers end
    assert more_copies - copies <= 4 * 4, there.fake.lines("to device")


@pytest.mark.parametrize("backend", ["dense", "two_call", "flex", "flash", "flash-attn", "repeat"])
def test_a_step_with_every_backend(there: There, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring, forward, loss with all that may be added to it, backward, clipping and AdamW."""
    called = emulated.install(monkeypatch, flash_attn=backend == "flash-attn")
    if backend in HALF:
        there.policy.compute = torch.bfloat16
    if backend != "repeat":
        there.policy.prefix_backend = "flash" if backend in HALF else backend
    learner = there.learner("repeat" if backend == "repeat" else "shared_prefix")
    batch = there.batch()
    batch = dataclasses.replace(batch, logp_old_NT=score_rows(learner, batch.rows))
    objective = TokenObjective(
        loss=registries.policy_loss.bind("ppo_clip"),
        reducer=registries.reducer.bind("token_mean"),
        divergence=registries.kl_estimator.bind("k3"),
        beta=0.1,
        importance_correction=registries.importance_correction.bind("tis"),
    )
    before = torch.cat([p.detach().reshape(-1) for _, p in learner.named]).cpu()
    report = optimizer_step(learner, batch, objective)
    assert report.applied
    assert not torch.equal(before, torch.cat([p.detach().reshape(-1) for _, p in learner.named]).cpu())
    assert all(
        value.device == there.fake.device for state in learner.updates.optimizer.state.values() for k, value in state.items() if k != "step"
    )
    assert there.hidden() == []
    assert bool(called) == (backend in (*HALF, "flex"))
    assert optimizer_step(learner, batch, objective).applied, "again, on the moments of the first"


@pytest.mark.parametrize("layout", ["shared_prefix", "chains", "trees", "repeat"])
def test_the_host_waits_once_for_a_forward_and_once_for_a_step(there: There, layout: str) -> None:
    """All that a minibatch may have, in several micro-batches, through the tower and from the cache."""
    of_library = 2 if layout == "repeat" else 0  # transformers looks twice whether a mask of padded rows hides anything
    learner, batch = there.learner(layout, budget=200), there.batch()
    parts = len(layout_of(there.policy, layout).split(batch.rows, 200))
    assert parts > 1
    objective = TokenObjective(
        loss=registries.policy_loss.bind("ppo_clip"),
        reducer=registries.reducer.bind("token_mean"),
        divergence=registries.kl_estimator.bind("k3"),
        beta=0.1,
        importance_correction=registries.importance_correction.bind("tis"),
    )
    for _ in range(2):
        there.fake.reset()
        score_rows(learner, batch.rows)
        assert there.fake.total("wait") == parts * (1 + of_library), there.fake.lines("wait")
    there.policy.vision_trains = True
    there.fake.reset()
    report = optimizer_step(learner, batch, objective)
    assert report.applied
    assert {"entropy", "kl", "sampling/logp_gap", "sampling/kl", "sampling/logp_gap/video"} <= set(report.metrics)
    assert there.fake.total("wait") == 1 + parts * of_library, there.fake.lines("wait")


def test_index_tensors_are_copied_once_for_a_micro_batch(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches through a model of several layers, forward and backward: as many copies as with one layer."""
    layers = len(there.policy.core.language_model.layers)
    assert layers >= 2
    emulated.install(monkeypatch)
    most = {"two_call": 4, "flex": 16, "flash": 3, "dense": 1}
    for backend, of_one in most.items():
        there.policy.compute = torch.bfloat16 if backend == "flash" else torch.float32
        there.policy.prefix_backend = backend
        learner, batch = there.learner(budget=10**6), there.batch()
        halves = [dataclasses.replace(batch, rows=batch.rows[:4]), dataclasses.replace(batch, rows=batch.rows[4:])]
        there.fake.reset()
        for half in halves:
            score_rows(learner, half.rows)
        parts = ("policy/attention", "policy/fl", "policy/kern", "policy/windows")
        copies = sum(n for line, n in there.fake.lines("to device").items() if line.startswith(parts))
        assert copies <= 2 * of_one, (backend, there.fake.lines("to device"))
        for cached in (attention._answers, attention._masks, attention._dense_mask):
            cached.cache_clear()


@pytest.mark.parametrize("case", ["qwen2_vl", "qwen3_vl", "adapters", "tower"])
def test_other_models(case: str, tmp_path: Path, tiny: tiny_module.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features for several layers, adapters with the weights under them as reference, and a tower whose windows go in one call."""
    emulated.install(monkeypatch)
    if case.startswith("qwen"):
        tiny = tiny_module.load(*tiny_module.make_files(tmp_path, sft=1, train=4, test=1, family=case))  # pyright: ignore[reportArgumentType]
    with moved(tiny, LoraSpec(rank=4, alpha=8.0, vision=True) if case == "adapters" else None) as there:
        if case == "tower":
            there.policy.compute, there.policy.prefix_backend = torch.bfloat16, "flash"
            there.policy.model.set_attn_implementation({"text_config": "vlmrl_sdpa", "vision_config": windows.TOWER})
        learner, batch = there.learner(), there.batch()
        groups = there.generate(there.policy, GenerationSettings(max_new_tokens=4))
        assert all(r.ids for group in groups for r in group)
        if case == "adapters":
            reference = score_rows(
                learner, batch.rows, policy=there.policy.without_adapters(), vision=VisionCache(tiny.store, budget_bytes=2**26)
            )
            batch = dataclasses.replace(batch, logp_ref_NT=reference)
        objective = TokenObjective(loss=registries.policy_loss.bind("ppo_clip"), reducer=registries.reducer.bind("token_mean"))
        assert optimizer_step(learner, batch, objective).applied
        assert there.hidden() == []


def inputs(there: There) -> LossInputs:
    """All fields that a loss may need, on the device, with gradient where they have one."""
    g = torch.Generator().manual_seed(0)
    mask = torch.arange(5)[None] < torch.tensor([5, 3, 4, 1, 5, 2])[:, None]

    def put(x: torch.Tensor) -> torch.Tensor:
        return there.fake.put(x)

    logp = torch.rand(6, 5, generator=g) - 2
    return LossInputs(
        logp_BT=put(logp).requires_grad_(),
        logp_old_BT=put(logp + 0.2 * torch.randn(6, 5, generator=g)),
        logp_ref_BT=put(logp - 0.1),
        adv_BT=put(torch.randn(6, 1, generator=g).expand(6, 5).contiguous()),
        mask_BT=put(mask),
        group_B=put(torch.tensor([0, 0, 0, 1, 1, 1])),
        offpolicy_B=put(torch.tensor([False, False, True, False, False, True])),
        task_B=put(torch.tensor([0, 0, 0, 1, 1, 1])),
        tasks=("a", "b"),
        entropy_BT=put(torch.rand(6, 5, generator=g)).requires_grad_(),
        provided={
            "score_mean_B": put(torch.zeros(6)),
            "adv_median_B": put(torch.zeros(6)),
            "item_BT": put(torch.zeros(6, 5, dtype=torch.int64)),
        },
    )


def objective_step(there: There, objective: TokenObjective) -> None:
    x = inputs(there)
    slices = MicroSlices(place_B=torch.arange(6), counted_BT=x.mask_BT, sampled_BT=(x.logp_old_BT + 0.1).detach())
    total = objective.total(x.mask_BT.cpu())
    there.fake.reset()
    scalar, _ = objective(x, slices, total)
    scalar.backward()
    assert there.fake.lines("wait") == {}, "metrics are read at the end of the step"
    assert x.logp_BT.grad is not None
    assert bool(x.logp_BT.grad.isfinite().all())
    assert there.hidden() == []


def arguments(registry: Any, name: str) -> dict[str, Any]:
    """Something for each argument that has no default."""
    return {p.name: 1 if p.annotation is int else 1.0 for p in registry.get(name).parameters.values() if p.required}


@pytest.mark.parametrize("name", registries.policy_loss.names())
def test_every_loss(there: There, name: str) -> None:
    loss = registries.policy_loss.bind(name, arguments(registries.policy_loss, name))
    objective_step(there, TokenObjective(loss=loss, reducer=registries.reducer.bind("token_mean")))


@pytest.mark.parametrize("slot", ["reducer", "kl_estimator", "importance_correction", "auxiliary_loss"])
def test_everything_beside_a_loss(there: There, slot: str) -> None:
    registry = getattr(registries, slot)
    for name in registry.names():
        entry = registry.get(name)
        if entry.module.startswith("vlmrl.extras.") or "masked_logp_BT" in entry.extra.get("needs", ()):
            continue  # they need what their stages or a pass over other media provide
        call, more = registry.bind(name, arguments(registry, name)), {}
        if slot == "kl_estimator":
            more = {"divergence": call, "beta": 0.1, "divergence_needs_old": "logp_old_BT" in registry.get(name).extra.get("needs", ())}
        elif slot == "importance_correction":
            more = {"importance_correction": call}
        elif slot == "auxiliary_loss":
            more = {"auxiliary": [Auxiliary(name=name, loss=call, plain_sum=registry.get(name).extra.get("plain_sum", False))]}
        reducer = call if slot == "reducer" else registries.reducer.bind("seq_mean")
        objective_step(there, TokenObjective(loss=registries.policy_loss.bind("ppo_clip"), reducer=reducer, **more))


@pytest.mark.parametrize("name", registries.group_loss.names())
def test_every_loss_that_compares_rollouts(there: There, name: str) -> None:
    learner, batch = there.learner(), there.batch()
    objective = group_objective(learner, bind(registries.group_loss, Method(name=name)), batch)
    assert optimizer_step(learner, batch, objective).applied
    assert there.hidden() == []


@pytest.mark.parametrize("name", [name for name in constraints.names() if constraints.get(name).extra["acts_on"] == "loss"])
def test_every_constraint_on_the_loss(there: There, name: str) -> None:
    learner, batch = there.learner(), there.batch()
    term = constrained(learner, bind(constraints, Method(name=name)), batch)
    objective = TokenObjective(
        loss=registries.policy_loss.bind("ppo_clip"), reducer=registries.reducer.bind("token_mean"), auxiliary=[term]
    )
    assert optimizer_step(learner, batch, objective).applied
    assert there.hidden() == []


def test_averaged_reference(there: There) -> None:
    """It follows weights of its own device, takes what a checkpoint read on the CPU, and follows weights of another device."""
    weights = {name: p.detach() for name, p in there.policy.model.named_parameters()}
    average = AveragedWeights({name: p.clone() for name, p in weights.items()}, every=1, decay=0.5)
    assert average.step({name: p * 3 for name, p in weights.items()})
    name, p = next(iter(weights.items()))
    assert torch.allclose(average.tensors()[f"average/{name}"].cpu(), p.cpu() * 2)
    saved = {key: value.cpu() for key, value in average.tensors().items()}
    average.load_state_dict(average.state_dict(), saved)
    assert all(value.device == there.fake.device for value in average.tensors().values())
    on_host = AveragedWeights({name: p.cpu() for name, p in weights.items()}, every=1, decay=0.5)
    assert on_host.step(weights)


def test_old_and_saved_log_probs_come_back_to_the_host(there: There, tmp_path: Path) -> None:
    learner, batch = there.learner(), there.batch()
    scores = score_rows(learner, batch.rows)
    assert scores.device.type == "cpu"
    assert torch.allclose(scores, torch.zeros_like(scores).where(~batch.mask_NT, scores)), "zero behind the answers"
