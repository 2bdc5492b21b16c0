"""A program whose job ends as its side says: what tests of measuring start."""

import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    job = json.loads(sys.argv[2])
    if job["side"] == "fails":
        sys.exit("no such thing")
    if job["side"] == "killed":
        os.kill(os.getpid(), 9)
    if job["side"] == "slow":
        time.sleep(60)
    Path(sys.argv[4]).write_text(json.dumps({"seconds": [job["cell"]["group"]]}))
