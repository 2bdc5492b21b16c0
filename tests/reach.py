"""What importing a part of the package pulls in: layering says who may import whom, reach says what one must read.

    python -m tests.reach            # files and lines of code behind the step, the tiny loop and `check`, with the limits; size of the core
    python -m tests.reach why FILE [START]    # the shortest chain of imports from START (the step) to FILE

An import counts where it stands at the top of a module; one inside a function or behind TYPE_CHECKING is not made by importing.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

LIMITS: dict[str, tuple[str, int, int]] = {
    "step": ("vlmrl/train/stage/grpo.py", 54, 4_683),
    "tiny loop": ("examples/tiny_loop.py", 57, 5_157),
    "check": ("vlmrl/run/audit.py", 141, 14_623),
}
"""What is measured -> its file, and the most files and lines of code that importing it may pull in. They only go down."""


APART = ("extras", "zoo")
NOT_RUN = {"TYPE_CHECKING", "_TYPE_CHECKING", "__name__ == '__main__'"}


def _file(name: str) -> Path | None:
    """The file of a module of ours; None for any other."""
    path = ROOT / Path(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.exists():
            return candidate
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """What runs when a module is imported, without the bodies of functions and of `if TYPE_CHECKING` and of scripts."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in NOT_RUN:
            yield from _statements(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            for inner in getattr(node, field, []):
                yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


@cache
def imported(path: Path) -> tuple[Path, ...]:
    """Our files that importing this one imports at once, with the packages that they lie in."""
    found: dict[Path, None] = {}

    def add(name: str) -> bool:
        parts = name.split(".")
        if parts[0] != "vlmrl" or _file(name) is None:
            return False
        for n in range(1, len(parts) + 1):
            if (file := _file(".".join(parts[:n]))) is not None:
                found.setdefault(file)
        return True

    for node in _statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            add(node.module)
            for alias in node.names:
                add(f"{node.module}.{alias.name}")
    return tuple(file for file in found if file != path)


def reach(start: Path) -> dict[Path, Path | None]:
    """Every file that importing `start` pulls in, itself included -> the file that first asks for it."""
    seen: dict[Path, Path | None] = {start: None}
    queue = deque([start])
    while queue:
        path = queue.popleft()
        for file in imported(path):
            if file not in seen:
                seen[file] = path
                queue.append(file)
    return seen


def code_lines(source: str) -> int:
    """Count the lines that hold code: a docstring or a comment more is no more to take in, it helps with the rest."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found: set[int] = set()
    first = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank and not (first and token.type == tokenize.STRING):  # a statement that begins with a text is one
            found.update(range(token.start[0], token.end[0] + 1))
        first = token.type in blank and (first or token.type == tokenize.NEWLINE)
    return len(found)


def size(start: Path) -> tuple[int, int]:
    """(files, lines of code) of the package behind `start`, without a script of its own outside the package. Empty files are not counted:
    there is nothing to read in them."""
    sources = [file.read_text(encoding="utf-8") for file in reach(start) if file.is_relative_to(ROOT / "vlmrl")]
    return sum(1 for source in sources if source), sum(map(code_lines, sources))


CORE = 48_000
"""The most lines that the core may have, all counted: what is neither in `extras` nor in `zoo`."""


def lines_of(part: str) -> int:
    """Count all lines of Python of `core`, `extras` or `zoo`."""
    files = [path for path in (ROOT / "vlmrl").rglob("*.py") if "__pycache__" not in path.parts]
    own = [
        path for path in files if (folder := path.relative_to(ROOT / "vlmrl").parts[0]) == part or (part == "core" and folder not in APART)
    ]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in own)


def why(target: Path, start: Path) -> list[Path]:
    """The shortest chain of imports from `start` to `target`; empty where there is none."""
    asked = reach(start)
    if target not in asked:
        return []
    chain: list[Path] = []
    path: Path | None = target
    while path is not None:
        chain.append(path)
        path = asked[path]
    return chain[::-1]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["why"]:
        target, start = (Path(name).resolve() for name in (*arguments[1:3], LIMITS["step"][0])[:2])
        print("\n".join(str(path.relative_to(ROOT)) for path in why(target, start)) or "not imported")
        return
    for name, (start, files, lines) in LIMITS.items():
        found = size(ROOT / start)
        whole = sum(
            len(file.read_text(encoding="utf-8").splitlines()) for file in reach(ROOT / start) if file.is_relative_to(ROOT / "vlmrl")
        )
        print(f"{name:10} {found[0]:4} files {found[1]:7,} lines of code (at most {files}, {lines:,}), {whole:,} with texts   {start}")
    print(*(f"{part:10} {lines_of(part):7,} lines" for part in ("core", *APART)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
