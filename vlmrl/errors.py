"""Every error a user can meet, each with the exit code that the command line returns for it.

Messages say what is wrong, where (row, key or file), and how to fix it. The codes follow sysexits where one fits.
"""

from __future__ import annotations


class VlmrlError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what `vlmrl` exits with."""

    exit_code = 70


class ConfigError(VlmrlError):
    """The recipe or the command line is wrong. `problems` holds every problem found, not only the first."""

    exit_code = 64

    def __init__(self, problems: list[str] | str):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(VlmrlError):
    """Too many bad rows or media, or none left to train on."""

    exit_code = 65


class MediaError(VlmrlError):
    """One medium cannot be used. `reason` is a short code (`missing`, `corrupt`, `truncated`, ...) that is counted.

    Raised inside the media border only; callers turn it into a quarantined row or a skipped group.
    """

    exit_code = 65

    def __init__(self, reason: str, message: str):
        self.reason = reason
        super().__init__(f"{reason}: {message}")


class RowError(VlmrlError):
    """One row cannot be used. Same contract as `MediaError`."""

    exit_code = 65

    def __init__(self, reason: str, message: str):
        self.reason = reason
        super().__init__(f"{reason}: {message}")


class RemoteError(VlmrlError):
    """A remote reward stayed down, or all rollout servers."""

    exit_code = 69


class NumericsError(VlmrlError):
    """Loss or gradient is not finite, or nothing can be learned from any batch."""

    exit_code = 70


class EngineError(VlmrlError):
    """The rollout engine does not hold the trainer's weights, or does not answer as they do (`docs/rollout.md`)."""

    exit_code = 70


class EvaluationError(VlmrlError):
    """A run is finished and its weights are whole, but evaluations that the recipe asks for failed, and their records are missing."""

    exit_code = 70


class RunBusyError(VlmrlError):
    """The run directory is in use, or holds another run."""

    exit_code = 73


class StorageError(VlmrlError):
    """A durable write failed."""

    exit_code = 74


class Preempted(VlmrlError):
    """Stopped by a signal after saving; the same command resumes."""

    exit_code = 75


class CheckpointError(VlmrlError):
    """What a run goes on from is damaged, of another recipe or of another version: a checkpoint, an export, a journal; or its model, rows
    or media are not those that it was begun with (`docs/resume.md`)."""

    exit_code = 76
