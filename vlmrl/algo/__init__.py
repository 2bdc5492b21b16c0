"""Pure tensor methods. Importing this package imports all of its modules, which registers their methods."""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
