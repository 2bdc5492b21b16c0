"""What slurm does with the script of a heterogeneous job, on hosts of a test (`tests.support.netns`).

    job = Job(hosts, script, folder, env={...})     # components get hosts in their order; the script itself runs on the first
    job.process.wait()
    job.said()                                      # the ends of what it and its tasks have said

`srun --het-group=N` starts the tasks of a component, ends the others with the first that fails where `--kill-on-bad-exit=1` says so, and
gives a signal that it gets to all processes of its tasks; after 30 seconds it kills them, as slurm does (KillWait).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.netns import Hosts

TASKS = "VLMRL_TEST_TASKS"
SRUN = """
import json, os, signal, subprocess, sys, time

group, stop, *words = sys.argv[1:]
tasks = []
for host, local, log in json.loads(os.environ["VLMRL_TEST_TASKS"])[int(group.removeprefix("--het-group="))]:
    with open(log, "ab") as out:
        own = os.environ | {"SLURM_LOCALID": str(local)}
        command = ["ip", "netns", "exec", host, *words]
        tasks.append(subprocess.Popen(command, env=own, stdout=out, stderr=subprocess.STDOUT, start_new_session=True))

asked = []

def end(number, _):
    if not asked:
        asked.append(time.monotonic())
    for task in tasks:
        if task.poll() is None:
            os.killpg(task.pid, number)

signal.signal(signal.SIGTERM, end)
while any(task.poll() is None for task in tasks):
    if stop == "--kill-on-bad-exit=1" and not asked and any(task.poll() for task in tasks):
        end(signal.SIGTERM, None)
    if asked and time.monotonic() > asked[0] + 30:
        end(signal.SIGKILL, None)
    time.sleep(0.1)
sys.exit(next((code if code > 0 else 128 - code for task in tasks if (code := task.returncode)), 0))
"""
PROGRAMS = {
    "scontrol": "#!/bin/sh\necho \"$3\" | tr , '\\n'\n",
    "srun": f"#!{sys.executable}\n{SRUN}",
    "vlmrl": f'#!/bin/sh\nexec {sys.executable} -m vlmrl "$@"\n',
}


class Job:
    """A job that runs."""

    def __init__(self, hosts: Hosts, script: Path, folder: Path, *, env: Mapping[str, str]):
        """`folder`: for programs and what tasks say. The script runs in its own folder."""
        programs = folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name, text in PROGRAMS.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        own: dict[str, str] = {}
        self._logs = [folder / "job.txt"]
        tasks: list[list[tuple[str, int, str]]] = []
        left = list(range(len(hosts.names)))
        for group, component in enumerate(script.read_text().split("#SBATCH hetjob\n")):
            nodes, each = (int(re.findall(rf"--{name}=(\d+)", component)[0]) for name in ("nodes", "ntasks-per-node"))
            taken, left = left[:nodes], left[nodes:]
            assert len(taken) == nodes, "there are too few hosts"
            own[f"SLURM_JOB_NODELIST_HET_GROUP_{group}"] = ",".join(hosts.addresses[host] for host in taken)
            logs = [folder / f"group{group}-host{host}.txt" for host in taken]
            self._logs += logs
            tasks.append([(hosts.names[host], local, str(log)) for host, log in zip(taken, logs, strict=True) for local in range(each)])
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        command = ["sh", "-c", 'cd "$0" && exec bash "$1"', str(script.parent), str(script)]
        self.process: subprocess.Popen[bytes] = hosts.start(
            0, command, env={**env, **own, "PATH": path, TASKS: json.dumps(tasks)}, log=self._logs[0]
        )

    def said(self) -> str:
        """The ends of everything."""
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in self._logs if log.exists())
