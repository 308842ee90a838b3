"""The commands on performance models: predict, profile."""

from pathlib import Path

from mlhpc.commands.parser import (
    NAMES,
    Commands,
    add_benchmark,
    add_command,
    file_named,
    positive,
    positives,
)


def add(commands: Commands) -> None:
    predict = add_command(
        commands,
        "predict",
        "mlhpc.perf.prediction.command:predict",
        "predict what a run costs on a machine, before it runs",
    )
    predict.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help=NAMES)
    predict.add_argument("--preset", default="closed", help="a named size (default: closed)")
    predict.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")
    predict.add_argument("--machine", metavar="NAME|FILE", help="a machine of the suite, or a machine file")
    predict.add_argument("--nodes", type=positive, help="default: a table over 1, 2, 4, … nodes")
    predict.add_argument("--batch", type=positive, help="global batch size (default: the preset's)")
    predict.add_argument(
        "--against",
        type=Path,
        metavar="FILE.csv",
        help="prediction errors for measured sets in this file, or 'published'",
    )
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.add_argument(
        "--out", type=file_named(".html"), metavar="FILE.html", help="write a page with charts"
    )

    profile = add_command(
        commands,
        "profile",
        "mlhpc.perf.profile.command:profile",
        "profile a training step by layer",
    )
    add_benchmark(profile)
    profile.add_argument(
        "--batch", type=positive, help="samples per rank and backward pass (default: the preset's)"
    )
    profile.add_argument(
        "--batches",
        type=positives,
        metavar="A,B",
        help="also measure the parts of a step at each of these batch sizes",
    )
    profile.add_argument("--ranks", type=positive, default=0, help="number of local ranks")
    profile.add_argument("--data", type=Path, help="read this data set (default: zeros in memory)")
    profile.add_argument(
        "--steps", type=positive, default=5, help="steps to measure, after one warm-up step (default: 5)"
    )
    profile.add_argument(
        "--machine", metavar="NAME|FILE", help="show efficiency relative to the peaks of this machine"
    )
    profile.add_argument("--trace", type=Path, metavar="PATH", help="write the framework's trace here")
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.add_argument(
        "--out", type=file_named(".html"), metavar="FILE.html", help="write a page with charts"
    )
