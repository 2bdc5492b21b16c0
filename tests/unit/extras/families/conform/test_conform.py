"""`vlmrl check` on tiny models: what holds of families of unlike kind, and that each promise sees the mistake that it is there for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tests.support.families import tiny_folder
from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.families import cache, generic, layouts, masks, recurrent
from vlmrl.extras.families.conform.run import PROMISES, Report, conform
from vlmrl.extras.families.conform.subject import Tried, open_subject
from vlmrl.extras.families.tiny import TINY

EXACT = ("P1", "P2", "P4", "P5", "P6", "P7", "P8", "P10")


@pytest.mark.parametrize(
    ("name", "cases"),
    [("qwen2_5_vl", ("text", "video")), ("gemma3", ("image", "text")), ("qwen3_5", ("image",)), ("internvl", ("image", "video"))],
)
def test_families_of_unlike_kind(name: str, cases: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M-RoPE; windows with pictures that see themselves; a delta net; tiles and frames as pictures."""
    report = conform(open_subject(str(tiny_folder(name, tmp_path, monkeypatch)), cases), name, EXACT)
    assert report.failed() == []
    assert report.layouts == ["repeat", "fork", "shared_prefix"]
    assert {c.case for c in report.checks if c.promise == "P6"} == set(cases)
    assert all(c.value < 1e-9 for c in report.checks if c.what == "log-probs"), "float64 throughout"
    assert [c.value > 1e-2 for c in report.checks if c.control] == [True], "the control is far above the limit"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TINY))
def test_every_configuration_keeps_every_promise(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = conform(open_subject(str(tiny_folder(name, tmp_path, monkeypatch))), name)
    assert report.failed() == []
    assert {c.case for c in report.checks if c.promise == "P6"} >= {"image", "text", "two", "behind"}
    assert report.layouts == ["repeat", "fork", "shared_prefix"]


def mutated(folder: Path, cases: Sequence[str], only: Sequence[str]) -> Report:
    return conform(open_subject(str(folder), cases), folder.name, only)


def red(report: Report) -> set[str]:
    return {c.promise for c in report.failed()}


def test_an_answer_that_sees_another_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder("internvl", tmp_path, monkeypatch)
    assert red(mutated(folder, ("image",), ("P8",))) == set()

    def unowned(row: Tensor, positions: Tensor, owners: Tensor) -> Tensor:
        return torch.ones(len(positions), len(positions), dtype=torch.bool).tril()

    monkeypatch.setattr(masks, "owned", unowned)
    assert red(mutated(folder, ("image",), ("P8",))) == {"P8"}


def test_positions_that_run_on_from_answer_to_answer_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def running(subject: Any, prompt: generic.Encoded, answers: Sequence[int]) -> Tensor:
        own = generic.positions(subject.core, prompt)
        first = torch.arange(prompt.length) if own is None else own
        return torch.cat([first, layouts.answer_positions(own, prompt.length, sum(answers))], -1)

    monkeypatch.setattr(layouts, "row_positions", running)
    assert red(mutated(tiny_folder("qwen2_5_vl", tmp_path, monkeypatch), ("image",), ("P6", "P8"))) == {"P8"}


def test_kinds_of_tokens_that_are_shifted_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = layouts.kinds

    def shifted(*args: Any) -> dict[str, Tensor]:
        return {name: kind.roll(1, -1) for name, kind in plain(*args).items()}

    monkeypatch.setattr(layouts, "kinds", shifted)
    assert "P6" in red(mutated(tiny_folder("gemma3", tmp_path, monkeypatch), ("image",), ("P6",)))


def test_a_soft_cap_left_out_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic.Head, "bent", lambda self, logits: logits)
    assert red(mutated(tiny_folder("gemma4", tmp_path, monkeypatch), ("text",), ("P10",))) == {"P10"}


def test_a_state_that_is_not_forked_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that begin from nothing, in place of the state that the prompt left."""

    def blank(layer: Any, copies: int) -> None:
        cache._each(layer, lambda tensor: torch.zeros_like(tensor).repeat_interleave(copies, 0))

    monkeypatch.setattr(recurrent, "fork_layer", blank)
    assert red(mutated(tiny_folder("lfm2_vl", tmp_path, monkeypatch), ("image",), ("P8",))) == {"P8"}


def test_features_in_another_order_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = generic.hand_over
    monkeypatch.setattr(generic, "hand_over", lambda found: plain(list(found)[::-1]))
    assert "P4" in red(mutated(tiny_folder("internvl", tmp_path, monkeypatch), ("two",), ("P4",)))


def test_offsets_of_positions_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core with M-RoPE would use for a text what it remembers of the picture before."""
    core = open_subject(str(tiny_folder("qwen2_5_vl", tmp_path, monkeypatch)), ("text",)).subject.core
    core.rope_deltas = torch.tensor([[-3]])
    unknown = (None, None, None, torch.zeros(1, 4, 8), torch.ones(1, 4), None)
    assert core.compute_3d_position_ids(*unknown).min() == -3
    generic.forget(core)
    assert core.compute_3d_position_ids(*unknown) is None


def test_experts_that_change_with_the_layout_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder("qwen3_vl_moe", tmp_path, monkeypatch)
    [check] = mutated(folder, ("image",), ("P12",)).checks
    assert (check.ok, check.value) == (True, 0.0)
    assert check.what == f"of {4 * (3 * 38 + 7 + 3 + 1)} choices, other experts", "four layers, prompt and answer of each of three rows"
    monkeypatch.setattr(masks, "owned", lambda row, positions, owners: torch.ones(len(owners), len(owners), dtype=torch.bool).tril())
    [check] = mutated(folder, ("image",), ("P12",)).checks
    assert check.value > 0


def test_a_dict_of_features_is_fresh_for_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = open_subject(str(tiny_folder("internvl", tmp_path, monkeypatch)), ("image",))
    media = tried.scored("image", [[1]]).media
    first, second = layouts.features_of(media), layouts.features_of(media)
    assert first["mm_encoder_outputs"] is not second["mm_encoder_outputs"]


def test_fork_is_refused_where_layers_are_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers drops the cache there without an error, and log-probs would be off by whole numbers."""
    tried: Tried = open_subject(str(tiny_folder("internvl", tmp_path, monkeypatch)), ("text",))
    tried.subject.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tried.subject.model.train()
    with pytest.raises(ValueError, match="the layout `fork` cannot run"):
        layouts.fork(tried.subject, [tried.scored("text", [[40, 50]])])


def test_the_command_writes_a_report_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder("internvl", tmp_path, monkeypatch)
    monkeypatch.setattr("vlmrl.extras.families.conform.run.PROMISES", {key: PROMISES[key] for key in ("P1", "P13")})
    done = CliRunner().invoke(app, ["check", str(folder)])
    assert done.exit_code == 0, done.output
    assert "ids are the chat template's" in " ".join(done.output.split()) or "P1" in done.output
    written = json.loads((folder / "conform.json").read_text())
    assert written["facts"]["model_type"] == "internvl"
    assert written["promises"]["P1"]["kept"] is True
    assert written["promises"]["P14"]["kept"] is None
    assert set(written["versions"]) == {"transformers", "torch"}


def test_the_command_names_what_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic.Head, "bent", lambda self, logits: logits * 2)
    done = CliRunner().invoke(app, ["check", "internvl", "--tiny", "--only", "P10"])
    assert done.exit_code == 70
    assert "P10 image, logits:" in done.output


def test_weights_that_are_a_pickle_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder("internvl", tmp_path, monkeypatch)
    model = open_subject(str(folder)).subject.model.float()
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    opened: list[object] = []
    monkeypatch.setattr(torch, "load", lambda file, *args, **more: opened.append(file))
    done = CliRunner().invoke(app, ["check", str(folder), "--only", "P1"])
    assert isinstance(done.exception, ConfigError), done.output
    assert "safetensors" in str(done.exception)
    assert opened == []


def test_an_unknown_name_or_promise_is_refused() -> None:
    done = CliRunner().invoke(app, ["check", "nothing", "--tiny"])
    assert isinstance(done.exception, ConfigError)
    assert "or a name, as: qwen2_vl, qwen2_5_vl" in str(done.exception)
    done = CliRunner().invoke(app, ["check", "internvl", "--tiny", "--only", "P99"])
    assert "no promise P99" in str(done.exception)
