"""Everything that a view of some folders tells, by the address of each document; the browser, a saved site and a saved page ask the same.

folder                    what there is: runs, arms, evaluations, comparisons, checks
run/R  curves/R  metrics/R     a run, its chosen curves, all of them
arms                      curves of several runs: mean and spread over seeds
questions/R|all           the table of questions; question/Q one of them; group/R/G a kept group
evaluation/E  comparison/C  check/K
live                      changes with anything of these
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.table import visible
from vlmrl.extras.pages.documents.curves import bands, curves_doc, metrics_doc
from vlmrl.extras.pages.documents.evaluation import comparison_doc, evaluation_doc, read_comparison, tasks_of, verdict_of
from vlmrl.extras.pages.documents.folder import Item, arms_of, differs, items_of, kind_of, over_seeds, run_line, study_of, study_said
from vlmrl.extras.pages.documents.pictures import STRIP, Pictures, frame_of
from vlmrl.extras.pages.documents.questions import group_doc, held_of, kept_of, question_doc, questions_doc
from vlmrl.extras.pages.documents.run import run_doc
from vlmrl.extras.pages.documents.shapes import Doc, table
from vlmrl.extras.pages.documents.source import Forbidden, Source
from vlmrl.extras.pages.runfiles import safe_name

ALL = "all"


class View:
    """What there is in some folders. Its methods may be called from several threads.

    Args:
        strict: a damaged file is an error; else it is said and the rest is shown.
        inline: frames are in the documents, for a page that is one file.

    Raises:
        ConfigError: there is nothing to look at.
    """

    def __init__(self, paths: Sequence[Path], *, strict: bool = False, inline: bool = False):
        self.paths = list(paths)
        self.strict = strict
        self.items = items_of(self.paths)
        self.pictures = Pictures(inline=inline)
        self._lock = threading.RLock()
        self._by_id = {item.id: item for item in self.items}
        self._sources = {i.id: Source(i.path, i.id, i.kind, strict=strict) for i in self.items if i.kind in ("run", "evaluation")}
        self._refused: set[str] = set()
        """Sources of which a file is a link out of their folder."""
        self._made: dict[str, tuple[Any, Doc]] = {}
        self._makers: dict[str, Callable[..., Doc]] = {
            "folder": self._folder,
            "live": self._live,
            "arms": self._arms,
            "run": lambda name: run_doc(self._run(name), run_line(self._run(name), self._arm_of(name), live=not strict)),
            "curves": lambda name: curves_doc(self._run(name)),
            "metrics": lambda name: metrics_doc(self._run(name)),
            "questions": lambda name: questions_doc(self._sides(name), self.pictures),
            "question": lambda content: question_doc(content, self._readable(), self.pictures),
            "group": lambda name, address: group_doc(self._run(name), address, self.pictures),
            "evaluation": lambda name: evaluation_doc(self._of(name, "evaluation")),
            "comparison": lambda name: comparison_doc(name, self._item(name, "comparison").path, self._compared(name)),
            "check": lambda name: kept_documents(self._item(name, "check").path)["check/page"] | {"id": name},
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
                while len(self._made) > 64:
                    self._made.pop(next(iter(self._made)))
            return self._made[address][1]

    def picture(self, item: str, name: str, number: int) -> tuple[bytes, str]:
        """A kept frame and its media type.

        Raises:
            StorageError: there is none.
            Forbidden: its file leads out of its folder.
        """
        with self._lock:
            if item not in self._sources:
                raise StorageError(f"nothing is called {item!r:.60}")
            source = self._sources[item]
            if not name.startswith(STRIP):
                path = source.kept_medium(name)
                if path is None:
                    raise StorageError(f"medium {name:.12} was not kept")
                return frame_of(path, number), "image/jpeg"
            frames = next((one for one in source.pixels.values() if STRIP + safe_name(one.sample_id)[-10:] == name), None)
            if frames is None:
                raise StorageError(f"the pixels of {name:.20} were not kept")
            return frame_of(frames, number), "image/png"

    def addresses(self) -> list[str]:
        """The documents of a saved copy: all but single groups and questions."""
        out = ["folder", *(["arms"] if len(self.runs) > 1 else [])]
        for item in self.items:
            out.append(f"{item.kind}/{item.id}")
            if item.kind == "run":
                out += [f"curves/{item.id}", f"metrics/{item.id}"]
            if item.kind in ("run", "evaluation") or (item.kind == "comparison" and self._compared(item.id)):
                out.append(f"questions/{item.id}")
        return [*out, *([f"questions/{ALL}"] if len(self._sources) > 1 else [])]

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
        return [source for source in self._sources.values() if source.name not in self._refused]

    def _stamp(self) -> str:
        told: list[Any] = []
        self._refused.clear()
        for source in self._sources.values():
            try:
                told.append(source.follow())
            except Forbidden:
                if len(self._sources) == 1:
                    raise
                self._refused.add(source.name)
        return hashlib.sha256(repr((told, self._refused)).encode()).hexdigest()[:16]

    def _item(self, name: str, kind: str) -> Item:
        found = self._by_id.get(name)
        if found is None or found.kind != kind:
            raise StorageError(f"there is no {kind} {name!r:.60}")
        return found

    def _of(self, name: str, kind: str) -> Source:
        item = self._item(name, kind)
        if item.id in self._refused:
            raise Forbidden
        return self._sources[item.id]

    def _run(self, name: str) -> Source:
        return self._of(name, "run")

    def _sides(self, name: str) -> list[Source]:
        """The sources of a table of questions."""
        if name == ALL:
            return self._readable()
        if name in self._sources:
            return [self._of(name, self._sources[name].kind)]
        return self._compared(name)

    def _compared(self, name: str) -> list[Source]:
        """The two sides of a comparison, where they are shown as well; else none."""
        found_in = read_comparison(self._item(name, "comparison").path)
        paths = found_in.get("paths") or [path for side in found_in.get("sides", ()) for path in side]
        found = [source for path in paths for source in self._sources.values() if Path(str(path)).resolve().is_relative_to(source.path)]
        return found if len(found) == len(paths) else []

    @cached_property
    def _study(self) -> dict[str, list[Path]] | None:
        return next((study for path in self.paths if path.is_dir() and (study := study_of(path)) is not None), None)

    def _groups(self) -> dict[str, list[Source]]:
        return arms_of(self.runs, self._study)

    def _arm_of(self, name: str) -> str:
        return next((arm for arm, sources in self._groups().items() if any(source.name == name for source in sources)), "")

    def _live(self) -> Doc:
        return {"stamp": self._stamp(), "training": any(source.line.status == "running" for source in self.runs)}

    def _folder(self) -> Doc:
        groups = self._groups()
        arm = {source.name: name for name, sources in groups.items() for source in sources}
        lines = [self._said(self._by_id[s.name], lambda _, s=s: run_line(s, arm[s.name], live=not self.strict)) for s in self.runs]
        lines.sort(key=lambda line: -(line.get("wall") or 0.0))
        unlike = differs(groups) if len(groups) > 1 else {}
        kind = kind_of(self.paths[0])
        single = self.items[0] if kind is not None and (len(self.items) == 1 or kind == "comparison") else None
        return {
            "name": visible(self.paths[0].resolve().name) if len(self.paths) == 1 else visible(", ".join(path.name for path in self.paths)),
            "path": visible(str(self.paths[0].resolve())),
            "start": "" if single is None else f"{single.kind}/{single.id}",
            "runs": lines,
            "arms": [
                {
                    "name": visible(name),
                    "runs": [source.name for source in sources],
                    "seeds": [source.seed for source in sources],
                    "given": name in (self._study or {}),
                    "primary": over_seeds(sources),
                    "differs": [visible(text) for text in unlike.get(name, [])],
                }
                for name, sources in groups.items()
            ],
            "evaluations": [self._said(item, self._evaluation_line) for item in self.items if item.kind == "evaluation"],
            "comparisons": [self._said(item, self._comparison_line) for item in self.items if item.kind == "comparison"],
            "checks": [self._said(item, self._check_line) for item in self.items if item.kind == "check"],
            "problems": [f"{name}: a file in it is a link to elsewhere, so it is not read" for name in sorted(self._refused)],
            "study": next((said for path in self.paths if (said := study_said(path)) is not None), None),
            "several": len(self.runs) > 1,
            "questions": None if not self._sources else f"questions/{ALL if len(self._sources) > 1 else next(iter(self._sources))}",
        }

    def _said(self, item: Item, make: Callable[[Item], Doc]) -> Doc:
        """A line of the list; what cannot be read is said in its place, unless the view is strict."""
        try:
            return make(item)
        except (StorageError, ConfigError) as error:
            if self.strict:
                raise
            return {
                **_line(item),
                "problem": visible(str(error)),
                "primary": None,
                "verdict": "",
                "models": [],
                "where": "",
                "status": "stopped",
            }

    def _evaluation_line(self, item: Item) -> Doc:
        source = self._sources[item.id]
        tasks = tasks_of(source)
        said = {"model": visible(source.evaluation.model), "suite": visible(source.evaluation.suite), "primary": next(iter(tasks), None)}
        return {**_line(item), **said, "tasks": len(tasks)}

    def _comparison_line(self, item: Item) -> Doc:
        found = read_comparison(item.path)
        return {
            **_line(item),
            "models": [visible(str(one)) for one in found.get("models", [])],
            "verdict": visible(verdict_of(found)),
        }

    def _check_line(self, item: Item) -> Doc:
        sources = kept_documents(item.path)["check/page"]["sources"]
        return {**_line(item), "good": sum(one["good"] for one in sources), "rejected": sum(one["rejected"] for one in sources)}

    def _arms(self) -> Doc:
        groups = self._groups()
        rows = []
        for name, sources in groups.items():
            one = over_seeds(sources)
            shown = ["-", "-", "-"] if one is None else [one["label"], f"{one['text']} {one['interval']}".strip(), one["note"]]
            rows.append([name, ", ".join(str(source.seed) for source in sources), *shown])
        return {
            "arms": [{"name": visible(name), "runs": [source.name for source in sources]} for name, sources in groups.items()],
            "groups": bands(groups),
            "primary": table("Primary held-out number", ["arm", "seeds", "metric", "mean", ""], rows),
        }


def _line(item: Item) -> Doc:
    return {
        "id": item.id,
        "name": visible(item.path.resolve().name),
        "folder": visible(str(item.path)),
        "address": f"{item.kind}/{item.id}",
    }


def kept_documents(page: Path) -> dict[str, Doc]:
    """The documents in a page that was saved as one file.

    Raises:
        StorageError: there are none, or they are damaged.
    """
    import re

    text = page.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" data-address="([^"]+)">(.*?)</script>', text, re.DOTALL)
    try:
        return {address: json.loads(value) for address, value in found}
    except ValueError as error:
        raise StorageError(f"{page}: a document in it is damaged: {error}; write it again") from error
