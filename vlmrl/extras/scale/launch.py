"""How a run is started on several GPUs and machines: the lines of torchrun, accelerate and slurm, and when a restart would be in vain.

All three end in the same processes: one per GPU, which find each other by the variables of `torchrun` (accelerate and the script for slurm
start it too). How the weights are split among them is a matter of the recipe and not of the launcher.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import CheckpointError, ConfigError, DataError, Preempted
from vlmrl.extras.scale.watchdog import address
from vlmrl.paths import shipped, shown

LAUNCHERS = ("torchrun", "accelerate", "slurm")
PORT = 29400
RESTARTS = 3
SAVING = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
"""Seconds that ranks which are asked to stop may take to end their step and save; by itself torchrun kills them after 30. A torch that does
not know the variable yet does so in any case."""
FINAL = (ConfigError.exit_code, DataError.exit_code, Preempted.exit_code, CheckpointError.exit_code)
"""Exit codes after which the same command would end the same way, or after which somebody wanted the job to end."""
_SAID = "VLMRL_FINAL_EXIT_CODE"
"""Names the file in which a process says with which exit code it ended the job, where `run` started it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is started where."""

    gpus: int
    """Processes on each machine, one per GPU."""
    nodes: int = 1
    host: str = ""
    """Of several machines, the name or address of the first one, with or without a port."""
    restarts: int = RESTARTS
    """How often the launcher starts all processes again after one of them has ended with an error; each time the run resumes."""
    train: tuple[str, ...] = ()
    """Recipe and overrides."""

    @property
    def endpoint(self) -> str:
        """Host and port at which the machines meet."""
        host = self.host or "HOST"
        return host if ":" in host else f"{host}:{PORT}"


def torchrun(job: Job) -> list[str]:
    """The line, the same on every machine."""
    words = ["torchrun", "--nproc-per-node", str(job.gpus), "--max-restarts", str(job.restarts)]
    if job.nodes == 1:
        words.insert(1, "--standalone")
    else:
        words[1:1] = ["--nnodes", str(job.nodes)]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", job.endpoint]
    return [*words, "-m", "vlmrl", "train", *job.train]


def accelerate(job: Job, machine: int = 0) -> list[str]:
    """The line of one machine; `configs/accelerate` holds what is the same in all jobs."""
    settings = shown(shipped("configs", "accelerate", f"{'one_machine' if job.nodes == 1 else 'several_machines'}.yaml"))
    words = ["accelerate", "launch", "--config_file", settings]
    words += ["--num_processes", str(job.gpus * job.nodes), "--max_restarts", str(job.restarts)]
    if job.nodes > 1:
        host, _, port = job.endpoint.rpartition(":")
        words += ["--num_machines", str(job.nodes), "--machine_rank", str(machine), "--main_process_ip", host, "--main_process_port", port]
        words += ["--rdzv_backend", "c10d"]  # its default comes before what its file says
    return [*words, "-m", "vlmrl", "train", *job.train]


def slurm(job: Job) -> str:
    """A script for sbatch: one task per machine, which is torchrun; slurm names the machines."""
    words = ["torchrun", "--nnodes", str(job.nodes), "--nproc-per-node", str(job.gpus), "--max-restarts", str(job.restarts)]
    words += ["--rdzv-backend", "c10d", "--rdzv-id", "$SLURM_JOB_ID", "--rdzv-endpoint", f"$HOST:{PORT}"]
    line = " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)
    train = shlex.join(["-m", "vlmrl", "train", *job.train])
    return f"""#!/bin/bash
#SBATCH --job-name=vlmrl
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.gpus}
#SBATCH --signal=TERM@120
#SBATCH --requeue
# Two minutes before its time is over the job is asked to stop; it saves, and the same script resumes.
set -euo pipefail
export {"=".join(SAVING)}
export HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
exec srun --kill-on-bad-exit=1 {line} {train}
"""


def text(job: Job, launcher: str) -> str:
    """What a person runs: a line, a line for each machine, or a script. `launcher` is one of `LAUNCHERS`."""
    if launcher == "slurm":
        return slurm(job)
    lines = [torchrun(job)] if launcher == "torchrun" else [accelerate(job, machine) for machine in range(job.nodes)]
    return "".join(f"{'='.join(SAVING)} {shlex.join(line)}\n" for line in lines)


def run(job: Job) -> int:
    """This machine's part of a job, until it ends: the exit code of the process that failed first, as `vlmrl train` would give it."""
    from torch.distributed import run as elastic
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "code"
        os.environ[_SAID] = str(said)
        os.environ.setdefault(*SAVING)
        ours: list[str] = []
        if job.nodes > 1:  # not by their names, which not every host knows of itself
            first = job.endpoint.rpartition(":")[0]
            own = address(first)
            is_first = own == first or own in {str(place[0]) for *_, place in socket.getaddrinfo(first, None)}
            ours = ["--local-addr", own, "--rdzv-conf", f"is_host={int(is_first)}"]
        try:
            elastic.main([*ours, *torchrun(job)[1:]])
        except ChildFailedError as failed:
            _, cause = failed.get_first_failure()
            return cause.exitcode if cause.exitcode > 0 else 128 - cause.exitcode
        except SignalException:
            return int(said.read_text()) if said.exists() else Preempted.exit_code
    return 0


def stop_restarts(code: int) -> None:
    """Ask the launcher of this process to end the job, where it would otherwise start all processes again in vain.

    The launcher is torchrun's agent, our parent; it stops what it has started and ends. Elsewhere nothing happens.
    """
    left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) - int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if code in FINAL and left > 0 and "TORCHELASTIC_RUN_ID" in os.environ and _is_agent(os.getppid()):
        sys.stderr.write(f"no restart: exit code {code} would come again\n")
        sys.stderr.flush()
        if _SAID in os.environ:
            fs.write_text(Path(os.environ[_SAID]), str(code))
        os.kill(os.getppid(), signal.SIGTERM)


def _is_agent(pid: int) -> bool:
    """Whether a process is one of the programs that start ranks."""
    try:
        words: Sequence[bytes] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    line = b" ".join(words)
    return any(name in line for name in (b"torchrun", b"torch.distributed.run", b"accelerate", b"vlmrl"))
