"""A benchmark in a package of its own: eight noisy blobs of points, classified by a linear model."""

from mlhpc.benchmarks.registry import Benchmark, DataTool, Framework

BLOBS = Benchmark(
    name="blobs",
    title="Blobs",
    definition="mlhpc_blobs:blobs.toml",
    settings="mlhpc_blobs.settings:Blobs",
    frameworks={"numpy": Framework("mlhpc_blobs.train", collectives="torch", packages=("numpy",))},
    make_data=DataTool("mlhpc_blobs.data:make"),
)
