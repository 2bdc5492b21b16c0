"""`vlmrl new --examples`: a copy of every example, and nothing that is there is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.starter.examples import copied, files

ROOT = Path(__file__).parents[4]


def test_every_example_is_copied(tmp_path: Path):
    done = CliRunner().invoke(app, ["new", "--examples", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    here = {path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*") if path.is_file()}
    assert set(files()) == {path for path in here if "__pycache__" not in path.parts}
    assert {"first_steps.ipynb", "your_data.ipynb", "my_reward.py"} <= {path.name for path in files()}
    assert len(done.output.splitlines()) == len(files())
    for name in files():
        assert (tmp_path / "mine" / name).read_bytes() == (ROOT / "examples" / name).read_bytes()


def test_nothing_is_overwritten(tmp_path: Path):
    kept = tmp_path / "my_reward.py"
    kept.write_text("mine")
    with pytest.raises(ConfigError, match=r"my_reward\.py is there already"):
        copied(tmp_path)
    assert kept.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["my_reward.py"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_as_an_editor_writes_it(path: Path):
    """Format 4.5, cells with an id and without outputs; no line wider than a screen."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert {cell["cell_type"] for cell in book["cells"]} == {"markdown", "code"}
    assert book["cells"][0]["source"][0].startswith("# ")
    for cell in book["cells"]:
        required = {"cell_type", "id", "metadata", "source"} | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())
        assert set(cell) == required
        assert all(len(line) <= 160 for line in cell["source"])
