"""What is changed between a kill and the restart is told: what was rewarded is what is trained.

A run is killed before the update of a GRPO step whose answers are in the journal; something is changed; the same command runs again. It
ends with the bits of the run that was never killed, or with an exit code and a message that names the row or the file, never with 0 in
silence. `python -m tests.faults.test_changed_between_starts` prints all cases as a table.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs, tiny
from vlmrl.media.video import probe_video

Config = dict[str, Any]
Whole = tuple[Config, dict[str, Any]]
KILL = "step.before_update@6:kill"
"""The third GRPO step. The last two checkpoints are those at the end of the supervised stage and after the second GRPO step."""


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def world(config: Config) -> Path:
    return Path(config["data"]["root"])


def edit(config: Config, file: str, change: Callable[[dict[str, Any]], None], only: str | None = None) -> None:
    """Change rows of a file; all, or the one with an id."""
    path = world(config) / file
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if only in (None, row["id"]):
            change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def videos(config: Config, file: str, *, same_size: bool) -> None:
    """Exchange the videos of a file's rows for others of the same length, as a data set that was encoded anew. Where it can be, the same
    size is padded with a free box."""
    paths = [world(config) / json.loads(line)["video"] for line in (world(config) / file).read_text().splitlines()]
    contents = [path.read_bytes() for path in paths]
    seconds = [probe_video(data).duration for data in contents]
    size = max(len(data) for data in contents) + 8
    for n, path in enumerate(paths):
        end = len(contents[n]) if same_size else size
        rooms = {i: end - len(data) for i, data in enumerate(contents) if i != n and seconds[i] == seconds[n]}
        fitting = [i for i, room in rooms.items() if room >= 8]
        if not fitting:
            continue
        i = min(fitting, key=lambda i: (i - n) % len(contents))
        path.write_bytes(contents[i] + rooms[i].to_bytes(4, "big") + b"free" + b"\0" * (rooms[i] - 8))


def another_question(row: dict[str, Any]) -> None:
    row["prompt"] = row["prompt"].replace("When", "At what time")


def another_answer(row: dict[str, Any]) -> None:
    row["gt"]["time"] = [0.0, 1.0]
    row["answer"] = "0.0 to 1.0"


def swap_rows(config: Config) -> None:
    path = world(config) / "train.jsonl"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))


def drop_row(config: Config) -> None:
    path = world(config) / "train.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def lose_a_video(config: Config) -> None:
    row = json.loads((world(config) / "train.jsonl").read_text().splitlines()[3])
    (world(config) / row["video"]).unlink()


def edit_text(path: Path) -> None:
    """A letter of an answer, in a file that stays well-formed."""
    path.write_text(re.sub(r'"text": "(.)', lambda m: f'"text": "{"x" if m[1] != "x" else "y"}', path.read_text(), count=1))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change and what must come of it."""

    change: Callable[[Config], Any]
    code: int
    told: str
    """A regular expression; what the restart says or the error that it ends with."""
    same: tuple[str, ...] = ("weights", "metrics", "eval", "state")
    """With exit code 0: what must be as in the run that was never killed."""
    fault: str | None = KILL
    """None: the run was finished."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    slow: bool = True


def here(name: str) -> Callable[[Config], Path]:
    return lambda config: runs.run_dir(config) / name


LORA = {"model": {"lora": {"rank": 4}}}
ONE = {"checkpoint": {"every": 2, "keep": 1}}
BUFFER = {"rollout": {"strategy": {"name": "replay", "success_at": 0.0, "max_age": 50}}}
SFT, FINAL = "stages/sft/model.safetensors", "final/model.safetensors"

CASES: dict[str, Case] = {
    "nothing": Case(change=lambda c: None, code=0, told="resuming from step-00000005"),
    "videos of another size": Case(
        change=lambda c: videos(c, "train.jsonl", same_size=False),
        code=76,
        told=r"train.jsonl: 50 of 50 rows changed.*\n  row 'toy-train-\d+' \(.*train.jsonl:1\): media changed \(videos/train/.*mp4\)",
    ),
    "videos of the same size": Case(
        change=lambda c: videos(c, "train.jsonl", same_size=True),
        code=76,
        told=r"videos/train/.*mp4: the content of this medium.*is not what it was when the run used it before",
        slow=False,
    ),
    "held-out videos of the same size": Case(
        change=lambda c: videos(c, "test.jsonl", same_size=True), code=76, told=r"videos/test/.*mp4: the content of this medium"
    ),
    "a video is gone": Case(
        change=lose_a_video,
        config={"data": {"max_bad_rows": 0.1}},
        code=76,
        told=r"50 rows when the run began, 49 now; row 'toy-train-\d+' was used then.*missing",
    ),
    "a question": Case(
        change=lambda c: edit(c, "train.jsonl", another_question, only="toy-train-000007"),
        code=76,
        told=r"train.jsonl: 1 of 50 rows changed.*\n  row 'toy-train-000007' \(.*train.jsonl:8\): question changed",
    ),
    "all questions": Case(change=lambda c: edit(c, "train.jsonl", another_question), code=76, told=r"\d\d of 50 rows changed"),
    "a gold answer": Case(
        change=lambda c: edit(c, "train.jsonl", another_answer, only="toy-train-000007"),
        code=76,
        told=r"row 'toy-train-000007' \(.*train.jsonl:8\): gold answer changed",
        slow=False,
    ),
    "gold of the stage that is over": Case(
        change=lambda c: edit(c, "sft.jsonl", another_answer), code=0, told="resuming from step-00000005"
    ),
    "gold of a stage to come": Case(
        change=lambda c: edit(c, "train.jsonl", another_answer, only="toy-train-000000"),
        fault="step.before_update@2:kill",
        code=76,
        told=r"row 'toy-train-000000' \(.*train.jsonl:1\): gold answer changed",
    ),
    "a held-out row": Case(
        change=lambda c: edit(c, "test.jsonl", another_answer, only="toy-test-000002"),
        code=76,
        told=r"test.jsonl: 1 of \d+ rows changed.*\n  row 'toy-test-000002' \(.*test.jsonl:3\): gold answer changed",
    ),
    "order of rows": Case(change=swap_rows, code=76, told=r"number 1 is row 'toy-train-\d+' \(.*train.jsonl:1\), which was number 2"),
    "a row is gone": Case(change=drop_row, code=76, told=r"50 rows when the run began, 49 now; those from number 50 on are gone"),
    "gold under a sample buffer": Case(
        change=lambda c: edit(c, "train.jsonl", another_answer), config=BUFFER, code=76, told=r"\d\d of 50 rows changed"
    ),
    "a bit of the export, checkpoint there": Case(
        change=lambda c: flip(here(SFT)(c)),
        code=0,
        told=r"stages/sft: model.safetensors: content differs from its sha256; making it again from step-00000003",
        slow=False,
    ),
    "the export is gone, checkpoint there": Case(
        change=lambda c: shutil.rmtree(here("stages/sft")(c)), code=0, told=r"stages/sft: missing; making it again from step-00000003"
    ),
    "a bit of the export": Case(
        change=lambda c: flip(here(SFT)(c)), config=ONE, code=76, told=r"stages/sft: model.safetensors: content differs.*starts from it"
    ),
    "the export is gone": Case(
        change=lambda c: shutil.rmtree(here("stages/sft")(c)), config=ONE, code=76, told=r"stages/sft: missing; stage 'rl' starts from it"
    ),
    "a bit of the base of adapters": Case(
        change=lambda c: flip(here(SFT)(c)), config=ONE | LORA, code=76, told=r"stages/sft: model.safetensors: content differs"
    ),
    "the export under adapters, checkpoint there": Case(
        change=lambda c: flip(here(SFT)(c)), config=LORA, code=0, told="making it again from step-00000003"
    ),
    "a bit of the base model": Case(
        change=lambda c: flip(Path(c["model"]["path"]) / "model.safetensors"),
        code=76,
        told=r"is not the model that the run began with: .*model.safetensors has other content",
    ),
    "the tokenizer of the base model": Case(
        change=lambda c: (Path(c["model"]["path"]) / "chat_template.jinja").write_text(
            (Path(c["model"]["path"]) / "chat_template.jinja").read_text() + " "
        ),
        code=76,
        told=r"chat_template.jinja has other content",
    ),
    "finished, a bit of final": Case(
        change=lambda c: flip(here(FINAL)(c)), fault=None, code=0, told=r"was finished, but: .*final: model.safetensors: content differs"
    ),
    "finished, final is gone": Case(
        change=lambda c: shutil.rmtree(here("final")(c)), fault=None, code=0, told=r"was finished, but: .*final: missing"
    ),
    "finished, final and checkpoints are gone": Case(
        change=lambda c: (shutil.rmtree(here("final")(c)), shutil.rmtree(here("checkpoints")(c))),
        fault=None,
        code=76,
        told=r"final: missing; no checkpoint is left",
    ),
    "finished, a bit of an earlier export": Case(
        change=lambda c: flip(here(SFT)(c)),
        fault=None,
        code=76,
        told=r"stages/sft: model.safetensors.*delete the folder to go on without it",
    ),
    "finished, a record": Case(
        change=lambda c: edit_text(here("eval/sft.jsonl")(c)), fault=None, code=0, told=r"eval/sft.jsonl: content differs.*asked again"
    ),
    "a record of the base": Case(
        change=lambda c: edit_text(here("eval/base.jsonl")(c)), code=0, told=r"eval/base.jsonl: content differs.*asked again"
    ),
    "records of a stage are cut": Case(change=lambda c: cut(here("eval/sft.jsonl")(c)), code=0, told=r"eval/sft.jsonl: .*asked again"),
    "records of a stage are gone": Case(
        change=lambda c: here("eval/sft.jsonl")(c).unlink(), code=0, told=r"eval/sft.jsonl: missing; .*asked again"
    ),
    "records within a stage": Case(
        change=lambda c: edit_text(here("eval/rl@3.jsonl")(c)),
        fault="step.before_update@7:kill",
        config={"checkpoint": {"every": 1}},
        code=76,
        told=r"eval/rl@3.jsonl: content differs.*delete it to go on without this evaluation",
    ),
    "records within a stage are deleted": Case(
        change=lambda c: here("eval/rl@3.jsonl")(c).unlink(),
        fault="step.before_update@7:kill",
        config={"checkpoint": {"every": 1}},
        code=0,
        told=r"eval/rl@3.jsonl is missing: the evaluation 'rl@3' is left out",
        same=("weights", "metrics", "state"),
    ),
    "environment.json is empty": Case(
        change=lambda c: here("environment.json")(c).write_bytes(b""), code=0, told=r"environment.json is damaged"
    ),
    "order.json is cut": Case(change=lambda c: cut(here("eval/order.json")(c)), code=0, told=r"order.json was damaged or missing"),
    "order.json is gone": Case(change=lambda c: here("eval/order.json")(c).unlink(), code=0, told=r"order.json was damaged or missing"),
    "finished, order.json is gone": Case(
        change=lambda c: here("eval/order.json")(c).unlink(), fault=None, code=0, told=r"order.json was damaged or missing"
    ),
    "finished, a bit of order.json": Case(
        change=lambda c: here("eval/order.json")(c).write_text(here("eval/order.json")(c).read_text().replace("@3", "@2")),
        fault=None,
        code=0,
        told=r"order.json was damaged or missing",
        slow=False,
    ),
    "config.yaml is cut": Case(change=lambda c: here("config.yaml")(c).write_bytes(b"a: [\n"), code=0, told=r"config.yaml is damaged"),
    "a letter of the metrics": Case(
        change=lambda c: here("metrics.jsonl")(c).write_text(here("metrics.jsonl")(c).read_text().replace("loss", "lass", 1)),
        code=0,
        told=r"warning: .*metrics.jsonl: lines 1 to \d+ are not as they were written",
        same=("weights", "eval", "state"),
    ),
    "identity.json": Case(
        change=lambda c: flip(here("identity.json")(c)), code=0, told=r"identity.json: .*; what the last checkpoint knows"
    ),
    "the hashes of rows": Case(
        change=lambda c: [flip(path) for path in here("inputs")(c).glob("rows-*.bin")],
        code=76,
        told=r"rows-.*bin: missing, or its content differs",
    ),
    "the keys of used media": Case(
        change=lambda c: flip(here("inputs/media.rank-0.log")(c)), code=76, told=r"media.rank-0.log: missing, cut, or its content differs"
    ),
}


def prepared(case: Case, files: tuple[Path, Path], root: Path) -> Config:
    """A config with a model and data of its own, which the case may change."""
    model, data = (Path(shutil.copytree(source, root / source.name)) for source in files)
    config = runs.small_config(model, data, root)
    for section, values in case.config.items():
        into = config["stages"][1] if section == "rollout" else config
        into[section] = into.get(section, {}) | values
    return config


@dataclass(frozen=True)
class Ended:
    """How the restart of a case ended."""

    code: int
    text: str
    different: list[str]
    """Parts of the outcome that are not those of the run that was never killed."""


def attempt(case: Case, files: tuple[Path, Path], root: Path, whole: Config | None) -> Ended:
    """Start, kill, change, start again. `whole`: an uninterrupted run of the same recipe; None runs one where it is needed."""
    root.mkdir(exist_ok=True)
    config = prepared(case, files, root)
    expected: dict[str, Any] = {}
    if case.code == 0:
        if whole is None:
            whole = copy.deepcopy(config)
            whole["run"]["root"] = str(root / "whole")
            (root / "whole").mkdir()
            assert runs.run(whole) == 0
        expected = runs.outcome(whole)
    first = runs.run(config, case.fault)
    assert first == (0 if case.fault is None else -9)
    (root / "said.txt").unlink(missing_ok=True)
    case.change(config)
    code = runs.run(config)
    said = (root / "said.txt").read_text() if (root / "said.txt").exists() else ""
    text = said if code == 0 else (root / "error.txt").read_text() if (root / "error.txt").exists() else "a traceback"
    now = runs.outcome(config) if code == 0 else {}
    return Ended(code, text, [name for name in now if now[name] != expected[name]])


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if case.slow else ()) for name, case in CASES.items()])
def test_what_changed_between_two_starts_is_told(name: str, tiny_files: tuple[Path, Path], tmp_path: Path, small_run: Whole) -> None:
    case = CASES[name]
    ended = attempt(case, tiny_files, tmp_path / "run", small_run[0] if not case.config else None)
    assert ended.code == case.code, ended.text
    assert re.search(case.told, ended.text), ended.text
    assert not set(ended.different) & set(case.same)


def test_replayed_answers_must_have_the_log_probs_with_which_they_were_sampled(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The last guard: weights that differ behind hashes that fit. Here a checkpoint is edited and sealed again."""
    from vlmrl.train.manifest import read_sealed, write_manifest
    from vlmrl.train.tensors import read_tensors, write_tensors

    config = runs.small_config(*tiny_files, tmp_path)
    assert runs.run(config, KILL) == -9
    newest = sorted((runs.run_dir(config) / "checkpoints").glob("step-*"))[-1]
    tensors = read_tensors(newest / "weights.safetensors")
    name = next(name for name in sorted(tensors) if name.endswith("embed_tokens.weight"))
    write_tensors(newest / "weights.safetensors", tensors | {name: tensors[name] * 1.05})
    body = read_sealed(newest)
    write_manifest(newest, {key: body[key] for key in ("schema", "name", "extra")})
    assert runs.run(config) == 76
    text = (tmp_path / "error.txt").read_text()
    assert re.search(
        r"step-00000005.rank-0.journal: the answers of 4 of 4 groups do not have the log-probs.*: rl/2/0/toy-train-\d+ \(", text
    )
    config["stages"][1]["rollout"]["replay_gap"] = 100.0
    assert runs.run(config) == 0, "an option that may change at resume, for kernels that round otherwise"


def as_of_an_earlier_version(run: Path) -> None:
    """What a version left that kept no hashes of inputs and exports."""
    from vlmrl.train.manifest import read_sealed, write_manifest

    for folder in (run / "checkpoints").glob("step-*"):
        body = read_sealed(folder)
        state = json.loads((folder / "state.json").read_text())
        kept = {key: state[key] for key in ("run", "metrics_offset")}
        (folder / "state.json").write_text(json.dumps(kept, sort_keys=True))
        write_manifest(folder, {"schema": 1, "name": body["name"], "extra": body["extra"]})
    (run / "identity.json").unlink()
    (run / "stages/sft/manifest.json").unlink()
    shutil.rmtree(run / "inputs")


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on_and_says_what_cannot_be_compared(
    tiny_files: tuple[Path, Path], tmp_path: Path, small_run: Whole
) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    assert runs.run(config, KILL) == -9
    as_of_an_earlier_version(runs.run_dir(config))
    (tmp_path / "said.txt").unlink()
    assert runs.run(config) == 0
    assert runs.outcome(config) == small_run[1]
    said = (tmp_path / "said.txt").read_text()
    assert "step-00000005 was saved by an earlier version" in said
    assert "stages/sft was exported by an earlier version, without hashes" in said


@pytest.mark.slow
@pytest.mark.parametrize("which", [1, 2])
def test_a_full_disk_during_an_export_is_a_storage_error_and_the_restart_has_the_same_bits(
    which: int, tiny_files: tuple[Path, Path], tmp_path: Path, small_run: Whole
) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    assert runs.run(config, f"export.written@{which}:enospc") == 74
    assert "not exported: " in (tmp_path / "error.txt").read_text()
    assert runs.run(config) == 0
    assert runs.outcome(config) == small_run[1]


@pytest.mark.slow
def test_changed_rows_are_accepted_on_demand(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """`data.changed: accept`: the groups of the changed rows are sampled again, and the change is in the run's history."""
    config = prepared(Case(change=lambda c: None, code=0, told=""), tiny_files, tmp_path / "run")
    assert runs.run(config, KILL) == -9
    edit(config, "train.jsonl", another_answer)
    videos(config, "train.jsonl", same_size=False)
    assert runs.run(config) == 76
    config["data"]["changed"] = "accept"
    assert runs.run(config) == 0, (tmp_path / "run" / "error.txt").read_text()
    history = json.loads((runs.run_dir(config) / "run.json").read_text())["history"]
    assert any("row 'toy-train-000000'" in note and "gold answer, media changed" in note for note in history[-1]["notes"])
    said = (tmp_path / "run" / "said.txt").read_text()
    assert "sampled again: row" in said
    config["data"]["changed"] = "refuse"
    assert runs.run(config) == 0, "what was accepted is now what the run goes on with"


def main() -> None:
    """Run every case and print what came of it."""
    with tempfile.TemporaryDirectory() as scratch:
        files = tiny.make_files(Path(scratch))
        whole = runs.small_config(*files, Path(scratch) / "whole")
        (Path(scratch) / "whole").mkdir()
        assert runs.run(whole) == 0
        print(f"{'what was changed':<45} {'exit':>4}  {'bits':<10} message")
        for number, (name, case) in enumerate(CASES.items()):
            root = Path(scratch) / str(number)
            ended = attempt(case, files, root, whole if not case.config else None)
            found = re.search(case.told, ended.text)
            bits = "" if ended.code else "the same" if not ended.different else f"other {','.join(ended.different)}"
            line = found[0].replace("\n", " ").replace(str(root), "") if found else f"NOT TOLD: {ended.text[-300:]}"
            wrong = "" if ended.code == case.code and found and not set(ended.different) & set(case.same) else "  <-- WRONG"
            print(f"{name:<45} {ended.code:>4}  {bits:<10} {line[:150]}{wrong}", flush=True)
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
