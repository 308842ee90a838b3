"""A training step predicted for this machine against the step measured, for each benchmark and precision.

    python tests/perf/step_prediction.py [--preset smoke] [--steps 12] [--rounds 3] [--only deepcam]

First ``mlhpc doctor --calibrate`` measures the machine. Then, for each benchmark and precision, three stand-ins
are profiled: the same network at other input sizes and batches, one of them wider too, so that no layer with
weights has the shape of one of the target's. From these the step of the preset is predicted
(perf/profile/similar.py), and then measured: the median of plain steps, on zeros in memory, before any
profiler. So the prediction knows the code and its kernels, but not the sizes; what it cannot do is predict a
network it has not seen. Both are taken in turns, ``--rounds`` times, and the median of the ratios counts. The
goal is 20%, on an idle machine. About ten minutes on 2 cores.

Each network is measured in a process of its own, so that none changes the memory or the threads of another.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.load import load
from mlhpc.common.ranks import wire
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.machines import machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.profile.command import ceilings_of
from mlhpc.perf.profile.similar import StandIn, predict_step

STAND_INS = {
    "cosmoflow": [
        (6, ["data.sample_shape=[48,48,48,4]"]),
        (2, ["data.sample_shape=[64,64,64,4]"]),
        (2, ["data.sample_shape=[48,48,48,4]", "network.conv_filters=16"]),
    ],
    "deepcam": [
        (6, ["data.sample_shape=[48,80,16]"]),
        (2, ["data.sample_shape=[96,112,16]"]),
        (2, ["data.sample_shape=[48,80,16]", "network.width=0.5"]),
    ],
    "resnet50": [
        (20, ["data.sample_shape=[80,80,3]"]),
        (56, ["data.sample_shape=[48,48,3]"]),
        (14, ["data.sample_shape=[48,48,3]", "network.width=0.5"]),
    ],
}
"""Twice the width, not a fraction: channels are aligned with the vector registers as the target's are."""
PRECISIONS = ("float32", "mixed_bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(STAND_INS), action="append", default=[])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "here.toml"
        subprocess.run(
            [sys.executable, "-m", "mlhpc", "doctor", "--calibrate", "--out", str(file)], check=True
        )
        table = Table(
            "benchmark", "precision", "batch", "predicted ms", "measured ms", "ratio", "of each round"
        )
        for benchmark in options.only or STAND_INS:
            for precision in PRECISIONS:
                table.add_row(*row(benchmark, precision, options, file))
    console = Console()
    console.print(table)
    console.print(f"preset {options.preset}; ratio: predicted over measured; the goal is 0.80 to 1.20")


def row(benchmark: str, precision: str, options: argparse.Namespace, file: Path) -> list[str]:
    chosen = f"training.precision={precision}"
    run = load(benchmark, options.preset, [chosen])
    batch = run.hyperparameters.global_batch_size // run.backward_passes
    ceilings = ceilings_of(machine(str(file)), run)
    found = []
    for _ in range(options.rounds):
        stand_ins = []
        for samples, settings in STAND_INS[benchmark]:
            own = [chosen, *settings]
            profile = measured(benchmark, options, samples, own)
            network = network_of(load(benchmark, options.preset, own))
            stand_ins.append(StandIn(profile, network, run.training.precision))
        predicted = predict_step(stand_ins, network_of(run), run.training.precision, batch, ceilings)
        found.append((predicted, measured(benchmark, options, batch, [chosen]).plain))
    predicted, plain = (1e3 * statistics.median(times) for times in zip(*found, strict=True))
    ratios = sorted(predicted / plain for predicted, plain in found)
    return [
        benchmark,
        precision,
        str(batch),
        f"{predicted:.1f}",
        f"{plain:.1f}",
        f"{statistics.median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
    ]


def measured(benchmark: str, options: argparse.Namespace, batch: int, settings: list[str]) -> Profile:
    command = [sys.executable, __file__, "--child", benchmark, options.preset, str(batch), str(options.steps)]
    done = subprocess.run([*command, json.dumps(settings)], check=True, capture_output=True)
    return wire.decode(done.stdout)


def child(benchmark: str, preset: str, batch: str, steps: str, settings: str) -> None:
    from mlhpc.benchmarks import registry
    from mlhpc.common.ranks.environment import set_variables
    from mlhpc.common.ranks.world import Solo
    from mlhpc.common.timing.profile import Request

    run = load(benchmark, preset, json.loads(settings))
    set_variables(run.training.variables())
    framework = registry.find(benchmark).frameworks[run.training.framework]
    measure = registry.load_object(framework.profiler)
    profile = measure(run, Request(int(batch), int(steps)), Solo())
    sys.stdout.buffer.write(wire.encode(profile))


if __name__ == "__main__":
    main()
