"""Pages of the command line, one per command, from the Typer program itself: usage, arguments, options with defaults, examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from scripts.docs_site.marks import escaped, plain, table

FOLDER = "reference/cli"


def every(command: Any, name: str = "vlmrl") -> Iterator[tuple[str, Any]]:
    """(name, command) of all that is no group: `vlmrl tools toy make`."""
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for key, one in inner.items():
        if not one.hidden:  # an old name
            yield from every(one, f"{name} {key}")


def file_of(name: str) -> str:
    """`reference/cli/tools-toy-make.md` of `vlmrl tools toy make`."""
    return f"{FOLDER}/{'-'.join(name.split()[1:])}.md"


def prose(text: str) -> list[str]:
    """A help text as Markdown: paragraphs, and lines that begin with `Example:` as blocks of commands."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).partition("\f")[0]):
        said, _, example = paragraph.partition("Example: ")
        out += [plain(" ".join(said.split())), ""] if said.strip() else []
        out += ["```bash", *_lines_of(example), "```", ""] if example else []
    return out


def _lines_of(example: str) -> list[str]:
    """Commands of an example: one per line, the next ones behind it, or on one line where the help text was folded."""
    lines = [line.strip() for line in example.splitlines() if line.strip()]
    out: list[str] = []
    for line in lines:
        if out and not line.startswith(("vlmrl ", "torchrun ", "bash ", "python ")):
            out[-1] += f" {line}"
        else:
            out.append(line)
    return out


def row(parameter: Any, context: Any) -> tuple[str, ...]:
    """A parameter as the program's own help shows it: names, what it does, and default or bounds."""
    names, said = parameter.get_help_record(context) or (parameter.name, "")
    text, bracket, facts = said.removesuffix("]").rpartition("  [") if said.endswith("]") else (said, "", "")
    shown = f"`{names.partition(' <')[0]}`" + (f" {escaped('<' + names.partition(' <')[2])}" if " <" in names else "")
    return shown, plain(text or (said if not bracket else "")), plain(facts)


def page(name: str, command: Any) -> str:
    """The page of one command."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    out = [f"# {name}", "", *prose(command.help or ""), "```text", usage, "```", ""]
    if arguments:
        out += ["## Arguments", "", *table(("argument", "what it is", "default and bounds"), [row(one, context) for one in arguments]), ""]
    if options:
        out += ["## Options", "", *table(("option", "what it does", "default and bounds"), [row(one, context) for one in options]), ""]
    return "\n".join(out)


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    text = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return plain(re.split(r"(?<=[.:;]) ", text)[0].rstrip(":;"))


def index(commands: list[tuple[str, Any]], epilog: str) -> str:
    """The list of all commands."""
    rows = [(f"[`{name}`]({file_of(name).removeprefix(FOLDER + '/')})", summary(command)) for name, command in commands]
    return "\n".join(["# Commands", "", plain(epilog), "", *table(("command", "what it does"), rows), ""])


def pages() -> dict[str, str]:
    """Page -> text, of all commands."""
    from typer.main import get_command

    from vlmrl.cli import app

    program: Any = get_command(app)
    found = list(every(program))
    return {f"{FOLDER}/index.md": index(found, program.epilog or "")} | {file_of(name): page(name, one) for name, one in found}
