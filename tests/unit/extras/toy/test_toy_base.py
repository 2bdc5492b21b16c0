"""toy.base: which splits of a generated world a recipe makes, and what is said and kept of the base model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlmrl.config.load import ResolvedRecipe
from vlmrl.config.schema import Config
from vlmrl.errors import VlmrlError
from vlmrl.extras.toy import base
from vlmrl.extras.toy.base import prepare
from vlmrl.extras.toy.kinds import world_hash
from vlmrl.extras.toy.tasks import SPLITS
from vlmrl.run.session import fixed_options
from vlmrl.run.start import Places
from vlmrl.run.ui import Ui

COUNTS = {"pretrain": 4, "sft": 1, "train": 1, "validation": 2, "test": 1, "seed": 5}
OPTIM = {"lr": 1e-3}


class Heard(Ui):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def recipe(cache: Path, *, eval_source: str | None = "test.jsonl", until: str | None = None, kind: str = "shell", **more: Any) -> Config:
    """A stage on `train`, a base model on `pretrain` that looks at `validation`."""
    stage: dict[str, Any] = {"kind": "sft", "name": "s", "source": {"path": "train.jsonl"}, "steps": 1, "optim": OPTIM}
    if until is not None:
        stage["until"] = {"source": {"path": until}, "score": 0.5}
    look = {"source": {"path": "validation.jsonl"}, "score": 1.0, "every": 1, "limit": 2, "max_new_tokens": 4}
    pretraining = {
        "kind": "sft",
        "name": "pre",
        "source": {"path": "pretrain.jsonl"},
        "steps": 2,
        "batch": 2,
        "optim": OPTIM,
        "until": look,
    }
    return Config.model_validate(
        {
            "model": {"path": "toy", "device": "cpu"},
            "data": {"root": "toy"},
            "media": {"min_pixels": 3136, "max_pixels": 3136, "max_frames": 20},
            "eval": {} if eval_source is None else {"source": {"path": eval_source}},
            "toy": {"cache": str(cache), "world": {"kind": kind, **COUNTS}, "base": pretraining},
            "stages": [stage],
            **more,
        }
    )


def pretended(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> list[tuple[Config, Places]]:
    """The base model is not trained: its run is there at once, with these looks at the score. Returns what would have been trained."""
    asked: list[tuple[Config, Places]] = []

    def train(loaded: ResolvedRecipe, places: Places, ui: Ui) -> None:
        asked.append((loaded.config, places))
        run = Path(loaded.config.run.root) / "run"
        run.mkdir()
        lines = [{"step": 1, "stage": "pre", "loss": 2.0}]
        lines += [{"step": 20 * n, "stage": "pre", "until/score": score} for n, score in enumerate(scores, start=1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "FINISHED").touch()

    monkeypatch.setattr(base, "train_from", train)
    return asked


def test_a_base_may_see_its_media_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base of a recipe with smaller frames and `base_media` is that of the recipe with these media, and is kept as the same one."""
    asked = pretended(monkeypatch, [1.0])
    whole = recipe(tmp_path, kind="grounding")
    small = {"media": {"min_pixels": 784, "max_pixels": 784, "max_frames": 20}}
    toy = whole.toy.model_dump() if whole.toy is not None else {}
    own = recipe(tmp_path, **small, toy=toy | {"base_media": {"min_pixels": 3136, "max_pixels": 3136, "max_frames": 20}})
    alike = recipe(tmp_path, **small, toy=toy)
    places = [prepare(one, Ui(quiet=True)) for one in (whole, own, alike)]
    assert places[0] == places[1] != places[2]
    assert [(one.media.min_pixels, one.media.max_pixels, one.media.max_frames) for one, _ in asked] == [(3136, 3136, 20), (784, 784, 20)]
    assert "base_media" not in fixed_options(whole)["toy"], "runs that were begun before there was a choice go on"
    assert fixed_options(own)["toy"]["base_media"]["max_pixels"] == 3136


def splits(folder: Path) -> set[str]:
    return {file.stem for file in folder.glob("*.jsonl")}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {"pretrain", "validation", "train", "test"}),
        ({"eval_source": None}, {"pretrain", "validation", "train"}),
        ({"until": "sft.jsonl"}, set(SPLITS)),
        ({"eval_source": "mine.jsonl"}, set(SPLITS)),
        ({"kind": "gui"}, {"pretrain", "validation", "train", "test"}),
    ],
)
def test_a_recipe_makes_the_splits_that_it_and_its_base_model_read(
    given: dict[str, Any], made: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch, [])
    places = prepare(recipe(tmp_path, **given), Ui(quiet=True))
    assert splits(places.data) == made
    assert len(list(places.data.rglob("*.mp4")) + list(places.data.rglob("*.png"))) >= sum(COUNTS[split] for split in made)


def test_a_kept_base_model_needs_no_rows_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(monkeypatch, [])
    first = prepare(recipe(tmp_path), Ui(quiet=True))
    assert prepare(recipe(tmp_path), Ui(quiet=True)) == first, "what is there has its splits: nothing is made anew"
    for folder in tmp_path.glob("world-*"):
        folder.rename(tmp_path / f"away-{folder.name}")
    again = prepare(recipe(tmp_path), Ui(quiet=True))
    assert again.model == first.model
    assert splits(again.data) == {"train", "test"}
    of_rows = prepare(recipe(tmp_path, model={"path": "somewhere"}), Ui(quiet=True))
    assert (of_rows.model, of_rows.data) == ("somewhere", again.data)


def test_rows_of_ones_own_make_no_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretended(monkeypatch, [])
    places = prepare(recipe(tmp_path / "cache", data={"root": str(tmp_path / "mine")}), Ui(quiet=True))
    assert places.data == tmp_path / "mine"
    assert not list((tmp_path / "cache").glob("world-*"))
    assert asked[0][0].data.root == str(tmp_path / "mine")


def test_a_kept_base_model_says_again_whether_its_score_was_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(monkeypatch, [0.25, 0.5])
    prepare(recipe(tmp_path), Ui(quiet=True))
    heard = Heard()
    prepare(recipe(tmp_path), heard)
    assert heard.lines[-1] == "warning: pre: held-out score 0.500 after 40 steps, which are all it has; 1 was asked for ('until')"
    [metrics] = tmp_path.glob("base-*/run/metrics.jsonl")
    metrics.write_text(json.dumps({"step": 60, "stage": "pre", "until/score": 1.0}) + "\n")
    prepare(recipe(tmp_path), heard)
    assert heard.lines[-1] == "pre: held-out score 1.000 after 60 steps (1 was asked for)"
    metrics.write_text("")
    prepare(recipe(tmp_path), heard)
    assert heard.lines[-1].startswith("base model: ")


def test_a_base_model_without_until_says_nothing_of_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(monkeypatch, [0.25])
    cfg = recipe(tmp_path)
    toy = cfg.toy
    assert toy is not None
    assert toy.base is not None
    cfg = cfg.model_copy(update={"toy": toy.model_copy(update={"base": toy.base.model_copy(update={"until": None})})})
    prepare(cfg, Ui(quiet=True))
    heard = Heard()
    prepare(cfg, heard)
    assert not any("score" in line for line in heard.lines)
    assert heard.lines[-1].startswith("base model: ")


def test_an_interrupted_base_model_goes_on_whichever_splits_lie_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another recipe on the same base model, or the whole world made meanwhile, must not make its run another one."""
    seen: list[tuple[Config, Places]] = []

    def interrupted(loaded: ResolvedRecipe, places: Places, ui: Ui) -> None:
        seen.append((loaded.config, places))
        raise VlmrlError("killed")

    monkeypatch.setattr(base, "train_from", interrupted)
    for given in ({}, {"until": "sft.jsonl"}):
        with pytest.raises(VlmrlError, match="killed"):
            prepare(recipe(tmp_path, **given), Ui(quiet=True))
    (one, where), (two, elsewhere) = seen
    assert where.data != elsewhere.data
    assert fixed_options(one) == fixed_options(two)
    assert Path(one.data.root).name == f"world-{world_hash(recipe(tmp_path).toy.world)}"


def test_a_base_model_is_trained_to_its_gate_and_says_what_it_reached(tmp_path: Path) -> None:
    """For real, two steps: the gate cannot be reached, the model is made all the same, and every start says so."""
    heard = Heard()
    places = prepare(recipe(tmp_path), heard)
    told = "warning: pre: held-out score 0.000 after 2 steps, which are all it has; 1 was asked for ('until')"
    assert told in heard.lines
    assert (Path(places.model) / "model.safetensors").is_file()
    again = Heard()
    assert prepare(recipe(tmp_path), again).model == places.model
    assert again.lines[-2:] == [f"base model: {places.model} (cached)", told]
