"""The promises of `vlmrl check`, on a tiny model of every configuration.

    python -m benchmarks.learning.families
    python -m benchmarks.learning.families --only gemma3,lfm2_vl --write /tmp/families.md      # a trial

Each configuration in turn: a random model of the real classes, all promises that need neither weights nor vLLM. Reports are kept beside the
page and taken from there where versions are the same, so a run that was stopped goes on. Writes docs/benchmarks/families.md and .json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

PAGE = ROOT / "docs" / "benchmarks" / "families.md"
VERSIONS = ("transformers", "torch")
COLUMNS = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13", "P15", "P16", "P17")
NUMBERS = ("P4", "P6", "P7", "P8", "P10", "P16", "P17")
"""Promises whose largest difference is shown."""


def tried(name: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The report of a configuration. `before`: one of the same versions, of which only the promises are tried that it lacks."""
    import vlmrl  # noqa: F401 (torchvision next to a CPU-only torch)
    from vlmrl.extras.families.conform.run import conform
    from vlmrl.extras.families.conform.subject import open_subject
    from vlmrl.extras.families.tiny import write_tiny
    from vlmrl.policy.load import quiet_transformers

    quiet_transformers()
    if name == "smolvlm":
        import transformers.models.smolvlm.processing_smolvlm as of_smolvlm

        module: Any = of_smolvlm
        module.num2words = getattr(module, "num2words", None) or (lambda number, **_: str(number))
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(name, Path(folder))
        lacking = [] if before is None else sorted(set(COLUMNS) - set(before["promises"]))
        found = conform(open_subject(folder), name, lacking).json()
    if before is None:
        return found
    promises = {**before["promises"], **{key: found["promises"][key] for key in lacking}}
    return {**before, "promises": promises, "checks": [*before["checks"], *found["checks"]]}


def versions() -> dict[str, str]:
    """Of what decides the numbers."""
    return {name: importlib.metadata.version(name) for name in VERSIONS}


def cell(report: Mapping[str, Any], key: str) -> str:
    """What a promise came to: `-` nothing to try, `no`, or `yes` with the largest difference."""
    if key not in report["promises"]:
        return "not run"
    mine = [c for c in report["checks"] if c["promise"] == key and not c["control"]]
    if not mine:
        return "-"
    if report["promises"][key]["kept"] is not True:
        return "**no**"
    return f"{max(c['value'] for c in mine):.0e}" if key in NUMBERS else "yes"


def rendered(reports: Sequence[Mapping[str, Any]], failed: Mapping[str, str], missing: Sequence[str] = ()) -> str:
    """The page. `missing`: configurations that have not been tried with these versions."""
    tried_with = ", ".join(f"{name} {version}" for name, version in (reports[0]["versions"] if reports else versions()).items())
    lines = ["# Model families", ""]
    lines += [
        f"`vlmrl check NAME --tiny` of every configuration, on a CPU; {tried_with}. Random weights of small size in the real classes,"
    ]
    lines += ["float64 (P16: float32). A number is the largest difference of log-probs, logits or relative gradients; `-`: nothing to try."]
    lines += ["SmolVLM's processor writes numerals where the package num2words is missing (the extra `smolvlm` brings it).", ""]
    lines += ["| configuration | " + " | ".join(COLUMNS) + " | layouts |", "|---" * (len(COLUMNS) + 2) + "|"]
    for report in reports:
        cells = [cell(report, key) for key in COLUMNS]
        lines.append(f"| {report['name']} | " + " | ".join(cells) + f" | {', '.join(report['layouts']) or 'none'} |")
    lines += ["", "P14 needs vLLM: `vlmrl check MODEL --engine vllm`.", "", "## Not admitted", ""]
    wrong = [
        f"* {report['name']}: {c['promise']} {c['case']}, {c['what']}: {c['value']} (limit {c['limit']:.0e}) {c['note']}".rstrip()
        for report in reports
        for c in report["checks"]
        if not c["ok"]
    ]
    wrong += [f"* {name}: {why}" for name, why in failed.items()]
    left = ["", "## Not run", "", f"With these versions: {', '.join(missing)}."] if missing else []
    return "\n".join([*lines, *(wrong or ["None of those that ran."]), *left]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    from vlmrl.errors import ConfigError
    from vlmrl.extras.families.tiny import TINY

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="configurations, with commas")
    parser.add_argument("--write", type=Path, default=PAGE, help="the page; its numbers go beside it as .json")
    given = parser.parse_args(arguments)
    numbers = given.write.with_suffix(".json")
    kept: dict[str, Any] = json.loads(numbers.read_text(encoding="utf-8")) if numbers.is_file() else {}
    kept = {name: report for name, report in kept.items() if report["versions"] == versions()}
    failed: dict[str, str] = {}
    for name in [one for one in given.only.split(",") if one] or list(TINY):
        if name not in kept or set(COLUMNS) - set(kept[name]["promises"]):
            try:
                kept[name] = tried(name, kept.get(name))
            except ConfigError as error:
                failed[name] = str(error)
                continue
            lines = (f"{json.dumps(one)}: {json.dumps(report)}" for one, report in kept.items())
            numbers.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(name, ", ".join(kept[name]["layouts"]), flush=True)
    ordered = [kept[name] for name in TINY if name in kept]
    given.write.write_text(rendered(ordered, failed, [n for n in TINY if n not in kept and n not in failed]), encoding="utf-8")


if __name__ == "__main__":
    main()
