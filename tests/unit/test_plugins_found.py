"""Where plug-ins are looked for: installed modules first, then the working folder, which programs of pip do not look in by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from vlmrl.errors import ConfigError
from vlmrl.plugins import import_plugins


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(Path.cwd()))])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_and_a_package_of_the_working_folder_are_found(folder: Path) -> None:
    (folder / "found_here_a.py").write_text("VALUE = 1\n")
    (folder / "found_here_b").mkdir()
    (folder / "found_here_b" / "inner.py").write_text("VALUE = 2\n")
    import_plugins(["found_here_a", "found_here_b.inner"])
    assert (sys.modules["found_here_a"].VALUE, sys.modules["found_here_b.inner"].VALUE) == (1, 2)
    assert sys.path[-1] == str(folder), "the last place, so that nothing there hides an installed package"


def test_an_installed_module_comes_first(folder: Path) -> None:
    (folder / "yaml.py").write_text("raise RuntimeError('the wrong one')\n")
    import_plugins(["yaml"])
    assert sys.modules["yaml"] is yaml
    assert str(folder) not in sys.path


def test_what_is_nowhere_or_lacks_something_is_said(folder: Path) -> None:
    (folder / "found_here_c.py").write_text("import not_to_be_found_anywhere\n")
    with pytest.raises(ConfigError) as told:
        import_plugins(["found_nowhere", "found_here_c"])
    first, second = told.value.problems
    assert "cannot import 'found_nowhere'" in first
    assert "run where its file is" in first
    assert "No module named 'not_to_be_found_anywhere'" in second


def test_what_a_plug_in_raises_is_told_with_its_place(folder: Path) -> None:
    """By itself, or by what it registers, such as a method without a docstring."""
    (folder / "raises_a.py").write_text("import math\n\nnothing_here(math)\n")
    (folder / "raises_b.py").write_text("import vlmrl\n\n\n@vlmrl.advantage('raises_b')\ndef untold(x):\n    return x.reward_N\n")
    with pytest.raises(ConfigError) as caught:
        import_plugins(["raises_a", "raises_b"])
    first, second = caught.value.problems
    assert first == f"plugins.0: 'raises_a' raised NameError: name 'nothing_here' is not defined ({folder / 'raises_a.py'}:3)"
    assert second.startswith("plugins.1: 'raises_b' raised ValueError: advantage 'raises_b' needs a docstring")
    assert str(folder / "raises_b.py") in second
