"""What should not leave the house with a submission: secrets, and names of hosts and people.

Results are published. A secret is an error; a name is a warning, since the logs must not be edited: whoever
packs decides. Patterns of secrets are those that their issuers document (prefixes of tokens, PEM headers).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlhpc.submission.logs.findings import Finding

SECRETS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})\b",
    "GitLab token": r"\bglpat-[\w-]{20,}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "Slack token": r"\bxox[abprs]-[\w-]{10,}",
    "web token": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
    "password in an address": r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']+:[^/\s@\"'$]+@",
    "secret": r"(?i)\b\w*(?:password|passwd|secret|api_?key|access_?key|auth_?token)\w*[\"']?\s*[=:]\s*"
    r"[\"']?(?=[^\s\"']*\d)[^\s\"'$<{(\[]{8,}",
}
PEOPLE = {
    "e-mail address": r"\b[\w.+-]+@(?:[\w-]+\.)+[a-z]{2,}\b",
    "user name in a path": r"(?<![\w.])/(?:home|users|Users|global/homes/\w|u)/[A-Za-z_][\w.-]*",
}
COMMON = frozenset(
    {"localhost", "root", "user", "users", "admin", "nobody", "ubuntu", "node", "host", "local"}
)
"""Names that say nothing of anybody."""
_SECRETS = [(kind, re.compile(pattern)) for kind, pattern in SECRETS.items()]
_PEOPLE = [(kind, re.compile(pattern)) for kind, pattern in PEOPLE.items()]


@dataclass(frozen=True)
class Names:
    """Host and user names that are known from the runs and this machine."""

    hosts: frozenset[str]
    users: frozenset[str]


def leaks(root: Path, names: Names) -> list[Finding]:
    """One finding for every secret or name in the files below ``root``, with the first place and how many
    more there are. Known names are not looked for in Python files, where ``n0`` is a variable."""
    known = [
        (kind, re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])"))
        for kind, group in (("host name", names.hosts), ("user name", names.users))
        for name in sorted(group - COMMON)
    ]
    places: dict[tuple[str, str], list[str]] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if b"\0" in data[:4096]:
            continue
        patterns = [*_SECRETS, *_PEOPLE, *(known if path.suffix != ".py" else [])]
        for line, text in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for kind, what in _in_line(text, patterns):
                places.setdefault((kind, what), []).append(f"{path.relative_to(root)}:{line}")
    return [_finding(kind, what, where) for (kind, what), where in places.items()]


def _in_line(text: str, patterns: Iterable[tuple[str, re.Pattern[str]]]) -> Iterator[tuple[str, str]]:
    taken: set[tuple[int, int]] = set()
    for kind, pattern in patterns:
        for match in pattern.finditer(text):
            if match.span() not in taken:
                taken.add(match.span())
                yield kind, match[0]


def _finding(kind: str, what: str, where: list[str]) -> Finding:
    more = f" and {len(where) - 1} more places" if len(where) > 1 else ""
    if kind in SECRETS:
        # The report of a secret must not carry it further.
        shown = f"{kind}: {what[:6]}… ({len(what)} characters)"
        remedy = "take it out, and have it revoked: it stands in a file that is to be published"
        return Finding("pack/secret", "error", where[0] + more, "no secrets", shown, remedy)
    remedy = "published as it is; run again with other paths or names if it must not be (logs are not edited)"
    return Finding("pack/name", "warning", where[0] + more, f"no {kind}", what, remedy)
