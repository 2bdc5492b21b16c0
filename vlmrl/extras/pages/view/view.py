"""Everything that a view of some folders tells, by the address of each document; the browser, a saved site and a saved page ask the same.

folder                    what there is: runs, arms, evaluations, comparisons, checks, and what a study says
run/R  curves/R  metrics/R     a run, its chosen curves, all of them
arms                      each arm with the curves of its runs: mean and spread over seeds
questions/R|all           the table of questions; question/Q one of them; group/R/G a kept group
evaluation/E  comparison/C  check/K
live                      changes with anything of these
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, StorageError
from vlmrl.extras.pages.documents.curves import curves_doc, metrics_doc
from vlmrl.extras.pages.documents.evaluation import comparison_doc, evaluation_doc, read_comparison, tasks_of, verdict_of
from vlmrl.extras.pages.documents.folder import arms_of, arms_table, items_of, kind_of, run_line
from vlmrl.extras.pages.documents.pictures import Pictures
from vlmrl.extras.pages.documents.questions import group_doc, held_of, kept_of, question_doc, questions_doc
from vlmrl.extras.pages.documents.run import run_doc
from vlmrl.extras.pages.documents.shapes import Doc
from vlmrl.extras.pages.documents.source import Forbidden, Source
from vlmrl.extras.pages.documents.study import STUDY, study_doc, study_of
from vlmrl.extras.pages.kept.media import opened

ALL = "all"
ANSWERS = ("run", "evaluation")
"""What has answers to questions."""
LINK = "a file in it is a link to elsewhere, so it is not read"
CACHED = 64
"""Documents that are remembered while nothing changes."""


class View:
    """What there is in some folders. Its methods may be called from several threads.

    Args:
        strict: a damaged file is an error; else it is said and the rest is shown.
        inline: frames are in the documents, for a page that is one file.

    Raises:
        ConfigError: there is nothing to look at.
    """

    def __init__(self, paths: Sequence[Path], *, strict: bool = False, inline: bool = False):
        self.paths, self.strict = list(paths), strict
        self.items = items_of(self.paths, strict=strict)
        self.pictures = Pictures(inline=inline)
        self._lock = threading.RLock()
        self._answers = {item.name: item for item in self.items if item.kind in ANSWERS}
        self._made: dict[str, tuple[Any, Doc]] = {}
        self._makers: dict[str, Callable[..., Doc]] = {
            "folder": self._folder,
            "live": lambda: {"stamp": self._stamp()},
            "arms": self._arms,
            "run": lambda name: run_doc(self._of(name, "run")),
            "curves": lambda name: curves_doc([self._of(name, "run")]),
            "metrics": lambda name: metrics_doc(self._of(name, "run")),
            "questions": lambda name: questions_doc(self._sides(name), self.pictures),
            "question": lambda content: question_doc(content, self._readable(), self.pictures),
            "group": lambda name, address: group_doc(self._of(name, "run"), address, self.pictures),
            "evaluation": lambda name: evaluation_doc(self._of(name, "evaluation")),
            "comparison": lambda name: comparison_doc(self._of(name, "comparison"), self._compared(name)),
            "check": lambda name: kept_documents(self._of(name, "check").path)["check/page"],
        }

    def document(self, address: str) -> Doc:
        """The document of an address.

        Raises:
            StorageError: there is none, or a file is damaged.
            Forbidden: a file leads out of its folder.
        """
        kind, *names = address.split("/")
        make = self._makers.get(kind)
        if make is None or len(names) != {"folder": 0, "live": 0, "arms": 0, "group": 2}.get(kind, 1):
            raise StorageError(f"there is no document {address!r:.60}")
        with self._lock:
            stamp = self._stamp()
            if kind == "live" or self._made.get(address, (None,))[0] != stamp:
                self._made[address] = stamp, make(*names)
                while len(self._made) > CACHED:
                    self._made.pop(next(iter(self._made)))
            return self._made[address][1]

    def picture(self, item: str, key: str, number: int) -> tuple[bytes, str]:
        """A kept frame and its media type.

        Raises:
            StorageError: there is none.
            Forbidden: its file leads out of its folder.
        """
        with self._lock:
            path = self._answers[item].medium(key) if item in self._answers else None
            if path is None:
                raise StorageError(f"medium {key:.12} of {item!r:.60} was not kept")
            return opened(path).frame(number)

    def addresses(self) -> list[str]:
        """The documents of a saved copy: all but single groups and questions."""
        out = ["folder", *(["arms"] if len(self.runs) > 1 else [])]
        for item in self.items:
            out.append(f"{item.kind}/{item.name}")
            if item.kind == "run":
                out += [f"curves/{item.name}", f"metrics/{item.name}"]
            if item.kind in ANSWERS or (item.kind == "comparison" and self._compared(item.name)):
                out.append(f"questions/{item.name}")
        return [*out, *([f"questions/{ALL}"] if len(self._answers) > 1 else [])]

    def questions(self) -> list[str]:
        """Digests of all questions, those of held-out evaluations first."""
        sources = self._readable()
        return list(dict.fromkeys([*(c for s in sources for c in held_of(s).rows), *(c for s in sources for c in kept_of(s))]))

    def groups(self, most: int) -> list[str]:
        """Addresses of kept groups, at most so many of each run: the most surprising ones."""
        out: list[str] = []
        for source in self.runs:
            entries = sorted(source.kept.entries(), key=lambda one: -(one[1]["surprise"] or 0.0))
            out += [f"group/{source.name}/{address}" for address, _ in entries[:most]]
        return out

    @property
    def runs(self) -> list[Source]:
        """The runs that may be read."""
        return [source for source in self._readable() if source.kind == "run"]

    def _readable(self) -> list[Source]:
        return [source for source in self._answers.values() if not source.refused]

    def _stamp(self) -> str:
        told: list[Any] = [file.stat().st_mtime_ns for path in self.paths if (file := path / STUDY).is_file()]
        told += [source.follow() for source in self._answers.values()]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

    def _of(self, name: str, *kinds: str) -> Source:
        found = next((item for item in self.items if item.name == name and item.kind in kinds), None)
        if found is None:
            raise StorageError(f"there is no {kinds[0]} {name!r:.60}")
        if found.refused:
            raise Forbidden(f"{name}: {LINK}")
        return found

    def _sides(self, name: str) -> list[Source]:
        """The sources of a table of questions."""
        found = [self._of(name, "comparison", *ANSWERS)] if name != ALL else self._readable()
        return self._compared(name) if found and found[0].kind == "comparison" else found

    def _compared(self, name: str) -> list[Source]:
        """The two sides of a comparison, where they are shown as well; else none."""
        found_in = read_comparison(self._of(name, "comparison").path)
        paths = found_in.get("paths") or [path for side in found_in.get("sides", ()) for path in side]
        found = [source for path in paths for source in self._answers.values() if Path(str(path)).resolve().is_relative_to(source.path)]
        return found if len(found) == len(paths) else []

    @cached_property
    def _study(self) -> dict[str, list[Path]] | None:
        return next((study for path in self.paths if (study := study_of(path)) is not None), None)

    def _folder(self) -> Doc:
        groups = arms_of(self.runs, self._study)
        lines = [self._said(run, lambda run=run: run_line(run)) for run in self.runs]
        kind = kind_of(self.paths[0])
        single = self.items[0] if kind is not None and (len(self.items) == 1 or kind == "comparison") else None
        return {
            "name": self.paths[0].resolve().name if len(self.paths) == 1 else ", ".join(path.name for path in self.paths),
            "path": str(self.paths[0].resolve()),
            "start": "" if single is None else f"{single.kind}/{single.name}",
            "study": next((said for path in self.paths if (said := study_doc(path)) is not None), None),
            "runs": sorted(lines, key=lambda line: -(line.get("wall") or 0.0)),
            "arms": arms_table(groups) if len(groups) < len(lines) else None,
            "others": [self._said(item, lambda item=item: self._other(item)) for item in self.items if item.kind != "run"],
            "problems": [f"{source.name}: {LINK}" for source in self._answers.values() if source.refused],
        }

    def _said(self, item: Source, make: Callable[[], Doc]) -> Doc:
        """A line of the list; what cannot be read is said in its place, unless the view is strict."""
        line = {"id": item.name, "kind": item.kind, "name": item.path.name, "folder": str(item.path), "primary": None}
        line["address"] = f"{item.kind}/{item.name}"
        try:
            return {**line, **make()}
        except (StorageError, ConfigError) as error:
            if self.strict:
                raise
            return {**line, "problem": str(error), "where": "", "status": "stopped", "text": ""}

    def _other(self, item: Source) -> Doc:
        """What the list says of an evaluation, a comparison or a data check."""
        if item.kind == "evaluation":
            words = filter(None, (item.evaluation.model, item.evaluation.suite))
            return {"text": ", ".join(words), "primary": next(iter(tasks_of(item)), None)}
        if item.kind == "comparison":
            return {"text": verdict_of(read_comparison(item.path))}
        sources = kept_documents(item.path)["check/page"]["sources"]
        good, refused = (sum(one[key] for one in sources) for key in ("good", "rejected"))
        return {"text": f"{good} good rows, {refused} refused"}

    def _arms(self) -> Doc:
        groups = arms_of(self.runs, self._study)
        arms = [{"name": name, "runs": len(sources), "curves": curves_doc(sources)} for name, sources in groups.items()]
        return {"arms": arms, "table": arms_table(groups)}


def kept_documents(page: Path) -> dict[str, Doc]:
    """The documents in a page that was saved as one file.

    Raises:
        StorageError: there are none, or they are damaged.
    """
    text = page.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" data-address="([^"]+)">(.*?)</script>', text, re.DOTALL)
    try:
        return {address: json.loads(value) for address, value in found}
    except ValueError as error:
        raise StorageError(f"{page}: a document in it is damaged: {error}; write it again") from error
