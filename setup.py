"""What setup.cfg cannot say: the compiled parts, without which samples are decoded and normalised by NumPy and
CosmoFlow's gradients on a CPU computed by PyTorch, both slowly; and the files that lie outside the packages."""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

COMPILED = [
    Extension(
        "mlhpc.common.data.codecs._decode",
        ["src/mlhpc/common/data/codecs/_decode.c"],
        # No fused multiply-add: all decoders give the same bits.
        extra_compile_args=["-O3", "-ffp-contract=off"],
        optional=True,  # where there is no compiler
    ),
    Extension("mlhpc.common.formats._crc32c", ["src/mlhpc/common/formats/_crc32c.c"], optional=True),
    *(
        Extension(
            f"mlhpc.cosmoflow.cpu._pooled{processor}",
            ["src/mlhpc/cosmoflow/cpu/_pooled.c"],
            # Floating-point exceptions are never looked at, and vectors only passed between inlined functions.
            extra_compile_args=["-O3", "-fno-trapping-math", "-Wno-psabi", *options],
            optional=True,  # other processors have no such options
        )
        for processor, options in (
            ("", []),
            ("_avx2", ["-march=x86-64-v3"]),
            ("_avx512", ["-march=x86-64-v4"]),
        )
    ),
]
# For those who install a wheel (mlhpc scripts): no code of the suite, and no evidence. The site files by
# name, since that folder may hold a centre's own.
SITES = ("a64fx", "aurora", "frontier", "local", "perlmutter", "slurm", "summit")
SHIPPED = [
    *(
        f"docs/{name}"
        for name in (
            "papers.md",
            "start/*.md",
            "guide/*.md",
            "reference/*.md",
            "reference/api/*.md",
            "images/*",
        )
    ),
    *(
        f"run_scripts/{name}"
        for name in ("*.sh", "*.sbatch", "*.lsf", "*.pbs", "containers/*", "reframe/*.py")
    ),
    *(f"run_scripts/{name}" for name in ("easybuild/*.eb", "ramble/**/*.*", "spack/**/*.*")),
    *(f"run_scripts/sites/{site}.sh" for site in SITES),
]

if not Path("src/mlhpc/common/__init__.py").is_file():
    raise SystemExit(
        "src/mlhpc/common is no link to common: unpack or clone where symbolic links can be made"
    )


class BuildInTurn(build_ext):
    """Never in parallel: the variants of a source share the name of an object file."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = False


class BuildWithScripts(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in (file for pattern in SHIPPED for file in Path().glob(pattern)):
                if "__pycache__" not in file.parts:
                    target = Path(self.build_lib, "mlhpc", file)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self.copy_file(str(file), str(target))


setup(
    # environment.sh sets it for the demo, which uses neither.
    ext_modules=[] if os.environ.get("MLHPC_WITHOUT_C") else COMPILED,
    cmdclass={"build_ext": BuildInTurn, "build_py": BuildWithScripts},
)
