"""What sampling ahead gains where rewards are waited for: seconds per step with `rollout.staleness` 0, 1 and 4, side by side in one run.

    python -m benchmarks.step.overlap [--steps 10] [--seconds 2] [--rounds 2]

Whole runs of the tiny model, each in a process of its own, in turn and as often as `--rounds` says. The reward of a group is a wait of
`--seconds`, two groups a step. Beside them the order without a queue: its run must have the same bits as staleness 0. The model is so small
that nearly all of a step is the wait, and it runs on a CPU with the engine that shares the policy's weights: how much of a wait can be
hidden, and no statement about GPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

VARIANTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "0, no queue": (0, ("without_queue",)),
    "0": (0, ()),
    "1": (1, ()),
    "4": (4, ()),
}
"""Name -> staleness, and what is changed in the run (`tests.support.ahead`)."""
PHASES = ("rollout", "score", "forward_backward")


def recipe(files: tuple[Path, Path], root: Path, staleness: int, steps: int, seconds: float) -> dict[str, Any]:
    from tests.support import ahead

    rewards = [{"name": "waited_for", "seconds": seconds}]
    out = ahead.config(files, root, staleness, steps=steps, rewards=rewards, advantage={"name": "grpo"})
    out["stages"][0]["rollout"]["prompts_per_step"] = 2
    return out | {"plugins": ["tests.support.waiting_reward"], "checkpoint": {"every": steps}}


def measure(made: dict[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of every step and of its phases, and a digest of weights and metrics."""
    from tests.support import ahead, runs
    from vlmrl.run.tracking import read_metrics

    if ahead.run(made, *changes, timeout=3600) != 0:
        raise SystemExit(f"a run failed: see {made['run']['root']}")
    lines = [line for line in read_metrics(runs.run_dir(made) / "metrics.jsonl") if "grad_norm" in line]
    same = {name: runs.outcome(made)[name] for name in ("weights", "metrics")}
    return {
        "step": [line["time/step_total"] for line in lines],
        "phases": {name: statistics.mean(line.get(f"time/{name}", 0.0) for line in lines) for name in PHASES},
        "staleness": lines[-1].get("rollout/staleness", 0.0),
        "digest": hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="wait for the score of a group")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    from tests.support import tiny

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        files = tiny.make_files(Path(folder))
        for turn in range(given.rounds):
            for name, (staleness, changes) in VARIANTS.items():
                made = recipe(files, Path(folder, f"{turn}-{name}"), staleness, given.steps, given.seconds)
                found[name].append(measure(made, changes))
                print(f"round {turn + 1}: staleness {name}: {statistics.mean(found[name][-1]['step']):.2f} s per step", flush=True)
    print("\n| staleness | s/step, all steps | median step | waiting for scores | sampling | update | digest |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name, rounds in found.items():
        digests = {one["digest"] for one in rounds}
        phases = " | ".join(f"{statistics.mean(one['phases'][phase] for one in rounds):.2f}" for phase in ("score", "rollout", PHASES[2]))
        steps = [step for one in rounds for step in one["step"]]
        mean, median = statistics.mean(steps), statistics.median(steps)
        print(f"| {name} | {mean:.2f} | {median:.2f} | {phases} | `{' '.join(sorted(digests))}` |")
    plain, through = ({one["digest"] for one in found[name]} for name in ("0, no queue", "0"))
    if len(plain | through) != 1:
        raise SystemExit(f"the queue changes bits without staleness: {sorted(plain)} and {sorted(through)}")


if __name__ == "__main__":
    main()
