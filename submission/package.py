"""Packing runs into the official tree of a submission, and unpacking such an archive.

Layout (MLPerf submission rules, "Directory structure", HPC and Training)::

    <org>/systems/<system>.json
    <org>/benchmarks/<benchmark>/implementations/mlhpc-<version>/…, <system>/README.md, setup.sh, …
    <org>/results/<system>/strong|weak/<benchmark>/result_<i>.txt       HPC
    <org>/results/<system>/weak/<benchmark>/pruned_results/…            HPC, throughput
    <org>/results/<system>/resnet/result_<i>.txt                        Training

The runs are only read. The tree is built aside, checked there (every run, the set by the official package
checker, names and secrets), and gets its name when nothing speaks against it.
"""

import getpass
import gzip
import hashlib
import io
import json
import re
import shutil
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mlhpc.common.errors import UserError, count
from mlhpc.common.evidence import commit
from mlhpc.submission import implementation, official, system
from mlhpc.submission.check import check_set
from mlhpc.submission.findings import Finding, Severity, passes
from mlhpc.submission.leaks import Names, leaks
from mlhpc.submission.rundir import RunDirectory, read
from mlhpc.submission.score import OFFICIAL, Weak
from mlhpc.submission.sets import has_own_target, score_set
from mlhpc.submission.tree import PRUNED, Metric, ResultSet, result_sets

CHECKSUMS = ".sha256"
"""``<org>.sha256`` beside the tree, for sha256sum(1): ``sha256sum -c <org>.sha256`` checks it without this
suite. It is the first file of the archive."""


@dataclass(frozen=True)
class Packed:
    """``archive`` and ``tree`` are None when errors kept it from being made. ``sets``: one line for each set
    of results, with its score."""

    tree: Path | None
    archive: Path | None
    findings: list[Finding]
    sets: list[str]


def pack(
    paths: Sequence[Path],
    *,
    org: str,
    system_file: Path,
    out: Path,
    ruleset: str = "2.0.0",
    weak: Sequence[Path] = (),
    prune: Sequence[Path] = (),
    despite_errors: bool = False,
) -> Packed:
    """Pack ``paths`` (run directories, campaigns, logs) as ``out/<org>`` and ``out/<org>.tar.gz``.

    A campaign says whether its runs are instances of the throughput metric; those in ``weak`` are. Of these
    the ones in ``prune`` and all but the first of one seed go to ``pruned_results``. Those that did not
    converge are left out: pruned logs have to comply (MLPerf HPC training rules 3.0, "Throughput"). With
    errors nothing is left behind, unless ``despite_errors``.

    Raises:
        UserError: a path holds no run, ``out`` has this submission already, or HPC and Training are mixed.
    """
    _require_name(org)
    fields = system.read(system_file)
    name = _system_name(fields, system_file)
    if ruleset not in official.RULESETS:
        raise UserError(f"no HPC ruleset {ruleset!r}; choose from {', '.join(official.RULESETS)}")
    for taken in (out / org, out / f"{org}.tar.gz", out / f"{org}{CHECKSUMS}"):
        if taken.exists():
            raise UserError(f"{taken} is there already; choose another --out, or move it away")
    given, left_out = _throughput_chosen(_sources(paths, weak), prune)
    _require_one_usage(given, ruleset)
    findings = [*_about_system(fields, system_file, org, given), *_about_sources(given), *left_out]
    for results in given:
        # Seeds are package_checker's too, below.
        checked = check_set(results, ruleset).findings
        findings += [f for f in checked if not f.source.endswith("seed_checker")]
        findings += [*_one_configuration(results), *_own_target(results)]
    with _aside(out) as part:
        tree = part / org
        _build(tree, name, fields, given, ruleset)
        findings += leaks(tree, _names(given))
        for packed in result_sets(tree):
            found = [*packed.problems, *official.package_findings(packed, ruleset)]
            findings += [replace(f, where=f.where.replace(f"{part}/", "")) for f in found]
        findings = _said_once(findings)
        lines = [_scored(replace(results, system_json=fields)) for results in given]
        if not passes(findings) and not despite_errors:
            return Packed(None, None, findings, lines)
        archive = _archive(part, org)
        tree.rename(out / org)
        for beside in (archive, part / f"{org}{CHECKSUMS}"):
            beside.replace(out / beside.name)
    return Packed(out / org, out / archive.name, findings, lines)


# What is packed ---------------------------------------------------------------------------------------------


def _sources(paths: Sequence[Path], weak: Sequence[Path]) -> list[ResultSet]:
    """The sets to pack, one a benchmark and metric, made of all that ``paths`` and ``weak`` hold."""
    found: dict[tuple[str, Metric], list[ResultSet]] = {}
    seen: dict[Path, Path] = {}
    for path in (*paths, *weak):
        for results in result_sets(path):
            if results.is_tree:
                raise UserError(f"{path} is a submission tree already: check it with mlhpc check")
            for log in results.log_paths:
                if twin := seen.get(log.resolve()):
                    raise UserError(f"{log} is given twice ({twin} and {path}); name every run once")
                seen[log.resolve()] = path
            metric: Metric = "weak" if path in weak else results.metric
            found.setdefault((results.benchmark, metric), []).append(results)
    if not seen:
        raise UserError(f"{', '.join(map(str, paths))}: no log to pack; give the --out folders of runs")
    return [_together(sets, metric) for (_, metric), sets in found.items()]


def _together(sets: Sequence[ResultSet], metric: Metric) -> ResultSet:
    """Several sets as one. Raises UserError for run directories together with bare logs."""
    if len({bool(results.runs) for results in sets}) > 1:
        raise UserError(f"{sets[0].path} and the others: give folders of runs, or logs alone, not both")
    return replace(
        sets[0],
        path=sets[0].path if len(sets) == 1 else sets[0].path.parent,
        metric=metric,
        log_paths=tuple(log for results in sets for log in results.log_paths),
        runs=tuple(run for results in sets for run in results.runs),
        problems=tuple(problem for results in sets for problem in results.problems),
    )


def _throughput_chosen(
    given: Sequence[ResultSet], prune: Sequence[Path]
) -> tuple[list[ResultSet], list[Finding]]:
    """The sets with their pruned instances set apart, and what is said of those that are left out."""
    pruned = {path.resolve() for path in prune}
    known = {p.resolve() for results in given for p in (*results.log_paths, *results.runs)}
    if pruned - known:
        raise UserError(f"--prune {sorted(pruned - known)[0]} is none of the runs that are packed")
    chosen, findings = [], []
    for results in given:
        if results.metric == "strong":
            chosen.append(results)
            continue
        ours = [p for p in results.log_paths if not {p.resolve(), p.parent.resolve()} & pruned]
        scored = score_set(replace(results, log_paths=tuple(ours))).runs
        dropped = {run.path: run for run in scored if run.dropped}
        failed = [path for path, run in dropped.items() if not run.converged]
        kept = [path for path in ours if path not in dropped]
        chosen.append(
            replace(
                results,
                log_paths=tuple(kept),
                pruned_paths=tuple(p for p in results.log_paths if p not in kept and p not in failed),
                runs=tuple(run for run in results.runs if run / "run.log" in kept),
            )
        )
        findings += [
            Finding("pack/left-out", "warning", str(path), "an instance that converged", dropped[path].why,
                    "not packed: it cannot count, and pruned logs have to comply")
            for path in failed
        ]  # fmt: skip
        # How long such an instance took nobody can say any more: to leave it out is for the submitter to choose.
        findings += [
            Finding("pack/left-out", "warning" if run.resolve() in pruned else "error", str(run),
                    "the log of every instance", "run.log is missing",
                    "not packed, as --prune asks" if run.resolve() in pruned
                    else "restore it, or leave the instance out with --prune")
            for run in results.runs if run / "run.log" not in results.log_paths
        ]  # fmt: skip
    alone = {r.benchmark for r in given} - {r.benchmark for r in given if r.metric == "strong"}
    findings += [
        Finding("pack/throughput", "warning", benchmark, "a time to solution beside the throughput", "none",
                "throughput may not be reported on its own (MLPerf HPC training rules 3.0): pack both")
        for benchmark in sorted(alone)
    ]  # fmt: skip
    return chosen, findings


def _require_name(org: str) -> None:
    if not re.fullmatch(r"[\w+-][\w .+-]*", org):
        raise UserError(f"--org {org!r}: the name of a folder, of letters, digits, blanks and . _ + -")


def _system_name(fields: dict[str, Any], path: Path) -> str:
    """The folder of a system: its name, with ``_`` for what does not belong into a folder's name."""
    name = re.sub(r"[^\w.+-]+", "_", str(fields.get("system_name", "")).strip()).strip("._")
    if not name:
        raise UserError(f"{path} has no system_name; fill it in (mlhpc doctor --system --set system_name=…)")
    return name


def _require_one_usage(given: Sequence[ResultSet], ruleset: str) -> None:
    benchmarks = sorted({results.benchmark for results in given})
    for benchmark in benchmarks:
        if benchmark not in OFFICIAL:
            known = ", ".join(OFFICIAL)
            raise UserError(f"the logs are of {benchmark or 'no'} benchmark: a submission is of {known}")
    if len({official.rules_of(benchmark, ruleset).split("_")[0] for benchmark in benchmarks}) > 1:
        raise UserError(
            f"{' and '.join(benchmarks)} are of different submissions (HPC, Training): pack each on its own"
        )
    if any(r.metric == "weak" and r.benchmark in official.TRAINING for r in given):
        raise UserError("Training has no throughput metric: pack without --weak")


def _build(tree: Path, name: str, fields: dict[str, Any], given: Sequence[ResultSet], ruleset: str) -> None:
    (tree / "systems").mkdir(parents=True)
    text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    (tree / "systems" / f"{name}.json").write_text(text, "utf-8")
    for results in given:
        hpc = official.rules_of(results.benchmark, ruleset).startswith("hpc_")
        folder = tree / "results" / name / (results.metric if hpc else "") / results.benchmark
        for logs, where in ((results.log_paths, folder), (results.pruned_paths, folder / PRUNED)):
            for number, log in enumerate(logs, 1):
                where.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, where / f"result_{number}.txt")
    for benchmark in sorted({results.benchmark for results in given}):
        implementations = tree / "benchmarks" / benchmark / "implementations"
        runs = [run for results in given if results.benchmark == benchmark for run in _read(results)]
        implementation.copy_sources(implementations / implementation.name())
        implementation.write_scripts(implementations / name, benchmark, name, runs)


def _read(results: ResultSet) -> list[RunDirectory]:
    return [read(run) for run in results.runs]


def _scored(results: ResultSet) -> str:
    """The set in one line, with its score or why there is none."""
    kept, left = len(results.log_paths), len(results.pruned_paths)
    head = f"{results.benchmark} {results.metric}: {kept} results" + (f", {left} pruned" if left else "")
    own = ", to a target of its own: no MLPerf result" * has_own_target(results)
    score = score_set(results)
    if score.minutes is None:
        return f"{head}; no score: {score.why}{own}"
    if isinstance(score, Weak):
        return f"{head}; (T, S, M', TTTa) = ({score.T}, {score.S}, {score.M}, {score.minutes:.4f} min){own}"
    return f"{head}; {score.minutes:.4f} min{own}"


# What speaks against it -------------------------------------------------------------------------------------


def _about_system(
    fields: dict[str, Any], path: Path, org: str, given: Sequence[ResultSet]
) -> Iterator[Finding]:
    def finding(severity: Severity, expected: str, actual: str, remedy: str) -> Finding:
        return Finding("pack/system", severity, path.name, expected, actual, remedy)

    names = (*system.REQUIRED, *system.OPTIONAL)
    fill = "fill them in: mlhpc doctor --system --set FIELD=VALUE, or by hand"
    if missing := [key for key in names if key not in fields]:
        yield finding("error", "every field of a description", f"without {', '.join(missing)}", fill)
    if empty := [key for key in system.REQUIRED if key in fields and not fields[key]]:
        yield finding("warning", "an answer where the rules need one", f"empty: {', '.join(empty)}", fill)
    no_text = [
        key for key in names if not isinstance(fields.get(key, ""), str) and key != "other_software_stack"
    ]
    if no_text:
        remedy = "put them in quotes: the official tools join the fields as text"
        yield finding("error", "text", ", ".join(f"{key} = {fields[key]!r}" for key in no_text), remedy)
    if fields.get("submitter") not in (org, None, ""):
        remedy = "give one name: --org, or in the file"
        yield finding("warning", f"submitter {org}", str(fields["submitter"]), remedy)
    orgs = {str(log.value("submission_org")) for results in given for log in results.logs} - {org}
    if orgs:
        remedy = "run with --set submission.org; the logs are not edited, and a reviewer sees both names"
        actual = ", ".join(sorted(orgs))
        yield Finding("pack/org", "warning", "logs", f"submission_org {org}", actual, remedy)
    for results in given:
        divisions = sorted({str(log.value("submission_division")) for log in results.logs})
        if divisions != [fields.get("division")]:
            expected = f"division {' and '.join(divisions)}, as the logs of {results.benchmark} say"
            remedy = "closed and open are submitted apart, each with its description"
            yield finding("error", expected, str(fields.get("division") or "none"), remedy)


def _one_configuration(results: ResultSet) -> Iterator[Finding]:
    """One ``config.toml`` goes with a set. What the logs show of it is compared by their check."""
    configured = [(run.path, run.config) for run in _read(results) if run.config]
    for path, config in configured[1:]:
        if other := _first_other(configured[0][1].model_dump(), config.model_dump()):
            remedy = "the runs of one score have one configuration: pack the others on their own"
            expected = f"the settings of {configured[0][0].name}"
            yield Finding("pack/config", "error", path.name, expected, other, remedy)


def _own_target(results: ResultSet) -> Iterator[Finding]:
    """In the tree a run is held to the official target, which the official checker does not ask of every
    benchmark in the open division."""
    if has_own_target(results) and results.target:
        official = OFFICIAL[results.benchmark][0]
        yield Finding(
            "pack/target",
            "error",
            f"{results.path.name}/",
            f"runs to the target {official.metric} {official.value:g}",
            f"runs of preset {results.preset!r}, to {results.target.value:g}",
            "a submission is of runs to MLPerf's target: run the preset closed or open",
        )


def _first_other(ours: dict[str, Any], theirs: dict[str, Any], above: str = "") -> str:
    """The first key that differs, and how; nothing where none does."""
    for key in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            if other := _first_other(a, b, f"{above}{key}."):
                return other
        elif a != b:
            return f"{above}{key} = {b}, not {a}"
    return ""


def _about_sources(given: Sequence[ResultSet]) -> Iterator[Finding]:
    """The sources that are packed are those of the runs."""
    packed = commit()
    envs = [run.env for results in given for run in _read(results)]
    commits = sorted({str(env.get("commit")) for env in envs})
    changed = any(env.get("dirty") for env in envs) or bool(packed["dirty"])
    if envs and commits == [str(packed["commit"])] and not changed:
        return
    actual, remedy = "logs alone, which do not say", "put the sources that made them into implementations/"
    if envs:
        actual = f"runs at {', '.join(c[:12] for c in commits)}, packed at {str(packed['commit'])[:12]}"
        actual += ", with changes that are in no commit" * changed
        remedy = "check out the commit of the runs, and pack from there"
    yield Finding(
        "pack/sources",
        "warning",
        f"implementations/{implementation.name()}",
        "the sources that the runs were made with",
        actual,
        remedy,
    )


def _said_once(findings: Sequence[Finding]) -> list[Finding]:
    """What several runs have in common stands once, at the first of them."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    return [replace(finding, where=f"{where[0]}{_more(len(where) - 1)}") for finding, where in places.items()]


def _more(count: int) -> str:
    return f" and {count} more place{'s' * (count > 1)}" if count else ""


def _names(given: Sequence[ResultSet]) -> Names:
    envs = [run.env for results in given for run in _read(results)]
    hosts = {node.get("hostname") for env in envs for node in (env, *env.get("nodes", ()))}
    try:
        users = {getpass.getuser()}
    except (KeyError, OSError):  # a container's user may have no name
        users = set()
    named = {str(host) for host in (*hosts, socket.gethostname()) if host}
    return Names(frozenset(named | {host.partition(".")[0] for host in named}), frozenset(users))


# Archives ---------------------------------------------------------------------------------------------------


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A folder on the file system of ``out`` to build in, gone at the end; ``out`` too where it was made for
    nothing."""
    made = [p for p in (out, *out.parents) if not p.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=out))
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}; choose another place") from None
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for folder in made:
            if not any(folder.iterdir()):
                folder.rmdir()


def _archive(part: Path, org: str) -> Path:
    """``<org>.tar.gz`` of the tree and its checksums: the same bytes for the same tree, whoever packs it and
    when (sorted, no owners, no times)."""
    files = sorted(p for p in (part / org).rglob("*") if p.is_file())
    names = [p.relative_to(part).as_posix() for p in files]
    sums = "".join(
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {n}\n" for p, n in zip(files, names, strict=True)
    )
    checksums = part / f"{org}{CHECKSUMS}"
    checksums.write_text(sums, "utf-8")
    archive = part / f"{org}.tar.gz"
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, name in ((checksums, checksums.name), *zip(files, names, strict=True)):
            member = tarfile.TarInfo(name)
            data = path.read_bytes()
            member.size, member.mtime = len(data), 0
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(member, io.BytesIO(data))
    return archive


def unpack(archive: Path, to: Path) -> Path:
    """Unpack what :func:`pack` made into ``to``, and return the tree. Every file is held against its checksum
    before the tree gets its name.

    Raises:
        UserError: no such archive, a damaged or foreign one, or ``to`` has this submission already.
    """
    try:
        with _aside(to) as part, tarfile.open(archive, "r:gz") as tar:
            sums = _extract(tar, archive, part)
            tops = sorted({PurePosixPath(name).parts[0] for name in sums})
            if len(tops) != 1:
                raise UserError(f"{archive} holds {len(tops)} submissions; one was expected")
            names = (tops[0], f"{tops[0]}{CHECKSUMS}")
            for name in names:
                if (to / name).exists():
                    raise UserError(f"{to / name} is there already; choose another folder")
            for name in names:
                (part / name).rename(to / name)
            return to / tops[0]
    except FileNotFoundError:
        raise UserError(f"{archive}: no such archive; give one that mlhpc pack made") from None
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:  # gzip's errors are OSErrors
        raise UserError(f"{archive} cannot be unpacked: {error}; get it again") from None


def _extract(tar: tarfile.TarFile, archive: Path, part: Path) -> dict[str, str]:
    """The checksums by name, once every file has been written below ``part`` and has the right one."""
    sums: dict[str, str] = {}
    for member in tar:
        path = PurePosixPath(member.name)
        if not member.isfile() or path.is_absolute() or ".." in path.parts:
            raise UserError(f"{archive} holds {member.name!r}, which no submission has; do not use it")
        stream = tar.extractfile(member)
        data = stream.read() if stream else b""
        if not sums and member.name.endswith(CHECKSUMS):
            lines = [line.split("  ", 1) for line in data.decode("utf-8", "replace").splitlines()]
            sums = {line[1]: line[0] for line in lines if len(line) == 2}
            (part / path.name).write_bytes(data)
            continue
        if not sums:
            raise UserError(f"{archive} does not begin with checksums: mlhpc pack did not make it")
        if sums.get(member.name) != hashlib.sha256(data).hexdigest():
            raise UserError(f"{archive} is damaged: {member.name} is not what was packed; get it again")
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).write_bytes(data)
        (part / path).chmod(member.mode & 0o755)
    missing = [name for name in sums if not (part / name).is_file()]
    if missing or not sums:
        what = (
            f"{count(len(missing), 'file')} {'is' if len(missing) == 1 else 'are'} missing, {missing[0]} first"
            if missing
            else "it is empty"
        )
        raise UserError(f"{archive} is not whole: {what}; get it again")
    return sums
