"""The compiled part: decoders without which encoded data sets are read by NumPy, slowly. All else is in
setup.cfg."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "mlhpc.common.data.codecs._decode",
            ["common/data/codecs/_decode.c"],
            # No fused multiply-add: all decoders give the same bits.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,  # where there is no compiler
        )
    ]
)
