"""run.about: names of base models without paths of the machine."""

from __future__ import annotations

from pathlib import Path

from vlmrl.run.about import base_name


def test_base_models_are_named_without_folders_of_the_machine(tmp_path: Path) -> None:
    assert base_name("Qwen/Qwen2.5-VL-3B-Instruct") == "Qwen/Qwen2.5-VL-3B-Instruct"
    for name in ("models/qwen", "runs/first/final"):
        (tmp_path / name).mkdir(parents=True)
    assert base_name(str(tmp_path / "models" / "qwen")) == "qwen"
    assert base_name(str(tmp_path / "runs" / "first" / "final")) == "first/final"
