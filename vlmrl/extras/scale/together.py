"""A run with servers of its own, as one description for a scheduler: a heterogeneous job of slurm, a JobSet of Kubernetes, or a job group
of SkyPilot. Each starts the trainer's machines and the servers, and tells the trainer where these are.

What a scheduler does not know is where the recipe lies and in what environment. So with slurm all machines see the folder that the job is
submitted from; with the two others every process runs in the image IMAGE and in the folder `PLACE`, which is a volume that all of them see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from vlmrl.config.schema import Config, RolloutStage
from vlmrl.errors import CheckpointError, ConfigError, DataError
from vlmrl.extras.scale.launch import PORT, SAVING, Job

NAME = "vlmrl"
"""Of the job, of the volume and of the secret with the token."""
FIRST = 7000
"""Port of a server; several on one machine have the ports that follow."""
PLACE = "/job"
TOKEN = "vlmrl.token"
"""File in the folder of the job; of a JobSet it lies in SECRET."""
SECRET = "/etc/vlmrl/token"
CARDS = {"h100": "H100", "h200": "H200", "a100": "A100-80GB", "l40s": "L40S", "rtx4090": "RTX4090", "a10": "A10"}
"""SkyPilot's names of the GPUs that `vlmrl plan --gpu` knows."""
_OURS = re.compile(r"\$(HOST|SKYPILOT_JOBGROUP_NAME|\{ROLLOUT\}|\{TEACHER\})")
IN_VAIN = (ConfigError.exit_code, DataError.exit_code, CheckpointError.exit_code)
"""Exit codes that would come again; a stop by a signal is none, since a pod that is moved gets one."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Servers of one kind."""

    name: str
    """`rollout` or `teacher`."""
    count: int
    gpus: int
    """Of each; they share the model."""
    serve: tuple[str, ...]
    """What `vlmrl serve` is given, besides address and token."""
    asked_by: tuple[str, ...]
    """Sections of the recipe that name them, as `stages.rl.rollout.vllm`."""
    besides: tuple[str, ...] = ()
    """Overrides of the trainer that go with them."""

    def words(self, listen: str, token: str) -> list[str]:
        """What starts one."""
        more = ["--", "--tensor-parallel-size", str(self.gpus)] if self.name == "teacher" and self.gpus > 1 else []
        return ["vlmrl", "serve", *self.serve, "--listen", listen, "--token-file", token, *more]

    def told(self, addresses: str, token: str) -> list[str]:
        """Overrides that tell the trainer of them. `addresses`: HOST:PORT of each, with commas between them."""
        named = [f"{section}.servers=[{addresses}]" for section in self.asked_by]
        return [*self.besides, *named, *(f"{section}.token_file={token}" for section in self.asked_by)]


@dataclass(frozen=True, kw_only=True)
class Group(Job):
    """A trainer and its servers."""

    servers: tuple[Servers, ...] = ()
    gpu: str = "h100"
    """A key of `CARDS`."""

    def train_words(self, host: str, told: Iterable[str]) -> list[str]:
        """What each machine of the trainer runs. Not torchrun itself, which ends with 1 whatever a rank ended with."""
        several = ["--nodes", str(self.nodes), "--host", f"{host}:{PORT}"] if self.nodes > 1 else []
        return ["vlmrl", "train", *self.train, *told, "--gpus", str(self.gpus), *several, "--restarts", str(self.restarts)]


def group_of(config: Config, job: Job, *, rollouts: str | None, teachers: str | None, gpu: str = "h100") -> Group:
    """Describe a run with servers.

    Args:
        config: the recipe that `job.train` names.
        rollouts: how many servers answer for the policy, and GPUs of each: `4x2`.
        teachers: the same of a model that is the teacher: `MODEL=2x4`.

    Raises:
        ConfigError: it cannot be read, or no stage would ask the servers.
    """
    servers: list[Servers] = []
    if rollouts is not None:
        count, gpus = _size(rollouts, "--servers", "4x2")
        asked = [f"stages.{one.name}.rollout" for one in config.stages if isinstance(one, RolloutStage) and one.rollout.engine == "vllm"]
        if not asked:
            raise ConfigError("--servers: no stage of this recipe generates with vllm (rollout.engine)")
        parallel = [f"{section}.vllm.tensor_parallel={gpus}" for section in asked] if gpus > 1 else []
        serve = ("--rollouts", *job.train, *parallel)
        servers.append(Servers(name="rollout", count=count, gpus=gpus, serve=serve, asked_by=tuple(f"{section}.vllm" for section in asked)))
    if teachers is not None:
        model, _, size = teachers.rpartition("=")
        count, gpus = _size(size, "--teachers", "MODEL=2x4")
        asked = [f"stages.{one.name}.teacher" for one in config.stages if getattr(one, "teacher", None) is not None]
        if not asked or not model:
            raise ConfigError("--teachers: " + ("expected MODEL=2x4" if asked else "no stage of this recipe has a teacher (kind distill)"))
        besides = tuple(f"{section}.weights=server" for section in asked)
        servers.append(Servers(name="teacher", count=count, gpus=gpus, serve=("--teacher", model), asked_by=tuple(asked), besides=besides))
    given = {name: getattr(job, name) for name in ("gpus", "nodes", "host", "restarts", "train")}
    return Group(**given, servers=tuple(servers), gpu=gpu)


def _size(text: str, option: str, like: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise ConfigError(f"{option}: expected servers and GPUs of each, as {like}; got '{text}'")
    return int(found[1]), int(found[2])


def het_job(group: Group) -> str:
    """Write a script for sbatch: the first component are the trainer's machines, each further one those of servers, as many on a machine as
    there are GPUs for.

    Raises:
        ConfigError: servers do not fill their machines, or one needs more than a machine has.
    """
    head, body, told, waits = [_component(group.nodes, 1, [f"--gpus-per-node={group.gpus}"])], list[str](), list[str](), list[str]()
    for n, one in enumerate(group.servers, 1):
        each = min(one.count, group.gpus // one.gpus)
        if each == 0 or one.count % each:
            raise ConfigError(
                f"{one.count} {one.name} servers of {one.gpus} GPUs do not fill machines of {group.gpus}; "
                + (f"take {each} on each" if each else "one cannot be on several machines")
            )
        head.append(_component(one.count // each, each, [f"--gpus-per-task={one.gpus}"]))
        listen = f"0.0.0.0:$(({FIRST} + SLURM_LOCALID))"
        line = " ".join(f'"{word}"' if word == listen else shlex.quote(word) for word in one.words(listen, TOKEN))
        body.append(f"srun --het-group={n} --kill-on-bad-exit=0 bash -c {shlex.quote(_again(line))} &")
        waits.append(f'{one.name.upper()}=$(addresses "$SLURM_JOB_NODELIST_HET_GROUP_{n}" {each})')
        told += one.told(f"${{{one.name.upper()}}}", TOKEN)
    line = _quoted(group.train_words("$HOST", told))
    separator = "#SBATCH hetjob\n"
    new_line = "\n"
    return f"""#!/bin/bash
#SBATCH --job-name={NAME}
#SBATCH --signal=TERM@120
#SBATCH --requeue
{separator.join(head)}# Two minutes before its time is over the job is asked to stop; it saves, and the same script resumes.
set -euo pipefail
export {"=".join(SAVING)}
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | awk 'NR == 1')
addresses() {{ # NODES EACH: host:port of every server, with commas between them
  scontrol show hostnames "$1" | awk -v each="$2" '{{for (n = 0; n < each; n++) printf "%s%s:%d", (seen++ ? "," : ""), $1, {FIRST} + n}}'
}}
{new_line.join(waits)}
[ -s {TOKEN} ] || (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' >{TOKEN})
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # servers end with the trainer
{new_line.join(body)}
srun --het-group=0 --kill-on-bad-exit=1 {line}
"""


def _again(line: str) -> str:
    """A line for bash that starts a server again whenever it has ended, but for a mistake that would come again."""
    mistakes = "|".join(str(code) for code in sorted(set(IN_VAIN)))
    return f"while :; do {line}; code=$?; case $code in {mistakes}) exit $code ;; esac; sleep 5; done"


def _component(nodes: int, tasks: int, more: Sequence[str]) -> str:
    asked = [f"--nodes={nodes}", f"--ntasks-per-node={tasks}", *more]
    return "".join(f"#SBATCH {one}\n" for one in asked)


def _quoted(words: Iterable[str]) -> str:
    """A line for bash in which our variables are replaced, also within words; what the user wrote stays as it is."""
    return " ".join(f'"{word}"' if _OURS.search(word) else shlex.quote(word) for word in words)


def job_set(group: Group) -> str:
    """Write a JobSet (jobset.x-k8s.io/v1alpha2): a job for the trainer, whose end is that of the set, and one for each kind of servers."""
    told = [
        word
        for one in group.servers
        for word in one.told(",".join(f"{NAME}-{one.name}-0-{n}.{NAME}:{FIRST}" for n in range(one.count)), SECRET)
    ]
    train = group.train_words(f"{NAME}-trainer-0-0.{NAME}", told)
    # a mistake ends the set at once; whatever else fails begins all jobs anew, and the run resumes
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": list(IN_VAIN)}}
    jobs = [_job("trainer", group.nodes, group.gpus, train, {"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}, "Never")]
    for one in group.servers:
        words = one.words(f"0.0.0.0:{FIRST}", SECRET)
        jobs.append(_job(one.name, one.count, one.gpus, words, {"backoffLimit": 1000}, "OnFailure"))
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": NAME, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["trainer"]},
        "failurePolicy": {
            "maxRestarts": group.restarts,
            "rules": [{"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "replicatedJobs": jobs,
    }
    return yaml.safe_dump(
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": NAME}, "spec": spec}, sort_keys=False, width=1000
    )


def _job(name: str, pods: int, gpus: int, words: Sequence[str], policy: dict[str, Any], again: str) -> dict[str, Any]:
    container = {
        "name": name,
        "image": "IMAGE",
        "command": list(words),
        "workingDir": PLACE,
        "env": [{"name": SAVING[0], "value": SAVING[1]}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "volumeMounts": [
            {"name": "work", "mountPath": PLACE},
            {"name": "token", "mountPath": SECRET, "subPath": "token", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": again,
        "terminationGracePeriodSeconds": int(SAVING[1]),
        "containers": [container],
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": NAME}},
            {"name": "token", "secret": {"secretName": NAME, "defaultMode": 0o400}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    spec = {"completionMode": "Indexed", "parallelism": pods, "completions": pods, **policy, "template": {"spec": pod}}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def job_group(group: Group) -> str:
    """Write a job group of SkyPilot: the trainer, and a task for each kind of servers, which end with it."""
    told = [
        word
        for one in group.servers
        for word in one.told(",".join(f"{one.name}-{n}.$SKYPILOT_JOBGROUP_NAME:{FIRST}" for n in range(one.count)), _token("trainer"))
    ]
    train = group.train_words("trainer-0.$SKYPILOT_JOBGROUP_NAME", told)
    tasks = [_task("trainer", group.nodes, group.gpus, train, group.gpu)]
    tasks += [_task(one.name, one.count, one.gpus, one.words(f"0.0.0.0:{FIRST}", _token(one.name)), group.gpu) for one in group.servers]
    head = {"name": NAME, "execution": "parallel", "primary_tasks": ["trainer"]}
    return yaml.dump_all([head, *tasks], Dumper=_Blocks, sort_keys=False, width=1000, explicit_start=True)


class _Blocks(yaml.SafeDumper):
    """Writes texts of several lines as they are read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _text)


def _token(task: str) -> str:
    """The file that a task of SkyPilot writes its token to: not in the folder, which the tasks share."""
    return f"/tmp/{task}.token"


def _task(name: str, nodes: int, gpus: int, words: Sequence[str], gpu: str) -> dict[str, Any]:
    lines = [
        f"cd {PLACE}",
        f"export {'='.join(SAVING)}",
        f'(umask 077 && printf %s "$VLMRL_TOKEN" >{_token(name)})',
        f"exec {_quoted(words)}",
    ]
    return {
        "name": name,
        "num_nodes": nodes,
        "resources": {"accelerators": f"{CARDS[gpu]}:{gpus}", "image_id": "docker:IMAGE"},
        "volumes": {PLACE: NAME},
        "secrets": {"VLMRL_TOKEN": None},
        "run": "\n".join(lines) + "\n",
    }


WRITERS = {"slurm": het_job, "jobset": job_set, "skypilot": job_group}
"""Value of `--with` -> what writes it."""
