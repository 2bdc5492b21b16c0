"""Runs lmms-eval's command line (`python -m vlmrl.extras.bridge ARGS` for `python -m lmms_eval ARGS`), with this package imported first.

Upstream imports torchvision before it looks for models of others, so next to a CPU-only torch it needs `vlmrl.compat` from the start.
"""

from __future__ import annotations

import runpy

from vlmrl.extras.bridge.compat import require

if __name__ == "__main__":
    require()
    runpy.run_module("lmms_eval", run_name="__main__", alter_sys=True)
