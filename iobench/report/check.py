"""``mlhpc io check``: checks runs against the rules of MLPerf Storage."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlhpc.common.files.untrusted import read_object
from mlhpc.errors import UserError
from mlhpc.iobench.definition import mlperf_storage
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.report.record import Result
from mlhpc.record.fields import first_problem


def read_result(run: Path) -> dict[str, Any]:
    """The ``result.json`` of a run. Raises UserError if it is missing or does not come from an emulation."""
    path = run / "result.json"
    remedy = "pass the --out folder of mlhpc io run"
    try:
        result = read_object(path, os.O_NOFOLLOW)
        workload = Result.model_validate(result).workload
    except FileNotFoundError:
        raise UserError(f"{run}: result.json not found; {remedy}") from None
    except ValidationError as error:
        raise UserError(f"{path}: not a result of this version ({first_problem(error)}); {remedy}") from None
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path}: not a valid result; {remedy}") from None
    # Missing keys have their defaults, as in a workload file.
    return result | {"workload": workload.model_dump(mode="json", exclude_none=True)}


def _compared(result: dict[str, Any]) -> dict[str, Any]:
    """The result without its loader's cost, which each run may measure anew."""
    workload = result["workload"]
    return {**result, "workload": {**workload, "reader": {**workload["reader"], "loader_cost": None}}}


def check_runs(runs: Sequence[Path], memory_bytes: int) -> list[str]:
    """Findings about the runs of one result. Raises UserError if the runs have different workloads."""
    results = [read_result(run) for run in runs]
    first = results[0]
    for run, other in zip(runs, results, strict=True):
        if any(_compared(other)[key] != _compared(first)[key] for key in ("workload", "ranks", "nodes")):
            raise UserError(
                f"{run} and {runs[0]} differ in workload or ranks; pass only runs that form one result"
            )
    utilisations = [result["au_dlio_percent"] for result in results]  # MLPerf judges by its tool's figure
    workload = Workload(**first["workload"])
    without = [result.get("au_without_loader_percent") for result in results]
    violations = mlperf_storage.findings(
        workload, memory_bytes, first["ranks"], first["nodes"], utilisations, without
    )
    if workload.reader.loader != "none" and workload.reader.loader_cost is None:
        violations.append(
            f"the utilisation excludes the cost of the {workload.reader.loader} loader, which the tool's "
            "includes; measure it with mlhpc io calibrate"
        )
    official = mlperf_storage.official(workload)
    for run, result in zip(runs, results, strict=True):
        if len(set(Counter(rank["host"] for rank in result["rank_results"]).values())) > 1:
            violations.append(f"{run}: the nodes have different numbers of accelerators")
        if result.get("data_in_ram"):
            violations.append(f"{run}: the data was on a RAM file system")
        elif max(result["resident_before_epochs"], default=0.0) > 0.01 and result["cache"] != "keep":
            violations.append(f"{run}: data was in the page cache before an epoch")
        if official and official.results_elsewhere and result.get("results_beside_data"):
            violations.append(
                f"{run}: results were written to the measured file system, which {official.round} forbids"
            )
    return violations
