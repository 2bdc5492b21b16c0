"""A run gives weights in the type in which it got them, and its last evaluation is of the weights that it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import runs, tiny
from vlmrl.evals.score.records import read_records
from vlmrl.families.stored import sizes, stored
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.load import load_policy, load_processor

LORA = {"rank": 4, "alpha": 8.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base whose file is in bfloat16, and a world."""
    model, world = tiny.make_files(tmp_path_factory.mktemp("base"), sft=8, train=8, test=2)
    file = model / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    return model, world


def recipe(files: tuple[Path, Path], root: Path, **more: Any) -> dict[str, Any]:
    """Two supervised stages of two steps each."""
    root.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = runs.small_config(*files, root) | {"plugins": []}
    first = {**config["stages"][0], "steps": 2, "freeze": ["vision"]}
    config["stages"] = [first, first | {"name": "more"}]
    config["eval"].update({"limit": 2, "at_start": False, "every": None, "best": "miou"})
    for section, values in more.items():
        config[section] = config.get(section, {}) | values
    return config


def dtypes(folder: Path) -> set[str]:
    return {tensor.dtype for tensor in stored(folder).values()}


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LORA], ids=["weights", "lora"])
def test_a_base_in_bfloat16_gives_weights_in_bfloat16(lora: dict[str, Any] | None, files: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    config = recipe(files, tmp_path / "a", model={"lora": lora} if lora else {})
    assert runs.run(config) == 0
    path = runs.run_dir(config)
    assert (dtypes(path / "final"), dtypes(path / "stages" / "sft")) == ({"BF16"}, {"F32"})
    assert dtypes(path / "best" / json.loads((path / "eval" / "best.json").read_text())["stage"]) == {"BF16"}
    before, after = (sizes(stored(folder))[1] for folder in (files[0], path / "final"))
    assert after == pytest.approx(before, rel=0.1)
    assert json.loads((path / "final" / "config.json").read_text())["dtype"] == "bfloat16"
    opened = AutoModelForImageTextToText.from_pretrained(path / "final", dtype="auto")
    assert opened.dtype == torch.bfloat16
    saved = opened.state_dict()
    base = AutoModelForImageTextToText.from_pretrained(files[0], dtype="auto").state_dict()
    assert any(not torch.equal(saved[name], base[name]) for name in base), "it was trained"

    policy = load_policy(str(path / "final"), load_processor(str(path / "final")), device="cpu")
    (fingerprint,) = {record.fingerprint for record in read_records(path / "eval" / "more.jsonl")}
    assert fingerprint == weights_fingerprint(policy), "the last evaluation asked what was exported"

    again = recipe(files, tmp_path / "b", model={"lora": lora} if lora else {})
    assert runs.run(again, "stage.exported@2:kill") == -9
    assert runs.run(again) == 0
    assert runs.outcome(again) == runs.outcome(config)


def test_the_recipe_may_say_the_type(files: tuple[Path, Path], tmp_path: Path) -> None:
    wide = recipe(files, tmp_path / "wide", export={"dtype": "float32"})
    assert runs.run(wide) == 0
    assert dtypes(runs.run_dir(wide) / "final") == {"F32"}
    assert json.loads((runs.run_dir(wide) / "final" / "config.json").read_text())["dtype"] == "float32"
    from_wide = recipe((runs.run_dir(wide) / "final", files[1]), tmp_path / "auto")
    from_wide["stages"] = from_wide["stages"][:1]
    assert runs.run(from_wide) == 0
    assert dtypes(runs.run_dir(from_wide) / "final") == {"F32"}, "the base's type, which is float32 now"
    narrow = recipe((runs.run_dir(wide) / "final", files[1]), tmp_path / "narrow", export={"dtype": "bfloat16"})
    assert runs.run(narrow) == 0
    assert dtypes(runs.run_dir(narrow) / "final") == {"BF16"}
