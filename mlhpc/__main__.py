"""Runs the program ``mlhpc`` for ``python -m mlhpc``."""

import os
import sys

if (package := sys.modules["mlhpc"]).__file__ is None:
    # A folder called mlhpc that is not the package, such as a clone in the current folder, was found first on
    # Python's path.
    found = {os.path.dirname(path) for path in package.__path__}
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) not in found]
    del sys.modules["mlhpc"]

from mlhpc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
