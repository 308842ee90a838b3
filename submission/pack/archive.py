"""The archive of a submission: written the same whoever packs it, unpacked only where it is whole."""

import gzip
import hashlib
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mlhpc.errors import UserError, count

CHECKSUMS = ".sha256"
"""``<org>.sha256`` beside the tree, for sha256sum(1): ``sha256sum -c <org>.sha256`` checks it without this
suite. It is the first file of the archive."""


@contextmanager
def aside(out: Path) -> Iterator[Path]:
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


def write_archive(part: Path, org: str) -> Path:
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
        with aside(to) as part, tarfile.open(archive, "r:gz") as tar:
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
