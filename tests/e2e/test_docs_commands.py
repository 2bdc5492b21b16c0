"""Commands of the documentation that need no GPU, no download and no rows are run, those of a block one after another in one folder.

Each other command has a reason here. `test_docs.py` parses all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.documents import DEEPER, GENERATED, PAGES, ROOT, Block, blocks, commands, parse_vlmrl
from vlmrl.cli import app
from vlmrl.paths import find

YOURS = {
    "compare": "two evaluations",
    "eval": "a checkpoint",
    "publish": "a checkpoint, and a hub",
    "serve": "a checkpoint, or vLLM; tests/unit/extras/serve",
    "study": "minutes: tests/unit/extras/study",
    "view": "a run; tests/e2e/test_app_views.py",
    "train": "minutes: tests/e2e/test_train_command.py",
    "tools": "minutes, or an environment's processes: tests/e2e/test_train_command.py, tests/unit/extras/agents/test_cli_env.py",
}
"""Command -> what it needs that is not here, or the test that runs it."""
LINKED = ("configs", "data", "docs", "evals", "examples", "tests", "vlmrl")


def vlmrl_commands(block: Block) -> list[list[str]]:
    """Words of the block's command lines of our program, without the program and without where the output goes."""
    if block.language not in ("bash", "sh", "indented"):
        return []
    joined = re.sub(r" > \S+$", "", re.sub(r"\\\n\s*", " ", block.text), flags=re.M)
    lines = [words for line in joined.splitlines() if line.startswith("vlmrl ") for words in commands(line)]
    return [words[1:] for words in lines if not any(word == "..." or word[:1] in ("[", "]") for word in words)]


def why_not(words: list[str], made: set[str]) -> str | None:
    """Why a command is not run; None for one that is. `made`: recipes that the block has made before."""
    if words[0].startswith("--") or words[-1] == "--help":
        return None
    if words[0] == "study" and "--plan" in words and find("study", words[1]) is not None:
        return None  # it says what it can tell, and runs nothing
    if words[0] in YOURS:
        return YOURS[words[0]]
    given = parse_vlmrl(words)
    recipe = given["what"] if words[0] == "check" else given.get("recipe")
    if words[0] == "check" and (recipe is None or given["rows"] or given["machine"] or given["tiny"] or given["engine"]):
        return "this machine, rows or a model; tests/unit/cli/test_check.py, test_a_tiny_model_is_tried (slow)"
    if recipe is not None and str(recipe) not in made and find("recipe", str(recipe)) is None and not (ROOT / str(recipe)).is_file():
        return "a recipe of yours"
    if words[0] == "check" and not given.get("no_data"):
        return "rows; tests/unit/cli/test_cli.py"
    if words[:2] in (["list", "runs"], ["list", "caches"]):
        return "what is on this machine; tests/unit/extras/tools"
    if given.get("data_root") is not None or given.get("data") is not None:
        return "rows"
    return None


def runnable(block: Block) -> bool:
    return any(why_not(words, set()) is None for words in vlmrl_commands(block))


SHOWN = [page for page in (*PAGES, *DEEPER) if page not in (GENERATED, "CONTRIBUTING.md")]
"""Pages whose commands are run here; errands of CONTRIBUTING.md write files first (`test_errands.py`)."""
BLOCKS = [one for page in SHOWN for one in blocks(page) if runnable(one)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    for words in vlmrl_commands(block):
        made = {path.name for path in tmp_path.glob("*.yaml")}
        if why_not(words, made) is None:
            done = CliRunner().invoke(app, words)
            assert done.exception is None or done.exit_code == 0, f"{block}: vlmrl {' '.join(words)}\n{done.output}\n{done.exception!r}"


def test_many_are_run() -> None:
    run = {words[0] for block in BLOCKS for words in vlmrl_commands(block) if why_not(words, set()) is None}
    assert run >= {"list", "plan", "check"}


def test_reasons_are_of_commands_that_exist() -> None:
    from typer.main import get_command

    assert set(YOURS) <= set(get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]
    for reason in YOURS.values():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / path).exists(), path


def test_a_command_that_fails_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no_such_slot"):
        test_commands_run(Block("x.md", 1, "bash", "vlmrl list no_such_slot\n"), tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_tiny_model_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of docs/your_model.md that needs no model."""
    line = "check qwen3_5 --tiny"
    assert f"vlmrl {line}" in (ROOT / "docs/your_model.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, done.output
