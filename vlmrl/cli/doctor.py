"""`vlmrl check` without an argument: what this machine has and lacks."""

from __future__ import annotations

from vlmrl.cli.names import extra
from vlmrl.errors import VlmrlError


def doctor(model: str | None = None) -> None:
    """Print versions, devices, video decoders and optional parts of this machine; with a folder of a model, what its files say.

    Raises:
        VlmrlError: something that is needed is missing.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vlmrl.doctor import COLOURS, Finding, examine, examine_model

    console = Console(stderr=True)
    with console.status("importing packages and asking devices ..."):
        findings = [*examine(), *(examine_model(model) if model is not None else ())]
    new = [
        f
        for f in extra("vlmrl.extras.bridge.compat.findings")()
        if f.status == "problem" or f.item not in {known.item for known in findings}
    ]
    findings += [Finding(area="lmms-eval", item=f.item, found=f.found, status=f.status, advice=f.advice) for f in new]
    table = Table()
    for name in ("area", "item", "found", "status"):
        table.add_column(name, no_wrap=name != "found", overflow="fold")
    for f in findings:
        table.add_row(Text(f.area), Text(f.item), Text(f.found), Text(f.status, style=COLOURS[f.status]))
    Console().print(table, *(Text(f"{f.item}: {f.advice}", style=COLOURS[f.status]) for f in findings if f.advice), sep="\n")
    wrong = [f"{f.item}: {f.advice}" for f in findings if f.status == "problem"]
    if wrong:
        raise VlmrlError("; ".join(wrong))
