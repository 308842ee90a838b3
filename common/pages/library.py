"""The scripts that draw charts in a page: vega, vega-lite and vega-embed as one, from vl-convert."""

import atexit
import sys
from functools import cache
from subprocess import DEVNULL, PIPE, Popen

from mlhpc.errors import UserError

_BUNDLE = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""


@cache
def begin() -> Popen[bytes]:
    """Begin to bundle the scripts, for a page that is rendered later: it takes as long as drawing the charts. In a
    process of its own, since vl-convert keeps the lock of the interpreter."""
    process = Popen([sys.executable, "-c", _BUNDLE], stdout=PIPE, stderr=DEVNULL)
    atexit.register(process.kill)
    return process


@cache
def script() -> str:
    """The scripts as one. Raises UserError if they cannot be bundled."""
    process = begin()
    bundle, _ = process.communicate()
    if process.returncode:
        raise UserError(
            f"vl-convert cannot bundle the scripts of charts (status {process.returncode}): reinstall it"
        )
    return bundle.decode().replace("</script", "<\\/script")
