"""Plug-in of the claims benchmark: `reward_shaping` `claims_recorder` (`recorder.py`).

Importing it registers the method, so only recipes of the benchmark name it.
"""

from benchmarks.claims.recorder import claims_recorder
from vlmrl.algo.registries import reward_shaping

reward_shaping("claims_recorder", needs=("progress",), monotone=True)(claims_recorder)
