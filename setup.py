"""The compiled parts, without which encoded data sets are read by NumPy and CosmoFlow's gradients on a CPU are
computed by PyTorch, both slowly. All else is in setup.cfg."""

import os

from setuptools import Extension, setup

COMPILED = [
    Extension(
        "mlhpc.common.data.codecs._decode",
        ["common/data/codecs/_decode.c"],
        # No fused multiply-add: all decoders give the same bits.
        extra_compile_args=["-O3", "-ffp-contract=off"],
        optional=True,  # where there is no compiler
    ),
    Extension(
        "mlhpc.cosmoflow.cpu._pooled",
        ["cosmoflow/cpu/_pooled.c"],
        # Floating-point exceptions are never looked at, and vectors only passed between inlined functions.
        extra_compile_args=["-O3", "-fno-trapping-math", "-Wno-psabi"],
        optional=True,
    ),
]

# environment.sh sets it for the demo, which uses neither.
setup(ext_modules=[] if os.environ.get("MLHPC_WITHOUT_C") else COMPILED)
