"""A plug-in that measures what keeping groups costs a run: name it in `plugins`, and set VLMRL_VIEW_COST to the file that it writes.

Processor seconds of the training thread inside `GroupRecorder`, those of the thread that writes, and those of the whole process since the
stage was opened. Processor time, because wall time on a machine that does other things says nothing about parts of a hundredth.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vlmrl.extras.pages.recorder import GroupRecorder

spent = {"step": 0.0, "thread": 0.0, "calls": 0}
began = [0.0, 0.0]


def timed(name: str, where: str) -> None:
    """Add the time of a method to `spent`."""
    inner = getattr(GroupRecorder, name)

    def call(self: GroupRecorder, *args: Any, **more: Any) -> Any:
        before = time.thread_time()
        try:
            return inner(self, *args, **more)
        finally:
            spent[where] += time.thread_time() - before
            spent["calls"] += name == "choose"

    setattr(GroupRecorder, name, call)


def opened(self: GroupRecorder, *args: Any, **more: Any) -> None:
    """`GroupRecorder.__init__`, and the clocks are started."""
    began[:] = [time.process_time(), time.perf_counter()]
    _open(self, *args, **more)


def closed(self: GroupRecorder) -> None:
    """`GroupRecorder.close`, and the result is written."""
    _close(self)
    whole = {"process": time.process_time() - began[0], "wall": time.perf_counter() - began[1]}
    Path(os.environ["VLMRL_VIEW_COST"]).write_text(json.dumps(spent | whole))


_open, _close = GroupRecorder.__init__, GroupRecorder.close
for method in ("choose", "see", "write", "settle"):
    timed(method, "step")
timed("_write", "thread")
GroupRecorder.__init__, GroupRecorder.close = opened, closed  # type: ignore[method-assign]
