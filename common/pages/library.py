"""The scripts that draw charts in a page: vega, vega-lite and vega-embed, bundled by vl-convert."""

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
    """Begin to bundle the scripts for a page that is rendered later, since it takes as long as drawing the charts.
    It runs in a separate process because vl-convert holds the interpreter lock."""
    process = Popen([sys.executable, "-c", _BUNDLE], stdout=PIPE, stderr=DEVNULL)
    atexit.register(process.kill)
    return process


@cache
def script() -> str:
    """The bundled scripts. Raises UserError if they cannot be bundled."""
    process = begin()
    bundle, _ = process.communicate()
    if process.returncode:
        raise UserError(
            f"vl-convert cannot bundle the scripts of charts (status {process.returncode}): reinstall it"
        )
    return bundle.decode().replace("</script", "<\\/script")
