"""Stands in for `vlmrl` where a study's runs are tested: the files of a run in a fraction of a second, killed and resumed like a real one.

    python tests/support/study_stand_in.py train RECIPE run.name=N run.root=R run.seed=S ...

Answers are right by the learning rate and the seed. `$STAND_IN` holds `record.json`, a record to copy; `fail-NAME` there makes a run fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path

STEPS, QUESTIONS = 4, 40


def main(words: list[str]) -> int:
    """Do the run, or what of it is left; the exit code is that of `vlmrl`."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if words[0] == "tools":
        return 0
    home, run = Path(os.environ["STAND_IN"]), Path(given["run.root"], given["run.name"])
    run.mkdir(parents=True, exist_ok=True)
    lock = (run / "LOCK").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 73
    with (home / "started.txt").open("a") as file:
        file.write(f"{run.parent.name}/{run.name}\n")
    if (home / f"fail-{run.name}").exists():
        print("the model is not there")
        return 65
    seed, rate = int(given["run.seed"]), float(given.get("stages.rl.optim.lr", "1e-6"))
    stages = [{"name": "rl", "kind": "grpo", "steps": STEPS}]
    (run / "config.yaml").write_text(json.dumps({"run": {"seed": seed}, "stages": stages}))
    lines = run / "metrics.jsonl"
    for step in range(len(lines.read_text().splitlines()) if lines.exists() else 0, STEPS):
        time.sleep(0.03)
        with lines.open("a") as file:
            file.write(json.dumps({"stage": "rl", "step": step + 1, "reward": step + rate * 1e5}) + "\n")
    record = json.loads((home / "record.json").read_text())
    (run / "eval").mkdir(exist_ok=True)
    for name, share in (("base", 0.3), ("rl@2", 0.4 + rate * 1e4), ("rl", 0.5 + rate * 2e4)):
        right = round(QUESTIONS * share) + random.Random(f"{seed} {name}").randint(-1, 1)
        rows = [record | {"sample_id": f"q{n}", "cluster": f"c{n}", "scores": {"exact": float(n < right)}} for n in range(QUESTIONS)]
        (run / "eval" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "eval" / "order.json").write_text(json.dumps(["base", "rl@2", "rl"]))
    (run / "FINISHED").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
