"""Qwen3.5 with shared prompts: log-probs, gradients and greedy answers are those of transformers' own model, given pixels."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.support import tiny as tiny_module
from tests.support.runs import small_config
from tests.support.tiny import Tiny
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.families import delta_net
from vlmrl.extras.families.qwen3_5 import QWEN3_5
from vlmrl.extras.plan.model import shape_of
from vlmrl.extras.serve.followed import followed_engine
from vlmrl.families.registry import choose
from vlmrl.policy.foreign import unproven
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze, load_policy, load_processor
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.policy.vision_disk import FeatureStore
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings, MediaRef, Prompt, Request, Rollout, Sample

pytestmark = pytest.mark.not_fast  # builds models

KINDS = ("text", "image", "two_images", "video")
GREEDY = GenerationSettings(max_new_tokens=24, temperature=0.0)
LENGTHS = (7, 1, 11)


@dataclasses.dataclass
class World:
    """A tiny model, with prompts of every kind."""

    folder: Path
    tiny: Tiny
    prompts: dict[str, Prompt]

    def engine(self, **how: Any) -> Any:
        return own_engine(self.tiny.policy, VisionCache(self.tiny.store, budget_bytes=2**28), **how)

    def inputs(self, prompt: Prompt, answer: Sequence[int] = ()) -> dict[str, Tensor]:
        """What transformers' own model takes of a prompt with an answer behind it."""
        ids = torch.tensor([[*prompt.ids, *answer]])
        pads = self.tiny.bundle.pad_ids
        types = (ids == pads["image"]).int() + 2 * (ids == pads["video"]).int()
        out: dict[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}
        for kind, name, grid in (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw")):
            media = [handle for handle in prompt.media if handle.kind == kind]
            if media:
                patches = [np.ascontiguousarray(self.tiny.store.get_key(handle.key).pixel_values) for handle in media]
                out[name] = torch.cat([self.tiny.bundle.pixel_values(one, handle.kind) for one, handle in zip(patches, media, strict=True)])
                out[grid] = torch.tensor([handle.grid_thw for handle in media])
        return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    model, data = tiny_module.make_files(tmp_path_factory.mktemp("qwen3_5"), sft=2, train=4, test=2, family="qwen3_5")
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (112, 84)), ("b.png", (56, 112))):
        Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(data / name)
    tiny = tiny_module.load(model, data)
    with torch.no_grad():
        for name, weight in tiny.policy.model.named_parameters():
            if name.endswith("A_log"):
                weight.fill_(-3.0)  # forgets little: what a prompt left is seen to the end of an answer
            if ".merger.linear_fc2" in name:
                weight.mul_(5)  # pictures count
    freeze(tiny.policy, ())
    pictures = [MediaRef(kind="image", path=f"{name}.png") for name in "ab"]
    media = {"text": (), "image": pictures[:1], "two_images": pictures, "video": tiny.samples[0].media}
    samples: dict[str, Sample] = {kind: dataclasses.replace(tiny.samples[0], id=kind, media=tuple(media[kind])) for kind in KINDS}
    prompts = {kind: tiny.encoder.encode(one, "think_or_not") for kind, one in samples.items()}
    return World(folder=model, tiny=tiny, prompts=prompts)


def drawn(world: World, *kinds: str) -> list[Row]:
    """Three random answers to a prompt of each kind."""
    g = torch.Generator().manual_seed(3)
    plain = [i for i in range(world.tiny.policy.head.shape[0]) if i not in world.tiny.bundle.special_ids]
    ids = [tuple(plain[int(i)] for i in torch.randint(len(plain), (n,), generator=g)) for _ in kinds for n in LENGTHS]
    return [Row(index=n, group=n // 3, prompt=world.prompts[kinds[n // 3]], response=answer) for n, answer in enumerate(ids)]


def scored(world: World, rows: Sequence[Row], layout: str = "shared_prefix") -> list[Tensor]:
    """Log-probs of each row in one micro-batch, with gradient."""
    policy, how = world.tiny.policy, LAYOUTS[layout]
    batch = how.pack(rows, policy.positions, policy.device, pad_id=0)
    vision = VisionCache(world.tiny.store, budget_bytes=2**28)
    out = how.forward(policy, batch, vision, temperature=1.0, forbidden=policy.bundle.forbidden_ids, train=True)
    return [out.logp_BT[n, : len(row.response)] for n, row in enumerate(rows)]


def alone(world: World, row: Row) -> Tensor:
    """Log-probs of an answer by the whole forward of transformers' class: pixels, positions and masks are its own."""
    policy = world.tiny.policy
    logits = policy.model(**world.inputs(row.prompt, row.response)).logits[0, len(row.prompt.ids) - 1 : -1]
    never = torch.tensor(policy.bundle.forbidden_ids)
    return torch.log_softmax(logits.index_fill(1, never, -torch.inf), -1).gather(1, torch.tensor(row.response)[:, None])[:, 0]


def gap(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(these, those, strict=True))


def gradients(world: World, logps: Sequence[Tensor]) -> dict[str, Tensor]:
    policy = world.tiny.policy
    policy.model.zero_grad(set_to_none=True)
    sum(weight * logp.sum() for weight, logp in zip((0.7, -1.1, 0.4) * len(logps), logps, strict=False)).backward()  # pyright: ignore
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS], ids="+".join)
def test_a_packed_row_is_transformers_own_forward_of_each_answer(world: World, kinds: tuple[str, ...]) -> None:
    rows = drawn(world, *kinds)
    shared, own = scored(world, rows), [alone(world, row) for row in rows]
    assert gap(shared, own) < 1e-5
    got, expected = gradients(world, shared), gradients(world, own)
    assert set(got) == set(expected)
    for name, one in expected.items():
        assert float((got[name] - one).abs().max()) < 1e-4 * max(1.0, float(one.abs().max())), name
    assert any(".linear_attn." in name and float(one.abs().max()) > 1e-2 for name, one in got.items())
    if kinds != ("text",):
        assert any(".visual." in name and float(one.abs().max()) > 1e-3 for name, one in got.items()), "the tower gets its gradient"


def test_a_medium_passes_the_tower_once_for_its_group(world: World) -> None:
    cache = VisionCache(world.tiny.store, budget_bytes=2**28)
    policy, how = world.tiny.policy, LAYOUTS["shared_prefix"]
    rows = drawn(world, "two_images", "video")
    how.forward(policy, how.pack(rows, policy.positions, policy.device, pad_id=0), cache, temperature=1.0, forbidden=(), train=True)
    media = {handle.key: int(np.prod(handle.grid_thw)) for row in rows for handle in row.prompt.media}
    assert cache.patches_encoded == sum(media.values())


def test_features_outlive_the_process_and_come_in_pieces(world: World, tmp_path: Path) -> None:
    """The tower runs in pieces of 16 patches, its features are written, and read where nothing is encoded."""
    policy = load_policy(str(world.folder), world.tiny.bundle, device="cpu", vision_chunk_patches=16)
    freeze(policy, ("vision", "projector"))
    media = [handle for prompt in world.prompts.values() for handle in prompt.media]
    store, at_once = world.tiny.store, dataclasses.replace(policy, vision_chunk_patches=None)
    whole = VisionCache(store, budget_bytes=2**28).features(at_once, media, train=False)
    disk = FeatureStore(tmp_path, budget_bytes=2**28)
    first, again = (VisionCache(store, budget_bytes=2**28, disk=disk) for _ in range(2))
    made, read = (cache.features(policy, media, train=False) for cache in (first, again))
    assert first.patches_encoded > 16
    assert again.patches_encoded == 0
    assert again.disk_hits == len(whole) == 3
    for key, one in whole.items():
        assert (made[key].merged - one.merged).abs().max() < 1e-6
        assert torch.equal(read[key].merged, made[key].merged)


def test_two_prompts_in_a_row_do_not_touch(world: World) -> None:
    rows = drawn(world, "image", "video")
    together = scored(world, rows)
    for n in (0, 3):
        apart = scored(world, [dataclasses.replace(row, index=i) for i, row in enumerate(rows[n : n + 3])])
        assert gap(together[n : n + 3], apart) < 1e-6


@pytest.mark.parametrize("part", ["inputs", "memory"])
def test_a_prompt_whose_state_is_lost_would_be_seen(world: World, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(world, "image")
    right = scored(world, rows)
    joined = delta_net.Carried.joined

    def lost(parts: Sequence[delta_net.Carried]) -> delta_net.Carried:
        out = joined(parts)
        return out._replace(**{part: torch.zeros_like(getattr(out, part))})

    monkeypatch.setattr(delta_net.Carried, "joined", staticmethod(lost))
    wrong = scored(world, rows)
    assert gap(right, wrong) > 1e-2


def request(prompt: Prompt, count: int, seed: int = 5, expected: float = 0.0) -> Request:
    return Request(prompt=prompt, ks=tuple(range(count)), seeds=tuple(range(seed, seed + count)), expected_tokens=expected)


def answers(groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[one.ids for one in group] for group in groups]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_those_of_generate(world: World, kind: str) -> None:
    policy, prompt = world.tiny.policy, world.prompts[kind]
    [(first, second)] = world.engine().generate([request(prompt, 2)], GREEDY)
    own = policy.model.generate(
        **world.inputs(prompt),
        do_sample=False,
        max_new_tokens=GREEDY.max_new_tokens,
        suppress_tokens=list(policy.bundle.forbidden_ids),
        eos_token_id=list(policy.bundle.end_ids),
    )[0, len(prompt.ids) :].tolist()
    assert list(first.ids) == list(second.ids) == own
    assert len(own) > 8
    row = Row(index=0, group=0, prompt=prompt, response=first.ids)
    assert (torch.tensor(first.logprobs) - alone(world, row)).abs().max() < 1e-5


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
def test_log_probs_of_the_engine_are_those_of_the_update(world: World, layout: str) -> None:
    """Answers of unlike lengths to prompts of every kind, sampled together."""
    settings = GenerationSettings(max_new_tokens=40)
    groups = world.engine().generate([request(world.prompts[kind], 4, seed=n) for n, kind in enumerate(KINDS)], settings)
    found = [(g, kind, one) for g, (kind, group) in enumerate(zip(KINDS, groups, strict=True)) for one in group]
    rows = [Row(index=n, group=g, prompt=world.prompts[kind], response=one.ids) for n, (g, kind, one) in enumerate(found)]
    assert len({len(row.response) for row in rows}) > 3
    assert gap([torch.tensor(one.logprobs) for _, _, one in found], scored(world, rows, layout)) < 1e-5


def test_an_answer_does_not_depend_on_who_comes_and_goes(world: World) -> None:
    """Prompts that wait for room come in while others are halfway; each answer is that of its prompt alone."""
    settings = GenerationSettings(max_new_tokens=32)
    requests = [request(world.prompts[kind], 3, seed=7 * n) for n, kind in enumerate((*KINDS, *KINDS[::-1]))]
    engine = world.engine(max_num_seqs=7)
    got = answers(engine.generate(requests, settings))
    assert engine.decoded_steps > settings.max_new_tokens, "not all of them ran together"
    assert got == [answers(world.engine().generate([one], settings))[0] for one in requests]
    assert len({len(ids) for group in got for ids in group}) > 1, "some leave before others"
    assert engine.prefilled_prompts == len(requests), "a prompt is read once for its answers"


def test_answers_are_followed_and_ended(world: World) -> None:
    engine = followed_engine(world.tiny.policy, world.tiny.vision)
    plain = answers(world.engine().generate([request(world.prompts["image"], 3)], GREEDY))
    counts = [0, 0, 0]

    def look(number: int, k: int, token: int, logp: float) -> bool:
        counts[k] += 1
        return counts[k] < 3 + k

    cut = answers(engine.followed([request(world.prompts["image"], 3)], GREEDY, look))
    assert cut == [[ids[: 3 + k] for k, ids in enumerate(plain[0])]]


def test_a_rehearsal_leaves_nothing(world: World) -> None:
    engine, requests = world.engine(), [request(world.prompts[kind], 2) for kind in ("video", "text")]
    expected = answers(world.engine().generate(requests, GREEDY))
    engine.rehearse(requests, GREEDY)
    assert engine.decoded_steps == 0
    assert answers(engine.generate(requests, GREEDY)) == expected


@pytest.mark.parametrize("vision", [False, True])
def test_adapters_lie_on_every_layer_of_the_decoder(world: World, vision: bool) -> None:
    policy = load_policy(str(world.folder), world.tiny.bundle, device="cpu")
    add_adapters(policy, LoraSpec(rank=2, alpha=4.0, vision=vision), seed_of=len, base="x")
    assert policy.lora is not None
    kinds = {name.rsplit(".", 1)[-1] for name in policy.lora.layers if ".visual." not in name}
    delta, full = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}, {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert kinds == delta | full | {"gate_proj", "up_proj", "down_proj"}
    assert vision == any(".visual." in name for name in policy.lora.layers)
    g = torch.Generator().manual_seed(0)
    for name in sorted(policy.lora.names):
        if ".lora_B." in name:
            policy.model.get_parameter(name).data.normal_(std=0.05, generator=g)
    freeze(policy, ())
    adapted = dataclasses.replace(world, tiny=dataclasses.replace(world.tiny, policy=policy))
    rows = drawn(adapted, "image", "video")
    shared, own = scored(adapted, rows), [alone(adapted, row) for row in rows]
    # random adapters make larger states, of which float32 keeps fewer digits after the point (1.6e-5 was seen with AVX-512)
    assert gap(shared, own) < 3e-5
    got, expected = gradients(adapted, shared), gradients(adapted, own)
    assert set(got) == set(expected) == set(policy.lora.names)
    # as far apart as float32 is for gradients of up to 20 (1.1e-4 was seen with AVX-512)
    assert max(float((got[n] - expected[n]).abs().max() / expected[n].abs().max().clamp(min=1.0)) for n in got) < 1e-4
    [group] = adapted.engine().generate([request(world.prompts["video"], 2)], GREEDY)
    row = Row(index=0, group=0, prompt=world.prompts["video"], response=group[0].ids)
    assert (torch.tensor(group[0].logprobs) - alone(adapted, row)).abs().max() < 3e-5


# ---- what it is and what it is not ----------------------------------------------------------------------------------------


def test_it_is_chosen_by_its_type_and_generic_by_name(world: World) -> None:
    for wanted in ("auto", "qwen_vl"):
        assert choose(wanted, "qwen3_5", str(world.folder)) is QWEN3_5
    assert choose("generic", "qwen3_5", str(world.folder)).choice == "generic"
    assert choose(QWEN3_5.choice, "qwen3_5", str(world.folder)) is QWEN3_5, "what an exported folder names it by"


def recipe(model: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    config = small_config(Path("m"), Path("w"), Path("r"))
    config["model"] |= model or {}
    config["stages"][1]["rollout"] |= rollout or {}
    return Config.model_validate(config | sections)


REFUSED = [
    (recipe({"attention": "flash_attention_2"}), "model.attention: 'flash_attention_2'"),
    (recipe({"prefix_backend": "dense"}), "model.prefix_backend: 'dense'"),
    (recipe({"kernels": "liger"}), "model.kernels: 'liger'"),
    (recipe({"positions": "grid"}), "model.positions: 'grid'"),
    (recipe(train={"sharding": "fsdp"}), "train.sharding: 'fsdp'"),
    (recipe(train={"sharding": "zero3"}), "train.sharding: 'zero3'"),
    (recipe(train={"offload": "optimizer"}), "train.offload: 'optimizer'"),
    (recipe(train={"sequence": 2}), "train.sequence: 2"),
    (recipe(rollout={"graphs": True}), "stages[1].rollout.graphs: True"),
]


@pytest.mark.parametrize(("cfg", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_was_not_tried_is_refused_by_name(cfg: Config, said: str) -> None:
    (problem,) = unproven(QWEN3_5, cfg)
    assert problem.startswith(f"{said} is not proven with a 'qwen3_5' model under model.family 'qwen_vl'; ")


PLAIN = [
    recipe(),
    recipe({"lora": {"rank": 4}}),
    recipe({"dtype": "bfloat16", "vision_chunk_patches": 64}, media={"vision_cache_dir": "x"}),
    recipe(rollout={"engine": "vllm"}),
    recipe(rollout={"engine": "vllm", "vllm": {"servers": ["127.0.0.1:7000"]}}),
]


@pytest.mark.parametrize("cfg", PLAIN)
def test_plain_recipes_are_taken(cfg: Config) -> None:
    assert unproven(QWEN3_5, cfg) == []


def test_a_plan_says_that_it_does_not_know_its_sizes(world: World) -> None:
    with pytest.raises(ConfigError, match=r"model_type 'qwen3_5'; a plan knows qwen2_vl, qwen2_5_vl, qwen3_vl$"):
        shape_of(json.loads((world.folder / "config.json").read_text()))


def test_four_bits_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"model\.quantize: 'nf4' is for the Qwen-VL families with"):
        load_policy(str(world.folder), world.tiny.bundle, device="cpu", quantize="nf4")


def test_the_processor_of_another_family_is_refused(world: World, tmp_path: Path) -> None:
    other, _ = tiny_module.make_files(tmp_path, sft=1, train=1, test=1, family="qwen2_5_vl")
    for file in world.folder.glob("*.json"):
        if file.name in ("config.json", "generation_config.json"):
            (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"is a 'qwen3_5' model but its processor is Qwen2_5_VLProcessor"):
        load_processor(str(other))


@pytest.mark.parametrize("kinds", [["linear_attention"] * 4, ["sliding_attention", *["linear_attention"] * 3]])
def test_other_kinds_of_layers_are_refused(world: World, kinds: list[str]) -> None:
    text = SimpleNamespace(layer_types=kinds)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), named_modules=dict[str, Any]().items)
    with pytest.raises(ConfigError, match=rf"model\.path: a 'qwen3_5' model with layers {', '.join(sorted(set(kinds)))}"):
        QWEN3_5.policy(model, world.tiny.bundle, device=torch.device("cpu"), compute=torch.float32)
