"""Renders a page from its template: one self-contained HTML file, in which all values are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """A page as text. A value that the template wants and that is not there is an error of the caller.

    Args:
        template: name of a file in `evals/pages/templates`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("vlmrl.evals.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(**values)
