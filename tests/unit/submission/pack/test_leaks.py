"""What no submission should tell: secrets, and names of hosts and people."""

import pytest

from mlhpc.submission.pack.leaks import Names, leaks

PEM = "-----BEGIN RSA " + "PRIVATE KEY-----"  # in two, so that nobody takes this file for a leak


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PEM, "private key"),
        ("aws " + "AKIA" + "IOSFODNN7EXAMPLE", "AWS key"),
        ("token: ghp_" + "a1B2" * 9, "GitHub token"),
        ("WANDB_API_KEY=" + "0123456789abcdef" * 2, "secret"),
        ("https://jane:hunter2@host/x", "password in an address"),
    ],
)
def test_a_secret_is_an_error_and_not_repeated(tmp_path, text, kind):
    (tmp_path / "a.sh").write_text(f"# one\n{text}\n")
    found = leaks(tmp_path, Names(frozenset(), frozenset()))
    assert [f.severity for f in found] == ["error"] and found[0].actual.startswith(kind)
    assert found[0].where == "a.sh:2"
    assert text.split("=")[-1] not in found[0].actual


def test_names_of_hosts_and_people_are_reported_with_their_place(tmp_path):
    (tmp_path / "result_1.txt").write_text(
        "x\nfile /home/jane/train.py\nnid001234 said\nnid0012345\nmail j.doe@lab.org\n"
    )
    found = leaks(tmp_path, Names(frozenset({"nid001234", "localhost"}), frozenset({"jane"})))
    assert {(f.actual, f.where, f.severity) for f in found} == {
        ("/home/jane", "result_1.txt:2", "warning"),
        ("jane", "result_1.txt:2", "warning"),
        ("nid001234", "result_1.txt:3", "warning"),
        ("j.doe@lab.org", "result_1.txt:5", "warning"),
    }
