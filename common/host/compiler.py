"""What torch.compile needs on the machine: a compiler and Python's headers."""

import os
import shutil
import sysconfig
from pathlib import Path

from mlhpc.errors import UserError


def require_compiler(gpu: bool) -> None:
    """Raise UserError if torch.compile could not build its code: C++ code for a processor, or, for a ``gpu``, the
    functions in C that launch Triton's kernels. Both kinds include Python's headers."""
    variable, candidates = ("CXX", ("g++",)) if not gpu else ("CC", ("gcc", "clang"))
    names = (named,) if (named := os.environ.get(variable)) else candidates
    if not any(shutil.which(name.split()[0]) for name in names):
        raise UserError(
            f"training.compile needs a compiler, and {' or '.join(names)} was not found; install "
            f"one or name it in {variable}, or set training.compile=false"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise UserError(
            f"training.compile needs Python's headers, and {header} was not found; install python3-dev "
            "(python3-devel on RPM systems), or set training.compile=false"
        )
