"""vLLM as the rollout engine of other families: through their own processor behind P14, and Qwen3.5 with code of its own.

Its delta nets are computed by `tests.support.delta_kernel`, in float32; with vLLM's own kernels, which take bfloat16 alone, the last test
runs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import delta_kernel, given, media_layouts, vllm_core
from tests.support.vllm_pair import EQUAL, GREEDY, Pair, apart
from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.families.conform.engine import HEAD
from vlmrl.extras.toy import model as toy_model
from vlmrl.extras.vllm import sync as sync_module
from vlmrl.extras.vllm.engine import VllmEngine
from vlmrl.policy.load import load_policy
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec
from vlmrl.types import GenerationSettings, Request

pytestmark = pytest.mark.slow

VIDEO = {"qwen3_5": True, "internvl": True, "smolvlm": False, "mistral3": False}
"""Families, and whether vLLM has clips of them as we do."""
SAMPLED = GenerationSettings(max_new_tokens=12, temperature=0.7)
FELT = 1e-4
"""Nats that a change of weights must make at least, for a comparison to mean something."""


@pytest.fixture(scope="module", params=list(VIDEO))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patched:
        if name == "qwen3_5":
            delta_kernel.install(patched)
            loaded = media_layouts.make(folder, name)
            prompts = media_layouts.prompts(loaded)
        else:
            world = given.make_rows(folder / "world", video=VIDEO[name], train=3)
            loaded = given.load_given(given.make_model(name, folder / "model", head=HEAD), world)
            prompts = given.layouts(loaded, video=VIDEO[name])
        core = vllm_core.core(folder / "model", loaded.policy)
        yield Pair(name, folder, loaded, core, VllmEngine(core, loaded.policy, loaded.store, probe_every=2), prompts)
        core.close()


@pytest.fixture
def pair(opened: Pair) -> Pair:
    """Every test starts from the same weights."""
    opened.loaded.policy.model.load_state_dict(opened.start)
    opened.moved(tower=True)
    return opened


def names_of(pair: Pair, part: str) -> list[str]:
    """Parameters of a part that the prompts look at."""
    family = pair.loaded.bundle.family
    return [name for name, _ in pair.loaded.policy.model.named_parameters() if family.part_of(name) == part]


def test_greedy_answers_are_those_of_the_policy_before_and_after_updates(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(3)
    last = None
    for update in range(5):
        ours, theirs = pair.hf(), pair.vllm()
        print(f"{pair.family}, {update} updates: {apart(ours, theirs)}")
        for name in pair.prompts:
            assert theirs[name].ids == ours[name].ids, (update, name)
            assert (theirs[name].finish, theirs[name].text) == (ours[name].finish, ours[name].text)
        assert max(apart(ours, theirs).values()) < EQUAL
        assert max(pair.gaps(theirs).values()) < EQUAL
        assert last is None or min(apart(last, theirs).values()) > FELT
        last = theirs
        with torch.no_grad():
            for parameter in pair.loaded.policy.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02 * parameter.std().nan_to_num(0.1).clamp_min(0.01))
        pair.moved(tower=True)


@pytest.mark.parametrize("part", ["vision", "projector", "language"])
def test_a_part_that_changes_is_heard_at_once(pair: Pair, part: str) -> None:
    """Features, keys, values and states of older weights are not found: prompts are those that were answered before."""
    before = pair.vllm()
    changed = set(names_of(pair, part))
    with torch.no_grad():
        for name, parameter in pair.loaded.policy.model.named_parameters():
            if name in changed:
                parameter.mul_(1.05 if part == "language" else 1.3)
    pair.moved(tower=part != "language")
    after = pair.vllm()
    assert max(apart(pair.hf(), after).values()) < EQUAL
    felt = apart(before, after)
    assert min(value for name, value in felt.items() if name != "text" or part == "language") > FELT, felt


def test_sampled_answers_of_a_group_find_their_prompt_in_the_cache(pair: Pair) -> None:
    """And their log-probs are those of the policy all the same: with a delta net the state at the end of a block is kept."""
    wanted = [Request(prompt=p, seeds=tuple(range(10 * n, 10 * n + 4)), ks=(0, 1, 2, 3)) for n, p in enumerate(pair.prompts.values())]
    settings = GREEDY if pair.family == "qwen3_5" else SAMPLED  # on a CPU vLLM does not draw where it keeps states (`CoreOptions.shares`)
    with pair.engine.ready():
        before = pair.engine.cached_tokens
        first = pair.engine.generate(wanted, settings)
        assert pair.engine.cached_tokens > before
        again = pair.engine.generate(wanted[::-1], settings)[::-1]
    assert [[r.ids for r in group] for group in first] == [[r.ids for r in group] for group in again]
    assert settings is GREEDY or len({r.ids for group in first for r in group}) > len(wanted)
    for k in range(4):
        answers = dict(zip(pair.prompts, [group[k] for group in first], strict=True))
        assert max(pair.gaps(answers, temperature=settings.temperature or 1.0).values()) < EQUAL


def test_adapters_are_sent_merged(pair: Pair) -> None:
    policy = load_policy(str(pair.folder / "model"), pair.loaded.bundle, device="cpu")
    policy.positions = pair.loaded.policy.positions
    add_adapters(policy, LoraSpec(rank=2, alpha=4.0, vision=True), seed_of=lambda _: 7, base="tiny")
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05)
    loaded = dataclasses.replace(pair.loaded, policy=policy)
    lora = Pair(pair.family, pair.folder, loaded, pair.core, VllmEngine(pair.core, policy, loaded.store), pair.prompts)
    assert max(apart(lora.hf(), lora.vllm()).values()) < EQUAL
    pair.engine.held = None  # the other engine has counted on


def test_clips_are_refused_by_number_where_they_are_not_proven(pair: Pair) -> None:
    if pair.loaded.bundle.writer is None or "video" not in pair.prompts:
        pytest.skip("it takes clips without a report, or none")
    pair.vllm()
    engine = VllmEngine(pair.core, pair.loaded.policy, pair.loaded.store, clips="P18 says so")
    with engine.ready(), pytest.raises(ConfigError, match="'vllm' is not proven with videos of this model; take hf; P18 says so"):
        engine.generate(pair.requests, SAMPLED)
    pair.engine.held = None


def test_control_every_tensor_that_is_left_out_or_exchanged_stops_the_run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last of the module but one: vLLM's loader is left in the middle."""
    real, names = sync_module.weights, [name for name, _ in sync_module.weights(pair.loaded.policy, tower=True)]

    def but(left_out: str) -> Any:
        return lambda policy, *, tower: ((name, tensor) for name, tensor in real(policy, tower=tower) if name != left_out)

    for name in names:
        monkeypatch.setattr(sync_module, "weights", but(name))
        pair.engine.held = None
        with pytest.raises(EngineError, match=r"got (no tensor|only a part)"):
            pair.engine.sync()
    monkeypatch.setattr(sync_module, "weights", real)
    shapes: dict[Any, list[str]] = {}
    for name, tensor in real(pair.loaded.policy, tower=True):
        shapes.setdefault((tensor.shape, tensor.dtype), []).append(name)
    call = pair.core.call
    alike = [(a, b) for same in shapes.values() for a, b in itertools.pairwise(same)]
    state = dict(pair.loaded.policy.model.state_dict())
    for a, b in alike:
        if torch.equal(state[a], state[b]):
            continue  # norms that are all ones

        def exchanged(method: str, *given: Any, a: str = a, b: str = b) -> Any:
            if method == "vlmrl_load":
                other = {a: b, b: a}
                given = ([(other.get(name, name), tensor) for name, tensor in given[0]],)
            return call(method, *given)

        monkeypatch.setattr(pair.core.sync, "call", exchanged)
        pair.engine.held = None
        with pytest.raises(EngineError, match="2 tensors of the trainer came to vLLM with other bits"):
            pair.engine.sync()
    monkeypatch.setattr(pair.core.sync, "call", call)
    print(f"{pair.family}: {len(names)} tensors left out, {len(alike)} pairs exchanged")
    pair.engine.held = None
    assert max(pair.gaps(pair.vllm()).values()) < EQUAL, "all is well again after a whole synchronisation"


def test_qwen3_5_with_kernels_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, with heads of 64: the gap is one of rounding."""
    monkeypatch.setitem(toy_model.DELTA, "linear_key_head_dim", 64)
    monkeypatch.setitem(toy_model.DELTA, "linear_value_head_dim", 64)
    loaded = media_layouts.make(tmp_path, "qwen3_5")
    policy = load_policy(str(tmp_path / "model"), loaded.bundle, device="cpu", dtype="bfloat16")
    policy.positions = loaded.policy.positions
    loaded = dataclasses.replace(loaded, policy=policy)
    core = vllm_core.core(tmp_path / "model", policy, dtype="bfloat16")
    pair = Pair("qwen3_5", tmp_path, loaded, core, VllmEngine(core, policy, loaded.store), media_layouts.prompts(loaded))
    try:
        for _ in range(3):
            found = pair.gaps(pair.vllm())
            print(f"bfloat16: {found}")
            assert max(found.values()) < 0.05
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.05)
            pair.moved(tower=True)
    finally:
        core.close()


def test_more_tokens_than_a_step_reads_are_drawn_by_their_seeds(tmp_path: Path) -> None:
    """On a CPU: a prompt that vLLM reads in parts ends its engine there ("CPU Generator does not use offset")."""
    loaded = media_layouts.make(tmp_path, "qwen3_vl")
    core = vllm_core.core(tmp_path / "model", loaded.policy, in_parts=False, shares=False)
    prompt, seeds = media_layouts.prompts(loaded)["videos"], tuple(range(60))
    assert len(seeds) * len(prompt.ids) > core.engine.vllm_config.scheduler_config.max_num_batched_tokens
    engine = VllmEngine(core, loaded.policy, loaded.store)
    with engine.ready():
        (answers,) = engine.generate([Request(prompt=prompt, seeds=seeds, ks=seeds)], SAMPLED)
    assert len({answer.ids for answer in answers}) > 1
    core.close()
