"""The environment, with what OSWorld's does where something goes wrong: it goes on."""

from __future__ import annotations

import base64
from typing import Any

from desktop_env.controllers.python import PythonController, log  # pyright: ignore[reportMissingImports]
from desktop_env.controllers.setup import SetupController  # pyright: ignore[reportMissingImports]

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAQAAAACCAIAAADwyuo0AAAAEElEQVR4nGP8z4AATEhsBgAZNQEDGy9LEgAAAABJRU5ErkJggg==")
"""Red, 4 x 2 pixels."""


class DesktopEnv:
    """One machine."""

    def __init__(
        self,
        provider_name: str = "vmware",
        region: str | None = None,
        path_to_vm: str | None = None,
        snapshot_name: str = "init_state",
        action_space: str = "pyautogui",
        cache_dir: str = "cache",
        screen_size: tuple[int, int] = (1920, 1080),
        headless: bool = False,
        require_a11y_tree: bool = True,
        require_terminal: bool = False,
        os_type: str = "Ubuntu",
        enable_proxy: bool = False,
        client_password: str = "",
    ):
        log("open", provider_name, snapshot_name, action_space, list(screen_size), headless, require_a11y_tree)
        self.controller, self.setup_controller = PythonController("vm", 5000), SetupController("vm", 5000)
        self.action_history: list[str] = []

    def reset(self, task_config: dict[str, Any] | None = None, seed: int | None = None, options: Any = None) -> dict[str, Any]:
        """Set up a task; a setup that fails is tried five times, and then forgotten."""
        assert task_config is not None
        self.instruction, self.evaluator = task_config["instruction"], task_config["evaluator"]
        self.wrong = self.controller.wrong = self.setup_controller.wrong = self.evaluator.get("options", "")
        self.action_history.clear()
        for _ in range(5):
            if self.setup_controller.setup(task_config["config"], False):
                break
        return self._get_obs()

    def _get_obs(self) -> dict[str, Any]:
        shown = None if self.wrong == "screenshot" else PNG
        return {"screenshot": shown, "accessibility_tree": None, "terminal": None, "instruction": self.instruction}

    def step(self, action: str, pause: float = 2) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Act; WAIT, FAIL and DONE send nothing."""
        self.action_history.append(action)
        log("step", action, pause)
        if action not in ("WAIT", "FAIL", "DONE"):
            self.controller.execute_python_command(action)
        return self._get_obs(), 0, action in ("FAIL", "DONE"), {}

    def evaluate(self) -> float:
        """As theirs for the function `infeasible`; 0.5 for every other."""
        log("evaluate")
        if self.evaluator["func"] == "infeasible":
            return float(self.action_history[-1] == "FAIL")
        return 0.5

    def close(self) -> None:
        """Give the machine back."""
        log("close")
