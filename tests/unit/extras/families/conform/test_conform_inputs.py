"""Promises about what goes in, about ends and parts: each sees the mistake that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.families import tiny_folder
from vlmrl.errors import CheckpointError, ConfigError, RowError
from vlmrl.extras.families import control, engine_fork, generic, layouts, probe
from vlmrl.extras.families.conform.check import equal
from vlmrl.extras.families.conform.run import ENGINES, Report, conform, wanted
from vlmrl.extras.families.conform.subject import open_subject
from vlmrl.extras.families.generic import Size
from vlmrl.extras.families.tiny import TINY
from vlmrl.families import stored


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """A report of some promises on some prompts of a tiny model, which is made once."""

    def run(name: str, cases: Sequence[str], *only: str) -> Report:
        folder = tmp_path / name
        if not folder.is_dir():
            tiny_folder(name, tmp_path, monkeypatch)
        return conform(open_subject(str(folder), cases), name, only)

    return run


def red(report: Report) -> set[str]:
    return {c.promise for c in report.failed()}


def test_tokens_are_planned_from_headers(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    report = tried("internvl", ("two", "video"), "P2")
    assert red(report) == set()
    planned = [c for c in report.checks if c.what == "planned from headers"]
    assert [c.case for c in planned] == ["two", "video"]
    monkeypatch.setattr("vlmrl.extras.families.conform.headers.read_image_size", lambda file: (96, 96))
    report = tried("internvl", ("two",), "P2")
    assert [c.what for c in report.failed()] == ["planned from headers"]
    assert "(20, 12) encoded" in report.failed()[0].note


def test_a_plan_decodes_nothing_and_knows_clips() -> None:
    config, processor = TINY["qwen2_5_vl"]()
    clip = [{"role": "user", "content": [{"type": "video"}]}]
    plan = generic.plan(processor, generic.placeholders(config), clip, [Size(56, 84, frames=4, fps=2.0)])
    assert plan.counts == (2 * 2 * 3,)
    assert plan.kinds == ("video",)


def test_a_shard_too_many_is_seen(tried: Callable[..., Report], tmp_path: Path) -> None:
    [check] = [c for c in tried("gemma3", ("text",), "P2").checks if c.case == "weights"]
    assert check.ok
    save_file({"left.over": torch.zeros(3, 5)}, tmp_path / "gemma3" / "model-of-another-run.safetensors")
    [check] = tried("gemma3", ("text",), "P2").failed()
    there, loaded = (int(part.split()[0]) for part in check.note.split(", "))
    assert there == loaded + 15


def test_headers_of_shards_are_read_without_weights(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4)}, tmp_path / "model.safetensors")
    found = stored.stored(tmp_path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {"a": ("BF16", (2, 3)), "b": ("F32", (4,))}
    assert stored.sizes(found) == (10, 28)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="bytes expected"):
        stored.stored(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match="bytes of header"):
        stored.stored(tmp_path)


def test_features_that_depend_on_company_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    report = tried("qwen2_5_vl", ("two", "text"), "P3")
    assert red(report) == set()
    assert {c.what for c in report.checks} >= {"features in company, pixel_values", "log-probs in a batch"}
    plain = generic.features

    def centred(core: Any, argument: Any, *rest: Any) -> Any:
        return plain(core, {k: v - v.mean() if k == "pixel_values" else v for k, v in argument.items()}, *rest)

    monkeypatch.setattr(generic, "features", centred)
    assert {c.what for c in tried("qwen2_5_vl", ("two",), "P3").failed()} == {"features in company, pixel_values"}


def test_media_of_another_row_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = generic.hand_over
    monkeypatch.setattr(generic, "hand_over", lambda found: plain(list(found)[::-1]))
    [check] = tried("gemma3", ("image", "behind"), "P3").failed()
    assert check.what == "log-probs in a batch"


def test_offsets_of_the_prompt_before_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """A core with M-RoPE that is not made to forget, and left to place an answer itself, gives that of a text the offset of a picture."""
    assert red(tried("qwen2_5_vl", ("image", "text"), "P7")) == set()
    plain = layouts.states

    def placed(subject: Any, rows: Any, columns: Any, **inputs: Any) -> Any:
        cache = inputs.get("past_key_values")
        if cache is not None and cache.get_seq_length():
            inputs["position_ids"] = None
        return plain(subject, rows, columns, **inputs)

    monkeypatch.setattr(layouts, "states", placed)
    monkeypatch.setattr(generic, "forget", lambda core: None)
    assert {(c.promise, c.case) for c in tried("qwen2_5_vl", ("image", "text"), "P7").failed()} == {("P7", "text")}


def test_what_a_core_remembers_of_the_prompt_before_is_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the memory is left: log-probs do not show it, for we give every column its position."""
    report = tried("qwen2_5_vl", ("text",), "P5")
    assert (red(report), len(report.checks)) == (set(), 4)
    monkeypatch.setattr(generic, "forget", lambda core: None)
    assert [c.what for c in tried("qwen2_5_vl", ("text",), "P5").failed()] == [
        f"{layout} forgets the prompt before" for layout in layouts.LAYOUTS
    ]


def test_a_dict_of_features_that_is_shared_is_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, shared = generic.hand_over, {}

    def once(found: Any) -> dict[str, Any]:
        return shared.setdefault("one", plain(found))

    monkeypatch.setattr(generic, "hand_over", once)
    assert "P4" in red(tried("internvl", ("image", "behind"), "P4"))


def test_control_tokens_that_pass_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    assert red(tried("gemma3", ("text",), "P15")) == set()
    monkeypatch.setattr(control, "refuse", lambda *_: None)
    [check] = tried("gemma3", ("text",), "P15").failed()
    assert "'<image_soft_token>' in a question" in check.note


def test_a_refusal_behind_the_processor_is_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor was called first: whatever it raises would come before our word for it."""
    plain = control.refuse

    def late(processor: Any, messages: Any) -> None:
        processor(text=["a"], return_tensors="pt")
        plain(processor, messages)

    monkeypatch.setattr(control, "refuse", late)
    assert red(tried("gemma3", ("text",), "P15")) == {"P15"}


@pytest.mark.parametrize("text", ["<|im_end|>", "an <|image_pad|> here", "<|vision_start|>"])
def test_a_row_with_control_tokens_is_refused_by_name(text: str) -> None:
    config, processor = TINY["qwen3_5"]()
    row = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    with pytest.raises(RowError, match="control tokens of the model") as caught:
        generic.encode(processor, generic.placeholders(config), row, [])
    assert caught.value.reason == "control_token"
    plain = [{"role": "user", "content": "is 2 < 3?"}]
    assert generic.encode(processor, generic.placeholders(config), plain, []).counts == ()


def test_an_answer_that_goes_on_is_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    report = tried("lfm2_vl", ("text",), "P9")
    assert red(report) == set()
    assert [c.what for c in report.checks] == ["greedy answer of 64 tokens", "ends where an end is", "forbidden ids drawn"]
    plain = engine_fork.answers
    monkeypatch.setattr(engine_fork, "answers", lambda *args, **kw: plain(*args, **(kw | {"ends": ()})))
    assert "ends where an end is" in {c.what for c in tried("lfm2_vl", ("text",), "P9").failed()}


def test_parts_that_move_though_frozen_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    assert red(tried("internvl", ("image",), "P11")) == set()
    plain = layouts.repeat

    def thawing(subject: Any, groups: Any) -> Any:
        subject.model.requires_grad_(True)
        return plain(subject, [type(groups[0])(prompt=groups[0].prompt, media=groups[0].media, answers=groups[0].answers)])

    monkeypatch.setattr(layouts, "repeat", thawing)
    [check] = tried("internvl", ("image",), "P11").failed()
    assert check.note.startswith("['language'] frozen, ") or "vision" in check.note


def test_layers_without_targets_are_seen(tried: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_subject_of("qwen3_5")
    found = {kind: set(names) for kind, names in probe.lora_targets(model).items()}
    mlp = {"gate_proj", "up_proj", "down_proj"}
    assert found == {
        "linear_attention": {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", *mlp},
        "full_attention": {"q_proj", "k_proj", "v_proj", "o_proj", *mlp},
    }
    old = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    monkeypatch.setattr(probe, "lora_targets", lambda model: {"linear_attention": old, "full_attention": old})
    [check] = tried("qwen3_5", ("text",), "P11").failed()
    assert "not in Qwen3_5GatedDeltaNet" in check.note


def test_an_engine_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no promise P14; there are P1, "):
        wanted("P14")
    assert wanted("P14", "vllm") == ["P14"]
    with pytest.raises(ConfigError, match="no engine 'sglang'; there is vllm"):
        wanted(None, "sglang")
    bad = [equal("P14", "image", "ids of vLLM's prompt", False, "they part at 3")]
    monkeypatch.setitem(ENGINES, "vllm", {"P14": ("it agrees", (lambda tried: bad,), ())})
    gemma = open_subject(str(tiny_folder("gemma3", tmp_path, monkeypatch)), ("text",))
    report = conform(gemma, "m", ("P14",), "vllm")
    assert report.json()["promises"] == {
        "P14": {"kept": False, "about": "it agrees", "seconds": report.json()["promises"]["P14"]["seconds"]},
        "P18": {"kept": None, "about": "needs --engine vllm, in an environment that has it"},
    }
    assert conform(gemma, "m", ("P13",)).json()["promises"]["P14"]["kept"] is None


def open_subject_of(name: str) -> Any:
    """The bare model, without weights."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(TINY[name]()[0])
