"""Publishing a checkpoint: which files go, what the card says, and that nothing is uploaded unless it is meant."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.pages import good, make_eval, make_run, poor
from vlmrl.cli import app
from vlmrl.cli.names import size_text
from vlmrl.config.load import load
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import summary_cells
from vlmrl.extras.publish import hub
from vlmrl.extras.publish.card import card
from vlmrl.extras.publish.facts import UNKNOWN, Data, Facts, Measured, gather, licence_of
from vlmrl.extras.publish.files import choose, stage, without_paths

RECIPE = """
run: {name: mine, seed: 7}
model: {path: BASE}
data: {root: ROOT}
stages:
  - {name: rl, kind: grpo, source: {path: charades_sta/rows/train.jsonl}, steps: 9, rewards: [{name: temporal_iou}]}
"""
ASKED = {
    "media": {"min_pixels": 784, "max_pixels": 4704, "fps": 2.0, "decoder": "auto"},
    "answer_format": "think",
    "answer_types": ["time_span"],
    "instructions": {"time_span": "Think, then answer."},
    "frame": "norm1000",
    "max_prompt_tokens": 10,
    "max_new_tokens": 5,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A finished run without weights that could be loaded."""
    base = tmp_path / "base-model"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Base\n")
    run = tmp_path / "runs" / "mine"
    final = run / "final"
    (final / "adapter").mkdir(parents=True)
    (final / "config.json").write_text(json.dumps({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "_name_or_path": str(base)}))
    (final / "vlmrl.json").write_text(
        json.dumps({"positions": "max", "asked": ASKED, "origin": {"run": "mine", "stage": "rl", "base_model": "Qwen/Base-VL"}})
    )
    (final / "model.safetensors").write_bytes(b"w" * 2500)
    (final / "optimizer.json").write_text("{}")
    (final / "pytorch_model.bin").write_bytes(b"x")
    (final / "manifest.json").write_text("{}")
    (final / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (final / "adapter" / "adapter_model.safetensors").write_bytes(b"a")
    (run / "run.json").write_text("{}")
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.replace("BASE", str(base)).replace("ROOT", str(tmp_path)))
    (run / "config.yaml").write_text(load(file, []).text)
    return final


def test_only_what_opens_the_model_goes(checkpoint: Path, tmp_path: Path) -> None:
    chosen = choose(checkpoint, with_adapter=True)
    assert set(chosen.names) == {
        *("config.json", "vlmrl.json", "model.safetensors", "adapter/adapter_config.json", "adapter/adapter_model.safetensors")
    }
    assert chosen.left_out["optimizer.json"] == "state of training"
    assert set(chosen.left_out) == {"optimizer.json", "pytorch_model.bin", "manifest.json"}
    assert set(choose(checkpoint, with_adapter=False).left_out) - set(chosen.left_out) == {
        *("adapter/adapter_config.json", "adapter/adapter_model.safetensors")
    }
    stage(chosen, tmp_path / "out", {"README.md": "card"}, base_model="Qwen/Base-VL")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["_name_or_path"] == "base-model"
    assert json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "Qwen/Base-VL"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"w" * 2500
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        choose(checkpoint, with_adapter=True)


def test_paths_of_the_machine_are_cut(tmp_path: Path) -> None:
    value = {"a": [str(tmp_path), "/no/such/path", "Qwen/Base"], "b": 3}
    assert without_paths(value) == {"a": [tmp_path.name, "/no/such/path", "Qwen/Base"], "b": 3}


def test_tokens_that_look_like_paths_stay(checkpoint: Path, tmp_path: Path) -> None:
    """`/` is a folder of every machine and a token of every vocabulary."""
    tokens = json.dumps({"model": {"merges": [["/", "tmp"], ["/tmp", "~"]]}})
    (checkpoint / "tokenizer.json").write_text(tokens)
    stage(choose(checkpoint, with_adapter=False), tmp_path / "out", {}, base_model=None)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == tokens


def test_sizes_are_in_powers_of_ten() -> None:
    assert [size_text(n) for n in (12, 999, 1_500, 2_500_000, 7_000_000_000)] == ["12 B", "999 B", "1.5 kB", "2.5 MB", "7.0 GB"]


def test_licences_come_from_the_user_then_from_the_data_card() -> None:
    assert licence_of("charades_sta/rows/train.jsonl", {}).startswith("Charades comes with its own")
    assert licence_of("charades_sta/rows/train.jsonl", {"charades_sta": "mine"}) == "mine"
    assert licence_of("rows/train.jsonl", {}) == UNKNOWN


def test_facts_of_a_run_without_evaluations(checkpoint: Path) -> None:
    facts = gather(checkpoint, checkpoint, results=[], licences={})
    assert (facts.base_model, facts.base_licence, facts.run, facts.stage) == ("Qwen/Base-VL", "cc-by-4.0", "mine", "rl")
    assert [(one.path, one.stage) for one in facts.data] == [("charades_sta/rows/train.jsonl", "rl")]
    assert facts.measured == ()
    assert "Nothing was measured of these weights." in facts.gaps
    assert any("seed 7" in gap for gap in facts.gaps)


def test_the_table_is_that_of_the_evaluations(tmp_path: Path) -> None:
    """Of the run's own between stages, up to the one that made the weights, and of suites beside the checkpoint."""
    run = make_run(tmp_path / "mine", {"base": poor(), "rl": good("rl"), "later": good("later")}, frames=False)
    (run / "run.json").write_text("{}")
    (run / "final").mkdir()
    (run / "final" / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (run / "final" / "vlmrl.json").write_text(json.dumps({"origin": {"run": "mine", "stage": "rl", "base_model": "b/c"}}))
    make_eval(run / "suites" / "final-small", "rl", {"boxes": good("rl")}, frames=False)
    facts = gather(run / "final", run / "final", results=[], licences={})
    stages, paired, suite = facts.measured
    assert [row[0] for row in stages.cells[1:]] == ["base", "rl"]
    expected = summary_cells({name: summarize(rows, 1) for name, rows in (("base", poor()), ("rl", good("rl")))})
    assert stages.cells == expected
    assert paired.cells[1][0].startswith("base")
    assert suite.title == "Suite small v1"
    assert "weights-rl" in suite.notes[0]
    assert facts.has_base
    assert not any("base model was not asked" in gap for gap in facts.gaps)
    text = card(facts, repo="me/mine", licence="mit")
    assert all(cell in text for row in stages.cells for cell in row)


def test_the_card_shows_the_words_of_the_recipe() -> None:
    facts = Facts(
        name="mine",
        family="Arch",
        run="mine",
        stage="rl",
        base_model=None,
        base_licence=UNKNOWN,
        versions={},
        asked=ASKED | {"prompt": "{{ question }} Answer in <answer></answer>.\n"},
        recipe={},
        data=(),
        measured=(),
        said=(),
        gaps=(),
    )
    text = card(facts, repo="me/mine", licence="mit")
    assert "put a question into this template\n\n```jinja\n{{ question }} Answer in <answer></answer>.\n```\n" in text
    assert "Think, then answer." not in text


def test_the_card_says_what_is_known_and_what_is_not() -> None:
    facts = Facts(
        name="mine",
        family="Arch",
        run="mine",
        stage="rl",
        base_model="Qwen/Base-VL",
        base_licence=UNKNOWN,
        versions={"vlmrl": "0.1"},
        asked=ASKED,
        recipe={"stages": [{"name": "rl", "kind": "grpo", "steps": 9, "optim": {"lr": 1e-6}, "rewards": [{"name": "iou"}]}]},
        data=(Data(path="rows.jsonl", stage="rl", licence=UNKNOWN),),
        measured=(Measured(title="Suite x", cells=[["task", "n"], ["t|1", "3"]], notes=("weights abc",)),),
        said=("On hard questions it went up.",),
        gaps=("Bias was not measured.",),
    )
    text = card(facts, repo="me/mine", licence="apache-2.0")
    front = yaml.safe_load(text.split("---")[1])
    assert front == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["vlmrl", "grpo"],
        "base_model": "Qwen/Base-VL",
        "base_model_relation": "finetune",
    }
    for piece in (
        "| t\\|1 | 3 |",
        "weights abc",
        "- Bias was not measured.",
        "On hard questions it went up.",
        "> Think, then answer.",
        '"max_pixels": 4704',
        "`norm1000`",
        "| `rows.jsonl` | rl | not stated |",
        "| rl | grpo | 9 | 1e-06 | reward `iou` |",
        "Licence of `rows.jsonl`: not stated.",
        "vlmrl serve mine --ask",
    ):
        assert piece in text, piece
    assert '"decoder"' not in text


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the hub's client, which reaches nothing."""
    calls: list[Any] = []

    class Api:
        def create_repo(self, repo: str, **options: Any) -> None:
            calls.append(("create", repo, options["private"]))

        def upload_folder(self, **options: Any) -> Any:
            calls.append(("upload", options["repo_id"], sorted(p.name for p in Path(options["folder_path"]).rglob("*") if p.is_file())))
            return SimpleNamespace(commit_url="address of the commit")

    monkeypatch.setattr(hub, "HfApi", Api)
    return calls


def publish(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["publish", *map(str, arguments), "--license", "apache-2.0"])


def test_the_command(checkpoint: Path, tmp_path: Path, uploads: list[Any]) -> None:
    refused = publish(checkpoint, "--to", "me/mine", "--dry-run", "--out", tmp_path / "a")
    assert isinstance(refused.exception, ConfigError)
    assert "--without-results" in str(refused.exception)
    assert not (tmp_path / "a").exists()
    dry = publish(checkpoint, "--to", "me/mine", "--dry-run", "--out", tmp_path / "b", "--without-results")
    assert dry.exit_code == 0, dry.output
    assert "2.5 kB  model.safetensors" in dry.output
    assert "left out  optimizer.json (state of training)" in dry.output
    assert uploads == []
    assert "Nothing was measured" in (tmp_path / "b" / "README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "b" / "recipe.yaml").read_text()
    again = publish(checkpoint, "--to", "me/mine", "--out", tmp_path / "b", "--without-results")
    assert "not empty" in str(again.exception)
    done = publish(checkpoint, "--to", "me/mine", "--without-results", "--private")
    assert done.exit_code == 0, done.output
    assert "uploaded: address of the commit" in done.output
    assert uploads[0] == ("create", "me/mine", True)
    assert {"README.md", "recipe.yaml", "model.safetensors"} < set(uploads[1][2])
    assert not {"optimizer.json", "pytorch_model.bin"} & set(uploads[1][2])
    assert [p.name for p in checkpoint.parent.iterdir() if p.name.startswith("vlmrl-publish-")] == []
    for wrong in ("mine", "a/b/c", "me/mi ne"):
        assert isinstance(publish(checkpoint, "--to", wrong, "--dry-run").exception, ConfigError)


def test_a_hub_that_refuses_is_a_remote_error(checkpoint: Path, uploads: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, repo: str, **options: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(hub.HfApi, "create_repo", refuse)
    with pytest.raises(RemoteError, match="me/mine: not uploaded: no route; log in"):
        hub.upload(checkpoint, "me/mine", private=False, message="m")
