"""Checks before the first run of a campaign."""

import os
from dataclasses import replace
from typing import Any

from mlhpc.benchmarks import load, rules
from mlhpc.benchmarks.toml_lines import parse_toml
from mlhpc.campaign.placement import check_placement
from mlhpc.campaign.record import Campaign, read_run
from mlhpc.common.data import manifest
from mlhpc.errors import UserError, shown
from mlhpc.run import RunPaths, context_of
from mlhpc.run_processes import in_slurm, require_one_process


def check_options(campaign: Campaign, number: int | None) -> None:
    """Raise UserError for options that contradict each other or do not match the Slurm job."""
    require_one_process("campaign")
    if campaign.runs < campaign.instances:
        raise UserError(f"--instances {campaign.instances} must not exceed --runs {campaign.runs}")
    check_placement(campaign, in_slurm(os.environ), os.environ)
    if number is not None and campaign.metric == "weak":
        raise UserError("--number starts a single run, but --instances starts all runs from one process")
    if number is not None and not 1 <= number <= campaign.runs:
        raise UserError(f"--number {number}: the runs of this campaign are numbered 1 to {campaign.runs}")


def rule_context(campaign: Campaign) -> rules.RunContext:
    """The facts that the rules can check before the first run. This process may read the manifest because it is
    not a run; a run may open the manifest only while its clock is running."""
    paths = RunPaths(data=campaign.data, stage=campaign.stage, out=campaign.out, resume=None)
    states = [read_run(campaign, name) for name in campaign.names]
    return replace(
        context_of(campaign.run, paths, evict=True),
        facts=_dataset_facts(campaign),
        runs=campaign.runs,
        seeds=[state.seed for state in states if state.seed is not None],
    )


def _dataset_facts(campaign: Campaign) -> dict[str, Any] | None:
    """The facts in the data set's manifest; None for a data set without a manifest. Raises UserError if no run
    could use the data set because it is missing or empty, has an invalid manifest, or has too few samples."""
    data, train_samples = campaign.data, campaign.run.data.train_samples
    if (data / manifest.NAME).exists():
        dataset = manifest.load(data)
        if "train" in dataset.facts.get("samples", {}):
            manifest.take(dataset, train=train_samples)
        return dataset.facts
    make = f"make one: mlhpc data make {campaign.run.benchmark} --preset {campaign.run.preset}"
    try:
        has_files = any(not entry.name.startswith(".") for entry in os.scandir(data))
    except OSError as error:
        raise UserError(f"--data {data}: {error.strerror}; pass the data set's folder, or {make}") from None
    if not has_files:
        raise UserError(f"--data {data}: contains no files; pass the data set's folder, or {make}")
    return None


def check_settings(campaign: Campaign) -> None:
    """Raise UserError if runs in the campaign's folder have a different configuration, since all runs of a score
    must have the same one."""
    expected = parse_toml(load.dumps(campaign.run))
    for name in campaign.names:
        path = campaign.out / name / "config.toml"
        if not path.exists():
            continue
        try:
            actual = parse_toml(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}; move {path.parent} away") from None
        for key, (was, wanted) in load.differing(actual, expected).items():
            raise UserError(
                f"{path.parent} was run with {key} = {shown(was)}, not with {shown(wanted)}; "
                "choose another --out"
            )
