"""The commands on performance models: predict, profile."""

import argparse
from pathlib import Path

from mlhpc.commands.parser import NAMES, Commands, add_benchmark, add_command, add_machine, add_set, positives


def add(commands: Commands) -> None:
    predict = add_command(
        commands,
        "predict",
        _predict,
        "predict what a run costs on a machine, before it runs",
    )
    predict.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help=NAMES)
    predict.add_argument("--preset", default="closed", help="a named set of settings (default: closed)")
    add_set(predict)
    add_machine(predict, "a machine of the suite, or a machine file")
    predict.add_count("--nodes", "default: a table over 1, 2, 4, … nodes")
    predict.add_count("--batch", "global batch size (default: the preset's)")
    predict.add_argument(
        "--against",
        type=Path,
        metavar="FILE.csv",
        help="show the errors of predictions for the measured sets in this file, or 'published'",
    )
    predict.add_flag("--what-if", "also predict the time with each machine figure doubled")
    predict.add_flag("--json", "print JSON")
    predict.add_out_file(".html", "write a page with charts")

    profile = add_command(
        commands, "profile", "mlhpc.perf.profile.command:profile", "profile a training step"
    )
    add_benchmark(profile)
    profile.set_defaults(preset=None)  # the command chooses smoke, or closed with --device-model
    profile.add_count("--batch", "samples per rank and backward pass (default: the preset's)")
    profile.add_argument(
        "--batches",
        type=positives,
        metavar="A,B",
        help="also measure the parts of a step at each of these batch sizes",
    )
    profile.add_count("--ranks", "number of local ranks", default=0)
    profile.add_argument("--data", type=Path, help="read this data set (default: zeros in memory)")
    profile.add_count("--steps", "steps to measure, after one warm-up step (default: 5)", default=5)
    add_machine(profile, "show efficiency relative to the peaks of this machine")
    profile.add_argument(
        "--device-model",
        metavar="NAME|FILE",
        help="count kernel launches and their minimum time on this device (h100, mi300x, …); "
        "changes the default preset to 'closed'",
    )
    profile.add_argument(
        "--counters",
        type=Path,
        metavar="FILE",
        help="counters of this step, from perf stat -j, ncu or rocprofv3 (CSV)",
    )
    profile.add_count("--counted-steps", "number of steps that a perf file covers")
    profile.add_argument("--trace", type=Path, metavar="PATH", help="write the framework's trace here")
    profile.add_flag("--json", "print JSON")
    profile.add_out_file(".html", "write a page with charts")


def _predict(options: argparse.Namespace) -> int:
    if options.against is not None:
        from mlhpc.perf.against import against

        return against(options)
    from mlhpc.perf.prediction.command import predict

    return predict(options)
