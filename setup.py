"""Build step: a wheel holds configs/, evals/, data/, examples/ and constraints/ as `vlmrl/shipped/`, where `vlmrl.paths` looks.

All else is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDERS = ("configs", "evals", "data", "examples", "constraints")
LEFT_OUT = ("sample", "standins.json", "__pycache__", "*.pyc")
"""Inputs of the tests, and what Python leaves behind."""


class BuildWithFolders(build_py):
    """`build_py` that also copies the folders; an editable installation finds them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "vlmrl" / "shipped"
        shutil.rmtree(target, ignore_errors=True)  # a build folder may be an old one
        for name in FOLDERS:
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        files = Path(self.build_lib, "vlmrl", "shipped").rglob("*")
        return [*super().get_outputs(include_bytecode), *(str(path) for path in files if path.is_file())]


setup(cmdclass={"build_py": BuildWithFolders})
