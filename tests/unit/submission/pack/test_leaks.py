"""What a submission should not publish: secrets, and names of hosts and people."""

import re

import pytest

from mlhpc.submission.pack.leaks import PEOPLE, SECRETS, Names, leaks, pieces

PEM = "-----BEGIN RSA " + "PRIVATE KEY-----"  # in two parts, so that scanners do not report this file


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PEM, "private key"),
        ("aws " + "AKIA" + "IOSFODNN7EXAMPLE", "AWS key"),
        ("token: ghp_" + "a1B2" * 9, "GitHub token"),
        ("WANDB_API_KEY=" + "0123456789abcdef" * 2, "secret"),
        ("https://jane:hunter2@host/x", "password in an address"),
        ("-----BEGIN PGP " + "PRIVATE KEY BLOCK-----", "private key"),
        ("mlhpc run --password " + "correcthorse", "option with a secret"),
        ("Authorization: Bearer " + "aB3-" * 8, "bearer token"),
        ("key sk-" + "proj-a1B2c3D4" * 3, "API key"),
        ("AIza" + "SyA1b2" * 6 + "C", "Google key"),
        ("//packages.example.org/:_x=npm_" + "a1B2" * 9, "npm token"),
        ("export TOKEN=" + "a1b2c3d4e5", "token"),
    ],
)
def test_a_secret_is_an_error_and_not_repeated(tmp_path, text, kind):
    (tmp_path / "a.sh").write_text(f"# one\n{text}\n")
    findings = leaks(tmp_path, Names(frozenset(), frozenset()))
    assert [f.severity for f in findings] == ["error"] and findings[0].actual.startswith(kind)
    assert findings[0].where == "a.sh:2"
    assert text.split("=")[-1].split(" ")[-1] not in findings[0].actual


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_secret_in_utf_16_is_found(tmp_path, encoding):
    (tmp_path / "notes.txt").write_bytes(("x\nghp_" + "a1B2" * 9 + "\n").encode(encoding))
    (finding,) = leaks(tmp_path, Names(frozenset(), frozenset()))
    assert finding.rule == "pack/secret"


def test_file_names_are_searched_too(tmp_path):
    for name in ("id_ed25519", "cluster.pem", ".netrc", "nid001234/setup.sh", "log-hf_" + "a1B2" * 8):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    findings = leaks(tmp_path, Names(frozenset({"nid001234"}), frozenset()))
    assert {(f.rule, f.where) for f in findings} == {
        ("pack/secret", "id_ed25519"),
        ("pack/secret", "cluster.pem"),
        ("pack/secret", ".netrc"),
        ("pack/secret", "log-hf_" + "a1B2" * 8),
        ("pack/name", "nid001234/setup.sh"),
    }


@pytest.mark.parametrize(
    "text",
    ["num_tokens: 1000000000", "token = secrets.token_hex(16)", "--token TOKEN", "scikit-learn and sk-learn",
     "tokenizer=abc1", "password: str = field()", "task-abcdefghijklmnop1234567"],
)  # fmt: skip
def test_harmless_text_is_not_reported_as_a_secret(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert leaks(tmp_path, Names(frozenset(), frozenset())) == []


@pytest.mark.parametrize(
    "unit", ["a", "password", "a.", "a@", "://a:", "sk-", "eyJ" + "a" * 20 + ".", "token "]
)
def test_the_work_is_linear_in_the_length_of_a_line(unit):
    """Counted in steps of the regular expressions, not in seconds: no piece is long, and every
    repetition in a pattern has an upper bound."""
    assert max(map(len, pieces(unit * 100_000))) <= 16_384
    for pattern in (*SECRETS.values(), *PEOPLE.values()):
        assert not re.search(r"(?<!\\)[*+](?![^\[]*\])|\{\d+,\}", pattern), pattern


def test_names_of_hosts_and_people_are_reported_with_their_place(tmp_path):
    (tmp_path / "result_1.txt").write_text(
        "x\nfile /home/jane/train.py\nnid001234 said\nnid0012345\nmail j.doe@lab.org\n"
    )
    findings = leaks(tmp_path, Names(frozenset({"nid001234", "localhost"}), frozenset({"jane"})))
    assert {(f.actual, f.where, f.severity) for f in findings} == {
        ("/home/jane", "result_1.txt:2", "warning"),
        ("jane", "result_1.txt:2", "warning"),
        ("nid001234", "result_1.txt:3", "warning"),
        ("j.doe@lab.org", "result_1.txt:5", "warning"),
    }
