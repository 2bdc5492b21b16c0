"""Does to runs, files and inputs what goes wrong in practice, and prints what came of it.

    python -m tests.faults.drill                      everything: about 40 minutes of CPU
    python -m tests.faults.drill --quick              a part of each area: about 5 minutes
    python -m tests.faults.drill resume storage       some areas
    python -m tests.faults.drill --seed 7             other random moments and files

The exit code is 0 if nothing crashed, ended with a wrong code or was wrong without a word, else 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.drill import effects, inputs, resume, storage
from tests.faults.drill.result import Area, Drill, Result, table
from tests.support.tiny import make_files

AREAS: dict[str, tuple[Area, ...]] = {
    "names": (inputs.names,),
    "rows": (inputs.rows,),
    "media": (inputs.media,),
    "pages": (inputs.pages,),
    "rewards": (effects.rewards,),
    "numbers": (effects.numbers,),
    "load": (effects.load,),
    "storage": (storage.disk, storage.changed_content, storage.damaged_files),
    "resume": (resume.resume, resume.media_worker, resume.two_ranks),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.drill", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []], help="by default all")
    parser.add_argument("--quick", action="store_true", help="a part of each area")
    parser.add_argument("--seed", type=int, default=0, help="of random moments and choices")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which then stay; by default a temporary one")
    given = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = make_files(folder)
        for name in given.areas or AREAS:
            for number, area in enumerate(AREAS[name]):
                began = time.monotonic()
                place = folder / f"{name}-{number}"
                place.mkdir()
                for result in area(Drill(folder=place, files=files, seed=given.seed, quick=given.quick)):
                    results.append(result)
                    print(f"{result.verdict:>7}  {result.area}: {result.case}  {result.note}"[:240], flush=True)
                print(f"         ({name}.{area.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
    print("\n" + table(results))
    return int(any(one.verdict in ("crash", "silent") for one in results))


if __name__ == "__main__":
    sys.exit(main())
