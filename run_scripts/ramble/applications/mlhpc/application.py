"""Ramble: a run per experiment. **Not tested**: written by Ramble's documentation (docs/guide/ecosystem.md)."""

from ramble.appkit import *


class Mlhpc(ExecutableApplication):
    """End-to-end training benchmarks: time to train, including data staging."""

    name = "mlhpc"

    tags("benchmark-app", "benchmark", "machine-learning", "mlperf-hpc")

    with when("package_manager_family=spack"):
        software_spec("mlhpc", pkg_spec="mlhpc@0.1.0 +pytorch")
        required_package("mlhpc")

    executable(
        "data",
        "mlhpc data make {workload_name} --preset {preset} {settings} --out {data}",
        use_mpi=False,
    )
    executable(
        "run",
        "mlhpc run {workload_name} --preset {preset} {settings} --data {data} --stage {stage} --out {out}",
        use_mpi=True,
    )
    executable("check", "mlhpc check {out}", use_mpi=False, output_capture=OUTPUT_CAPTURE.ALL)
    executable("report", "mlhpc report {out}", use_mpi=False, output_capture=OUTPUT_CAPTURE.ALL)

    BENCHMARKS = ["cosmoflow", "deepcam", "resnet50"]
    for benchmark in BENCHMARKS:
        workload(benchmark, executables=["data", "run", "check", "report"])

    workload_variable(
        "preset", default="smoke", description="mlhpc presets BENCHMARK lists them", workloads=BENCHMARKS
    )
    workload_variable(
        "settings", default="", description="changes: --set key=value ...", workloads=BENCHMARKS
    )
    workload_variable(
        "data",
        default="{experiment_run_dir}/data",
        description="the data set; kept if it is complete",
        workloads=BENCHMARKS,
    )
    workload_variable(
        "stage",
        default="/tmp/mlhpc-{experiment_name}",
        description="node-local folder to copy the data set to, inside the timed region",
        workloads=BENCHMARKS,
    )
    workload_variable(
        "out", default="{experiment_run_dir}/out", description="results, a new folder", workloads=BENCHMARKS
    )

    # result.json is written with one key per line.
    RESULT = "{experiment_run_dir}/out/result.json"
    for fom, units in (
        ("time_to_train_s", "s"),
        ("time_to_train_without_staging_s", "s"),
        ("global_batch_size", "samples"),
        ("ranks", ""),
        ("nodes", ""),
    ):
        figure_of_merit(
            fom,
            log_file=RESULT,
            fom_regex=rf'\s*"{fom}": (?P<value>[0-9.]+)',
            group_name="value",
            units=units,
        )

    success_criteria("target", mode="string", match=r'.*"status": "success"', file=RESULT)
