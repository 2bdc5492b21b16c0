"""`run.push_to_hub`: weights reach a hub while a run trains, and a hub that refuses disturbs nothing. Against a server of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import runs
from tests.support.hub import Hub, serving, written
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.load import load_policy, load_processor

ROOT = Path(__file__).parents[2]
REPO = "me/mine"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as one:
        yield one


def recipe(files: tuple[Path, Path], root: Path, **push: Any) -> dict[str, Any]:
    """Two supervised stages of two steps, with a checkpoint behind each step."""
    config: dict[str, Any] = runs.small_config(*files, root) | {"plugins": [], "checkpoint": {"every": 1}}
    first = {**config["stages"][0], "steps": 2, "freeze": ["vision"]}
    config["stages"] = [first, first | {"name": "more"}]
    config["eval"].update({"limit": 2, "every": None})
    config["run"]["push_to_hub"] = {"repo": REPO} | push
    return config


def said(config: dict[str, Any]) -> str:
    return (Path(config["run"]["root"]) / "said.txt").read_text()


def test_the_end_is_uploaded_with_its_card(hub: Hub, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path / "runs", license="apache-2.0")
    assert runs.run(config, variables=hub.environment) == 0
    assert hub.private == {REPO: True}
    ((repo, message, files),) = hub.commits
    assert (repo, message) == (REPO, "vlmrl train: the weights of the finished run")
    card = files["README.md"].decode()
    assert "license: apache-2.0" in card
    assert "Held-out rows of the run, after each stage" in card
    assert str(tmp_path) not in card + files["recipe.yaml"].decode()
    assert not [name for name in files if "optim" in name or name.startswith(("step-", "manifest"))]
    folder = written(files, tmp_path / "downloaded")
    final = runs.run_dir(config) / "final"
    one, other = (load_policy(str(path), load_processor(str(path)), device="cpu") for path in (folder, final))
    assert weights_fingerprint(one) == weights_fingerprint(other)
    assert f"uploaded the weights of the finished run: {hub.address}/{REPO}/commit/" in said(config)
    assert runs.run(config, variables=hub.environment) == 0, "a finished run may be uploaded again"


def test_stages_and_checkpoints_are_uploaded_and_training_is_the_same(hub: Hub, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path / "runs", every="checkpoint", private=False)
    alone = recipe(tiny_files, tmp_path / "alone")
    del alone["run"]["push_to_hub"]
    assert runs.run(config, variables=hub.environment) == 0
    assert runs.run(alone) == 0
    assert runs.outcome(config) == runs.outcome(alone)
    assert hub.private == {REPO: False}
    messages = [message for _, message, _ in hub.commits]
    assert messages[-1] == "vlmrl train: the weights of the finished run"
    assert set(messages) <= {
        "vlmrl train: step 1 of stage 'sft'",
        "vlmrl train: stage 'sft'",
        "vlmrl train: step 1 of stage 'more'",
        "vlmrl train: the weights of the finished run",
    }
    for _, _, files in hub.commits:
        assert "model.safetensors" in files
        assert not [name for name in files if "optim" in name]
    assert not (runs.run_dir(config) / "hub").exists()


def test_a_hub_that_refuses_costs_a_line_and_at_the_end_an_error(hub: Hub, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path / "runs", every="stage")
    hub.refuse = 100
    assert runs.run(config, variables=hub.environment) == RemoteError.exit_code
    path = runs.run_dir(config)
    assert (path / "FINISHED").exists()
    assert (path / "report.html").exists()
    error = (Path(config["run"]["root"]) / "error.txt").read_text()
    assert "the quota is used up" in error
    assert f"vlmrl publish {path}/final --to {REPO} --license LICENSE --private" in error
    assert hub.commits == []
    hub.refuse = 0
    assert runs.run(config, variables=hub.environment) == 0, "the same command uploads what is there"
    assert len(hub.commits) == 1
    assert "is already finished" in said(config)


def test_a_login_that_is_missing_is_said_before_the_end(hub: Hub, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path / "runs", every="checkpoint")
    assert runs.run(config, variables=hub.environment | {"HF_TOKEN": "hf_wrong"}) == RemoteError.exit_code
    (line,) = [line for line in said(config).split("audit")[0].splitlines() if line.startswith("warning: the repository: ")]
    assert "me/mine: not uploaded: " in line
    assert "401" in line
    assert "hf auth login" in said(config)


@pytest.mark.slow
def test_the_option_of_the_command(hub: Hub, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path / "runs")
    del config["run"]["push_to_hub"]
    config["stages"] = [config["stages"][0] | {"steps": 1}]
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(config))

    def train(*more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "vlmrl", "train", str(file), *more]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **hub.environment, **variables}
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, check=False)

    wrong = train("--push-to-hub", "mine")
    assert wrong.returncode == ConfigError.exit_code, wrong.stderr
    assert "run.push_to_hub.repo mine: give OWNER/NAME" in wrong.stderr
    done = train("--push-to-hub", REPO)
    assert done.returncode == 0, done.stderr
    assert len(hub.commits) == 1
    again = train("--push-to-hub", REPO)
    assert again.returncode == 0, again.stderr
    assert len(hub.commits) == 1, "it is finished and uploaded: answered from its files"


def test_what_a_hub_says_is_a_remote_error(tmp_path: Path) -> None:
    """No network at all is one too; huggingface_hub raises what is no OSError then."""
    (tmp_path / "a.json").write_text("{}")
    code = (
        "import sys; from pathlib import Path; from vlmrl.errors import RemoteError\n"
        "from vlmrl.extras.publish.hub import upload\n"
        "try: upload(Path(sys.argv[1]), 'me/mine', private=True, message='m')\n"
        "except RemoteError as error: print('told:', error)\n"
        "print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "x"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("told: me/mine: not uploaded: ")
    assert done.stdout.splitlines()[-1] == "False"
