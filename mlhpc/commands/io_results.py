"""Commands related to emulated I/O: io size, check, report, observe, workload-from, similarity, list."""

import argparse
import json
import re
from pathlib import Path

from mlhpc.commands.parser import Commands, Parser, add_command, byte_size
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count


def add(actions: Commands) -> None:
    sizes = add_command(actions, "size", _size, "show the data size that MLPerf Storage requires")
    sizes.add_argument(
        "workload", metavar="WORKLOAD", nargs="?", help="default: all workloads of MLPerf Storage"
    )
    _add_memory(sizes)
    sizes.add_count("--accelerators", "accelerators of all clients together", required=True)
    sizes.add_count("--clients", "nodes (default: 1)", default=1)
    sizes.add_flag("--json", "print JSON")
    check = add_command(actions, "check", _check, "check runs against the rules of MLPerf Storage")
    check.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="output folders of io runs")
    _add_memory(check)
    report = add_command(actions, "report", _report, "write the page of a run")
    report.add_argument("run", type=Path, metavar="RUN", help="output folder of an io run")
    report.add_out_file(".html", "the page (default: RUN/report.html)")
    similarity = add_command(actions, "similarity", _similarity, "compare two observations of io observe")
    similarity.add_argument(
        "observations", type=Path, nargs=2, metavar="FOLDER", help="output folders of mlhpc io observe"
    )
    observe = add_command(actions, "observe", _observe, "record the reads of a command, or of Darshan's log")
    observe.add_folder("--out", "folder for the observation", required=True)
    observe.add_folder("--below", "count only files below this folder (of a log: all files)")
    observe.add_argument(
        "--darshan", type=Path, metavar="LOG", help="read this log instead of running a command"
    )
    observe.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="command, after --")
    made = add_command(actions, "workload-from", _workload_from, "write a workload that reads as a job did")
    made.add_argument("log", type=Path, metavar="LOG", help="a Darshan log")
    made.add_folder("--below", "count only files below this folder")
    made.add_out_file(".toml", "the workload, a new file", required=True)
    listing = add_command(actions, "list", _list, "list the workloads of the suite")
    listing.add_argument("workload", metavar="WORKLOAD", nargs="?", help="print its settings")


def _add_memory(parser: Parser) -> None:
    about = "memory per client, such as 512G or 512GiB"
    parser.add_argument("--memory", type=byte_size, required=True, metavar="SIZE", help=about)


def _size(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.iobench.definition import load, mlperf_storage
    from mlhpc.iobench.report.console import print_sizes

    if options.workload:
        workloads = [load.load(options.workload)]
    else:
        loaded = (load.load(name) for name in load.names())
        workloads = [each for each in loaded if each.suite == "mlperf-storage" and each.dataset]
    sizes = {
        w.name: mlperf_storage.required(w, options.memory, options.accelerators, options.clients)
        for w in workloads
    }
    if options.json:
        print(json.dumps({name: vars(size) for name, size in sizes.items()}))
    else:
        print_sizes(sizes, Console())
    return 0


def _check(options: argparse.Namespace) -> int:
    from mlhpc.iobench.report.check import check_runs

    findings = check_runs(options.runs, options.memory)
    for finding in findings:
        print(finding)
    number = count(len(findings), "finding")
    print("no findings" if not findings else f"{number}: not a valid MLPerf Storage result")
    return 1 if findings else 0


def _report(options: argparse.Namespace) -> int:
    from mlhpc.common.pages.html import write
    from mlhpc.iobench.report.check import read_result
    from mlhpc.iobench.report.page import page

    out = options.out or options.run / "report.html"
    write(out, page(read_result(options.run)))
    print(out)
    return 0


def _observe(options: argparse.Namespace) -> int:
    from mlhpc.iobench.report.observe import observe, write_observation

    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not options.darshan:
        if not options.below:
            raise UserError("--below is missing; pass the folder whose files are to be counted")
        return observe(words, options.below, options.out)
    if words:
        raise UserError("--darshan reads the log of a finished command; omit the command")
    from mlhpc.iobench.report.darshan import observation, read_log

    record = observation(read_log(options.darshan, options.below), options.below)
    write_observation(record, options.out)
    print(f"{count(record['reads'], 'read')}, {bytes_text(record['bytes'])}")
    if not record["traced"]:
        print(f"{record['untraced']}: I/O time, bandwidths and overlap with computation are only estimates")
    return 0


def _workload_from(options: argparse.Namespace) -> int:
    from mlhpc.common.files import atomic
    from mlhpc.common.files.filesystem import require_new
    from mlhpc.iobench.definition import load
    from mlhpc.iobench.report.darshan import read_log, workload

    require_new(options.out)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", options.out.stem).strip("-._") or "job"
    try:
        made = workload(read_log(options.log, options.below), name)
    except ValueError as error:
        raise UserError(
            f"{options.log}: no workload can describe these reads ({' '.join(str(error).split())})"
        ) from None
    atomic.write_bytes(options.out, load.dumps(made).encode())
    print(f"{options.out}: {made.description}; set reader.batch_size and train.computation if you know them")
    return 0


def _similarity(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.iobench.report.console import print_similarity
    from mlhpc.iobench.report.observe import read_observation
    from mlhpc.iobench.report.similarity import compare

    first, second = (read_observation(path) for path in options.observations)
    similarity = compare(first, second)
    print_similarity(similarity, Console())
    return 0 if similarity.alike else 1


def _list(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.common.pages.terminal import print_facts
    from mlhpc.iobench.definition import load

    if options.workload:
        print(load.dumps(load.load(options.workload)), end="")
        return 0
    print_facts(load.names().items(), Console())
    return 0
