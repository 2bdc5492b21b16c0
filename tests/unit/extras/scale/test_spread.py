"""FSDP: rank 0 alone reads a model's weights, and every rank has the parameters and buffers of a model that was loaded whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import spread_ranks
from tests.support.ranks import run_ranks
from tests.support.spread_ranks import CASES
from vlmrl.errors import ConfigError
from vlmrl.extras.toy.model import build_model
from vlmrl.policy.load import load_policy, load_processor

pytestmark = pytest.mark.not_fast  # starts processes

CORPUS = ["Where is the red ball? 12.5 seconds"]


def model(folder: Path, family: Any, tied: bool) -> None:
    """`rank0` with weights, `rank1` with every other file."""
    build_model(folder / "rank0", seed=0, corpus=CORPUS, family=family)
    if tied:
        one = load_policy(str(folder / "rank0"), load_processor(str(folder / "rank0")), device="cpu").model
        one.config.tie_word_embeddings = one.config.text_config.tie_word_embeddings = True
        one.tie_weights()
        one.save_pretrained(folder / "rank0")
    shutil.copytree(folder / "rank0", folder / "rank1", ignore=shutil.ignore_patterns("*.safetensors"))


def launched(folder: Path, cases: list[str]) -> Path:
    """What two ranks report of these cases; they compare every tensor themselves."""
    for name in cases:
        family, tied, _ = CASES[name]
        model(folder / name, family, tied)
    run_ranks(2, folder / "logs", spread_ranks.run, folder, cases)
    return folder


QUICK = ["tied", "adapters", "adapters in bfloat16", "frozen tower in bfloat16"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launched(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launched(tmp_path_factory.mktemp("others"), [name for name in CASES if name not in QUICK])


@pytest.mark.parametrize("case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_a_rank_without_weight_files_has_the_same_model(case: str, request: pytest.FixtureRequest) -> None:
    reports: Path = request.getfixturevalue("quick" if case in QUICK else "others")
    first, second = (json.loads((reports / case / f"report{rank}.json").read_text()) for rank in (0, 1))
    assert first["loaded"] >= 0.9 * second["whole"], "rank 0 reads the model"
    assert second["loaded"] <= 0.05 * second["whole"], "only fresh adapters, if any"
    assert second["after"] <= 0.6 * second["whole"]
    assert second["most"] <= second["after"] + second["unit"] + second["loaded"], "beside its shards, rank 1 holds one unit at a time"


def test_a_model_without_weights_reads_no_file_of_them(tmp_path: Path) -> None:
    model(tmp_path, "qwen2_5_vl", False)
    folder = str(tmp_path / "rank1")
    empty = load_policy(folder, load_processor(folder), device="cpu", read="none")
    assert all(tensor.is_meta for tensor in (*empty.model.parameters(), *empty.model.buffers()))
    with pytest.raises(ConfigError, match="cannot load the weights"):
        load_policy(folder, load_processor(folder), device="cpu")
    full = load_policy(str(tmp_path / "rank0"), load_processor(str(tmp_path / "rank0")), device="cpu")
    shapes = [{name: (tuple(t.shape), t.dtype) for name, t in of.model.state_dict().items()} for of in (empty, full)]
    assert shapes[0] == shapes[1]
    assert not any(isinstance(value, torch.Tensor) and value.is_meta for m in full.model.modules() for value in vars(m).values())
