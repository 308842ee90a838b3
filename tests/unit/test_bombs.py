"""Small inputs that stand for large ones: a reader refuses them within 256 MiB and 10 s, in one short line."""

import json

import pytest
from helpers.limits import limited

from mlhpc.benchmarks.toml_lines import parse_toml
from mlhpc.cli import main
from mlhpc.common.data import manifest
from mlhpc.common.files.untrusted import clean, parse_json, printable, read_object
from mlhpc.common.formats import archive
from mlhpc.errors import UserError, shown
from mlhpc.record import mllog
from mlhpc.record.events import read_events
from mlhpc.record.mllog import TOKEN

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


def sparse(path, size=2**40):
    """A file of a terabyte without a block on disk."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


TABLES = {
    "lists": "[[%s]]" % ("[]," * 5_000_000),
    "tables": '{"a": [%s{}]}' % ('{"a":1},' * 1_900_000),
    "a table": "{" + ",".join(f'"{n:x}":0' for n in range(900_000)) + "}",
    "numbers": '{"a": [' + "1," * 8_000_000 + "1]}",
    "deep": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "wide characters": '{"a": "' + "a" * 15_000_000 + '\U0001f600", "b": "' + "b" * 1_000_000 + '"}',
    "escaped": '{"a": "%s"}' % ("\\u0001" * 2_500_000),
    "unprintable": '{"a": "%s"}' % ("\x80" * 7_000_000),
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_a_json_file_takes_bounded_memory(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with limited(path.stat().st_size):
        try:
            read_object(path)
        except ValueError as error:
            assert len(str(error)) < 200


def test_values_nested_too_deeply_are_a_value_error_wherever_they_are_found():
    deep = []
    for _ in range(5000):
        deep = [deep]
    for call in (lambda: clean(deep), lambda: parse_json("[" * 5000 + "]" * 5000)):
        with pytest.raises(ValueError, match="nested too deeply"):
            call()
    assert parse_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


def test_printable_text_is_the_same_in_pieces():
    text = "a\x1bb\u202e" * 5000
    assert printable(text) == "a\\x1bb\\u202e" * 5000 and printable(text, "\x1b").count("\x1b") == 5000


TOMLS = {
    "a key of many parts": "a." * 20_000 + "a = 1",
    "with blanks between": "a           . " * 20_000 + "a = 1",
    "quoted parts": '"x".' * 20_000 + "a = 1",
    "a header of many parts": "[" + "a." * 20_000 + "a]",
    "in an inline table": "x = {" + "a." * 20_000 + "a = 1}",
    "behind a string of several lines": 'x = ["""\n""", {' + "a." * 20_000 + 'a = 1}, "y"]',
    "many headers": "".join(f"[a{n}]\n" for n in range(120_000)),
    "many dotted keys": "".join(f"a{n}.b.c = 1\n" for n in range(60_000)),
    "lists": "a = [" + "[]," * 300_000 + "]",
    "deep lists": "a = " + "[" * 10_000,
    "deep tables": "a = " + "{a=" * 10_000,
    "large": "# " + "x" * 2_000_000,
    "blanks": "a" + " " * 900_000 + "b = 1",
    "words": "a-" * 450_000,
    "quotes": "'\"" * 450_000,
}


@pytest.mark.parametrize("text", TOMLS.values(), ids=TOMLS)
def test_toml_takes_bounded_memory_and_time(text):
    with limited(len(text)):
        try:
            parse_toml(text)
        except ValueError as error:
            assert len(str(error)) < 300


def test_ordinary_toml_is_read():
    text = 'a = [1.5, 2.5]\n[x."y.z".w]\nv = "1.2.3.4.5"\nu.v = {s = 1.0, t.u = "..."}\n'
    assert parse_toml(text)["x"]["y.z"]["w"]["u"]["v"] == {"s": 1.0, "t": {"u": "..."}}


def record(value):
    rest = f'"event_type": "POINT", "key": "k", "value": {value}, "metadata": {{}}'
    return f'{TOKEN} {{"time_ms": 1700000000000, {rest}}}\n'


def test_logs_take_bounded_memory_and_time(tmp_path):
    bomb = tmp_path / "run.log"
    bomb.write_text(record("1") + 64 * record("[" + "[]," * 330_000 + "[]]"))
    with limited(bomb.stat().st_size):
        log = mllog.parse(bomb)
    assert log.records[0].value == 1 and "not read from here" in log.problems[-1].what
    with limited(memory=2**30):
        log = mllog.parse(sparse(tmp_path / "sparse.log"))
    assert not log.records and "not read from here" in log.problems[-1].what


def test_events_take_bounded_memory_and_time(tmp_path):
    with limited():
        assert read_events(sparse(tmp_path / "sparse.jsonl")) == []
    many = tmp_path / "many.jsonl"
    event = json.dumps({"event": "end", "name": "train", "x": [{}] * 50_000})
    many.write_text(f"{event}\n" * 200)
    with limited(many.stat().st_size):
        assert 0 < len(read_events(many)) < 200


@pytest.mark.parametrize("kind", ["sparse", "lists", "deep"])
def test_manifests_take_bounded_memory_and_time(tmp_path, kind):
    path = tmp_path / manifest.NAME
    if kind == "sparse":
        sparse(path)
    else:
        path.write_text("[" * 10**6 if kind == "deep" else "[" + "[]," * 10_000_000 + "[]]")
    # Its files are read up to a gigabyte.
    with limited(2**30 + path.stat().st_blocks * 512), pytest.raises(UserError, match="not a valid manifest"):
        manifest.load(tmp_path)


def test_a_sparse_sample_is_a_one_line_error(tmp_path):
    with limited(), pytest.raises(UserError, match="more than a sample can have"):
        archive.read(sparse(tmp_path / "sample.npy"))
