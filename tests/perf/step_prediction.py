"""A training step predicted for this machine against the step measured, for each benchmark and precision.

    python tests/perf/step_prediction.py [--preset smoke] [--steps 6] [--rounds 6] [--only deepcam]
                                         [--precision float32] [--machine FILE]
                                         [--json]

First ``mlhpc doctor --calibrate`` measures the machine, unless ``--machine`` describes it. Then, for each
benchmark and precision, three stand-ins (or ``--stand-ins``) are profiled: the same network at other input sizes
and batches, one of them wider too, so that no layer with weights has the shape of one of the target's. From
these the step of the preset is predicted (tests/helpers/similar.py), and then measured: the median of plain
steps, on zeros in memory, before any profiler. So the prediction knows the code and its kernels, but not the
sizes; what it cannot do is predict a network it has not seen. All are measured in turns, ``--rounds`` times,
each in a new process, and of each the round with the shortest step counts: what disturbs a step only ever makes
it longer. Step times within a process agree, but a second process may be 1.7 times slower although matrix products
and copies run at the same speed, so more processes are measured rather than more steps. The column "of
rounds" has the shortest and longest step measured. The goal is 20%, on an idle machine. About 20 minutes on 2
cores.

Layers of a kind that no stand-in has get the bare roofline's time, which is far too short: the column "bare
roofline" has how many, and they are named below the table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.load import load
from mlhpc.common.ranks import wire
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.machines import ceilings_of, machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.quantities import count

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.similar import StandIn, predict_step

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
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--stand-ins", type=int, choices=(2, 3), default=3, help="number of stand-ins to profile"
    )
    parser.add_argument("--only", choices=tuple(STAND_INS), action="append", default=[])
    parser.add_argument("--precision", choices=PRECISIONS, action="append", default=[])
    parser.add_argument("--machine", help="measured before, or of benchmarks/systems")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        described = options.machine or str(Path(folder) / "here.toml")
        if not options.machine:
            calibrate = [sys.executable, "-m", "mlhpc", "doctor", "--calibrate", "--out", described]
            subprocess.run(calibrate, check=True, stdout=sys.stderr)
        names = product(options.only or STAND_INS, options.precision or PRECISIONS)
        records = [compared(*name, options, described) for name in names]
    if options.json:
        print(json.dumps(records, indent=1))
    else:
        show(records, options.preset)


def show(records: list[dict[str, Any]], preset: str) -> None:
    table = Table(
        "benchmark",
        "precision",
        "batch",
        "predicted ms",
        "measured ms",
        "of rounds",
        "ratio",
        "bare roofline",
    )
    for r in records:
        ms = [f"{1e3 * r[name]:.1f}" for name in ("predicted_s", "measured_s")]
        spread = f"{1e3 * r['measured_of_rounds_s'][0]:.1f}-{1e3 * r['measured_of_rounds_s'][-1]:.1f}"
        layers = len(r["bare_roofline"])
        bare = f"{1e3 * r['bare_roofline_s']:.2g} ms, {count(layers, 'layer')}" if layers else "none"
        table.add_row(r["benchmark"], r["precision"], str(r["batch"]), *ms, spread, f"{r['ratio']:.2f}", bare)
    console = Console()
    console.print(table)
    console.print(f"preset {preset}; ratio: predicted over measured; the goal is 0.80 to 1.20")
    for r in records:
        if r["bare_roofline"]:
            console.print(
                f"{r['benchmark']}, {r['precision']}: no stand-in has layers like {'; '.join(r['bare_roofline'])}"
            )


def compared(benchmark: str, precision: str, options: argparse.Namespace, described: str) -> dict[str, Any]:
    chosen = f"training.precision={precision}"
    run = load(benchmark, options.preset, [chosen])
    batch = run.hyperparameters.global_batch_size // run.backward_passes
    ceilings = ceilings_of(machine(described), run.training.precision)
    chosen_sizes = STAND_INS[benchmark][: options.stand_ins]
    sizes = [*chosen_sizes, (batch, [])]
    rounds = [
        [measured(benchmark, options, samples, [chosen, *settings]) for samples, settings in sizes]
        for _ in range(options.rounds)
    ]
    *profiles, target = (min(each, key=lambda profile: profile.plain) for each in zip(*rounds, strict=True))
    stand_ins = [
        StandIn(
            profile, network_of(load(benchmark, options.preset, [chosen, *settings])), run.training.precision
        )
        for profile, (_, settings) in zip(profiles, chosen_sizes, strict=True)
    ]
    predicted = predict_step(stand_ins, network_of(run), run.training.precision, batch, ceilings)
    return {
        "benchmark": benchmark,
        "preset": options.preset,
        "precision": precision,
        "batch": batch,
        "predicted_s": predicted.seconds,
        "measured_s": target.plain,
        "measured_of_rounds_s": sorted(profiles[-1].plain for profiles in rounds),
        "ratio": predicted.seconds / target.plain,
        "bare_roofline": list(predicted.bare),
        "bare_roofline_s": predicted.bare_seconds,
    }


def measured(benchmark: str, options: argparse.Namespace, batch: int, settings: list[str]) -> Profile:
    command = [sys.executable, __file__, "--child", benchmark, options.preset, str(batch), str(options.steps)]
    done = subprocess.run([*command, json.dumps(settings)], check=True, capture_output=True)
    profile: Profile = wire.decode(done.stdout)
    return profile


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
