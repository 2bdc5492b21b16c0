"""Where recipes, bases, presets, suites, protocols, tasks, data cards, examples and pins are: in a checkout at its top, in an installed
package in `vlmrl/shipped/`.

`setup.py` copies the folders there when a wheel is built. A name (`toy_video`) is looked for in the working folder first, then among ours;
`ResolvedFile.line` says which file was taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.registry import nearest

PACKAGE = Path(__file__).parent
SHIPPED = "shipped"
"""Folder of the package that an installed one has in place of the checkout's top level."""
KINDS = {
    "recipe": "configs/recipes",
    "base": "configs/base",
    "algorithm": "configs/algorithms",
    "suite": "evals/suites",
    "study": "configs/studies",
    "protocol": "evals/protocols",
}
"""What is found by name -> its folder."""
_IN_ITS_FOLDER = frozenset({"algorithm"})
"""What is not looked for in the working folder itself: `dapo.yaml` there is likelier the recipe that names the preset."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class ResolvedFile:
    """A file, and how it was asked for."""

    path: Path
    kind: str
    asked: str

    @property
    def ours(self) -> bool:
        """Whether it comes with the package or the checkout."""
        return self.path.absolute().is_relative_to(shipped())

    @property
    def line(self) -> str | None:
        """What to say about it: `recipe toy_video: toy_video.yaml (working folder)`; None where the file itself was named."""
        if self.path == Path(self.asked):
            return None
        return f"{self.kind} {self.asked}: {shown(self.path)} ({'comes with vlmrl' if self.ours else 'working folder'})"


def shipped(*parts: str) -> Path:
    """A path below our own `configs`, `evals`, `data`, `examples` and `constraints`, whether in a checkout or in an installed package."""
    inside = PACKAGE / SHIPPED
    return (inside if inside.is_dir() else PACKAGE.parent).joinpath(*parts)


def shown(path: Path) -> str:
    """A path as a person in the working folder would write it."""
    whole, here = path.absolute(), Path.cwd()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def names(kind: str, folder: Path | None = None) -> list[str]:
    """Names of ours, sorted. `folder` stands in for the one of the kind."""
    return sorted(path.stem for path in (folder or shipped(KINDS[kind])).glob("*.yaml"))


def find(kind: str, asked: str | Path, *, folder: Path | None = None, beside: Sequence[Path] = ()) -> ResolvedFile | None:
    """The file that is meant: a path; else a name below `beside`, in the working folder (`NAME.yaml`, then the folder of the kind), or
    of ours. A path that is not there but is one of ours (`configs/recipes/toy_video.yaml`) is found as well.

    Args:
        kind: key of `KINDS`.
        asked: path or name.
        folder: where ours are, in place of the folder of the kind.
        beside: folders that come before the working folder.
    """
    text, own = str(asked), folder or shipped(KINDS[kind])
    if (path := Path(text).expanduser()).is_file():
        return ResolvedFile(path, kind, text)
    if _NAME.fullmatch(text):
        file = text if text.endswith(".yaml") else f"{text}.yaml"
        here = Path.cwd()
        for place in (*beside, *([] if kind in _IN_ITS_FOLDER else [here]), here / KINDS[kind], own):
            if (place / file).is_file():
                return ResolvedFile(Path(shown(place / file)), kind, text)
    elif not path.is_absolute() and path.parent.as_posix() == KINDS[kind] and (own / path.name).is_file():
        return ResolvedFile(own / path.name, kind, text)
    return None


def missing(kind: str, asked: str | Path, *, folder: Path | None = None) -> ConfigError:
    """The error for what `find` did not find, with the nearest known name."""
    known = names(kind, folder)
    return ConfigError(f"{asked}: no such {kind}{nearest(str(asked), known)} (give a file, or one of: {', '.join(known) or 'none'})")
