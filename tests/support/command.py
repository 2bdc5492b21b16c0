"""The command line, and scripts, in processes of their own that import next to nothing: they fork from the server that has imported all.

What `python -m vlmrl` itself does before the command line begins is tested by `tests/unit/test_cli.py`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.runs import _CONTEXT

ROOT = Path(__file__).parents[2]


def vlmrl(
    *arguments: str, cwd: Path = ROOT, path: Path | None = None, timeout: float = 300, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `vlmrl ARGUMENTS`; its exit code (negative: killed by that signal) and what it wrote, in lines of 200 columns.

    Args:
        cwd: the working directory, which is on the path of imports as for `python -m`.
        path: another folder on the path of imports.
        variables: of its environment, beside those of the tests.

    Raises:
        TimeoutError: it did not end in time; it is killed.
    """
    paths = [str(cwd)] if path is None else [str(cwd), str(path)]
    return _run(None, arguments, cwd, paths, timeout, variables or {})


def script(
    file: Path, *arguments: str, cwd: Path = ROOT, timeout: float = 300, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python FILE ARGUMENTS`, likewise; the folder of the file is on the path of imports."""
    return _run(file, arguments, cwd, [str(file.parent), str(ROOT)], timeout, variables or {})


def module(
    name: str, *arguments: str, cwd: Path = ROOT, timeout: float = 300, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m NAME ARGUMENTS` of this repository, likewise."""
    return _run(name, arguments, cwd, [str(ROOT)], timeout, variables or {})


def _run(
    program: Path | str | None, arguments: Sequence[str], cwd: Path, paths: list[str], timeout: float, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    words = ["vlmrl" if program is None else str(program), *arguments]
    with tempfile.TemporaryDirectory(prefix="command") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        child = _CONTEXT.Process(target=_child, args=(program, words, str(cwd), paths, (str(out), str(err)), dict(variables)))
        child.start()
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
            raise TimeoutError(f"{' '.join(words)}: not over within {timeout} s")
        texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in (out, err)]
        return subprocess.CompletedProcess(words, child.exitcode or 0, *texts)


def _child(
    program: Path | str | None, words: list[str], cwd: str, paths: Sequence[str], written: tuple[str, str], variables: Mapping[str, str]
) -> None:
    """Body of the child: files and variables as a shell gives them, then the program."""
    for number, name in enumerate(written, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update({"COLUMNS": "200"} | dict(variables))
    os.chdir(cwd)
    sys.path[:0] = paths
    sys.argv = words
    if isinstance(program, Path):
        runpy.run_path(str(program), run_name="__main__")
        return
    if program is not None:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    from vlmrl.cli import main

    main()
