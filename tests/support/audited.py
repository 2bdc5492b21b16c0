"""A plug-in of recipes that writes down what a run trains (`ahead.audit`), in the folder that a variable names."""

import os
from pathlib import Path

from tests.support import ahead

ahead.audit(Path(os.environ[ahead.FOLDER]))
