"""Answer types, one file each. Every module here is imported with the package, so that adding an answer type is adding a file."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
