"""Defines which names a recipe or a suite may give: those that become folders, files and keys of logs.

A name that is also a path (`a/b`, `..`), a control character, or a word that the run uses for something of its own would be found out
after hours of training, by a file in the wrong place. So it is refused before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

ERROR = "name"
"""Type of the errors that pydantic reports for a name."""
RESERVED = ("base", "final", "run", "toy")
"""What a run itself writes under: its records and log lines, and folders beside the stages."""
PREFIXES = ("tmp-", "old-")
"""How a run's unfinished and replaced files begin."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN_RULE = "1 to 64 of the characters A-Z a-z 0-9 . _ -, beginning with a letter or digit, without '..'"
_KEY_LENGTH = 64


def plain_problem(name: str) -> str | None:
    """Why a name cannot be that of a folder or a file; None where it can."""
    if _PLAIN.fullmatch(name) is None or ".." in name:
        return f"{name[:80]!r} is not a plain name; give {_PLAIN_RULE}"
    return None


def stage_problem(name: str) -> str | None:
    """Why a name cannot be that of a stage or a run; None where it can. Letters count as equal in both cases, as in some file systems."""
    plain = plain_problem(name)
    if plain is None and name.casefold().startswith(PREFIXES):
        return f"{name!r} begins as unfinished files do ({', '.join(PREFIXES)}); give another name"
    return plain


def reserved_problem(name: str) -> str | None:
    """Why a name cannot be that of a stage of a run; None where it can. (The toy model's own stage is not one of a run.)"""
    if name.casefold() in RESERVED:
        return f"{name!r} is a reserved name ({', '.join(RESERVED)}); give the stage another one"
    return None


def task_problem(name: str) -> str | None:
    """Why a name cannot be that of an evaluation task; None where it can. `<name>@<answer format>` is one as well."""
    task, at, mode = name.partition("@")
    return plain_problem(task) or (plain_problem(mode) if at else None)


def key_problem(name: str) -> str | None:
    """Why a name cannot be part of a key in logs; None where it can."""
    if not 0 < len(name) <= _KEY_LENGTH or not name.isprintable() or name != name.strip() or "/" in name:
        return f"{name[:80]!r} cannot be a name in logs; give 1 to {_KEY_LENGTH} printable characters without '/' or spaces around them"
    return None


def same_names(names: Iterable[str]) -> dict[int, int]:
    """Place of each name that was given before -> place of the first. Letters count as equal in both cases."""
    first: dict[str, int] = {}
    return {place: before for place, name in enumerate(names) if (before := first.setdefault(name.casefold(), place)) != place}


def _checked(problem: Callable[[str], str | None]) -> AfterValidator:
    def check(name: str) -> str:
        found = problem(name)
        if found is not None:
            raise PydanticCustomError(ERROR, "{problem}", {"problem": found})
        return name

    return AfterValidator(check)


PlainName = Annotated[str, _checked(plain_problem)]
StageName = Annotated[str, _checked(stage_problem)]
RunName = StageName
LogKey = Annotated[str, _checked(key_problem)]
