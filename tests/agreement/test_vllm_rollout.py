"""vLLM as the rollout engine, in this process: the same policy as the trainer's, at every version of its weights.

One engine per family, shared by the tests of the module. Needs vLLM (its CPU build is enough) in the environment of the tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import media_layouts, tiny, vllm_core
from tests.support.vllm_pair import EQUAL, GREEDY, Pair, apart
from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.vllm import engine as engine_module
from vlmrl.extras.vllm.engine import VllmEngine
from vlmrl.extras.vllm.inputs import EngineInputBuilder, Version
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.lora import add_adapters, fold_adapters
from vlmrl.policy.model import LoraSpec
from vlmrl.policy.pack import Row
from vlmrl.rollout.mismatch import Bounds
from vlmrl.types import GenerationSettings, Request, Rollout

pytestmark = pytest.mark.slow

SAMPLED = GenerationSettings(max_new_tokens=12, temperature=0.7)
FELT = 1e-4
"""Nats that a change of weights must make at least, for a comparison to mean something."""


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(request.param)
    loaded = media_layouts.make(folder, request.param)
    core = vllm_core.core(folder / "model", loaded.policy)
    prompts = media_layouts.prompts(loaded)
    yield Pair(request.param, folder, loaded, core, VllmEngine(core, loaded.policy, loaded.store, probe_every=2), prompts)
    core.close()


@pytest.fixture(autouse=True)
def _nothing_cached(pair: Pair) -> None:
    """Every test starts from the same weights. Features that an earlier one has made, some of them wrong ones, are of another version."""
    pair.loaded.policy.model.load_state_dict(pair.start)
    pair.moved(tower=True)


def test_greedy_answers_are_those_of_the_policy(pair: Pair) -> None:
    ours, theirs = pair.hf(), pair.vllm()
    for name in media_layouts.LAYOUTS:
        assert theirs[name].ids == ours[name].ids, name
        assert (theirs[name].finish, theirs[name].text) == (ours[name].finish, ours[name].text)
    assert max(apart(ours, theirs).values()) < EQUAL
    assert set(pair.gaps(theirs)) == set(media_layouts.LAYOUTS)
    assert max(pair.gaps(theirs).values()) < EQUAL


def test_sampled_answers_have_seeds_of_their_own_and_the_log_probs_of_what_was_drawn_from(pair: Pair) -> None:
    wanted = [Request(prompt=p, seeds=tuple(range(10 * n, 10 * n + 4)), ks=(3, 4, 5, 6)) for n, p in enumerate(pair.prompts.values())]
    done: dict[int, list[Rollout]] = {}
    with pair.engine.ready():
        first = pair.engine.generate(wanted, SAMPLED, done.__setitem__)
        again = pair.engine.generate(wanted[::-1], SAMPLED)[::-1]
    assert [done[n] for n in range(len(wanted))] == first, "each request is reported once, as a whole"
    assert [[r.ids for r in group] for group in first] == [[r.ids for r in group] for group in again]
    assert len({r.ids for group in first for r in group}) > len(wanted)
    policy = pair.loaded.policy
    for request, group in zip(wanted, first, strict=True):
        assert [r.k for r in group] == [3, 4, 5, 6]
        assert {r.policy_version for r in group} == {policy.version}
        rows = [Row(index=n, group=0, prompt=request.prompt, response=r.ids) for n, r in enumerate(group)]
        layout = LAYOUTS["shared_prefix"]
        batch = layout.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        with torch.no_grad():
            scored = layout.forward(policy, batch, pair.loaded.vision, temperature=0.7, forbidden=policy.bundle.forbidden_ids, train=False)
        for row, rollout in zip(scored.logp_BT, group, strict=True):
            torch.testing.assert_close(torch.tensor(rollout.logprobs), row[: len(rollout.ids)], rtol=0, atol=EQUAL)
            assert not set(rollout.ids) & set(policy.bundle.forbidden_ids)


def test_end_tokens_end_an_answer_and_stay_in_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pair.vllm()["image"]
    ends = (answer.ids[4],)
    upto = answer.ids.index(ends[0]) + 1
    monkeypatch.setattr(pair.loaded.policy, "bundle", dataclasses.replace(pair.loaded.bundle, end_ids=ends))
    ended = pair.vllm()["image"]
    assert (ended.ids, ended.finish) == (answer.ids[:upto], "stop")
    assert pair.hf()["image"].ids == ended.ids


def test_a_prompt_is_computed_once_per_group(pair: Pair) -> None:
    answers, block = 8, 32
    for name, prompt in pair.prompts.items():
        pair.moved(tower=False)  # prompts that begin alike would share what they have in common
        with pair.engine.ready():
            before = pair.engine.counts["work/prefilled_tokens"]()
            pair.engine.generate([Request(prompt=prompt, seeds=tuple(range(answers)), ks=tuple(range(answers)))], SAMPLED)
            spent = pair.engine.counts["work/prefilled_tokens"]() - before
        assert len(prompt.ids) <= spent <= len(prompt.ids) + answers * block, name
        assert spent < answers * len(prompt.ids), name


@pytest.mark.parametrize("part", ["visual.blocks", "merger", "language_model.layers"])
def test_changed_weights_answer_at_once(pair: Pair, part: str) -> None:
    before = pair.vllm()
    with torch.no_grad():
        for name, parameter in pair.loaded.policy.model.named_parameters():
            if part in name:  # the decoder by less: with answers of one token over and over, float32 itself is 8e-5 from float64
                parameter.mul_(1.1 if "language" in part else 1.3).add_(0.0 if "language" in part else 0.02)
    pair.moved(tower="language" not in part)
    after = pair.vllm()
    assert max(apart(pair.hf(), after).values()) < EQUAL
    assert max(pair.gaps(after).values()) < EQUAL
    felt = apart(before, after)
    assert min(value for name, value in felt.items() if name != "text" or "language" in part) > FELT, felt


def test_control_features_of_an_older_tower_are_found_by_the_meter(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With media hashes that do not carry the version, the features of the old tower come back from vLLM's cache."""
    monkeypatch.setattr(Version, "media_hash", lambda self, key: key)
    pair.moved(tower=True)
    assert max(pair.gaps(pair.vllm()).values()) < EQUAL
    with torch.no_grad():
        for name, parameter in pair.loaded.policy.model.named_parameters():
            if "merger" in name:
                parameter.mul_(0.8).add_(0.02)
    pair.moved(tower=True)
    found = pair.gaps(pair.vllm())
    assert found.pop("text") < EQUAL
    assert min(found.values()) > 10 * EQUAL, found
    with pytest.raises(EngineError, match="look at pixels, positions and features"):
        Bounds(stop=10 * EQUAL).check({f"sampling/logp_gap/{k}": v for k, v in {**found, "text": 1e-7}.items()}, "here")


@pytest.mark.parametrize("fault", ["normalised twice", "one patch"])
def test_control_other_pixels_are_found_by_the_meter(pair: Pair, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    real = EngineInputBuilder.patches

    def patches(self: EngineInputBuilder, handle: Any) -> Any:
        if fault == "normalised twice":
            return self.bundle.pixel_values(self.pixels.get_key(handle.key).pixel_values, handle.kind).numpy()
        raw = real(self, handle).copy()
        raw[len(raw) // 2] = 255 - raw[len(raw) // 2]
        return raw

    monkeypatch.setattr(EngineInputBuilder, "patches", patches)
    pair.moved(tower=True)
    found = pair.gaps(pair.vllm())
    assert found.pop("text") < EQUAL
    assert min(found.values()) > 20 * EQUAL, found


def test_control_other_positions_are_found_by_the_meter(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = pair.vllm()
    policy = pair.loaded.policy
    rule = dataclasses.replace(policy.positions, rule="grid")
    if pair.family == "qwen2_5_vl":  # the rules differ for its videos only
        monkeypatch.setattr(policy, "positions", rule)
        found = pair.gaps(answers)
        assert max(found[name] for name in ("text", "image", "images")) < EQUAL
        assert min(found[name] for name in ("video", "videos", "mixed")) > FELT, found
    with pytest.raises(ConfigError, match="vLLM knows the rule 'max' only"):
        EngineInputBuilder(pair.loaded.bundle, rule, pair.loaded.store)


def test_probes_are_asked_of_every_place_in_turn(pair: Pair) -> None:
    pair.vllm()
    with pair.engine.ready():
        pair.engine.probes(1.0)
    seen: list[int] = []
    for _ in range(4):
        pair.moved(tower=False)
        with pair.engine.ready():
            probes = pair.engine.probes(1.0)
        seen.append(len(probes))
        if probes:
            answers = {name: r for name, (_, r) in zip(pair.prompts, probes, strict=True)}
            assert [prompt for prompt, _ in probes] == list(pair.prompts.values())
            assert max(pair.gaps(answers).values()) < EQUAL
    assert sorted(seen) == [0, 0, 6, 6]


def test_probes_are_no_longer_than_there_is_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose answers are shorter than a probe, and whose longest prompt fills the rest."""
    pair.vllm()
    engine = VllmEngine(pair.core, pair.loaded.policy, pair.loaded.store, probe_every=1)
    longest = max(len(prompt.ids) for prompt in pair.prompts.values())
    monkeypatch.setattr(pair.core, "options", dataclasses.replace(pair.core.options, max_model_len=longest + 3))
    with engine.ready():
        engine.generate(pair.requests, dataclasses.replace(GREEDY, max_new_tokens=3))
        assert {len(answer.ids) for _, answer in engine.probes(1.0)} <= {1, 2, 3}
    pair.engine.held = None


def test_a_frozen_tower_is_sent_once(pair: Pair) -> None:
    with pair.engine.ready():
        pass
    again = VllmEngine(pair.core, pair.loaded.policy, pair.loaded.store)
    whole = again.sync()
    pair.moved(tower=False)
    part = again.sync()
    assert whole is not None
    assert part is not None
    assert whole.whole
    assert not part.whole
    tower = [p for name, p in pair.loaded.policy.model.named_parameters() if ".visual." in name]
    assert whole.tensors - part.tensors == len(tower)
    assert whole.nbytes - part.nbytes == sum(p.numel() * 4 for p in tower)
    assert again.sync() is None, "and nothing is sent while nothing changes"
    pair.engine.held = None  # the other engine has counted on
    assert max(pair.gaps(pair.vllm()).values()) < EQUAL


def _emptied(worker: Any) -> None:
    """What sleep leaves of a GPU: no weights, nor tensors that are no buffers (vLLM saves these), and other keys and values."""
    for module in worker.model_runner.model.modules():
        for tensor in [*module.parameters(recurse=False), *(one for one in vars(module).values() if isinstance(one, torch.Tensor))]:
            if tensor.is_floating_point():
                tensor.data.fill_(float("nan"))
    for cache in worker.model_runner.kv_caches:
        cache.fill_(3.0)


def test_memory_that_was_given_back_is_filled_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own calls, which do nothing to weights on a CPU, and beside them what they do on a GPU."""
    core, levels = pair.core, list[int]()
    real = core.engine.sleep
    monkeypatch.setattr(core, "options", dataclasses.replace(core.options, sleeps=True))
    monkeypatch.setattr(core.engine, "sleep", lambda level: (levels.append(level), real(level=level), core.engine.collective_rpc(_emptied)))
    for moves in range(3):
        if moves:
            pair.moved(tower=moves == 2)
        theirs = pair.vllm()
        assert [theirs[name].ids for name in theirs] == [answer.ids for answer in pair.hf().values()]
        assert max(apart(pair.hf(), theirs).values()) < EQUAL
        assert (core.resting, pair.engine.held) == (True, None)
        with pytest.raises(EngineError, match="call `ready` first"):
            pair.engine.generate(pair.requests, GREEDY)
    assert levels == [2, 2, 2]
    monkeypatch.undo()
    assert max(pair.gaps(pair.vllm()).values()) < EQUAL, "and awake it stays"
    assert not core.resting


def test_adapters_are_sent_merged(pair: Pair) -> None:
    other = tiny.load(pair.folder / "model", pair.folder / "world")
    other.policy.positions = pair.loaded.policy.positions
    add_adapters(other.policy, LoraSpec(rank=2, alpha=4.0, vision=True), seed_of=lambda _: 7, base="tiny")
    with torch.no_grad():
        for name, parameter in other.policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05)
    lora = Pair(pair.family, pair.folder, other, pair.core, VllmEngine(pair.core, other.policy, other.store), pair.prompts)
    for prompt in pair.prompts.values():
        for handle, ref in zip(prompt.media, prompt.sample.media, strict=True):
            assert other.store.get(ref, other.encoder.data_root).handle.key == handle.key
    merged = lora.vllm()
    assert max(apart(lora.hf(), merged).values()) < EQUAL
    fold_adapters(other.policy)
    assert max(apart(lora.hf(), merged).values()) < EQUAL
    pair.engine.held = None


def test_a_lost_answer_is_asked_again_and_in_the_end_an_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = pair.vllm()
    real, losses = engine_module.answer_of, [2]

    def answer_of(output: Any) -> Any:
        answer = real(output)
        if losses[0] > 0:
            losses[0] -= 1
            return dataclasses.replace(answer, reason="abort", ids=(), logprobs=())
        return answer

    monkeypatch.setattr(engine_module, "answer_of", answer_of)
    before = pair.engine.asked_again
    assert pair.vllm() == wanted
    assert pair.engine.asked_again == before + 2
    losses[0] = 10**6
    with pytest.raises(EngineError, match="asked 3 times: ended as 'abort'"):
        pair.vllm()
    losses[0] = 0
    assert pair.vllm() == wanted, "and what was left of that call is gone"


def test_prompts_that_do_not_fit_are_refused(pair: Pair) -> None:
    with pair.engine.ready(), pytest.raises(ConfigError, match="max_model_len"):
        pair.engine.generate(pair.requests, GenerationSettings(max_new_tokens=1000))
    pair.moved(tower=False)
    with pytest.raises(EngineError, match="call `ready` first"):
        pair.engine.generate(pair.requests, GREEDY)


def test_control_a_renamed_tensor_stops_the_run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last of the module: vLLM's loader is left in the middle."""
    import vlmrl.extras.vllm.sync as sync_module
    import vlmrl.extras.vllm.worker as worker_module

    real = sync_module.weights

    def renamed(old: str, new: str) -> Any:
        def weights(policy: Any, *, tower: bool) -> Any:
            return ((name.replace(old, new), tensor) for name, tensor in real(policy, tower=tower))

        return weights

    pair.moved(tower=False)
    monkeypatch.setattr(sync_module, "weights", renamed("blocks.0.attn.qkv.bias", "blocks.0.attn.bias"))
    pair.engine.held = None
    with pytest.raises(EngineError, match=r"1 tensors of the trainer went nowhere in vLLM's model: .*attn\.bias"):
        pair.engine.sync()
    monkeypatch.setattr(sync_module, "weights", real)
    shown = sync_module.checksum
    monkeypatch.setattr(sync_module, "checksum", lambda tensor: shown(tensor) + int(tensor.ndim == 1))
    with pytest.raises(EngineError, match="came to vLLM with other bits"):
        pair.engine.sync()
    monkeypatch.setattr(sync_module, "checksum", shown)
    monkeypatch.setattr(worker_module, "checksum", lambda tensor: shown(tensor) + int(isinstance(tensor, torch.nn.Parameter)))
    with pytest.raises(EngineError, match="do not hold the bits that were sent"):
        pair.engine.sync()
    monkeypatch.setattr(worker_module, "checksum", shown)
    assert max(pair.gaps(pair.vllm()).values()) < EQUAL, "all is well again after a whole synchronisation"
    monkeypatch.setattr(sync_module, "weights", renamed("embed_tokens", "embed_token"))
    pair.engine.held = None
    with pytest.raises(EngineError, match=r"loader refuses a tensor of the trainer: .*embed_token"):
        pair.engine.sync()
