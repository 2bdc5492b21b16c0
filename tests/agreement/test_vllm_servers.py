"""vLLM on a server of its own, started by the command: the same policy as the trainer's, at every version, and whole runs over it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
import yaml

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.faults.test_resume_families import small
from tests.support import given, media_layouts, runs, served, tiny, vllm_core
from tests.support.reports import written
from tests.support.vllm_pair import EQUAL, GREEDY, Pair
from tests.support.vllm_pair import apart as pair_apart
from vlmrl.config.load import loaded as loaded_config
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, EngineError, RemoteError
from vlmrl.extras.families.conform.engine import HEAD
from vlmrl.extras.toy import model as toy_model
from vlmrl.extras.vllm import fleet as fleet_module
from vlmrl.extras.vllm.client import RemoteVllmEngine
from vlmrl.extras.vllm.engine import VllmEngine
from vlmrl.extras.vllm.fleet import Fleet, Needed, connect
from vlmrl.extras.vllm.remote import Remote
from vlmrl.extras.vllm.secret import read_token
from vlmrl.extras.vllm.wire import tensors_message
from vlmrl.policy.load import load_policy
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

pytestmark = pytest.mark.slow

FELT = 1e-4
"""Nats that a change of weights must make at least, for a comparison to mean something."""
ROOM = 1024


@dataclass
class Place:
    """A policy, and a server for its family in another process."""

    folder: Path
    loaded: tiny.Tiny
    process: subprocess.Popen[str]
    address: str
    token: Path
    more: tuple[str, ...] = ()
    """Addresses of other servers."""
    prompts: dict[str, Prompt] = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = media_layouts.prompts(self.loaded)

    def engine(self, patience: float = 30.0) -> RemoteVllmEngine:
        policy = self.loaded.policy
        needed = Needed(architecture=type(policy.model).__name__, dtype="float32", length=ROOM)
        remotes = connect((self.address, *self.more), token=read_token(self.token, "token"))
        return RemoteVllmEngine(Fleet(remotes, needed, patience=patience), policy, self.loaded.store)

    def requests(self, *seeds: int) -> list[Request]:
        return [Request(prompt=prompt, seeds=seeds, ks=tuple(range(len(seeds)))) for prompt in self.prompts.values()]

    def hf(self) -> list[list[Rollout]]:
        vision = VisionCache(self.loaded.store, budget_bytes=2**28)
        return HFEngine(self.loaded.policy, vision).generate(self.requests(5), GREEDY)

    def changed(self) -> None:
        """An update of everything, the tower too."""
        policy = self.loaded.policy
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.05 * parameter.std().nan_to_num() * torch.randn_like(parameter))
        policy.vision_trains = True
        policy.version += 1
        policy.vision_version += 1


def recipe(folder: Path, **rollout: Any) -> dict[str, Any]:
    """Two supervised steps, then three RL steps in which everything trains."""
    config = runs.small_config(folder / "model", folder / "world", folder / "runs")
    first, second = config["stages"]
    first |= {"steps": 2, "batch": 2}
    second |= {
        "steps": 3,
        "freeze": [],
        "optim": {"lr": 3e-3},
        "rollout": {
            "engine": "vllm",
            "num_generations": 6,
            "prompts_per_step": 2,
            "generation_batch_size": 2,
            "max_new_tokens": 8,
            **rollout,
            "vllm": {"cache_bytes": 2**28, "max_model_len": ROOM, "block_size": 32, **rollout.get("vllm", {})},
        },
    }
    config["eval"] = {}
    config["model"]["positions"] = "max"
    return config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("served")
    loaded = media_layouts.make(folder, "qwen2_5_vl")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(folder)), encoding="utf-8")
    with served.serving(folder / "recipe.yaml") as server:
        yield Place(folder, loaded, server.process, server.address, server.token)


def apart(ours: list[list[Rollout]], theirs: list[list[Rollout]]) -> float:
    return max(abs(x - y) for a, b in zip(ours, theirs, strict=True) for x, y in zip(a[0].logprobs, b[0].logprobs, strict=True))


def test_greedy_answers_are_those_of_the_policy_at_every_version(place: Place) -> None:
    engine = place.engine()
    before = place.hf()
    for changes in range(3):
        if changes:
            place.changed()
        report = engine.sync()
        assert report is not None
        assert report.whole == (changes == 0)
        assert report.tensors == len(dict(place.loaded.policy.model.named_parameters()))
        ours, theirs = place.hf(), engine.generate(place.requests(5), GREEDY)
        for name, a, b in zip(place.prompts, ours, theirs, strict=True):
            assert (b[0].ids, b[0].text, b[0].finish) == (a[0].ids, a[0].text, a[0].finish), name
        assert apart(ours, theirs) < EQUAL
        assert {r.policy_version for group in theirs for r in group} == {place.loaded.policy.version}
    assert [group[0].logprobs for group in before] != [group[0].logprobs for group in place.hf()]
    engine.close()


def test_another_trainer_with_the_same_counts_finds_nothing_of_the_first(place: Place) -> None:
    """Its weights are others under the same version: keys, values and features of the first must not be found."""
    first = place.engine()
    first.sync()
    old = first.generate(place.requests(5), GREEDY)
    version = place.loaded.policy.version, place.loaded.policy.vision_version
    place.changed()
    place.loaded.policy.version, place.loaded.policy.vision_version = version
    second = place.engine()
    second.sync()
    assert second.version == first.version
    theirs, ours = second.generate(place.requests(5), GREEDY), place.hf()
    assert [group[0].ids for group in theirs] == [group[0].ids for group in ours]
    assert apart(ours, theirs) < EQUAL
    assert [group[0].logprobs[0] for group in old] != pytest.approx([group[0].logprobs[0] for group in theirs], abs=FELT)
    with pytest.raises(RemoteError, match="no rollout server holds the weights"):
        first.generate(place.requests(5), GREEDY)
    for engine in (first, second):
        engine.close()


def test_sampled_answers_have_seeds_of_their_own(place: Place) -> None:
    engine = place.engine()
    engine.sync()
    sampled = GenerationSettings(max_new_tokens=12, temperature=0.7)
    first = engine.generate(place.requests(1, 2, 3, 4), sampled)
    again = engine.generate(place.requests(1, 2, 3, 4)[::-1], sampled)[::-1]
    assert [[r.ids for r in group] for group in first] == [[r.ids for r in group] for group in again]
    assert len({r.ids for group in first for r in group}) > len(first)
    assert engine.counts["work/prefix_cached_tokens"]() > 0, "a prompt is computed once"
    engine.close()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_trains_on_what_the_server_samples(place: Place, tmp_path: Path, staleness: int) -> None:
    servers = {"servers": [place.address], "token_file": str(place.token)}
    raw = recipe(place.folder, vllm=servers, staleness=staleness, max_gap={"stop": 5.0})
    raw["run"] |= {"root": str(tmp_path), "name": f"k{staleness}"}
    raw["stages"][1]["importance_correction"] = {"name": "tis"}
    config = Config.model_validate(raw)
    train_from(loaded_config(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
    lines = [line for line in read_metrics(tmp_path / f"k{staleness}" / "metrics.jsonl") if "grad_norm" in line and line["stage"] == "rl"]
    assert len(lines) == 3
    for step, line in enumerate(lines):
        gap = line["sampling/logp_gap/video"]
        if min(step, staleness) == 0:
            assert 0 <= gap < EQUAL
        else:
            assert gap > FELT, "what the updates in between changed"
        assert line["work/asked_again"] == 0
    assert sum(line["work/synced_bytes"] for line in lines) > 0


Bucket = list[tuple[str, torch.Tensor]]
BIAS = "model.language_model.layers.0.self_attn.k_proj.bias"
ONE, OTHER = (f"model.language_model.layers.{n}.self_attn.k_proj.weight" for n in range(2))


def left_out(bucket: Bucket) -> Bucket:
    return [(name, tensor) for name, tensor in bucket if name != BIAS]


def flipped(bucket: Bucket) -> Bucket:
    out = [(name, tensor.clone() if name == BIAS else tensor) for name, tensor in bucket]
    for name, tensor in out:
        if name == BIAS:
            tensor.view(torch.int32)[0] ^= 1
    return out


def swapped(bucket: Bucket) -> Bucket:
    return [({ONE: OTHER, OTHER: ONE}.get(name, name), tensor) for name, tensor in bucket]


def renamed(bucket: Bucket) -> Bucket:
    return [(name.replace("embed_tokens", "embed_token"), tensor) for name, tensor in bucket]


FAULTS = {
    left_out: r"1 tensors of the trainer went nowhere in vLLM's model.*: model\.language_model\.layers\.0\.self_attn\.k_proj\.bias",
    flipped: r"1 tensors of the trainer came to vLLM with other bits.*: model\.language_model\.layers\.0\.self_attn\.k_proj\.bias",
    swapped: r"2 tensors of the trainer came to vLLM with other bits.*layers\.0\.self_attn\.k_proj\.weight, .*layers\.1\.self_attn\.k_proj",
    renamed: r"vLLM's loader refuses a tensor of the trainer: .*embed_token",
}


def check_faults(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are damaged on the way are refused by name, the server answers nothing then, and the next ones are taken."""
    engine, real = place.engine(), fleet_module.packed
    engine.sync()
    for damage, message in FAULTS.items():
        place.changed()
        monkeypatch.setattr(fleet_module, "packed", lambda bucket, damage=damage: real(damage(bucket)))
        with pytest.raises(EngineError, match=message):
            engine.sync()
        (remote,) = engine.fleet.remotes
        assert remote.health() is None
        assert remote.held is None
        with pytest.raises(EngineError, match="call `sync` first"):
            engine.generate(place.requests(5), GREEDY)
        monkeypatch.setattr(fleet_module, "packed", real)
        assert engine.sync() is not None
        assert apart(place.hf(), engine.generate(place.requests(5), GREEDY)) < EQUAL, damage
    engine.close()


def test_damaged_weights_are_refused_by_name_and_the_server_is_well_afterwards(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    check_faults(place, monkeypatch)


def test_a_trainer_that_is_lost_in_the_middle_leaves_a_server_that_the_next_one_uses(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "BUCKET_BYTES", 2**20)
    lost, parts = place.engine(), list[int]()
    real = Remote.part

    def part(self: Remote, row: torch.Tensor, told: Any) -> Any:
        parts.append(row.numel())
        if len(parts) == 2:
            raise KeyboardInterrupt  # the process goes, and its connections with it
        return real(self, row, told)

    monkeypatch.setattr(Remote, "part", part)
    with pytest.raises(KeyboardInterrupt):
        lost.sync()
    lost.close()
    monkeypatch.setattr(Remote, "part", real)
    engine = place.engine()
    assert engine.fleet.remotes[0].health() is None
    assert engine.fleet.remotes[0].held is None, "half of the weights are no version"
    engine.sync()
    assert apart(place.hf(), engine.generate(place.requests(5), GREEDY)) < EQUAL
    engine.close()


def test_routes_that_change_the_server_are_for_nobody_else(place: Place) -> None:
    """vLLM's own for development are not there at all, and all others want the token."""
    own = {"Authorization": f"Bearer {read_token(place.token, 'token')}"}
    routes = ["collective_rpc", "update_weights", "start_weight_update", "finish_weight_update", "reset_prefix_cache", "sleep", "pause"]
    for route in routes:
        url = f"http://{place.address}/{route}"
        assert httpx.post(url, json={}).status_code == 401
        assert httpx.post(url, json={}, headers=own).status_code == 404, route
    for route in ("v1/models", "health", "metrics", "version"):
        assert httpx.get(f"http://{place.address}/{route}").status_code == 401
        assert httpx.get(f"http://{place.address}/{route}", headers=own).status_code == 200


def test_two_devices_share_a_model_and_each_has_what_was_sent(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["stages.rl.rollout.vllm.tensor_parallel=2"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(place.folder)), encoding="utf-8")
    with served.serving(tmp_path / "recipe.yaml", more=more) as server:
        shared = Place(place.folder, place.loaded, server.process, server.address, server.token)
        engine = shared.engine()
        for _ in range(3):
            shared.changed()
            report = engine.sync()
            assert report is not None
            assert engine.fleet.remotes[0].facts["ranks"] == 2
            ours, theirs = shared.hf(), engine.generate(shared.requests(5), GREEDY)
            assert [group[0].ids for group in theirs] == [group[0].ids for group in ours]
            assert apart(ours, theirs) < EQUAL
        engine.close()
        check_faults(shared, monkeypatch)


def test_a_server_that_is_killed_in_the_middle_is_left_behind_until_it_is_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has the weights and answers; a new one under the old address has none, and is not asked before it has."""
    monkeypatch.setattr(fleet_module, "BUCKET_BYTES", 2**20)
    path, parts, real = place.folder / "recipe.yaml", list[str](), Remote.part
    with served.serving(path) as dying:
        both = Place(place.folder, place.loaded, place.process, place.address, place.token, more=(dying.address,))
        engine = both.engine()
        engine.sync()

        def part(self: Remote, row: torch.Tensor, told: Any) -> Any:
            parts.append(self.address)
            if parts.count(dying.address) == 2 and dying.process.poll() is None:
                os.killpg(dying.process.pid, signal.SIGKILL)
                dying.process.wait(30)
            return real(self, row, told)

        both.changed()
        monkeypatch.setattr(Remote, "part", part)
        assert engine.sync() is not None
        monkeypatch.setattr(Remote, "part", real)
        assert [remote.held is not None for remote in engine.fleet.remotes] == [True, False]
        assert apart(both.hf(), engine.generate(both.requests(5), GREEDY)) < EQUAL
    with served.serving(path, listen=dying.address):
        new = engine.fleet.remotes[1]
        assert apart(both.hf(), engine.generate(both.requests(5), GREEDY)) < EQUAL
        assert new.health() is None
        assert new.held is None
        both.changed()
        report = engine.sync()
        assert report is not None
        assert report.whole
        assert new.held == engine.held
        assert apart(both.hf(), engine.generate(both.requests(5, 6, 7, 8), GREEDY)) < EQUAL
    engine.close()


def test_a_server_that_is_killed_ends_the_run_with_69(place: Place) -> None:
    engine = place.engine(patience=1.0)
    engine.sync()
    os.kill(place.process.pid, signal.SIGKILL)
    place.process.wait(30)
    with pytest.raises(RemoteError, match=r"no rollout server for 1 s .*connection") as raised:
        engine.generate(place.requests(5), GREEDY)
    assert raised.value.exit_code == 69
    engine.close()


def test_qwen3_5_answers_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM's own kernels for delta nets, which take bfloat16 and heads of 64 on CPUs: the gap is one of rounding."""
    monkeypatch.setitem(toy_model.DELTA, "linear_key_head_dim", 64)
    monkeypatch.setitem(toy_model.DELTA, "linear_value_head_dim", 64)
    opened = media_layouts.make(tmp_path, "qwen3_5")
    policy = load_policy(str(tmp_path / "model"), opened.bundle, device="cpu", dtype="bfloat16")
    policy.positions = opened.policy.positions
    loaded, nobody = dataclasses.replace(opened, policy=policy), cast(Any, None)
    pair = Pair("qwen3_5", tmp_path, loaded, nobody, nobody, media_layouts.prompts(loaded))
    written = recipe(tmp_path)
    written["model"]["dtype"] = "bfloat16"
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    with served.serving(tmp_path / "recipe.yaml") as server:
        remotes = connect((server.address,), token=read_token(server.token, "token"))
        needed = Needed(architecture=type(policy.model).__name__, dtype="bfloat16", length=ROOM)
        engine = RemoteVllmEngine(Fleet(remotes, needed, patience=30.0), policy, loaded.store)
        for _ in range(2):
            report = engine.sync()
            assert report is not None
            assert report.tensors == len(dict(policy.model.named_parameters()))
            answers = [group[0] for group in engine.generate(pair.requests, GREEDY)]
            found = pair.gaps(dict(zip(pair.prompts, answers, strict=True)))
            print(f"served, bfloat16: {found}")
            assert max(found.values()) < 0.05
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.05)
            pair.moved(tower=True)
        engine.close()


NUMERALS = "def num2words(number, **_):\n    return str(number)\n"
"""In place of a package that SmolVLM's processor wants, as `tests.support.numerals`."""


@pytest.mark.parametrize("name", ["internvl", "smolvlm"])
def test_other_families_answer_from_a_server_as_in_process(name: str, tmp_path: Path) -> None:
    """Through their own processor: what it makes goes there once, and again to a server that has begun anew. SmolVLM has no clips (P18)."""
    clips = name == "internvl"
    world = given.make_rows(tmp_path / "world", video=True, train=3)
    model = written(given.make_model(name, tmp_path / "model", head=HEAD), red=() if clips else ("P18",), model_type=name, engine="vllm")
    loaded = given.load_given(model, world)
    prompts = given.layouts(loaded, video=clips)
    raw, path = recipe(tmp_path), tmp_path / "recipe.yaml"
    raw["model"]["family"] = "generic"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    (tmp_path / "num2words.py").write_text(NUMERALS)
    environment = {**served.ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    policy, core = loaded.policy, vllm_core.core(model, loaded.policy)
    pair = Pair(name, tmp_path, loaded, core, VllmEngine(core, policy, loaded.store), prompts)
    needed = Needed(architecture=type(policy.model).__name__, dtype="float32", length=ROOM, processor=loaded.bundle.fingerprint)
    sent: list[str] = []

    def started(server: served.Served, **changes: Any) -> RemoteVllmEngine:
        remotes = connect((server.address,), token=read_token(server.token, "token"))
        return RemoteVllmEngine(Fleet(remotes, dataclasses.replace(needed, **changes), patience=30.0), policy, loaded.store)

    def compared(engine: RemoteVllmEngine) -> dict[str, Rollout]:
        assert engine.sync() is not None
        theirs = dict(zip(prompts, [group[0] for group in engine.generate(pair.requests, GREEDY)], strict=True))
        here, ours = pair.vllm(), pair.hf()
        for which in prompts:
            assert theirs[which].ids == here[which].ids == ours[which].ids, which
        found = [max(pair_apart(theirs, other).values()) for other in (here, ours)] + [max(pair.gaps(theirs).values())]
        print(f"{name}: {found} from vLLM in process, from hf, mean gap")
        assert max(found) < EQUAL
        return theirs

    def counted(engine: RemoteVllmEngine) -> RemoteVllmEngine:
        patches = engine.patches
        engine.patches = lambda prompt, keys: (sent.extend(keys), patches(prompt, keys))[1]
        return engine

    media = {handle.key for prompt in prompts.values() for handle in prompt.media}
    with served.serving(path, environment) as server:
        engine = counted(started(server))
        last = compared(engine)
        assert sorted(set(sent)) == sorted(media)
        sent.clear()
        for _ in range(2):
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.add_(0.05 * parameter.std().nan_to_num() * torch.randn_like(parameter))
            pair.moved(tower=True)
            found = compared(engine)
            assert min(pair_apart(found, last).values()) > FELT
            last = found
        pair.moved(tower=False)
        compared(engine)
        assert sent == [], "a medium is sent once"

        another = [sample for sample in loaded.samples if sample.media[0].kind == "image"][2]
        cut = started(server)
        cut.patches = lambda prompt, keys: {key: tensors_message({"pixel_values": torch.zeros(1, 3, 8, 8)}) for key in keys}
        refused = [
            (cut, loaded.encoder.encode(another, "answer_only"), r"refused.*'pixel_\w+' of a medium of .* and the processor of this")
        ]
        if not clips:
            video = given.layouts(loaded, video=True)["video"]
            refused.append((started(server), video, r"refused.*not proven with videos of this model; take hf; .*does not keep P18"))
        for asker, prompt, message in refused:
            asker.sync()
            with pytest.raises(EngineError, match=message):
                asker.generate([Request(prompt=prompt, seeds=(5,), ks=(0,))], GREEDY)
            asker.close()
        with pytest.raises(ConfigError, match=r"runs processor .*, and the run trains 'another'; start it with the recipe of the run"):
            started(server, processor="another").sync()
        address = server.address
    with served.serving(path, environment, listen=address) as server:
        pair.moved(tower=True)
        compared(engine)
        assert set(sent) == media, "what it lost is sent again"
        engine.close()
        if clips:
            raw = small(model, world, tmp_path)
            raw["stages"][1]["rollout"] |= {"engine": "vllm", "vllm": {"servers": [address], "token_file": str(server.token)}}
            raw["stages"][1]["rollout"]["vllm"]["max_model_len"] = ROOM
            config = Config.model_validate(raw | {"eval": {}})
            train_from(loaded_config(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
            lines = [line for line in read_metrics(Path(config.run.root) / config.run.name / "metrics.jsonl") if line["stage"] == "rl"]
            gaps = [line["sampling/logp_gap"] for line in lines if "grad_norm" in line]
            print(f"{name}: mean gaps of a run over the server: {gaps}")
            assert len(gaps) == 2
            assert max(gaps) < EQUAL
    core.close()
