"""Writes and unpacks the archive of a submission. The archive is reproducible byte for byte, and is unpacked only
if it is complete and intact."""

import gzip
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mlhpc.common.files.checksum import sha256
from mlhpc.common.files.filesystem import as_user_error, require_new
from mlhpc.errors import UserError, shown
from mlhpc.quantities import binary_text, count

NAME = re.compile(r"[\w+-][\w .+-]*")
"""Names of submissions, which become the names of folders."""
CHECKSUMS = ".sha256"
"""Suffix of the file ``<org>.sha256`` next to the tree, for sha256sum(1): ``sha256sum -c <org>.sha256`` verifies
the tree without this suite. It is also the first file of the archive."""
BLOCK = 2**20
MOST_PARTS = 20
"""Maximum number of components of a path; paths in a submission have seven. Much deeper trees could not be removed
again."""
LARGEST_READ = 16 * 2**20
"""Maximum bytes that tarfile reads at once for headers; files are read in blocks."""
MOST_EXPANSION = 200
"""Maximum compression ratio of an archive, beyond ``FREE_EXPANSION``. Logs compress 10 to 60 times."""
FREE_EXPANSION = 256 * 2**20
_DAMAGE = (
    OSError, tarfile.TarError, EOFError, zlib.error, ValueError, LookupError, OverflowError, RecursionError,
)  # fmt: skip
"""Exceptions of gzip and tarfile for damaged archives."""


@contextmanager
def aside(out: Path) -> Iterator[Path]:
    """Context manager that yields a temporary folder on the file system of ``out`` and removes it at the end.
    ``out`` is created if necessary, and removed again if it is then empty."""
    created = [p for p in (out, *out.parents) if not p.exists()]
    with as_user_error(out, "cannot be written", "choose another folder"):
        out.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=out))
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for folder in created:
            if not any(folder.iterdir()):
                folder.rmdir()


def move(part: Path, out: Path, *names: str) -> None:
    """Move the files and folders ``names`` from ``part`` to ``out`` when they are complete. Raises UserError if
    ``out`` already contains one of them."""
    for name in names:
        require_new(out / name)
    for name in names:
        (part / name).rename(out / name)


def write_archive(part: Path, org: str) -> Path:
    """Write the tree and its checksums to ``<org>.tar.gz``. The bytes of the archive depend only on the tree:
    files are sorted, and owners and times are omitted."""
    files = sorted(p for p in (part / org).rglob("*") if p.is_file())
    names = [p.relative_to(part).as_posix() for p in files]
    sums = "".join(f"{sha256(p)}  {n}\n" for p, n in zip(files, names, strict=True))
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
            member.size, member.mtime = path.stat().st_size, 0
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                tar.addfile(member, content)
    return archive


def unpack(archive: Path, to: Path) -> Path:
    """Unpack an archive of :func:`write_archive` into ``to``, and return the tree. Every checksum, including that
    of the archive, is verified before the tree is renamed to its final name.

    Raises:
        UserError: there is no such archive, it is damaged or was not written by this suite, or ``to`` already
            contains this submission.
    """
    if not archive.is_file():
        raise UserError(f"{archive}: no such archive; pass one written by mlhpc pack")
    with aside(to) as part:
        try:
            with gzip.open(archive, "rb") as stream:
                bounded = _Bounded(stream, archive)
                with tarfile.open(fileobj=bounded, mode="r:") as tar:
                    org = _extract(tar, archive, part)
                while bounded.read(BLOCK):  # read to the end, where gzip stores its checksum
                    pass
            move(part, to, org, f"{org}{CHECKSUMS}")
        except _DAMAGE as error:
            raise UserError(f"{archive} cannot be unpacked: {error}; obtain it again") from None
    return to / org


class _Bounded(io.RawIOBase):
    """The decompressed archive as a stream for tarfile. Raises UserError if the archive expands too much, and
    OSError if a single read is too large."""

    def __init__(self, stream: gzip.GzipFile, archive: Path):
        self._stream, self._archive = stream, archive
        self._limit = FREE_EXPANSION + MOST_EXPANSION * archive.stat().st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise OSError(f"a header of {size} bytes")
        data = self._stream.read(size)
        self._require_bounded(self._stream.tell())
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._require_bounded(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _require_bounded(self, position: int) -> None:
        if position > self._limit:
            size = binary_text(self._limit)
            raise UserError(
                f"{self._archive} expands to more than {size}, so it was not written by mlhpc pack"
            )


def _extract(tar: tarfile.TarFile, archive: Path, part: Path) -> str:
    """Write every file below ``part`` and verify its checksum. Returns the name of the submission."""
    org, sums = "", dict[str, str]()
    for member in tar:
        path = PurePosixPath(member.name)
        foreign = not member.isfile() or member.issparse() or path.is_absolute() or ".." in path.parts
        if foreign or len(path.parts) > MOST_PARTS or not member.name.isprintable():
            raise UserError(
                f"{archive} contains {shown(member.name)}, which is not part of a submission; "
                "do not use the archive"
            )
        if not sums:
            org, sums = _checksums(tar, member, archive)
            (part / member.name).write_text("".join(f"{v}  {n}\n" for n, v in sums.items()), "utf-8")
            continue
        if member.name not in sums:
            raise UserError(f"{archive} is damaged: {member.name!r} has no checksum; obtain it again")
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        if _write(tar, member, part / path) != sums[member.name]:
            raise UserError(f"{archive} is damaged: the checksum of {member.name!r} differs; obtain it again")
        (part / path).chmod(member.mode & 0o755)
    missing = [name for name in sums if not (part / name).is_file()]
    if missing or not sums:
        problem = "it is empty"
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            problem = f"{count(len(missing), 'file')} {verb} missing, {missing[0]} first"
        raise UserError(f"{archive} is incomplete: {problem}; obtain it again")
    return org


def _checksums(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> tuple[str, dict[str, str]]:
    """The name of the submission and the checksums by name, from the first file of an archive."""
    org = member.name.removesuffix(CHECKSUMS)
    stream = tar.extractfile(member)
    if org == member.name or not NAME.fullmatch(org) or stream is None or member.size > LARGEST_READ:
        raise UserError(f"{archive} does not start with checksums, so it was not written by mlhpc pack")
    sums: dict[str, str] = {}
    for line in stream.read(LARGEST_READ).decode("utf-8").removesuffix("\n").split("\n"):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if not match or not match[2].startswith(f"{org}/") or match[2] in sums:
            raise UserError(
                f"{archive} is damaged: {line[:100]!r} is not a valid checksum line; obtain it again"
            )
        sums[match[2]] = match[1]
    if not sums:
        raise UserError(f"{archive} is incomplete: it is empty; obtain it again")
    return org, sums


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    """Write a file from the archive to ``path`` in blocks, and return its SHA-256."""
    stream, digest = tar.extractfile(member), hashlib.sha256()
    with path.open("wb") as file:
        while stream and (block := stream.read(BLOCK)):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()
