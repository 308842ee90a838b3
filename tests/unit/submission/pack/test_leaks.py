"""What a submission should not publish: secrets, and names of hosts and people."""

import gzip
import re
from pathlib import Path

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


H = "0123456789abcdef" * 4
B = "aB3dE6gH9" * 12
NOT_SCANNED_BEFORE = {
    "a password of letters": ("password=" + "correcthorsebattery", "error"),
    "a password in JSON": ('{"password": "' + 'correcthorse"}', "error"),
    "netrc": ("machine x login " + "jane password " + "correcthorse", "error"),
    "basic authorization": ("Authorization: " + "Basic amFuZTpodW50ZXIy", "error"),
    "Slack webhook": ("https://hooks.slack.com/" + "services/T00000000/B00000000/" + B[:24], "error"),
    "Azure AccountKey": ("AccountName=x;Account" + "Key=" + B[:86] + "==", "error"),
    "Azure SAS": ("https://x.blob.core.windows.net/y?sv=2024&" + "sig=" + B[:43] + "%3D", "error"),
    "signed request": ("https://b.s3.amazonaws.com/x?X-Amz-" + "Signature=" + H, "error"),
    "Vault": ("hvs." + B[:90], "error"),
    "DigitalOcean": ("dop_" + "v1_" + H, "error"),
    "NVIDIA": ("nvapi-" + B[:64], "error"),
    "SSH2": ("---- BEGIN SSH2 ENCRYPTED " + "PRIVATE KEY ----", "error"),
    "PuTTY": ("PuTTY-User-" + "Key-File-3: ssh-ed25519", "error"),
    "age": ("AGE-SECRET-" + "KEY-1" + B.upper()[:58], "error"),
    "MUNGE": ("MUNGE:" + B[:100] + ":", "error"),
    "PBS cookie": ("PBS_JOB" + "COOKIE=" + H[:32], "error"),
    "transport key of Open MPI": (
        "OMPI_MCA_orte_precondition_" + "transports=" + H[:16] + "-" + H[:16],
        "error",
    ),
    "GCP key id": ('"private_key_' + 'id": "' + H[:40] + '"', "error"),
    "GitLab runner": ("glrt-" + B[:20], "error"),
    "GitLab deploy": ("gldt-" + B[:20], "error"),
    "Atlassian": ("ATATT3" + "xFfGF0" + B[:100], "error"),
    "SendGrid": ("SG." + B[:22] + "." + B[:43], "error"),
    "mysql -p": ("mysql -u jane -p" + "correcthorse db", "error"),
    "private address": ("MASTER_ADDR is 10.12.3.4 now", "warning"),
    "private address and port": ("tcp://192.168.7.9:29500", "warning"),
    "scratch": ("/scratch/" + "jsmith/data", "warning"),
    "gpfs": ("/gpfs/alpine/" + "jsmith/data", "warning"),
    "lustre": ("/lustre/" + "jsmith/data", "warning"),
    # Beyond those that a review had found:
    "Databricks": ("dapi" + H[:32], "error"),
    "Netlify": ("nfp_" + B[:36], "error"),
    "Linear": ("lin_" + "api_" + B[:40], "error"),
    "Notion": ("ntn_" + B[:46], "error"),
    "Postman": ("PMAK-" + H[:24] + "-" + H[:34], "error"),
    "New Relic": ("NRAK-" + B.upper()[:27], "error"),
    "Grafana": ("glsa_" + B[:32] + "_0a1b2c3d", "error"),
    "Shopify": ("shpat_" + H[:32], "error"),
    "Square": ("sq0atp-" + B[:22], "error"),
    "Terraform": (B[:14] + ".atlasv1." + B[:67], "error"),
    "RubyGems": ("rubygems_" + H[:48], "error"),
    "Weights & Biases": ("wandb_" + "v1_" + B[:77], "error"),
    "Telegram": ("123456789:AA" + B[:33], "error"),
    "Discord webhook": ("https://discord.com/api/" + "webhooks/123456789012345678/" + B[:68], "error"),
    "sshpass": ("sshpass -p " + "correcthorse ssh n0", "error"),
    "curl -u": ("curl -s -u jane:" + "correcthorse https://x", "error"),
    "Azure client secret": ("abc8Q~" + B[:34], "error"),
    "Twilio": ("SK" + H[:32], "error"),
}


@pytest.mark.parametrize(("text", "severity"), NOT_SCANNED_BEFORE.values(), ids=NOT_SCANNED_BEFORE)
def test_secrets_of_many_issuers_are_found(tmp_path, text, severity):
    (tmp_path / "a.txt").write_text(f"one\n{text}\n")
    findings = leaks(tmp_path, Names(frozenset(), frozenset()))
    assert severity in [f.severity for f in findings] and findings[0].where == "a.txt:2"


@pytest.mark.parametrize("how", ["utf-32", "utf-32-le", "gzip", "zero width"])
def test_a_secret_that_is_packed_or_interrupted_is_found(tmp_path, how):
    text = "x\nghp_" + "a1B2" * 9 + "\n"
    data = {
        "gzip": lambda: gzip.compress(text.encode()),
        "zero width": lambda: text.replace("hp_", "h\u200bp_").encode(),
    }.get(how, lambda: text.encode(how))()
    (tmp_path / "notes.txt").write_bytes(data)
    (finding,) = leaks(tmp_path, Names(frozenset(), frozenset()))
    assert finding.rule == "pack/secret"


@pytest.mark.parametrize(
    "text",
    ["password: required", "password=None", "def f(password=password):", '"password": "required"', "PASSWORD=$PW",
     "cublas 10.2.2.89-1", "libcudnn=10.1.0.5", "v10.1.0.105", "--passwd <file>", "basic authorization is not",
     "passwords=wrong", "the login node password prompt", "mysql -p", "key-value", "SG.x", "gpfs and lustre"],
)  # fmt: skip
def test_words_about_secrets_are_no_secrets(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert leaks(tmp_path, Names(frozenset(), frozenset())) == []


TREES = sorted(path for path in (Path(__file__).parents[3] / "data").rglob("*") if path.is_dir())


def test_published_logs_have_at_most_one_false_alarm_each():
    for tree in TREES:
        found = [f for f in leaks(tree, Names(frozenset(), frozenset())) if f.rule == "pack/secret"]
        assert len(found) <= 1, found
