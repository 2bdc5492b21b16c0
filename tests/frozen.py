"""Runs whose bits a change of structure must not change.

    python -m tests.frozen write STORE            # before: run short recipes, keep what came out, and begin one run more
    python -m tests.frozen compare STORE [NAME..] # after: run them again from the store's files; exit 1 where a bit differs

Kept are the hashes of the weights, every number of `metrics.jsonl` but times and caches, the state of the last checkpoint, the answers
of the evaluations, the names of files and keys of checkpoints and journals, and what `vlmrl list --json` says. The run that `write` only
begins is killed between two updates; `compare` ends a copy of it. Bits are those of one machine: a store is not carried to another.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import ahead, runs
from tests.support.episodes import small_episodes
from tests.support.given import make_model, make_rows
from tests.support.tiny import make_files

KILLED_AT = "step.before_update@5"
TWO_RANKS = "two_ranks"


def configs(store: Path) -> dict[str, dict[str, Any]]:
    """The recipes by name, on files that are made in the store."""
    files = make_files(store / "tiny")
    rows = make_rows(store / "given" / "world", video=False, train=4, test=1)
    family = make_model("gemma3", store / "given" / "model")

    def small(**changes: Any) -> dict[str, Any]:
        return runs.small_config(*files, store) | changes

    def stages(*kept: int, **changes: Any) -> dict[str, Any]:
        out = small()
        return out | {"stages": [out["stages"][n] | changes for n in kept]}

    _pairs(files[1])
    preference = {"kind": "preference", "source": {"path": "pairs.jsonl"}, "group_loss": {"name": "dpo", "beta": 0.5}}
    out = {
        "sft": stages(0),
        "grpo": small(),
        "grpo_two_updates": stages(1, updates_per_step=2, reduce={"name": "token_mean"}, freeze=[]),
        "dpo": stages(0) | {"eval": {}},
        "lora": small(model=small()["model"] | {"lora": {"rank": 4, "alpha": 8}}),
        "staleness": ahead.config(files, store, 1),
        TWO_RANKS: small(),
        "environment": small_episodes(*files, store),
        "generic": small(
            model={"path": str(family), "device": "cpu", "family": "generic"},
            data={"root": str(rows)},
            media={"max_frames": 6, "fps": 1.0, "max_pixels": 9216},
            eval={},
        ),
    }
    out["dpo"]["stages"] = [{k: v for k, v in out["dpo"]["stages"][0].items() if k != "thought_dropout"} | preference]
    for stage in out["generic"]["stages"]:
        stage |= {"source": {"path": "train.jsonl"}, "steps": 2, "forward": "repeat"}
    out["generic"]["stages"][0]["batch"] = 2
    sampled = {"num_generations": 2, "prompts_per_step": 2, "generation_batch_size": 1, "max_new_tokens": 5}
    out["generic"]["stages"][1] |= {"rewards": [{"name": "first_letter"}, {"name": "format", "weight": 0.1}]}
    out["generic"]["stages"][1]["rollout"] |= sampled
    return out


def _pairs(world: Path) -> None:
    """Rows with a right and a wrong answer, of the world's rows for fine-tuning."""
    rows = [json.loads(line) for line in (world / "sft.jsonl").read_text().splitlines()]
    with (world / "pairs.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps(row | {"meta": row.get("meta", {}) | {"rejected": "<answer>no</answer>"}}) + "\n")


def run(config: Mapping[str, Any], name: str, fault: str | None = None) -> None:
    """Run a recipe to its end, or to where it is killed.

    Raises:
        RuntimeError: it ended otherwise; with what it said.
    """
    codes = ahead.run_ranks(config) if name == TWO_RANKS else [runs.run(config, fault, timeout=900)]
    if any(code != (0 if fault is None else -9) for code in codes):
        said = Path(config["run"]["root"], "error.txt")
        raise RuntimeError(f"{name}: exit codes {codes}; {said.read_text() if said.exists() else 'nothing was said'}")


def seen(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal of a run, as JSON has it."""
    newest = sorted((runs.run_dir(config) / "checkpoints").glob("step-*"))[-1]
    vocabulary = {path.name: sorted(json.loads(path.read_text())) for path in sorted(newest.glob("*.json"))}
    files = sorted(str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file())
    journals = sorted((runs.run_dir(config)).rglob("*journal*/*"))
    records = [sorted(json.loads(line)) for path in journals if path.suffix == ".jsonl" for line in path.read_text().splitlines()[:1]]
    found = runs.outcome(config) | {"checkpoint": {"files": files, "keys": vocabulary}, "journal": records}
    return json.loads(json.dumps(found))


def listing() -> Any:
    """What `vlmrl list --json` prints."""
    from typer.testing import CliRunner

    from vlmrl.cli import app

    return json.loads(CliRunner().invoke(app, ["list", "--json"], catch_exceptions=False).stdout)


def moved(config: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The recipe with its runs in another folder."""
    return {**config, "run": {**config["run"], "root": str(root)}}


def write(store: Path) -> None:
    store.mkdir(parents=True)
    made = configs(store)
    (store / "configs.json").write_text(json.dumps(made, indent=1))
    (store / "list.json").write_text(json.dumps(listing(), indent=1, sort_keys=True))
    found: dict[str, Any] = {}
    for name, config in made.items():
        mine = moved(config, store / "runs" / name)
        run(mine, name)
        found[name] = seen(mine)
        print(f"{name}: {len(found[name]['metrics'])} lines of metrics", flush=True)
    (store / "outcomes.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    run(moved(made["grpo"], store / "begun"), "grpo", f"{KILLED_AT}:kill")
    print("begun: grpo, killed at", KILLED_AT)


def compare(store: Path, names: list[str]) -> bool:
    """Whether all is equal; says what is not."""
    made: dict[str, Any] = json.loads((store / "configs.json").read_text())
    expected: dict[str, Any] = json.loads((store / "outcomes.json").read_text())
    equal = True
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        for name in names or [*made, "begun", "list"]:
            if name == "list":
                before, now = json.loads((store / "list.json").read_text()), json.loads(json.dumps(listing()))
            else:
                of = "grpo" if name == "begun" else name
                mine = moved(made[of], Path(folder) / name)
                if name == "begun":
                    shutil.copytree(store / "begun", mine["run"]["root"])
                run(mine, of)
                before, now = expected[of], seen(mine)
            differ = differences(before, now)
            equal &= not differ
            print(f"{name}: {'equal' if not differ else f'{len(differ)} differences'}", *differ[:10], sep="\n    ", flush=True)
    return equal


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Where two documents differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [line for key in keys for line in differences(before.get(key), now.get(key), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [line for n, (a, b) in enumerate(zip(before, now, strict=True)) for line in differences(a, b, f"{where}[{n}]")]
    return [] if before == now else [f"{where.lstrip('.')}: {str(before)[:80]} -> {str(now)[:80]}"]


def main(arguments: list[str]) -> int:
    command, store, *names = arguments or ["help", ""]
    if command == "write":
        write(Path(store).resolve())
        return 0
    if command == "compare":
        return 0 if compare(Path(store).resolve(), names) else 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
