"""Areas 2 to 4: names, images and videos and paths, rows, pages. Cases and their right ends come from the tests' own lists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

from pydantic import ValidationError

from tests.faults.drill.result import Drill, Result
from tests.faults.test_hostile import SHOWN, _fate, holds, looks_like, store_of
from tests.support import runs, tiny
from tests.support.hostile import media_cases, row_cases
from vlmrl.config.schema import Config, validate
from vlmrl.data.source import read_source
from vlmrl.errors import VlmrlError

NAMES, MEDIA, ROWS, PAGES = "2, 4 names of stages", "3 images, paths, videos", "3 rows", "4 pages"
HARMLESS = ["rl2", "RL-3", "a.b", "x" * 64, "0", "stage_1"]
HARMFUL = [
    "", ".", "..", "../escape", "../../out", "a/b", "/abs", "a\\b", "RL\nx", "\x1b[31m", "a\x00b", "tmp-sft", "old-x", "base", "final",
    "toy", "run", "rl@3", "SFT", "sft", "x" * 300, "a b", "ü", "-rf", ".hidden",
]  # fmt: skip
PAYLOADS = (
    "tests/unit/extras/pages/view/test_view_save.py::test_a_page_is_one_file_with_its_pictures",
    "tests/unit/extras/pages/view/test_view_save.py::test_a_site_loads_nothing_from_elsewhere",
    "tests/unit/extras/pages/view/test_view_save.py::test_texts_of_models_and_rows_cannot_become_markup",
    "tests/unit/extras/pages/view/test_view_save.py::test_what_a_model_said_is_spelled_out",
    "tests/unit/extras/pages/kept/test_kept_files.py::test_nothing_but_a_key_becomes_a_path",
    "tests/unit/extras/pages/documents/test_check_document.py::test_the_page_is_whole_and_asks_for_nothing",
)


def names(drill: Drill) -> Iterator[Result]:
    """A harmful name of the second stage is refused before anything runs, with the name in the message; a harmless one is taken."""
    for name in (*HARMLESS, *HARMFUL):
        config = runs.small_config(*drill.files, drill.folder)
        config["stages"][1]["name"] = name
        try:
            problems = validate(Config.model_validate(config))
        except ValidationError as error:
            problems = [str(error)]
        verdict = "clear" if problems else "right" if name in HARMLESS else "silent"
        if problems and name in HARMLESS:
            verdict = "crash"
        yield Result(area=NAMES, case=repr(name)[:40], verdict=verdict, note="; ".join(problems)[:160] or "taken")


def media(drill: Drill) -> Iterator[Result]:
    """The hostile corpus through headers, decoding in a worker, and the prompt; damaged media are compared with undamaged ones."""
    root = drill.root("media") / "files"
    root.mkdir()
    cases = media_cases(root)
    loaded = tiny.load(*drill.files)
    store = store_of(loaded, workers=1)
    encoder = _replaced(loaded.encoder, media=store, data_root=root, max_prompt_tokens=100_000)
    shown = {}
    try:
        for number, case in enumerate(cases):
            path = repr(case.path)[:60]
            try:
                fate = _fate(encoder, store, case, number)
            except Exception as error:  # noqa: BLE001 (what must not happen is the verdict)
                yield Result(area=MEDIA, case=path, verdict="crash", note=f"{type(error).__name__}: {error}"[:200])
                continue
            shown[case.path] = fate.entry
            if fate.outcome != SHOWN:
                wrong = "" if fate.outcome in case.reasons else f"{fate.outcome}, not {sorted(case.reasons)}"
                yield Result(area=MEDIA, case=path, verdict="crash" if wrong else "clear", note=wrong)
            elif case.reasons and case.may_show is None:
                yield Result(area=MEDIA, case=path, verdict="silent", note=f"shown; right would be {sorted(case.reasons)}")
            else:
                yield _compared(path, case, fate, shown)
    finally:
        store.close()


def _compared(path: str, case, fate, shown) -> Result:
    """Whether a damaged medium that is shown looks like the undamaged one, or keeps what its format can promise."""
    model = shown.get(case.may_show) if case.may_show else None
    same = model is None or looks_like(fate.entry, model) or (case.weaker is not None and holds(case.weaker, fate.entry, model))
    return Result(area=MEDIA, case=path, verdict="right" if same else "silent", note="" if same else f"does not look like {case.may_show}")


def _replaced(encoder, **changes):
    import dataclasses

    return dataclasses.replace(encoder, **changes)


def rows(drill: Drill) -> Iterator[Result]:
    """Every row of the corpus, each in a file of its own: taken or refused as the list says, with the line named."""
    folder = drill.root("rows")
    for number, case in enumerate(row_cases()):
        path = folder / f"{number}.jsonl"
        path.write_bytes(case.line)
        name = f"{case.group} {case.line[:40]!r}"
        if case.reason == "duplicate_id":
            continue  # needs the row before
        try:
            report = read_source(path, media_root=".")
        except VlmrlError as error:
            yield Result(area=ROWS, case=name, verdict="clear" if case.reason else "crash", note=str(error)[:160])
            continue
        except Exception as error:  # noqa: BLE001 (what must not happen is the verdict)
            yield Result(area=ROWS, case=name, verdict="crash", note=f"{type(error).__name__}: {error}"[:200])
            continue
        found = report.bad[0].reason if report.bad else None
        wrong = "" if found == case.reason else f"{found or 'taken'}, not {case.reason}"
        verdict = ("clear" if found else "right") if not wrong else ("crash" if found else "silent")
        yield Result(area=ROWS, case=name, verdict=verdict, note=wrong)


def pages(drill: Drill) -> Iterator[Result]:
    """Pages with payloads: the tests that make them, in a process of their own. A test that fails is a payload that got through."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "-p", "no:cacheprovider", *PAYLOADS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (.+)$", done.stdout, re.MULTILINE)
    if not found:
        yield Result(area=PAGES, case="pytest", verdict="crash", note=json.dumps(done.stdout[-300:]))
    verdicts = {"PASSED": "right", "FAILED": "silent", "ERROR": "crash", "SKIPPED": "skipped"}
    for outcome, name in found:
        yield Result(area=PAGES, case=name.rpartition("::")[2][:120], verdict=verdicts[outcome], note=outcome.lower())
