"""A benchmark in a package of its own: a 3-D U-Net that segments generated fractals by their class."""

from mlhpc.benchmarks.registry import Benchmark, DataTool, Framework

UNET3D = Benchmark(
    name="unet3d",
    title="3-D U-Net",
    definition="mlhpc_unet3d:unet3d.toml",
    settings="mlhpc_unet3d.settings:UNet3D",
    frameworks={"pytorch": Framework("mlhpc_unet3d.train", collectives="torch", packages=("torch",))},
    make_data=DataTool("mlhpc_unet3d.data:make"),
    check="mlhpc_unet3d.settings:slab_plan",
)
