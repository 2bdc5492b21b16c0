"""Commands, as they reach the machine."""

from __future__ import annotations

import json
import os
from typing import Any


def log(*what: object) -> None:
    """One line of what was asked for."""
    with open(os.environ["DESKTOP_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


class PythonController:
    """Sends commands."""

    def __init__(self, vm_ip: str, server_port: int):
        self.wrong = ""

    def execute_python_command(self, command: str) -> dict[str, Any] | None:
        """As theirs: None where the machine was not reached, else what became of it."""
        log("execute", command)
        if self.wrong == "unreached":
            return None
        return {"status": "success", "output": "", "error": "", "returncode": 1 if self.wrong == "refused" else 0}
