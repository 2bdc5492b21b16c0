"""Pages: who writes one of a kind, and how one is made of its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vlmrl.registry import Catalogue

TRUTH_COLOUR = "#3f8467"

PAGES: Catalogue[Callable[..., Any]] = Catalogue("page")
"""What writes a page, by what it shows:

    run           (folder of a run or of an evaluation) -> path: its report
    questions     (folder, piece of the tokenizer, prompts, store): keeps for it what is asked, once for each task
    comparison    (`FolderComparison`, path) -> path
    check         (budget=prompt tokens): `run.audit.RowsPage`
    answer        (path of a picture, sample, its first medium, answer) -> `Marks`
    replay        (records of episodes) -> path
"""


def render_page(module: str, template: str, values: Mapping[str, Any]) -> str:
    """Make one self-contained HTML file, as text; all values are escaped. A value that the template lacks is an error of the caller.

    Args:
        module: beside it lies the folder `templates` with the template; what that includes may also lie in the one beside this file.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(module), PackageLoader("vlmrl.evals")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
