"""Spack: the suite, optionally with PyTorch. **Not tested**: written from its guide (docs/guide/ecosystem.md)."""

import os

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class Mlhpc(PythonPackage):
    """End-to-end training benchmarks for HPC systems: time to train, including data staging, under the
    closed-division rules of MLPerf HPC."""

    homepage = "https://github.com/mlcommons/training_policies/blob/master/hpc_training_rules.adoc"
    # The project has no public home yet: start Spack where its sdist is, with --no-checksum.
    manual_download = True
    url = f"file://{os.getcwd()}/mlhpc-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    variant("pytorch", default=True, description="DeepCAM, and CosmoFlow with training.framework=pytorch")
    variant("torchvision", default=True, description="ResNet-50", when="+pytorch")
    variant(
        "submission", default=True, description="records, checks and scores of runs; any training needs it"
    )
    variant("pages", default=True, description="HTML reports and pictures of samples")
    variant("io", default=True, description="the I/O benchmark's formats HDF5 and JPEG")
    variant("parquet", default=False, description="the I/O benchmark's format Parquet")

    depends_on("c", type="build")
    depends_on("python@3.11:3.13", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")

    with default_args(type="run"):
        depends_on("py-numpy@1.26:")
        depends_on("py-pydantic@2.7:2")
        depends_on("py-rich@13:")
        depends_on("py-google-crc32c@1.5:")
        depends_on("py-isal@1.6:")
        depends_on("py-tomli-w@1:")
        depends_on("py-markupsafe@2:")

        depends_on("py-scipy@1.11:", when="+submission")
        depends_on("py-jinja2@3.1:", when="+pages")
        depends_on("py-altair@5.5:", when="+pages")
        depends_on("py-matplotlib@3.8:", when="+pages")
        # Not in Spack's builtin repository when this was written: install them into the view with pip.
        # depends_on("py-mlperf-logging@4.1.68:", when="+submission")
        # depends_on("py-vl-convert-python@1.7:", when="+pages")

        depends_on("py-torch@2.11:2.13", when="+pytorch")
        depends_on("py-h5py@3.10:", when="+pytorch")
        depends_on("py-safetensors@0.4:", when="+pytorch")
        depends_on("py-torchvision@0.26:", when="+torchvision")
        depends_on("py-lmdb@1.4:", when="+torchvision")
        depends_on("py-pyyaml@6:", when="+io")
        depends_on("py-h5py@3.10:", when="+io")
        depends_on("py-pillow@10:", when="+io")
        depends_on("py-pyarrow@15:", when="+parquet")

    # Importing mlhpc.cosmoflow.tf and others needs frameworks that this package does not install.
    import_modules = ["mlhpc", "mlhpc.benchmarks", "mlhpc.common", "mlhpc.submission"]
