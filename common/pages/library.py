"""The scripts that draw charts in a page: vega, vega-lite and vega-embed as one, from vl-convert. Bundling them
takes as long as all other work for a page, so the bundle is kept in the user's cache folder."""

import atexit
import os
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from mlhpc.common.files.atomic import write_bytes
from mlhpc.common.files.filesystem import cache_folder
from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError

_BUNDLE = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""


@cache
def begin() -> str | Popen[bytes]:
    """Return the scripts if they are in the cache folder. Otherwise start to bundle them, in a separate process
    because vl-convert does not release the interpreter lock, and return that process; ``script`` waits for it."""
    with suppress(OSError), open(open_regular(_kept(), os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        digest, _, scripts = file.read().partition(b"\n")
        # Accept only a complete file that no other user could have written, since it becomes part of pages.
        own = about.st_uid == os.geteuid() and about.st_nlink == 1 and not about.st_mode & 0o022
        if own and digest == sha256(scripts).hexdigest().encode():
            return scripts.decode()
    process = Popen([sys.executable, "-c", _BUNDLE], stdout=PIPE, stderr=DEVNULL)
    atexit.register(process.kill)
    return process


def _kept() -> Path:
    import vl_convert

    return cache_folder() / f"charts-{vars(vl_convert)['__version__']}.js"


@cache
def script() -> str:
    """The bundled scripts. Raises UserError if they cannot be bundled."""
    begun = begin()
    if isinstance(begun, str):
        return begun
    bundle, _ = begun.communicate()
    if begun.returncode:
        raise UserError(
            f"vl-convert cannot bundle the scripts of charts (status {begun.returncode}): reinstall it"
        )
    scripts = bundle.replace(b"</script", b"<\\/script")
    with suppress(OSError):  # if the cache cannot be written, scripts are bundled for each page
        _kept().parent.mkdir(parents=True, exist_ok=True)
        write_bytes(_kept(), sha256(scripts).hexdigest().encode() + b"\n" + scripts)
    return scripts.decode()
