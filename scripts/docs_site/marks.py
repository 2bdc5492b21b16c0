"""The text of a page as the site needs it: paths of pages in code marks become links, and fences keep only their language.

The pages are written for GitHub and for a terminal: `docs/plan.md` names a page, and a fence says behind its language how a test checks it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping

_FENCE = re.compile(r"^( *)```(.*)$")
_PAGE_MARK = re.compile(r"(?<![`\[])`([\w./-]+?(?:\.md|/))`(?![`\]])")
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_LISTED = re.compile(r"([*-]|\d+\.) ")


def title_of(text: str, otherwise: str) -> str:
    """The first heading of a page, without code marks."""
    found = re.search(r"^# (.+)$", text, re.M)
    return found[1].replace("`", "").strip() if found else otherwise


def rendered(text: str, *, source: str, page: str, places: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """The text of a page for the site.

    Args:
        source: path of the file in the repository (`docs/plan.md`), which relative links of the text start from.
        page: path of the page in the site (`plan.md`).
        places: path of a file or folder in the repository -> page in the site.
        titles: page -> its title.
    """
    out: list[str] = []
    fenced, listed = False, False
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence is not None:
            fenced = not fenced
            line = f"{fence[1]}```{_language(fence[2].strip())}" if fenced else line
        elif not fenced:
            line = _linked(line, source=source, page=page, places=places, titles=titles)
            if line and not line.startswith(" "):
                listed = _LISTED.match(line) is not None
        # Python-Markdown wants blocks within a list item four columns in, and two are written.
        out.append(f"  {line}" if listed and re.match(r" {2}(?! )", line) else _deeper(line, fenced and listed))
    return "\n".join(out) + "\n"


def _language(behind: str) -> str:
    """What stays behind a fence's marks: the language, or attributes of a generated page."""
    return f" {behind}" if behind.startswith("{") else (behind.split() or ["text"])[0]


def _deeper(line: str, inside: bool) -> str:
    return f"  {line}" if inside and line.startswith("  ") else line


def _linked(line: str, *, source: str, page: str, places: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """A line with its links as those of the site, and with paths of pages as links."""

    def moved(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        path, _, anchor = target.partition("#")
        if not path or "://" in path:
            return found[0]
        known = places.get(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        return found[0] if known is None else f"{label}({_from(page, known)}{'#' + anchor if anchor else ''})"

    def named(found: re.Match[str]) -> str:
        known = places.get(found[1].rstrip("/"))
        return found[0] if known is None or known == page else f"[{titles[known]}]({_from(page, known)})"

    return _PAGE_MARK.sub(named, _LINK.sub(moved, line))


def _from(page: str, target: str) -> str:
    return os.path.relpath(target, posixpath.dirname(page) or ".")


# ---- pieces of generated pages ------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text of a docstring as Markdown: what stands in code marks stays, nothing else is markup."""
    parts = re.split(r"(`[^`\n]+`)", text)
    return "".join(part if n % 2 else re.sub(r"([\\*_\[\]#])", r"\\\1", escaped(part)) for n, part in enumerate(parts))


def docstring(text: str) -> list[str]:
    """Text of the code as it stands there, with its formulas; long lines are folded."""
    return ["``` { .text .docstring }", *text.strip().splitlines(), "```", ""]


def cell(text: str) -> str:
    """Text in a cell of a table, on one line; a bar within code marks is shown as one."""
    joined = " ".join(text.split())
    parts = re.split(r"(`[^`\n]+`)", joined)
    return "".join(_coded(part) if n % 2 else part.replace("\\|", "|").replace("|", "&#124;") for n, part in enumerate(parts))


def _coded(mark: str) -> str:
    return mark if "|" not in mark else f"<code>{escaped(mark[1:-1])}</code>".replace("|", "&#124;")


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table; cells are Markdown."""
    return ["| " + " | ".join(one) + " |" for one in (header, ("---",) * len(header), *(tuple(map(cell, row)) for row in rows))]
