"""Each media file is opened for its content once and decoded once, however many answers, rewards and epochs look at it.

Counted where it happens (`tests.support.media_trace`): by the interpreter's audit events and at the calls into the decoders. Looking at
headers (the audit before the first step, and the prefetcher's estimate of what fits into the cache) opens a file once more and
decodes nothing. With decord a video is decoded by decord and checked by one pass of PyAV: two decoders, once each. A JPEG is decoded a
second time to see whether it is whole (`media.jpeg`), a small one by Pillow.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support import media_trace, runs

GROUP = 8
PROMPTS = 4
STEPS = 3
ROWS = 8
"""Rows of the source, half of them videos: the third step sees some of them for the second time."""
EVAL = 4
BOX = {"box": [0.5, 0.25, 1.0, 0.75]}
"""For a teacher that sees a crop."""


@pytest.fixture(scope="module")
def world(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with videos and pictures, for training and for evaluation; every file is in one row."""
    root = tmp_path_factory.mktemp("once") / "world"
    for folder in ("pictures", "videos"):
        (root / folder).mkdir(parents=True)
    for name, split, count in (("mixed", "train", ROWS), ("held_out", "test", EVAL)):
        lines = [json.loads(line) for line in (tiny_files[1] / f"{split}.jsonl").read_text().splitlines()]
        rows = list({line["video"]: line for line in lines}.values())[: count // 2]
        for n, row in enumerate(rows):
            data = (tiny_files[1] / row["video"]).read_bytes()
            row["video"] = f"videos/{name}-{n}.mp4"
            row["meta"] |= BOX
            (root / row["video"]).write_bytes(data)
        rows += [_picture_row(root, f"{name}-{n}", n) for n in range(count // 2)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def _picture_row(root: Path, name: str, seed: int) -> dict[str, Any]:
    pixels = np.random.default_rng([seed, len(name)]).integers(0, 256, (60, 84, 3), dtype=np.uint8)
    path = f"pictures/{name}.{'png' if seed % 2 else 'jpg'}"
    Image.fromarray(pixels).save(root / path)
    return {"id": name, "task": "vqa", "answer_type": "exact_text", "image": path, "prompt": "What is it?", "answer": "noise", "meta": BOX}


def config(model: Path, world: Path, root: Path, *, prefetch: bool, decoder: str, workers: int = 0) -> dict[str, Any]:
    rewards = [{"name": "looks", "isolate": False}, {"name": "format", "weight": 0.1}]
    stage = {"source": {"path": "mixed.jsonl"}, "steps": STEPS, "rewards": rewards}
    out = runs.small_config(model, world, root, **stage)
    out["stages"] = out["stages"][1:]
    out["stages"][0]["rollout"] |= {"num_generations": GROUP, "prompts_per_step": PROMPTS, "generation_batch_size": 2, "max_new_tokens": 6}
    out["stages"][0]["advantage"] = {"name": "grpo"}
    out["media"] |= {"prefetch": prefetch, "decoder": decoder, "workers": workers}
    out["eval"] |= {"source": {"path": "held_out.jsonl"}, "every": None}
    out["checkpoint"] = {"every": 100}
    out["plugins"] = ["tests.support.media_rewards"]
    return out


def in_child(target: Any, *args: Any, out: Path) -> dict[str, Any]:
    child = runs._CONTEXT.Process(target=target, args=(*args, str(out)))
    child.start()
    child.join(180)
    if child.is_alive():
        child.kill()
        child.join()
    errors = [path.read_text() for path in out.parent.rglob("error.txt")]
    assert child.exitcode == 0, errors
    return json.loads(out.read_text())


def counts(trace: dict[str, Any], what: str, names: Sequence[str], phase: str = "") -> set[int]:
    return {trace[what].get(f"{phase} {name}".strip(), 0) for name in names}


DECODERS = ["pyav", "decord"] if importlib.util.find_spec("decord") else ["pyav"]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("prefetch", [False, True])
def test_each_medium_is_opened_and_decoded_once(
    tiny_files: tuple[Path, Path], world: Path, tmp_path: Path, prefetch: bool, decoder: str
) -> None:
    made = config(tiny_files[0], world, tmp_path / "runs", prefetch=prefetch, decoder=decoder)
    trace = in_child(media_trace.traced_run, made, out=tmp_path / "trace.json")
    videos, pictures = (sorted(p.name for p in (world / folder).rglob("*.*")) for folder in ("videos", "pictures"))
    assert (len(videos), len(pictures)) == ((ROWS + EVAL) // 2,) * 2
    every = videos + pictures
    assert trace["by_path"] == [], "decoders get bytes, never names"
    assert counts(trace, "opens", every, "audit") == {1}, "headers, before the first step"
    opened = [trace["opens"][f"run {name}"] for name in every]
    # the first step and the evaluation are not prefetched; the second step is, as far as there is time, after a look at each header
    assert set(opened) <= {1, 2}
    assert opened.count(2) <= PROMPTS * prefetch
    assert counts(trace, "av_passes", videos) == {1}
    assert counts(trace, "decord_readers", videos) == {int(decoder == "decord")}
    assert counts(trace, "pil_decodes", [name for name in pictures if name.endswith(".png")]) == {1}
    assert counts(trace, "pil_decodes", [name for name in pictures if name.endswith(".jpg")]) == {2}, "one is the check that it is whole"
    assert counts(trace, "av_passes", pictures) == counts(trace, "pil_decodes", videos) == {0}
    metrics = [json.loads(line) for line in (runs.run_dir(made) / "metrics.jsonl").read_text().splitlines()]
    assert sum("grad_norm" in line for line in metrics) == STEPS


@pytest.mark.parametrize(
    ("kind", "crop"),
    [("distill", {}), ("teacher_sft", {}), ("distill", {"crop": "meta.box"}), ("distill", {"crop": "meta.box", "beside": True})],
)
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_file_that_a_teacher_sees_otherwise_is_decoded_once_as_well(
    tiny_files: tuple[Path, Path], world: Path, tmp_path: Path, prefetch: bool, kind: str, crop: dict[str, Any]
) -> None:
    made = config(tiny_files[0], world, tmp_path / "runs", prefetch=prefetch, decoder="pyav")
    stage = made["stages"][0]
    for field in ("rewards", "advantage", "beta"):
        stage.pop(field, None)
    stage |= {"kind": kind, "teacher": {"media": {"min_pixels": 12544, "max_pixels": 12544} | crop}}
    trace = in_child(media_trace.traced_run, made, out=tmp_path / "trace.json")
    videos, pictures = (sorted(p.name for p in (world / folder).rglob("*.*")) for folder in ("videos", "pictures"))
    assert counts(trace, "av_passes", videos) == {1}
    assert counts(trace, "pil_decodes", [name for name in pictures if name.endswith(".png")]) == {1}
    seen = [json.loads(line) for line in next((runs.run_dir(made) / "teacher").glob("*.rank-0.jsonl")).read_text().splitlines()]
    assert len(seen) == ROWS
    assert all(line["student"]["media"] != line["teacher"]["media"] for line in seen)
    assert {len(line["teacher"]["media"]) for line in seen} == {1 + ("beside" in crop)}


def test_a_second_look_is_seen_by_the_trace(world: Path, tmp_path: Path) -> None:
    """The count can fail: two stores decode twice."""
    trace = in_child(media_trace.twice, str(world), out=tmp_path / "trace.json")
    (video,) = [name for name in trace["av_passes"] if name.endswith(".mp4")]
    assert trace["av_passes"][video] == 2
    assert trace["opens"][f"run {video}"] == 2
    assert set(trace["pil_decodes"].values()) == {2}
    assert trace["by_path"] != []


@pytest.mark.parametrize("version", ["1.16"])
def test_how_often_trl_opens_the_same_picture(
    tiny_files: tuple[Path, Path], tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For comparison, printed: the trainer of TRL for one picture and as many answers."""
    trl = pytest.importorskip("trl", reason="needs trl, which the dev extra installs on Python 3.11 and newer")
    pytest.importorskip("datasets")
    if not trl.__version__.startswith(version):
        pytest.skip(f"compares with TRL {version}, here is {trl.__version__}")
    folder = tmp_path / "picture"
    folder.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)).save(folder / "a.png")
    found = in_child(media_trace.traced_trl, str(tiny_files[0]), str(folder), GROUP, out=tmp_path / "trl.json")
    with capsys.disabled():
        print(
            f"\none picture, {GROUP} answers, one step: TRL {trl.__version__} opened it {found['opened']} times, decoded it "
            f"{found['decoded']} times and processed it {found['processed']} times"
        )
    assert found["decoded"] >= GROUP
    assert found["processed"] >= GROUP
