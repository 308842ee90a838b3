"""Finds secrets and names of hosts and people, which a submission should not publish.

A secret is an error. A name is only a warning, and the submitter decides, since logs must not be edited. The
patterns of secrets (prefixes of tokens, PEM and PGP headers) are documented by their issuers and used by scanners
such as detect-secrets. Every repetition in a pattern is bounded, so that the search time is linear in the size of
the files.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlhpc.benchmarks.findings import Finding
from mlhpc.common.files.untrusted import printable

_VALUE = r"[^\s\"'$<{(\[]"
_WITH_DIGIT = rf"(?={_VALUE}{{0,200}}\d)"
# Placeholders for a password in code and examples do not count.
_REAL = (
    r"(?!(?i:none|null|true|false|required|optional|password|passwd|your|example|change|redacted|secret\b"
    r"|x{3}|\*{2}))"
)
_PASSWORD = r"(?i:(?<![a-z])(?:pass_?word|passwd|pass_?phrase))"
_WITH_LETTER = rf"(?={_VALUE}{{0,200}}[A-Za-z])"
SECRETS = {
    "private key": r"----[- ]BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?[- ]----"
    r"|\bPuTTY-User-Key-File-\d|\bAGE-SECRET-KEY-1[0-9A-Z]{20,200}",
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,200}|github_pat_\w{22,200})",
    "GitLab token": r"\bgl(?:pat|rt|dt|ptt|cbt|ft|soat|agent|imt)-[\w-]{20,200}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,200}",
    "Slack token": r"\bxox[abeprs]-[\w-]{10,200}",
    "Google key": r"\bAIza[\w-]{35}",
    "Google key file": r"\bprivate_key_id[\"']?\s{0,5}[:=]\s{0,5}[\"']?[0-9a-f]{40}",
    "Google token": r"\bya29\.[\w-]{20,200}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}",
    "PyPI token": r"\bpypi-[\w-]{50,250}",
    "Docker token": r"\bdckr_pat_[\w-]{20,200}",
    "Stripe key": r"\b[rs]k_live_[0-9A-Za-z]{20,200}",
    "API key": r"\bsk-(?=[\w-]{0,200}\d)[\w-]{20,200}",
    "Azure key": r"\b(?:AccountKey|SharedAccessKey)=[\w+/]{40,100}={0,2}|[?&]sig=[\w%+/-]{20,200}"
    r"|\b[\w.~-]{3}8Q~[\w.~-]{31,34}",
    "signature of a request": r"\bX-(?:Amz|Goog)-Signature=[0-9a-f]{40,600}",
    "webhook": r"hooks\.slack\.com/(?:services|workflows)/[\w/-]{20,200}"
    r"|discord(?:app)?\.com/api/webhooks/\d{10,30}/[\w-]{20,200}",
    "token of a service": r"\b(?:hv[sbr]\.[\w-]{20,300}|do[oprt]_v1_[0-9a-f]{32,128}|nvapi-[\w-]{20,200}"
    r"|ATATT3[\w=-]{20,300}|ATCTT3[\w=-]{20,300}|SG\.[\w-]{16,64}\.[\w-]{16,128}|dapi[0-9a-f]{32}"
    r"|nfp_\w{36,100}|lin_api_\w{32,100}|ntn_\w{40,100}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|NRAK-[A-Z0-9]{27}"
    r"|gl(?:sa|c)_[\w=+/]{32,200}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|sq0(?:atp|csp)-[\w-]{22,64}|HRKU-[\w-]{36,100}"
    r"|\w{14}\.atlasv1\.[\w-]{60,100}|rubygems_[0-9a-f]{48}|wandb_v1_\w{30,200}|SK[0-9a-f]{32}|key-[0-9a-f]{32}"
    r"|\d{8,10}:AA[\w-]{33})(?![\w-])",
    "MUNGE credential": r"\bMUNGE:[\w+/=]{40,2000}:",
    "cookie of a job": r"(?i:job_?cookie|orte_precondition_transports)[\"']?\s{0,5}[=:]\s{0,5}[\"']?[\w-]{8,200}",
    "web token": r"\beyJ[\w-]{10,2000}\.eyJ[\w-]{10,2000}\.[\w-]{10,2000}",
    "bearer token": r"(?i:\bbearer)\s{1,4}(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{16,2000}",
    "basic authorization": r"(?i:authorization)[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?i:basic)\s{1,5}[\w+/]{6,500}={0,2}",
    "login in .netrc": r"\b(?:machine\s{1,20}\S{1,200}|default)\s{1,20}login\s{1,20}\S{1,200}\s{1,20}"
    r"password\s{1,20}\S{4,200}",
    "option with a password": r"\b(?:mysql|mysqldump|mysqladmin|mariadb|smbclient|ldapsearch)\b[^|;\n]{0,200}?"
    r"\s-[pw](?![\s\d]|assword)[^\s$<{]{4,200}|\bsshpass\s{1,5}-p\s{0,5}[^\s$<{]{4,200}"
    r"|\bcurl\b[^|;\n]{0,200}?\s(?:-u|--user)[ =]?[^\s:$<{]{1,100}:[^\s$<{]{4,200}",
    "password in an address": r"://[^/\s:@\"']{1,100}:[^/\s@\"'$]{1,100}@",
    "option with a secret": r"(?i:--(?:password|passwd|passphrase|token|secret|api[-_]?key))[ =][\"']?"
    rf"(?={_VALUE}{{0,200}}[a-z0-9]){_VALUE}{{4,200}}",
    "secret": r"(?i:password|passwd|secret|api_?key|access_?key|auth_?token)\w{0,40}[\"']?\s{0,10}[=:]\s{0,10}"
    rf"[\"']?{_WITH_DIGIT}{_VALUE}{{8,200}}",
    "password": rf"{_PASSWORD}[\"']?\s{{0,5}}[=:]\s{{0,5}}[\"']{_REAL}{_VALUE}{{6,200}}"
    rf"|{_PASSWORD}={_REAL}[^\s\"'$<{{(\[.,;:)]{{8,200}}(?![\w(.\[])",
    "token": rf"(?i:token)[\"']?\s{{0,10}}[=:]\s{{0,10}}[\"']?{_WITH_DIGIT}{_WITH_LETTER}{_VALUE}{{8,200}}",
}
PEOPLE = {
    "e-mail address": r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}\b",
    "user name in a path": r"(?<![\w.])/(?:home|users|Users|global/homes/\w|u)/[A-Za-z_][\w.-]{0,60}"
    # A path of one component may be a data set.
    r"|(?<![\w.])/(?:scratch|gscratch|cscratch|gpfs|lustre|beegfs|ceph)\w{0,12}(?:/[A-Za-z_][\w.-]{0,60}){2}",
    "private address": r"(?:(?<=[\s\"'(\[@,])|(?<=//)|^)(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))"
    r"(?:\.\d{1,3}){2}(?![\w.-])",
}
SECRET_FILES = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)|\.(?:netrc|pgpass|npmrc|pypirc|env|htpasswd|git-credentials)|credentials"
    r"|[^/]{1,200}\.(?:pem|key|p12|pfx|jks|keytab|kdbx|gpg|asc)"
)
"""Names of files that contain keys or passwords."""
COMMON = frozenset(
    {"localhost", "root", "user", "users", "admin", "nobody", "ubuntu", "node", "host", "local"}
)
"""User and host names that identify nobody."""
LONGEST = 8192
"""Number of characters searched at a time; longer lines are searched in overlapping pieces."""
OVERLAP = 1024
_SECRETS = [(kind, re.compile(pattern)) for kind, pattern in SECRETS.items()]
_PEOPLE = [(kind, re.compile(pattern)) for kind, pattern in PEOPLE.items()]
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
MOST_UNPACKED = 64 * 2**20
"""Number of bytes that are searched in a compressed file, counted after decompression."""
_WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Names:
    """Host and user names of the runs and of this machine."""

    hosts: frozenset[str]
    users: frozenset[str]


def leaks(root: Path, names: Names) -> list[Finding]:
    """One finding for each secret or name in the files below ``root`` or in the files' paths, with the first place
    and the number of further places. Python files are not searched for names of hosts and users, because a name
    such as ``n0`` may be a variable. Binary files are searched only for secrets."""
    places: dict[tuple[str, str], list[str]] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = path.relative_to(root).as_posix()
        if SECRET_FILES.fullmatch(path.name):
            places.setdefault(("file for secrets", path.name), []).append(name)
        for match in _matches(name, names, is_text=path.suffix != ".py"):
            places.setdefault(match, []).append(name)
        text, is_text = _text(path.read_bytes())
        for number, line in enumerate(_INVISIBLE.sub("", text).splitlines(), 1):
            searched = names if path.suffix != ".py" else Names(frozenset(), frozenset())
            for match in _matches(line, searched, is_text=is_text):
                places.setdefault(match, []).append(f"{name}:{number}")
    return [_finding(kind, what, where) for (kind, what), where in places.items()]


def _text(data: bytes) -> tuple[str, bool]:
    """The text in ``data``, the content of a file, and whether it is a text file. From a binary file, zero bytes
    are removed, so that a secret in UTF-16 without a byte order mark is also found."""
    if data.startswith(b"\x1f\x8b"):  # gzip; only the beginning is searched
        with suppress(OSError, EOFError, zlib.error), gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return _text(file.read(MOST_UNPACKED).removeprefix(b"\x1f\x8b"))
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return data.decode("utf-32", "replace"), True
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace"), True
    if b"\0" in data:
        return data.replace(b"\0", b"").decode("latin-1"), False
    return data.decode("utf-8", "replace"), True


def _matches(line: str, names: Names, *, is_text: bool) -> set[tuple[str, str]]:
    """The secrets and names in a line, as pairs (kind, text)."""
    return {match for piece in pieces(line) for match in _in_piece(piece, names, is_text)}


def pieces(line: str) -> list[str]:
    """Split a line into pieces of at most ``LONGEST`` characters. The pieces overlap by more than the length of
    any secret."""
    starts = range(0, max(len(line) - OVERLAP, 1), LONGEST - OVERLAP)
    return [line[start : start + LONGEST] for start in starts]


def _in_piece(text: str, names: Names, is_text: bool) -> Iterator[tuple[str, str]]:
    covered: list[tuple[int, int]] = []
    for kind, pattern in [*_SECRETS, *(_PEOPLE if is_text else [])]:
        for match in pattern.finditer(text):
            start, end = match.span()
            if not any(start < b and a < end for a, b in covered):
                covered.append((start, end))
                yield kind, match[0]
    for match in _WORD.finditer(text) if is_text and (names.hosts or names.users) else ():
        parts = match[0].split(".")[:8]
        for dots in range(len(parts)):  # also n0 in n0.cluster.org
            word = ".".join(parts[: dots + 1])
            if word in names.hosts and word not in COMMON:
                yield "host name", word
            if word in names.users and word not in COMMON:
                yield "user name", word


def _finding(kind: str, text: str, where: list[str]) -> Finding:
    place = printable(where[0]) + (f" and {len(where) - 1} more places" if len(where) > 1 else "")
    if kind == "file for secrets":
        remedy = "remove it: files with this name contain keys or passwords, and the whole tree is published"
        return Finding(
            "pack/secret", "error", place, "no files that contain secrets", printable(text), remedy
        )
    if kind in SECRETS:
        # The finding must not repeat the secret.
        shown = f"{kind}: {printable(text[:6])}… ({len(text)} characters)"
        remedy = "remove and revoke it: the file would be published"
        return Finding("pack/secret", "error", place, "no secrets", shown, remedy)
    remedy = "it will be published; to avoid this, repeat the run with other names (logs may not be edited)"
    return Finding("pack/name", "warning", place, f"no {kind}", printable(text), remedy)
