"""Writes what cards and the list of data sets say of official files from the cases: `python -m tests.official.statements`."""

from __future__ import annotations

from pathlib import Path

from tests.official.case import MEANING, Case, cases

DATA = Path(__file__).parents[2] / "data"
HEADING = "## Official files"
"""Last section of every card."""
BEGIN, END = "<!-- official files: written by `python -m tests.official.statements` -->", "<!-- end of official files -->"
NOT_MET = "Not met: "


def statement(name: str, of: tuple[Case, ...]) -> str:
    """The text below `HEADING` in the card of a data set that has cases."""
    return "\n".join([f"Met by `tests/official/{name}.py`:", "", *(f"- {_line(case)}" for case in of)])


def _line(case: Case) -> str:
    left_out = ", ".join(f"{count:,} ({reason})" for reason, count in case.skipped.items())
    paths = ", ".join(f"`{path}`" for path in case.files)
    copy = f" (a copy of the file of {case.copied_from})" if case.copied_from else ""
    part = f" {case.part[0].upper()}{case.part[1:]}." if case.part else ""
    return (
        f"`{case.name}`: {case.records:,} read, {case.rows:,} rows{f'; left out: {left_out}' if left_out else ''}. "
        f"{paths} of `{case.repository}`{copy}, version of {case.date}, {case.how}.{part}"
    )


def card_section(text: str) -> str:
    """What a card says below `HEADING`; empty if it has none."""
    return text.partition(f"\n{HEADING}\n")[2].split("\n## ")[0].strip()


def table(met: dict[str, tuple[Case, ...]]) -> str:
    """The part of `data/README.md` between `BEGIN` and `END`."""
    lines = [f"{len(met)} scripts have met official annotations. How:", ""]
    lines += [f"* {how}: {meaning}" for how, meaning in MEANING.items()]
    lines += ["", "| data set | prepared | read | rows | repository | version of | how |", "|---|---|---|---|---|---|---|"]
    for name, of in met.items():
        for case in of:
            part = f" ({case.part})" if case.part else ""
            lines.append(
                f"| [`{name}`]({name}/card.md) | `{case.name}`{part} | {case.records:,} | {case.rows:,} | `{case.repository}` "
                f"| {case.date} | {case.how} |"
            )
    return "\n".join(lines)


def readme_part(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def write() -> list[Path]:
    """Put the statements in their places; the files that changed."""
    met = cases()
    new = {}
    for name, of in met.items():
        path = DATA / name / "card.md"
        before, found, after = path.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")
        if found and "\n## " in after:
            raise ValueError(f"{path}: '{HEADING}' is not the last section")
        new[path] = f"{before.rstrip()}\n\n{HEADING}\n\n{statement(name, of)}\n"
    readme = DATA / "README.md"
    head, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    new[readme] = f"{head}{BEGIN}\n\n{table(met)}\n\n{END}{rest.partition(END)[2]}"
    changed = [path for path, text in new.items() if path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(new[path], encoding="utf-8")
    return changed


if __name__ == "__main__":
    print("\n".join(str(path) for path in write()) or "nothing to change")
