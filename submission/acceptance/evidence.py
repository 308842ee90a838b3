"""Writes the evidence of an acceptance test as one archive, and verifies such an archive: the files by the
checksums in its manifest, and the results by computing them again from the logs in the archive."""

import json
import shutil
import tempfile
from itertools import zip_longest
from pathlib import Path

from mlhpc.common.files.checksum import sha256
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.untrusted import finite, printable, read_text
from mlhpc.errors import UserError
from mlhpc.submission.acceptance.judge import Acceptance, judge
from mlhpc.submission.acceptance.tender import read
from mlhpc.submission.check.check import check_sets
from mlhpc.submission.pack.archive import CHECKSUMS, NAME, aside, move, unpack, write_archive

KEPT = frozenset({".txt", ".log", ".json", ".jsonl", ".toml"})
"""Suffixes of result files that count as evidence; checkpoints, pages and data are left out."""
FIGURES = "acceptance.json"


def accept(tender_file: Path, results: Path | None) -> Acceptance:
    """The verdict on the tender, from the finished jobs below ``results``. Raises UserError if the tender or the
    results are invalid."""
    tender, machine = read(tender_file)
    sets = list(check_sets(results)) if results else []
    return judge(tender, machine, sets, results or Path())


def write(tender_file: Path, results: Path | None, out: Path) -> tuple[Acceptance, Path, str]:
    """Like :func:`accept`, for copies of the files, which are then written to ``out`` as an archive. Also returns
    the path of the archive and the digest of its manifest. Raises UserError if the archive cannot be written."""
    name = tender_file.stem
    if not NAME.fullmatch(name):
        raise UserError(
            f"{tender_file}: the archive takes this name, so use only letters, digits, '-' and '_'"
        )
    beside = tender_file.parent / read(tender_file)[0].system.machine
    with aside(out) as part, as_user_error(out, "cannot be written", "free some space"):
        tree = part / name
        tree.mkdir()
        shutil.copyfile(tender_file, tree / "tender.toml")
        if beside.suffix == ".toml":
            shutil.copyfile(beside, tree / beside.name)
        evidence = results and tree / "results"
        if results and evidence:
            shutil.copytree(results, evidence / results.resolve().name, ignore=_no_evidence)
        accepted = accept(tree / "tender.toml", evidence)
        (tree / FIGURES).write_text(_text(accepted), "utf-8")
        archive = write_archive(part, name)
        digest = sha256(part / f"{name}{CHECKSUMS}")
        move(part, out, archive.name, f"{name}{CHECKSUMS}")
    return accepted, out / archive.name, digest


def verify(archive: Path, digest: str | None) -> Acceptance:
    """Compute the verdict in ``archive`` again, and return it. Raises UserError if a file is damaged, if
    ``digest`` is not the manifest's SHA-256, or if any number differs from the recomputed one."""
    with tempfile.TemporaryDirectory(prefix="mlhpc-") as folder:
        tree = unpack(archive, Path(folder))
        found = sha256(Path(folder) / f"{tree.name}{CHECKSUMS}")
        if digest and digest.lower() != found:
            other = f"its manifest has the digest {found}, not {digest}"
            raise UserError(f"{archive}: {other}; this is not the expected archive")
        evidence = tree / "results"
        accepted = accept(tree / "tender.toml", evidence if evidence.is_dir() else None)
        stated, found = read_text(tree / FIGURES), _text(accepted)
        pairs = zip_longest(stated.splitlines(), found.splitlines(), fillvalue="")
        for one, other in pairs:
            if one != other:
                changed = f"{FIGURES} has {printable(one.strip(' ,'))}, recomputed {other.strip(' ,')}"
                raise UserError(f"{archive}: {changed}; it was edited, or written by a different version")
        return accepted


def _text(accepted: Acceptance) -> str:
    """The verdict and its numbers as JSON, rounded to nine digits so that the text is the same on every
    machine."""
    text = json.dumps(finite(accepted.content))
    rounded = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.9g}"))
    return json.dumps(rounded, indent=1) + "\n"


def _no_evidence(folder: str, names: list[str]) -> list[str]:
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.is_symlink() or not (path.is_dir() or path.suffix in KEPT)]
