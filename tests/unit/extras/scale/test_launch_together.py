"""scale.together: schedulers read what is written, and what they start are the trainer and its servers, each told of the others."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import parse_vlmrl
from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.extras.scale.launch import Job
from vlmrl.extras.scale.together import CARDS, WRITERS, Group, _again, group_of, het_job, job_group, job_set

VLLM = ("toy_video", "stages.rl.rollout.engine=vllm", "model.positions=max", "stages.rl.advantage={name: grpo}")
TAUGHT = ("distill_3b_1x24gb",)


def described(train: tuple[str, ...] = VLLM, *, gpus: int = 8, nodes: int = 2, **asked: Any) -> Group:
    config = load(train[0], list(train[1:])).config
    return group_of(config, Job(gpus=gpus, nodes=nodes, train=train), **{"rollouts": None, "teachers": None, **asked})


def command(words: list[str]) -> dict[str, Any]:
    """A line of vlmrl as its parser reads it."""
    assert words[0] == "vlmrl"
    return parse_vlmrl(words[1:])


def listed(overrides: list[str], key: str) -> list[str]:
    (value,) = [one.partition("=")[2] for one in overrides if one.startswith(f"{key}.servers=")]
    return value.strip("[]").split(",")


def test_a_job_set_starts_the_trainer_and_names_every_server() -> None:
    spec = yaml.safe_load(job_set(described(rollouts="4x2")))["spec"]
    trainer, rollout = spec["replicatedJobs"]
    container, server = (job["template"]["spec"]["template"]["spec"]["containers"][0] for job in (trainer, rollout))
    found = command(container["command"])
    assert (found["gpus"], found["nodes"], found["host"]) == (8, 2, "vlmrl-trainer-0-0.vlmrl:29400")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    addresses = listed(found["overrides"], "stages.rl.rollout.vllm")
    assert addresses == [f"vlmrl-rollout-0-{n}.vlmrl:7000" for n in range(4)]
    told = dict(one.split("=", 1) for one in found["overrides"])
    assert told["stages.rl.rollout.vllm.token_file"] == "/etc/vlmrl/token"
    assert told["stages.rl.advantage"] == "{name: grpo}"
    assert (rollout["template"]["spec"]["completions"], server["resources"]["limits"]) == (4, {"nvidia.com/gpu": 2})
    served = command(server["command"])
    assert (str(served["rollouts"]), served["listen"]) == ("toy_video", "0.0.0.0:7000")
    assert [served["model"], *served["more"]] == [*VLLM[1:], "stages.rl.rollout.vllm.tensor_parallel=2"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}, "servers end with the trainer"
    load(VLLM[0], [*VLLM[1:], *found["overrides"]])  # the recipe takes what the trainer is told


def test_a_job_group_of_skypilot_has_the_same_programs() -> None:
    head, trainer, rollout = yaml.safe_load_all(job_group(described(rollouts="3x1", gpu="a100")))
    assert head == {"name": "vlmrl", "execution": "parallel", "primary_tasks": ["trainer"]}
    assert (trainer["num_nodes"], trainer["resources"]["accelerators"]) == (2, f"{CARDS['a100']}:8")
    assert (rollout["num_nodes"], rollout["resources"]["accelerators"]) == (3, f"{CARDS['a100']}:1")
    for task in (trainer, rollout):
        assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0
    assert "servers=[rollout-0.$SKYPILOT_JOBGROUP_NAME:7000,rollout-1.$SKYPILOT_JOBGROUP_NAME:7000," in trainer["run"]


def test_skypilot_reads_its_job_group(tmp_path: Path) -> None:
    dag_utils = pytest.importorskip("sky.utils.dag_utils", reason="SkyPilot is not installed here")
    path = tmp_path / "group.yaml"
    path.write_text(job_group(described(rollouts="4x2")))
    assert [task.name for task in dag_utils.load_job_group_from_yaml(str(path)).tasks] == ["trainer", "rollout"]


FAKE = {
    "scontrol": 'echo "$3" | tr , "\\n"',
    "srun": 'printf "%s\\0" "$@" >"$SAID.${1#--het-group=}"; if [ "$1" = --het-group=0 ]; then sleep 2; else exec sleep 60; fi',
}


def test_the_heterogeneous_job_of_slurm(tmp_path: Path) -> None:
    """bash runs it with another `srun`: the trainer is told where its servers are, and they end with it."""
    group = described(nodes=2, rollouts="8x2")
    script = tmp_path / "job"
    script.write_text(het_job(group))
    for name, body in FAKE.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    nodes = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a1,a2", "SLURM_JOB_NODELIST_HET_GROUP_1": "b1,b2"}
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path / "said"), **nodes}
    subprocess.run(["bash", str(script)], cwd=tmp_path, env=env, timeout=30, check=True, capture_output=True)
    *_, shell, option, line = (tmp_path / "said.1").read_text().split("\0")[:-1]
    assert (shell, option) == ("bash", "-c")
    line = line.removeprefix("while :; do ").partition(";")[0]  # a server that has ended is started again
    served = command(shlex.split(line.replace("$((7000 + SLURM_LOCALID))", "7003")))
    assert (str(served["rollouts"]), served["listen"]) == ("toy_video", "0.0.0.0:7003")
    trainer = (tmp_path / "said.0").read_text().split("\0")[:-1]
    found = command(trainer[trainer.index("vlmrl") :])
    assert (found["gpus"], found["nodes"], found["host"]) == (8, 2, "a1:29400")
    assert listed(found["overrides"], "stages.rl.rollout.vllm") == [f"b{n}:{7000 + place}" for n in (1, 2) for place in range(4)]
    token = tmp_path / "vlmrl.token"
    assert (len(token.read_text()), token.stat().st_mode & 0o077) == (64, 0)
    lines = script.read_text()
    trainers, servers = lines.split("#SBATCH hetjob\n")
    assert "--nodes=2\n" in trainers
    assert "--gpus-per-node=8" in trainers
    assert all(one in servers for one in ("#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --gpus-per-task=2\n"))


def test_slurm_starts_a_server_again_but_for_a_mistake(tmp_path: Path) -> None:
    line = _again('vlmrl serve --listen "0.0.0.0:$((7000 + SLURM_LOCALID))"')
    (tmp_path / "vlmrl").write_text('#!/bin/bash\necho "$3" >>said; [ "$(wc -l <said)" = 3 ] && exit 64; exit $(($(wc -l <said) - 1))\n')
    (tmp_path / "sleep").write_text("#!/bin/bash\n")
    for name in ("vlmrl", "sleep"):
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_LOCALID": "2"}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, timeout=30, check=False)
    assert (done.returncode, (tmp_path / "said").read_text()) == (64, "0.0.0.0:7002\n" * 3), "after 0 and 1 again, after 64 no more"


def test_what_the_user_wrote_is_no_business_of_the_shell() -> None:
    group = replace(described(rollouts="4x2"), train=(*VLLM, "a=$X `id`"))
    for text in (het_job(group), *(task["run"] for task in list(yaml.safe_load_all(job_group(group)))[1:2])):
        (line,) = [line for line in text.splitlines() if "vlmrl train" in line]
        assert "'a=$X `id`'" in line


def test_servers_of_a_teacher() -> None:
    spec = yaml.safe_load(job_set(described(TAUGHT, gpus=1, nodes=1, teachers="org/Model-32B=2x4")))["spec"]
    trainer, teacher = (job["template"]["spec"]["template"]["spec"]["containers"][0]["command"] for job in spec["replicatedJobs"])
    assert teacher[:4] == ["vlmrl", "serve", "--teacher", "org/Model-32B"]
    assert teacher[-3:] == ["--", "--tensor-parallel-size", "4"]
    told = command(trainer)["overrides"]
    (section,) = {one.rpartition(".weights=")[0] for one in told if one.endswith(".weights=server")}
    assert listed(told, section) == ["vlmrl-teacher-0-0.vlmrl:7000", "vlmrl-teacher-0-1.vlmrl:7000"]
    taken = load(TAUGHT[0], told).config  # the recipe takes what the trainer is told
    assert any(getattr(stage, "teacher", None) and stage.teacher.weights == "server" for stage in taken.stages)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rollouts": "4"}, "--servers: expected servers and GPUs of each, as 4x2; got '4'"),
        ({"rollouts": "0x2"}, "--servers: expected"),
        ({"teachers": "M=2x4"}, "--teachers: no stage of this recipe has a teacher"),
        ({"train": ("toy_video",), "rollouts": "1x1"}, "--servers: no stage of this recipe generates with vllm"),
        ({"train": TAUGHT, "teachers": "2x4"}, "--teachers: expected MODEL=2x4"),
    ],
)
def test_what_cannot_be_started_is_said(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(asked.pop("train", VLLM), **asked)


@pytest.mark.parametrize(("rollouts", "message"), [("1x16", "one cannot be on several machines"), ("5x2", "take 4 on each")])
def test_servers_that_do_not_fill_machines_of_slurm(rollouts: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        het_job(described(rollouts=rollouts))


def test_without_servers_every_writer_starts_the_trainer() -> None:
    for write in WRITERS.values():
        assert "vlmrl train toy_video" in write(described()).replace("\n              - ", " ").replace("'", "")
