"""Experts that vLLM's routers take while it answers, and updates that take them again (`rollout.router_replay`).

In float32 they are those that the reference model takes of the same ids, for every column that is kept: the prompt, whether it was computed
or found in the prefix cache, and the answer but for its last token. Qwen3.5 is computed as in `test_vllm_families.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.faults.test_resume_families import small
from tests.support import delta_kernel, given, served, vllm_core
from tests.support.episodes import family_episodes
from tests.support.reports import written
from tests.support.vllm_pair import Pair
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.families import routing
from vlmrl.extras.families.conform.engine import HEAD
from vlmrl.extras.vllm import engine as engine_module
from vlmrl.extras.vllm.client import RemoteVllmEngine
from vlmrl.extras.vllm.engine import VllmEngine
from vlmrl.extras.vllm.fleet import Fleet, Needed, connect
from vlmrl.extras.vllm.secret import read_token
from vlmrl.policy.forward import layout_of
from vlmrl.policy.pack import Row
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui
from vlmrl.types import GenerationSettings, Request, Rollout

pytestmark = pytest.mark.slow

FAMILIES = ("qwen3_vl_moe", "glm4v_moe", "qwen3_5_moe")
SETTINGS = GenerationSettings(max_new_tokens=12, temperature=0.7, routes=True)
EQUAL = 1e-4
"""Nats by which two float32 kernels may differ here; another expert makes more than 0.1."""


def made(name: str, folder: Path, *, in_parts: bool = False, shares: bool = True) -> Pair:
    """A tiny model with vLLM, whose routers are seen."""
    held = given.load_given(given.make_model(name, folder / "model", head=HEAD), given.make_rows(folder / "world", video=False, train=3))
    core = vllm_core.core(folder / "model", held.policy, in_parts=in_parts, shares=shares, routes=True)
    return Pair(name, folder, held, core, VllmEngine(core, held.policy, held.store), given.layouts(held, video=False))


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    name = request.param
    with pytest.MonkeyPatch.context() as patched:
        if name == "qwen3_5_moe":
            delta_kernel.install(patched)
        # a CPU draws by seeds only where prompts are read whole, which layers with states cannot share
        pair = made(name, tmp_path_factory.mktemp(name), shares=name != "qwen3_5_moe")
        yield pair
        pair.core.close()


@pytest.fixture
def pair(opened: Pair) -> Pair:
    """Every test starts from the same weights."""
    opened.loaded.policy.model.load_state_dict(opened.start)
    opened.moved(tower=True)
    return opened


def asked(pair: Pair, count: int) -> list[Request]:
    ks = tuple(range(count))
    return [Request(prompt=p, seeds=tuple(10 * n + k for k in ks), ks=ks) for n, p in enumerate(pair.prompts.values())]


def sampled(pair: Pair, settings: GenerationSettings = SETTINGS, count: int = 3) -> tuple[list[Row], list[Rollout]]:
    """`count` answers to each prompt, one prompt behind the other."""
    requests = asked(pair, count)
    with pair.engine.ready():
        found = pair.engine.generate(requests, settings)
    flat = [(n, request.prompt, one) for n, request in enumerate(requests) for one in found[n]]
    rows = [Row(index=i, group=n, prompt=p, response=one.ids, routes=one.routes) for i, (n, p, one) in enumerate(flat)]
    return rows, [one for _, _, one in flat]


def kept(row: Row) -> torch.Tensor:
    """Experts that vLLM gave, of the prompt and the answer, [C, L, k]."""
    prompt = row.prompt
    before = routing.read(row.routes[0], routing.mark(prompt.ids, [handle.key for handle in prompt.media]), len(prompt.ids))
    behind = routing.read(row.routes[1], routing.mark(row.response), len(row.response) - 1)
    assert before is not None
    assert behind is not None
    return torch.cat([before, behind])


def scored(pair: Pair, rows: Sequence[Row], answers: Sequence[Rollout], layout: str) -> tuple[float, tuple[int, int]]:
    """(widest gap to the log-probs of the sampler, (flips, calls)), in a layout."""
    policy, how = pair.loaded.policy, layout_of(pair.loaded.policy, layout)
    batch = how.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
    more = {"temperature": SETTINGS.temperature, "forbidden": policy.bundle.forbidden_ids, "train": False}
    with torch.no_grad():
        logp_BT = how.forward(policy, batch, pair.loaded.vision, **more).logp_BT
    gaps = [float((logp_BT[n, : len(one.ids)] - torch.tensor(one.logprobs)).abs().max()) for n, one in enumerate(answers)]
    flips, calls = batch.measured.get(routing.FLIPS, (0, 0))
    return max(gaps), (int(flips), int(calls))


def of_reference(pair: Pair, row: Row, answer: Rollout) -> torch.Tensor:
    """Experts that the policy takes of the same ids, [C, L, k]."""
    with routing.recorded() as recording:
        scored(pair, [dataclasses.replace(row, routes=())], [answer], "repeat")
        return recording.take()[: len(row.prompt.ids) + len(row.response) - 1]


def others(a: torch.Tensor, b: torch.Tensor) -> int:
    """Columns and layers whose sets of experts are not the same."""
    assert a.shape == b.shape
    return int((a.sort(-1).values != b.sort(-1).values).any(-1).sum())


def differing(pair: Pair, rows: Sequence[Row], answers: Sequence[Rollout]) -> int:
    """Choices of vLLM that are not those of the policy."""
    return sum(others(kept(row), of_reference(pair, row, answer)) for row, answer in zip(rows, answers, strict=True))


def shifted(pair: Pair, seed: int) -> None:
    """Move all weights, those of the routers and their biases most."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, one in (*pair.loaded.policy.model.named_parameters(), *pair.loaded.policy.model.named_buffers()):
            scale = 0.5 if ".gate." in name else 0.02 if one.ndim > 1 else 0.0
            if one.is_floating_point():
                one.add_(torch.randn(one.shape, generator=generator) * scale * one.std().nan_to_num(0.1).clamp_min(0.05))
    pair.moved(tower=True)


def steps(config: Config) -> list[dict[str, Any]]:
    """What the steps of a run have logged."""
    train_from(loaded(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
    return [line for line in read_metrics(Path(config.run.root) / config.run.name / "metrics.jsonl") if "grad_norm" in line]


def test_experts_are_those_of_the_policy_before_and_after_updates(pair: Pair) -> None:
    last: torch.Tensor | None = None
    for update in range(3):
        found = pair.engine.cached_tokens
        rows, answers = sampled(pair)
        assert pair.engine.cached_tokens > found or pair.family == "qwen3_5_moe", "the prompt of a group is computed once"
        calls = sum(int(kept(row).shape[:2].numel()) for row in rows)
        print(f"{pair.family}, {update} updates: {calls} choices of {len(rows)} answers")
        assert differing(pair, rows, answers) == 0
        assert len({row.routes[0] for row in rows}) == len(pair.prompts), "answers to a prompt have its experts, computed or found"
        prompt = kept(rows[0])[: len(rows[0].prompt.ids)]
        assert last is None or others(last, prompt) > 0, "an update that changes nothing would prove nothing"
        last = prompt
        shifted(pair, update)


@pytest.mark.parametrize("layout", ["repeat", "fork", "shared_prefix"])
def test_log_probs_with_replay_are_those_of_vllm(pair: Pair, layout: str) -> None:
    rows, answers = sampled(pair)
    gap, (flips, calls) = scored(pair, rows, answers, layout)
    print(f"{pair.family}, {layout}: {gap:.2g}, {flips} of {calls} flips")
    assert gap < EQUAL
    assert flips == 0
    prompts = rows if layout == "repeat" else [rows[row.group * 3] for row in rows[::3]]
    columns = sum(len(row.prompt.ids) for row in prompts) + sum(len(row.response) - 1 for row in rows)
    assert calls == columns * kept(rows[0]).shape[1], "no column chose by itself"


def test_control_experts_of_another_layer_are_felt(pair: Pair) -> None:
    rows, answers = sampled(pair)
    turned: list[Row] = []
    for row in rows:
        marked = routing.mark(row.prompt.ids, [handle.key for handle in row.prompt.media])
        prompt = kept(row)[: len(row.prompt.ids)].roll(1, 1)
        turned.append(dataclasses.replace(row, routes=(routing.written(prompt, marked), row.routes[1])))
    gap, (flips, _) = scored(pair, turned, answers, "shared_prefix")
    print(f"{pair.family}: {gap:.2g}, {flips} flips")
    assert gap > 0.1
    assert flips > 0


def test_control_routers_that_are_not_seen_stop_the_run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    call = pair.core.call
    monkeypatch.setattr(pair.core, "call", lambda method, *given: None if method == "vlmrl_experts" else call(method, *given))
    with pytest.raises(EngineError, match=r"vLLM read \d+ columns for an answer to 'text', and of their experts gave none"):
        sampled(pair)
    monkeypatch.setattr(pair.core, "routed", pair.core.routed[1:])
    with pytest.raises(ConfigError, match="its model in vLLM has routers in"):
        VllmEngine(pair.core, pair.loaded.policy, pair.loaded.store)


def test_without_replay_answers_bring_no_experts(pair: Pair) -> None:
    rows, _ = sampled(pair, dataclasses.replace(SETTINGS, routes=False))
    assert {row.routes for row in rows} == {()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_trains_with_the_experts_of_vllm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervised steps, then three RL steps with replay, as `vlmrl train` runs them."""
    if name == "qwen3_5_moe":
        delta_kernel.install(monkeypatch)
    world = given.make_rows(tmp_path / "world", video=False, train=4, test=1)
    model = given.make_model(name, tmp_path / "model", head=HEAD)
    written(model, layouts=("repeat", "shared_prefix"), model_type=name, engine="vllm")
    config = small(model, world, tmp_path, forward="shared_prefix")
    config["eval"] = {}
    config["stages"][1]["steps"] = 3
    vllm = {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32}
    config["stages"][1]["rollout"] |= {"engine": "vllm", "router_replay": True, "vllm": vllm, "num_generations": 6, "max_new_tokens": 8}
    lines = [line for line in steps(Config.model_validate(config)) if line["stage"] == "rl"]
    assert len(lines) == 3
    for line in lines:
        gaps = [value for key, value in line.items() if key.startswith("sampling/logp_gap")]
        print(name, line["sampling/router_flips"], gaps, line["grad_norm"])
        assert line["sampling/router_flips"] == 0, "in float32, with the weights that sampled"
        assert max(gaps) < EQUAL
        assert line["grad_norm"] > 0
        assert line["work/synced_bytes"] > 0


def test_turns_train_with_the_experts_of_vllm(tmp_path: Path) -> None:
    """Conversations of two turns: a turn's prompt is mostly found in the prefix cache, and its experts with it."""
    model = given.make_model("qwen3_vl_moe", tmp_path / "model", head=HEAD)
    written(model, layouts=("repeat", "shared_prefix"), model_type="qwen3_vl_moe", engine="vllm")
    config = family_episodes("qwen3_vl_moe", model, tmp_path / "runs")
    (stage,) = config["stages"]
    vllm = {"cache_bytes": 2**28, "max_model_len": 2048, "block_size": 32}
    stage["rollout"] |= {"engine": "vllm", "router_replay": True, "vllm": vllm}
    lines = steps(Config.model_validate(config))
    assert len(lines) == stage["steps"]
    for line in lines:
        print(line["sampling/router_flips"], line["sampling/turn_gap/0"], line["sampling/turn_gap/1"])
        assert line["sampling/router_flips"] == 0
        assert max(line["sampling/turn_gap/0"], line["sampling/turn_gap/1"]) < EQUAL


@pytest.mark.parametrize("devices", [1, 2])
def test_servers_hand_out_experts(devices: int, tmp_path: Path) -> None:
    """The same of a server, whose weights two processes may share: before and after an update, and in a run of three steps."""
    world = given.make_rows(tmp_path / "world", video=False, train=4, test=1)
    model = given.make_model("qwen3_vl_moe", tmp_path / "model", head=HEAD)
    written(model, layouts=("repeat", "shared_prefix"), model_type="qwen3_vl_moe", engine="vllm")
    config, path = small(model, world, tmp_path, forward="shared_prefix"), tmp_path / "recipe.yaml"
    config["eval"] = {}
    config["stages"][1]["steps"] = 3
    rollout = config["stages"][1]["rollout"]
    rollout |= {"engine": "vllm", "router_replay": True, "num_generations": 6, "max_new_tokens": 8}
    rollout["vllm"] = {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32, "tensor_parallel": devices}
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    held = given.load_given(model, world)
    needed = Needed(architecture=type(held.policy.model).__name__, dtype="float32", length=1024, processor=held.bundle.fingerprint)
    with served.serving(path) as server:
        remotes = connect((server.address,), token=read_token(server.token, "token"))

        def asking(routers: int) -> RemoteVllmEngine:
            return RemoteVllmEngine(Fleet(remotes, dataclasses.replace(needed, routers=routers), patience=30.0), held.policy, held.store)

        engine = asking(held.policy.subject.routers)
        pair = Pair("qwen3_vl_moe", tmp_path, held, cast(Any, None), cast(Any, engine), given.layouts(held, video=False))
        for update in range(2):
            rows, answers = sampled(pair)
            assert differing(pair, rows, answers) == 0
            gap, (flips, _) = scored(pair, rows, answers, "shared_prefix")
            assert gap < EQUAL
            assert flips == 0
            shifted(pair, update)
        assert engine.cached_tokens > 0, "the prompt of a group is computed once"
        with pytest.raises(ConfigError, match=r"sees the routers of \d layers, and the run replays those of 99; start it with the recipe"):
            asking(99).sync()
        rollout["vllm"] = {"servers": [server.address], "token_file": str(server.token), "max_model_len": 1024}
        lines = [line for line in steps(Config.model_validate(config)) if line["stage"] == "rl"]
        engine.close()
    assert len(lines) == 3
    for line in lines:
        assert line["sampling/router_flips"] == 0
        assert max(value for key, value in line.items() if key.startswith("sampling/logp_gap")) < EQUAL
        assert line["grad_norm"] > 0


def test_prompts_in_parts_and_a_cache_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps read a part of a prompt, and there are fewer blocks than the answers need: blocks are found, given away and written again."""
    plain = engine_module.arguments_of
    monkeypatch.setattr(engine_module, "arguments_of", lambda options: {**plain(options), "num_gpu_blocks_override": 40})
    pair = made("qwen3_vl_moe", tmp_path, in_parts=True)
    try:
        pair.core.engine.engine_core.engine_core.scheduler.max_num_scheduled_tokens = 50
        rows, answers = sampled(pair, dataclasses.replace(SETTINGS, temperature=0.0), count=20)
        blocks = pair.core.engine.vllm_config.cache_config.num_gpu_blocks
        need = sum(len(row.prompt.ids) + len(row.response) for row in rows) // 32
        print(f"{blocks} blocks, and without sharing {need} would be needed")
        assert blocks < need
        assert differing(pair, rows, answers) == 0
    finally:
        pair.core.close()
