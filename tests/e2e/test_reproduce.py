"""Reproduction kits from an official download to figures beside the printed ones, with the invented samples of `data/` and a tiny model.

Judges are a server of this machine. What a random model cannot do is given: TON's thoughts, which its starting model would write.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import vlmrl.answers  # noqa: F401 (registers them)
from tests.e2e.test_real_job import checkout
from tests.support import tiny
from tests.support.judge_server import JudgeServer, score
from tests.support.samples import load_dataset, parquet_bytes, unpack
from tests.support.standins import fill
from vlmrl.extras.importers.prepare.prepare import Skipped, prepare
from vlmrl.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")
SMALL = {"num_generations": 4, "max_new_tokens": 16, "prompts_per_step": 2, "generation_batch_size": 2}
DOWNLOADS = {
    "g2rpo": {"onethinker": ""},
    "fgrpo": {"sat": "sat", "vgr": "vgr"},
    "ton": {"clevr_cogen": ""},
    "tempsamp": {"charades_sta": ""},
    "curriculum_gui": {"android_control": ""},
}
"""Kit -> its data sets, each with its folder in the download."""
SPLITS = {
    "onethinker": "rl",
    "sat": "train",
    "vgr": "longcot",
    "clevr_cogen": "train",
    "charades_sta": "train",
    "android_control": "train",
}

OTHER_SPLITS = {
    "sat": ("SAT_val.parquet", "SAT_train.parquet"),
    "vgr": ("data/vgr_shortcot.parquet", "data/vgr_longcot.parquet"),
    "clevr_counting": ("questions/CLEVR_val_questions.json", "questions/CLEVR_train_questions.json"),
}
"""Data set -> a file of its sample, and the file of the split that the kit takes, which has the same layout."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BASH is None, reason="needs bash")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_files(tmp_path_factory.mktemp("model"), sft=1, train=1, test=1)[0]


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(script=[], otherwise=score(0.5)) as server:
        yield server


def download(name: str, root: Path, split: str, **options: str) -> list[Mapping[str, Any]]:
    """Write the sample of a data set as its official download, with all media of a split; the split's rows."""
    unpack(ROOT / "data" / name, root)
    if name in OTHER_SPLITS:
        there, wanted = OTHER_SPLITS[name]
        shutil.copy(root / there, root / wanted)
    dataset = load_dataset(ROOT / "data" / name)
    options = {option: values[0] for option, values in dataset.options.items()} | options
    records = [one for one in dataset.rows(root, split, **options) if not isinstance(one, Skipped)]
    fill(root, [{**one, "meta": {"duration": 30.0} | dict(one.get("meta", {}))} for one in records])
    return records


def overrides(name: str, model: Path, judge: JudgeServer) -> list[str]:
    """The recipe in two steps per stage, with the tiny model, and a judge of this machine in place of the recipe's."""
    recipe = yaml.safe_load((ROOT / "configs" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8"))
    given = [
        f"model.path='{model}'",
        "run.trackers=[]",
        "run.threads=1",
        "media.min_pixels=3136",
        "media.max_pixels=6272",
        "checkpoint.every=2",
    ]
    for stage in recipe["stages"]:
        key = f"stages.{stage['name']}"
        given.append(f"{key}.steps=2")
        if stage["kind"] == "sft":
            given.append(f"{key}.batch=2")
            continue
        small = SMALL | {"prompts_per_step": max(2, stage.get("updates_per_step", 1))}
        given += [f"{key}.rollout.{field}={value}" for field, value in small.items()]
        if "strategy" not in stage["rollout"]:
            given.append(f"{key}.rollout.strategy={{name: offpolicy_gt, gt_cot: answer_only}}")
        if stage.get("sampler", {}).get("name") == "curriculum_gui":  # one short episode has one level
            given.append(f"{key}.sampler.understanding_from=1")
        rewards = json.dumps(stage["rewards"]).replace("http://127.0.0.1:8000/v1", judge.url)
        given.append(f"{key}.rewards={rewards}")
    return given


def reproduce(where: Path, name: str, *arguments: str) -> str:
    """Run the kit in a folder, in a copy of the scripts that is made there, unless one is."""
    copy = where / "checkout"
    script = (copy if copy.is_dir() else checkout(copy)) / "scripts" / "reproduce.sh"
    shutil.copytree(ROOT / "data", copy / "data", dirs_exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLMRL_PYTHON": sys.executable, "COLUMNS": "200"}
    command = [str(BASH), str(script), name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False, cwd=where)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("name", DOWNLOADS)
def test_from_the_download_to_a_model(name: str, tmp_path: Path, model: Path, judge: JudgeServer) -> None:
    root, data = tmp_path / "official", tmp_path / "rows"
    for dataset, folder in DOWNLOADS[name].items():
        download(dataset, root / folder, SPLITS[dataset])
    if name == "ton":
        prepare(load_dataset(ROOT / "data" / "clevr_cogen"), root, data, "train", allow_partial=True)
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        (data / "sft.jsonl").write_text("".join(json.dumps({**row, "thought": "I count them one by one."}) + "\n" for row in rows))
        (data / "train.jsonl").unlink()
    reproduce(tmp_path, name, "--download", str(root), "--data", str(data), "--allow-partial", *overrides(name, model, judge))
    assert (data / "train.jsonl").read_text().count("\n") >= 1
    if name == "fgrpo":
        kinds = {bool(json.loads(line).get("gt", {}).get("boxes")) for line in (data / "train.jsonl").read_text().splitlines()}
        assert kinds == {True, False}, "rows with boxes for its constraint, and rows without"
    run = tmp_path / "runs" / name
    assert (run / "FINISHED").is_file()
    assert (run / "final" / "model.safetensors").is_file()
    steps = [line["stage"] for line in read_metrics(run / "metrics.jsonl") if "grad_norm" in line]
    assert steps == [
        stage["name"] for stage in yaml.safe_load((ROOT / "configs/recipes" / f"{name}.yaml").read_text())["stages"] for _ in "12"
    ]


def test_the_papers_sets_are_asked_and_stand_beside_the_printed_figures(tmp_path: Path, model: Path, judge: JudgeServer) -> None:
    """TON's kit with rows that are there, and the three sets of its suite."""
    data, tests = tmp_path / "rows", tmp_path / "tests"
    data.mkdir()
    records = download("clevr_counting", tmp_path / "official", "train")
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    (data / "sft.jsonl").write_text("".join(json.dumps({**row, "thought": "I count them."}) + "\n" for row in records))
    suite = yaml.safe_load((ROOT / "evals/suites/ton.yaml").read_text(encoding="utf-8"))
    for task in suite["tasks"]:
        definition = yaml.safe_load((ROOT / "evals/tasks" / f"{task}.yaml").read_text(encoding="utf-8"))
        made = definition["prepare"]
        options = made.get("options", {})
        download(made["dataset"], tests / made["dataset"], made["split"], **options)
        out = tests / Path(definition["source"]).parent
        prepare(load_dataset(ROOT / "data" / made["dataset"]), tests / made["dataset"], out, made["split"], allow_partial=True, **options)
    media = [f"stages.{stage}.source.media_root={tmp_path / 'official'}" for stage in ("sft", "rl")]
    said = reproduce(
        tmp_path, "ton", "--data", str(data), "--eval-data", str(tests), *overrides("ton", model, judge), *media, "run.name=mine"
    )
    assert "beside printed figures" in said
    table = json.loads((tmp_path / "runs/mine/published/published.json").read_text())
    assert {(row["task"], row["model"], row["value"]) for row in table["rows"]} >= {
        ("clevr_counting", "TON-3B", 98.5),
        ("super_clevr", "TON-3B", 62.79),
    }
    assert table["without"] == ["geoqa"]


PAIRS = {"base-sft", "base-grpo", "sft-grpo", "grpo-guard"}
"""What the kit `click` compares."""


def test_click_from_the_download_to_four_arms_that_are_compared(tmp_path: Path, model: Path) -> None:
    """Clicks in the columns of the official file, and the samples of its two test sets."""
    root, data, tests = tmp_path / "official", tmp_path / "rows", tmp_path / "tests"
    same = {"gt_action": "click", "gt_bbox": [0.25, 0.5, 0.75, 0.625], "gt_input_text": "no input text", "history": "None"}
    shown = [{"image": {"bytes": f"standin:{i}.png"}, "instruction": f"open the map {i}", "id": str(i)} for i in range(12)]
    root.mkdir()
    (root / "train.parquet").write_bytes(parquet_bytes([one | same | {"task_type": "low"} for one in shown]))
    for name in ("screenspot_v2", "screenspot_pro"):
        definition = yaml.safe_load((ROOT / "evals/tasks" / f"{name}_point.yaml").read_text(encoding="utf-8"))
        options = definition["prepare"]["options"]
        download(name, tests / name, "test", **options)
        out = tests / Path(definition["source"]).parent
        prepare(load_dataset(ROOT / "data" / name), tests / name, out, "test", allow_partial=True, **options)
    file = checkout(tmp_path / "checkout") / "configs/studies/click.yaml"
    study = yaml.safe_load(file.read_text(encoding="utf-8"))
    study["arms"]["sft"]["stages"][0] |= {"steps": 2, "batch": 2}
    file.write_text(yaml.safe_dump(study), encoding="utf-8")
    given = [
        *("--download", str(root), "--data", str(data), "--allow-partial", f"model.path='{model}'", "model.lora=null", "run.trackers=[]"),
        *("stages.rl.steps=2", *(f"stages.rl.rollout.{key}={value}" for key, value in SMALL.items()), "eval.max_new_tokens=16"),
    ]
    reproduce(tmp_path, "click", *given, "--check")
    assert not (tmp_path / "runs").exists()
    rows = {name: [json.loads(line) for line in (data / name).read_text().splitlines()] for name in ("train.jsonl", "held_out.jsonl")}
    assert {name: len(of) for name, of in rows.items()} == {"train.jsonl": 10, "held_out.jsonl": 2}
    assert {row["id"] for row in rows["train.jsonl"]}.isdisjoint(row["id"] for row in rows["held_out.jsonl"])
    said = reproduce(tmp_path, "click", *given, "--eval-data", str(tests))
    assert all(f"| {name} | 2 |" in said for name in ("point", "action", "think"))
    chosen = json.loads((tmp_path / "runs/click-prompts/best.json").read_text())
    suite = yaml.safe_load((tmp_path / "runs/click-suite.yaml").read_text())
    assert {f"data.prompt={json.dumps(task['prompt'], ensure_ascii=False)}" for task in suite["tasks"]} == {chosen[0]}
    for arm in ("base", "sft", "grpo", "guard"):
        run = tmp_path / "runs/click/runs" / f"{arm}-s0"
        assert (run / "FINISHED").is_file()
        assert (run / "eval/suite/rl/screenspot_pro_point.jsonl").is_file()
        assert yaml.safe_load((run / "config.yaml").read_text())["data"]["prompt"] == suite["tasks"][0]["prompt"]
    assert {path.name for path in (tmp_path / "runs/click/compared").iterdir()} == PAIRS
    compared = json.loads((tmp_path / "runs/click/compared/sft-grpo/comparison.json").read_text())
    assert {one["task"] for one in compared["tasks"]} == {"screenspot_v2_point", "screenspot_pro_point"}


def test_click_on_a_stand_in(tmp_path: Path) -> None:
    """As somebody starts it, with fewer rows and steps."""
    world = [f"toy.world.{split}={count}" for split, count in (("pretrain", 32), ("train", 16), ("validation", 12), ("test", 24))]
    less = ["toy.base.steps=6", "toy.base.batch=8", "stages.rl.steps=2", "stages.rl.rollout.prompts_per_step=2"]
    said = reproduce(tmp_path, "click", "--stand-in", f"toy.cache={tmp_path / 'cache'}", *world, *less)
    assert "| own | 12 |" in said
    assert {path.name for path in (tmp_path / "runs/toy_click/compared").iterdir()} == PAIRS
