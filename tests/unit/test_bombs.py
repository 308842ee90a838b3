"""Small inputs that stand for large ones: a reader refuses them within 256 MiB and 10 s, in one short line."""

import pytest
from helpers.limits import limited

from mlhpc.cli import main
from mlhpc.errors import UserError, shown

DLIO = "framework: pytorch\nworkflow: {train: true}\n"


def laughs(levels):
    """A billion laughs: lists of nine aliases of the list before."""
    lines = ["- &b0 [9,9,9,9,9,9,9,9,9]"]
    lines += [f"- &b{n} [{','.join([f'*b{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "".join(f"    {line}\n" for line in lines)


def merges(levels):
    """Merge keys that double at each level."""
    lines = ["a0: &a0 {k: 1}"] + [f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]" for n in range(1, levels)]
    return "\n".join(lines) + "\nmodel: {name: x}\n"


WORKLOADS = {
    "laugh": f"{DLIO}model: {{name: bomb}}\ndataset:\n  format: npz\n  num_files_train:\n{laughs(10)}",
    "laugh in a name": f"{DLIO}model:\n  name:\n{laughs(10)}dataset: {{format: npz}}\n",
    "laugh in a word": f"{DLIO}dataset:\n  format:\n{laughs(10)}",
    "laugh in an idle key": f"{DLIO}dataset:\n  format: npz\n  keep_files:\n{laughs(10)}",
    "merge keys": merges(30),
    "an alias of itself": f"{DLIO}model: {{name: &x [*x]}}\n",
    "many values": f"{DLIO}model: {{name: [{'[],' * 300_000}]}}\n",
    "deep": f"{DLIO}model: {{name: {'[' * 5000}}}\n",
    "base 60": f"{DLIO}train: {{epochs: 1{':1' * 500_000}}}\n",
    "a long number": f"{DLIO}train: {{epochs: 0x{'f' * 60_000}}}\n",
    "a long name": f"{DLIO}model: {{name: {'x' * 60_000}}}\n",
    "large": f"{DLIO}# {'x' * 2_000_000}\n",
}


@pytest.mark.parametrize("text", WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload_that_expands_is_refused_in_one_short_line(tmp_path, capsys, text):
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with limited(len(text)):
        assert main(["io", "size", str(path), "--memory", "64G", "--accelerators", "4"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"mlhpc: {path}:") and message.count("\n") == 1 and len(message) < 1000


def test_a_value_in_a_message_is_short_whatever_it_is():
    nested = [9] * 9
    for _ in range(30):
        nested = [nested] * 9
    for value in (nested, {"a": nested}, "x" * 10**6, 10**5000, b"x" * 10**6, set(range(10**6))):
        with limited():
            assert len(shown(value)) < 1500
    assert [shown(value) for value in (3, "x", None, 1.5, [1, "2"])] == [
        "3",
        "'x'",
        "None",
        "1.5",
        "[1, '2']",
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError("37 GiB"), "not enough memory (37 GiB)"), (RecursionError(), "too deeply")],
)
def test_no_memory_and_endless_nesting_end_in_one_line(monkeypatch, capsys, error, words):
    def end(options):
        raise error

    monkeypatch.setattr("mlhpc.cli.print_help", end)
    assert main([]) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    with pytest.raises(type(error)):
        main(["--debug"])


def test_escapes_of_a_file_in_a_message_do_not_reach_the_terminal(monkeypatch, capsys):
    def end(options):
        raise UserError("\x1b]0;title\x07" + "x" * 10**6)

    monkeypatch.setattr("mlhpc.cli.print_help", end)
    assert main([]) == 2
    message = capsys.readouterr().err
    assert "\x1b" not in message and len(message) < 10_000
