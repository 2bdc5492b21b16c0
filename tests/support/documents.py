"""The documentation taken apart: fenced and indented blocks, tables, and code marks within sentences, each with its page and line."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from vlmrl.cli import app
from vlmrl.config.load import load
from vlmrl.methods import registries
from vlmrl.registry import Registry

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md", "evals/README.md")),
        *sorted((ROOT / "docs").glob("*.md")),
    )
)
DEEPER = tuple(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*/*.md")))
"""Pages in folders of docs/: benchmarks, designs, reproductions. Their blocks are checked as those of `PAGES`."""
GENERATED = "docs/papers.md"
"""Written by `vlmrl list --papers`, and compared with it (`tests/test_registered.py`)."""
_FENCE = re.compile(r"^(?P<pad> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=pad)```$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?:^(?: {4}[^\n]*)\n)+", re.M)
_TABLE = re.compile(r"(?:^\|[^\n]*\n)+", re.M)
_MARK = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: str
    line: int
    info: str
    """What stands behind the fence's marks: the language, then how it is checked. `indented` for a block without a fence."""
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def how(self) -> str:
        """How it is checked, where the page says so: `recipe`, `fragment=stages.rl`, `quote=examples/x.py`."""
        return self.info.partition(" ")[2]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Table:
    """A table of a page, with the heading above it."""

    page: str
    line: int
    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _without(pattern: re.Pattern[str], text: str) -> str:
    """The text with what the pattern finds blanked out; lines keep their numbers."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n"), text)


def blocks(page: str) -> list[Block]:
    """Fenced blocks without their indentation, and indented blocks outside of them."""
    text = read(page)
    out = [
        Block(page, _line(text, m.start()), m["info"].strip(), re.sub(rf"^{m['pad']}", "", m["text"], flags=re.M))
        for m in _FENCE.finditer(text)
    ]
    rest = _without(_FENCE, text)
    out += [Block(page, _line(rest, m.start()), "indented", re.sub("^ {4}", "", m[0], flags=re.M)) for m in _INDENTED.finditer(rest)]
    return sorted(out, key=lambda block: block.line)


def tables(page: str) -> list[Table]:
    text = _without(_FENCE, read(page))
    out: list[Table] = []
    for m in _TABLE.finditer(text):
        lines = [cells(line) for line in m[0].splitlines()]
        above = re.findall(r"^#+ (.+)$", text[: m.start()], re.M)
        out.append(Table(page, _line(text, m.start()), above[-1] if above else "", lines[0], tuple(lines[2:])))
    return out


def cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|")))


def marks(text: str) -> list[str]:
    """What stands in code marks."""
    return _MARK.findall(text)


def inline(page: str) -> list[tuple[int, str]]:
    """(line, text) of every code mark outside of blocks; tables included."""
    text = _without(_INDENTED, _without(_FENCE, read(page)))
    return [(number, mark) for number, line in enumerate(text.splitlines(), 1) for mark in marks(line)]


def commands(text: str) -> list[list[str]]:
    """The command lines of a block as words, without comments; lines that end in a backslash go on."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


# ---- checks ------------------------------------------------------------------------------------------------------------


MINIMAL: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "stages": [
        {"kind": "sft", "name": "sft", "source": {"path": "sft.jsonl"}, "steps": 1},
        {"kind": "grpo", "name": "rl", "source": {"path": "train.jsonl"}, "steps": 1, "rewards": [{"name": "exact"}]},
    ],
}
"""What fragments are merged into: a supervised stage `sft` and a stage `rl`."""


_command = functools.cache(functools.partial(get_command, app))
"""The parsers of all commands, which take 70 ms to make."""


def parse_vlmrl(words: list[str]) -> dict[str, Any]:
    """Parse a `vlmrl` command line as the program does, without running it: the parameters of the command.

    Raises:
        click.UsageError: as the program would.
    """
    command: Any = _command()
    name, rest = "vlmrl", [word for word in words if word != "..."]
    while hasattr(command, "commands"):
        if not rest or rest[0] in ("--help", "--version"):
            return {}
        if rest[0] not in command.commands:
            raise ValueError(f"vlmrl has no command '{rest[0]}'")
        name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
    return {} if rest == ["--help"] else command.make_context(name, rest).params


def check_recipe(text: str, folder: Path, overrides: list[str] | None = None) -> None:
    """Load a recipe as `vlmrl check --no-data` does.

    Raises:
        ConfigError: with everything that is wrong.
    """
    from vlmrl.methods import method_problems

    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    load(path, overrides or [], also=method_problems)


def merged(fragment: Any, where: str) -> dict[str, Any]:
    """The minimal recipe with a fragment at a dotted place (`stages.rl`; empty for the top). `stages` of a fragment go onto the stage of
    their kind."""
    recipe: dict[str, Any] = yaml.safe_load(yaml.safe_dump(MINIMAL))
    here: Any = recipe
    for part in where.split(".") if where else []:
        if isinstance(here, list):
            here = next(item for item in here if item.get("name") == part)
        else:
            here = here.setdefault(part, {})
    own = dict(fragment)
    for stage in own.pop("stages", []) if where == "" else []:
        next(item for item in recipe["stages"] if item["kind"] == stage["kind"]).update(stage)
    here.update(own)
    return recipe


def names_sources(recipe: Path) -> bool:
    """Whether a recipe says of each setting where it is from. Then it names what its paper names, also what is the default here."""
    header = recipe.read_text(encoding="utf-8").partition("\nbase:")[0].replace("\n# ", " ")
    return "After each setting its source" in header or "says where settings are from" in header


@functools.cache
def methods_found() -> dict[str, Registry[Any]]:
    """All methods, those of the examples too. Asked by tests only: what is registered while tests are collected is in all of them."""
    return registries(["examples.my_method", "examples.anchor_loss", "examples.entropy_weights", "examples.polygon"])


@functools.cache
def options_of_commands() -> dict[str, set[str]]:
    """Command -> its options."""
    commands: dict[str, Any] = _command().commands  # type: ignore[attr-defined]
    found = {name: {option for p in command.params for option in p.opts} for name, command in commands.items()}
    tools = commands["tools"].commands
    own = {name: list(getattr(one, "commands", {"": one}).values()) for name, one in tools.items()}
    return found | {name: {option for one in inner for p in one.params for option in p.opts} for name, inner in own.items()}
