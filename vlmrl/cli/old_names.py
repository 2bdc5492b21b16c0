"""Names that commands had in 0.1 and what they are now. For one release an old line says the new name on stderr, and does what it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from typer.core import TyperGroup

from vlmrl.cli.names import say

Words = list[str]


@dataclass(frozen=True)
class Moved:
    """Where a command went."""

    now: str
    """As it is shown."""
    into: tuple[str, ...]
    """The words that stand in place of the old name."""
    line: Callable[[Words], Words] | None = None
    """All words of the new line, from those behind the old name; None where these stay as they are."""
    ordered: Callable[[Words, Words], Words] | None = None
    """The same from arguments and options apart, where their order matters."""


def _launch(args: Words) -> Words:
    if "--run" not in args:
        return ["plan", *args, "--launch"]
    counted = any(word.partition("=")[0] == "--gpus" for word in args)
    return ["train", *(word for word in args if word != "--run"), *([] if counted else ["--gpus", "1"])]


OLD: Mapping[str, Moved] = {
    "init": Moved("new NAME", ("new",)),
    "examples": Moved("new --examples FOLDER", ("new",), lambda args: ["new", "--examples", *(args or ["examples"])]),
    "ask": Moved(
        "serve MODEL --ask QUESTION",
        ("serve",),
        ordered=lambda plain, options: ["serve", *plain[:1], "--ask", *(plain[1:] or ["-"]), *options],
    ),
    "runs": Moved("list runs", ("list", "runs")),
    "report": Moved("view RUN --save RUN", ("view",), ordered=lambda plain, options: ["view", *plain, "--save", *plain, *options]),
    "suites": Moved("list suites", ("list", "suites")),
    "import": Moved("eval --import FILE", ("eval",), ordered=lambda plain, options: ["eval", "--import", *plain, *options]),
    "launch": Moved("plan RECIPE --launch' and 'vlmrl train RECIPE --gpus N", ("plan",), _launch),
    "rollout-server": Moved(
        "serve --rollouts RECIPE", ("serve",), ordered=lambda plain, options: ["serve", "--rollouts", *plain, *options]
    ),
    "conform": Moved("check MODEL", ("check",)),
    "doctor": Moved("check", ("check",), lambda args: ["check", *args, *(["--machine"] if args else [])]),
    "thoughts": Moved("tools thoughts", ("tools", "thoughts")),
    "toy": Moved("tools toy", ("tools", "toy")),
    "cache": Moved(
        "list caches' and 'vlmrl tools cache",
        ("tools", "cache"),
        lambda args: ["list", "caches", *args[1:]] if args[:1] == ["list"] else ["tools", "cache", *args],
    ),
    "env": Moved(
        "list environments' and 'vlmrl tools env",
        ("tools", "env"),
        lambda args: ["list", "environments", *args[1:]] if args[:1] == ["list"] else ["tools", "env", *args],
    ),
}
"""Old name -> where it went."""


class Commands(TyperGroup):
    """The commands; an old name is taken for the new one."""

    def resolve_command(self, ctx: Any, args: Words) -> Any:
        """Find the command of a line, under its new name if it has one."""
        moved = OLD.get(args[0])
        if moved is not None and moved.into[0] in self.commands:
            say(f"'vlmrl {args[0]}' is now 'vlmrl {moved.now}'")
            args = self._line(moved, args[1:])
        return super().resolve_command(ctx, args)

    def _line(self, moved: Moved, args: Words) -> Words:
        if moved.line is not None:
            return moved.line(args)
        if moved.ordered is None or "--help" in args:
            return [*moved.into, *(args if moved.ordered is None else ["--help"])]
        return moved.ordered(*apart(args, self.commands[moved.into[0]].params))


def apart(args: Words, params: list[Any]) -> tuple[Words, Words]:
    """(arguments, options with their values); which options have none is known of the command's parameters."""
    flags = {name for one in params if getattr(one, "is_flag", False) for name in (*one.opts, *one.secondary_opts)}
    plain, options = list[str](), list[str]()
    rest = iter(args)
    for word in rest:
        if not word.startswith("-"):
            plain.append(word)
            continue
        options.append(word)
        if "=" not in word and word not in flags:
            options += [value for value in (next(rest, None),) if value is not None]
    return plain, options
