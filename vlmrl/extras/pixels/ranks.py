"""Runs a job in several processes under torchrun, and reads what each rank has written.

torchrun --nproc-per-node 2 -m vlmrl.extras.pixels.ranks FOLDER MODULE:ADAPTER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from vlmrl.extras.pixels.job import Job, Trained, as_json, from_json, job_of
from vlmrl.registry import load

SECONDS = 300
"""Until a job that hangs is given up."""


def across(job: Job, adapter: str) -> Trained:
    """Train a job in `job.ranks` processes.

    Args:
        adapter: `module:attribute` of the adapter's class, importable from this process's path.

    Returns:
        The answers of all ranks, and the first error that is none of a rank's that only waited.

    Raises:
        RuntimeError: no rank has written anything; with the end of what they printed.
    """
    folder = Path(job.folder)
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    command += ["-m", "vlmrl.extras.pixels.ranks", str(folder), adapter]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    found = [from_json(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("rank-*.json"))]
    if not found:
        raise RuntimeError(f"no rank of {job.ranks} has written a result: {(done.stdout + done.stderr)[-2000:]}")
    errors = [one.error for one in found if one.error is not None]
    if len(found) < job.ranks and not errors:
        errors = [f"{job.ranks - len(found)} of {job.ranks} ranks ended without a result: {done.stderr[-2000:]}"]
    return Trained(
        answers=[answer for one in found for answer in one.answers],
        said=[text for one in found for text in one.said],
        error=errors[0] if errors else None,
    )


def main(folder: Path, adapter: str) -> None:
    """Train a rank's part of a job and write what came of it: its answers, or its error."""
    from vlmrl.extras.pixels.faults import Case
    from vlmrl.extras.pixels.judge import hear

    job = job_of(json.loads((folder / "job.json").read_text(encoding="utf-8")))
    heard = hear(load(adapter)(), Case(job, ()))
    trained = heard.trained or Trained()
    written = as_json(Trained(answers=trained.answers, said=heard.said, error=heard.error))
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(written), encoding="utf-8")
    if heard.error is not None:
        os._exit(1)  # the others may wait for this rank in a collective; the launcher ends them


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
