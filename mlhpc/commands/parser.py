"""Argument parsing shared by all commands."""

import argparse
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from mlhpc import __version__
from mlhpc.benchmarks.registry import BUILT_IN
from mlhpc.common.files.untrusted import finite
from mlhpc.errors import UserError, did_you_mean
from mlhpc.quantities import parse_quantity


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, with the most similar valid word and the help command."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with ``message`` and the help command."""
        raise UserError(f"{message}; see: {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Like ``ArgumentParser.exit``."""
        sys.stdout.flush()  # output of --help, flushed here, where main handles a closed pipe
        super().exit(status, message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.dest if action.option_strings else "command"
            raise UserError(f"no {what} {value!r}; {did_you_mean(str(value), map(str, action.choices))}")

    def add_flag(self, name: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def add_repeatable(self, name: str, metavar: str, help: str) -> None:
        """Add an option that may be repeated; its value is the list of all values."""
        self.add_argument(name, action="append", default=[], metavar=metavar, help=help)

    def add_count(self, name: str, help: str, *, least: int = 1, **options: Any) -> None:
        """Add an option whose value is a whole number of at least ``least`` (0 or 1)."""
        self.add_argument(name, type=natural if least == 0 else positive, help=help, **options)

    def add_folder(self, name: str, help: str, *, metavar: str = "DIR", **options: Any) -> None:
        """Add an option whose value is a folder."""
        self.add_argument(name, type=folder, metavar=metavar, help=help, **options)

    def add_out_file(self, suffix: str, help: str, **options: Any) -> None:
        """Add ``--out``, a file to write, whose name must end in ``suffix``."""
        self.add_argument("--out", type=file_named(suffix), metavar=f"FILE{suffix}", help=help, **options)


EXAMPLES = tomllib.loads(Path(__file__).with_name("examples.toml").read_text("utf-8"))
CORES = len(os.sched_getaffinity(0))
NAMES = ", ".join(benchmark.name for benchmark in BUILT_IN)

LARGEST_SEED = 2**31 - 1

JSON_SCHEMA = 1
"""Version of what ``--json`` prints (docs/reference/json.md): incremented if a key changes its meaning or is
removed."""

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The object to which commands are added."""


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int] | str, summary: str
) -> Parser:
    """Add a command to ``commands``. ``run`` executes the command and returns its exit status; it is a function,
    or ``"package.module:function"``, which is imported when the command runs."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if example := EXAMPLES.get(parser.prog.partition(" ")[2]):
        parser.epilog = f"example:\n  {example}"
    parser.set_defaults(command=run, parser=parser)
    return parser


def folder(text: str) -> Path:
    """The value of an option that is a path. An empty value, such as an unset shell variable, is refused because
    it would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; pass a folder, or omit the option")
    return Path(text)


def file_named(suffix: str) -> Callable[[str], Path]:
    """A ``type`` for an option that names an output file, which must end in ``suffix``."""

    def file(text: str) -> Path:
        if Path(text).suffix != suffix:
            raise argparse.ArgumentTypeError(f"{text} must end in {suffix}")
        return Path(text)

    return file


def positive(text: str) -> int:
    """The value of an option that is a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """The value of an option that is a whole number of at least 0."""
    return _whole(text, 0)


def seed(text: str) -> int:
    """A random seed from 0 to 2³¹ - 1, the range that all frameworks accept."""
    if _whole(text, 0) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to {LARGEST_SEED}")
    return int(text)


def _whole(text: str, least: int) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
    return int(text)


def positives(text: str) -> list[int]:
    """The value of an option that is a comma-separated list of whole numbers of at least 1; repeated numbers are
    dropped."""
    return list(dict.fromkeys(positive(word.strip()) for word in text.split(",")))


def number(text: str) -> float:
    """The value of an option that is a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def quantity(text: str) -> float:
    """The value of an option that is a finite number above 0."""
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def quantities(text: str) -> list[float]:
    """The value of an option that is a comma-separated list of finite numbers above 0; repeated numbers are
    dropped."""
    return [quantity(word) for word in texts(text)]


def texts(text: str) -> list[str]:
    """The value of an option that is a comma-separated list of words; repeated words are dropped."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def byte_size(text: str) -> int:
    """The value of an option that is a size of at least one byte: ``512GiB``, ``7.63 MB``, or bytes."""
    try:
        value = round(parse_quantity(text, "bytes", bare="B"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least one byte")
    return value


def add_json(parser: Parser) -> None:
    """Add ``--json``."""
    parser.add_flag("--json", "print JSON (docs/reference/json.md)")


def print_json(command: str, content: Mapping[str, Any], records: Sequence[str] | None = None) -> None:
    """Print ``content`` as JSON with the common keys that docs/reference/json.md describes. NaN and infinity,
    which JSON lacks, become null. ``records``: objects that are already JSON text, printed as a list under the key
    ``records``."""
    frame = {"schema": JSON_SCHEMA, "mlhpc": __version__, "command": command, **content}
    text = json.dumps(finite(frame), indent=1, allow_nan=False)
    if records is not None:
        text = text.removesuffix("\n}") + ',\n "records": [' + ",\n  ".join(records) + "]\n}"
    print(text)


def print_help(options: argparse.Namespace) -> int:
    """Print the help of a command that was called without its subcommand. Returns 0."""
    options.parser.print_help()
    return 0


def add_benchmark(parser: Parser) -> None:
    """Add the argument BENCHMARK and the options ``--preset`` and ``--set``."""
    parser.add_argument("benchmark", metavar="BENCHMARK", help=f"{NAMES}, or one from an installed package")
    parser.add_argument("--preset", default="smoke", help="a named set of settings (mlhpc presets BENCHMARK)")
    add_set(parser)


def add_set(parser: Parser) -> None:
    """Add ``--set``."""
    parser.add_repeatable("--set", "KEY=VALUE", "change one setting")


def add_data_set(parser: Parser) -> None:
    """Add ``--data``."""
    parser.add_folder("--data", "the data set (default: data/BENCHMARK-PRESET)")


def add_machine(parser: Parser, help: str) -> None:
    """Add ``--machine``."""
    parser.add_argument("--machine", metavar="NAME|FILE", help=help)


def add_hyperparameters_from(parser: argparse.ArgumentParser) -> None:
    """Add ``--hyperparameters-from``."""
    parser.add_argument(
        "--hyperparameters-from",
        type=Path,
        metavar="LOG",
        help="use the hyperparameters of this log or run; --set overrides them",
    )


def add_results(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Add the argument ``path``, which selects results, and ``--ruleset``. ``options``: keyword arguments of
    ``add_argument`` for ``path``."""
    parser.add_argument(
        "path", type=Path, help="a run, a log, a folder of runs, or a submission tree", **options
    )
    add_ruleset(parser)


def add_ruleset(parser: argparse.ArgumentParser) -> None:
    """Add ``--ruleset``."""
    parser.add_argument(
        "--ruleset",
        metavar="VERSION",
        help="HPC 1.0.0 to 3.0.0; for ResNet-50, Training 0.6.0 to 4.0.0 (default: the round of a published "
        "folder; otherwise HPC 2.0.0, the last that times staging, or Training 4.0.0)",
    )
