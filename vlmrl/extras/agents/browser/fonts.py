"""What decides how a browser draws text: the fonts that it takes, and the pixels of a sample. Other fonts, other screens."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.process import Browser

FAMILIES = ("Arial", "Helvetica", "Verdana", "Times New Roman", "Courier New", "sans-serif", "serif", "monospace")
TEXT = "Hamburgefonstiv 0123456789 \u2192\u00e9\u4e2d"
_URL = "http://fonts.invalid/"


@functools.cache
def drawn_with(browser: Browser) -> str:
    """Names of the fonts that `FAMILIES` come to, and the hash of a sample's pixels."""
    lines = "".join(f'<p style="margin:0;font:12px {family!r}">{TEXT} <b>bold</b> <i>italic</i></p>' for family in FAMILIES)
    fields = '<input value="field"><button>button</button><select><option>option</option></select><textarea>area</textarea>'
    sample = f'<!doctype html><meta charset="utf-8"><body style="margin:0">{lines}{fields}'.encode()
    page = Page(browser, lambda url: (sample, "text/html; charset=utf-8") if url == _URL else None, width=400, height=240)
    try:
        page.open(_URL)
        pixels = hashlib.sha256(page.screenshot()).hexdigest()[:16]
        for part in ("DOM", "CSS"):
            page.call(f"{part}.enable")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        nodes = page.call("DOM.querySelectorAll", {"nodeId": root, "selector": "body, p, p *, input, button, select, textarea"})["nodeIds"]
        found: set[str] = set()
        for node in nodes:
            used: list[dict[str, Any]] = page.call("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
            found |= {one["familyName"] for one in used}
    finally:
        page.close()
    return f"{', '.join(sorted(found))}; sample {pixels}"
