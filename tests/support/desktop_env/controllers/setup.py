"""What makes a machine ready for a task."""

from __future__ import annotations

from typing import Any

from desktop_env.controllers.python import log  # pyright: ignore[reportMissingImports]


class SetupController:
    """Does nothing."""

    def __init__(self, vm_ip: str, server_port: int):
        self.wrong = ""

    def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:
        """As theirs: False where the machine cannot be reached."""
        log("setup", config)
        return self.wrong != "setup"
