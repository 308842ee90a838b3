"""The record of a target's content, which staging writes into the target's manifest before the first file."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import Files, Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.staging.target import StagingGroup, unlink
from mlhpc.errors import UserError


def record_of(manifest: Manifest) -> dict[str, Any] | None:
    """The record in the manifest of a target; None if the target was not written by staging."""
    record = manifest.facts.get("staged")
    kinds = {"of": str, "mode": str}
    if not isinstance(record, dict) or any(type(record.get(key)) is not kind for key, kind in kinds.items()):
        return None
    return record


def prepare(manifest: Manifest, target: Path, files: Files, group: StagingGroup, in_use: bool) -> bool:
    """Prepare the target and return whether it already contains this data set; called by the first rank of a
    group. Removes files that no longer belong on the node because the number of nodes has changed, but raises
    UserError if another run may use these files, or if the target contains anything else."""
    if not group.leads or not (target / manifests.NAME).exists():
        return False
    try:
        before = manifests.load(target)
    except UserError as error:  # indexing the existing files would not make a record
        raise UserError(
            f"{target}: its {manifests.NAME} is not a readable staging record; remove the folder "
            "or choose another --stage"
        ) from error
    record = record_of(before)
    if record is None:
        raise UserError(f"{target}: contains a data set not written by staging; choose another --stage")
    if record["of"] != identity(manifest):
        raise UserError(f"{target} has a different staged data set; remove it or choose another --stage")
    if in_use and record.get("exchanging"):
        raise UserError(f"{target}: another run exchanges shards in this folder; choose another --stage")
    atomic.sweep({target / folder for folder in {os.path.dirname(file.path) for file in before.files}})
    needed = {file.path for file in files}
    if in_use and needed != {file.path for file in before.files}:
        raise UserError(
            f"{target}: another run uses a different part of the data set in this folder; choose another "
            f"--stage"
        )
    unlink(target, (file.path for file in before.files if file.path not in needed))
    return True


def write_record(manifest: Manifest, target: Path, files: Files, group: StagingGroup, mode: Mode) -> None:
    """Write the manifest of the target's planned content; called by the first rank of a group."""
    if not group.leads:
        return
    facts = dict(manifest.facts)
    if len(files) < len(manifest.files):
        facts.pop("samples", None)  # the numbers for the whole data set
    facts["staged"] = {"of": identity(manifest), "mode": mode}
    _save(replace(manifest, root=target, files=files, facts=facts))


def mark_exchanging(target: Path) -> None:
    """Record that the content of ``target`` changes during its run, so that no other run uses it."""
    held = manifests.load(target)
    facts = held.facts | {"staged": {**(record_of(held) or {}), "exchanging": True}}
    _save(replace(held, facts=facts))


def _save(held: Manifest) -> None:
    with as_user_error(held.root / manifests.NAME, "cannot be written", "choose another --stage"):
        manifests.save(held)


def identity(manifest: Manifest) -> str:
    """A digest of every path, size and checksum, which does not depend on the data set's location."""
    digest, files = hashlib.sha256(), manifest.files
    digest.update(files.joined())
    for column in (files.sizes, files.crc32, files.known):
        digest.update(column.tobytes())
    return digest.hexdigest()
