"""Runs the official tools under a guard: they read only their own rule files, always terminate, and print nothing.

mlperf-logging 4.1.68 puts values of a log (division, benchmark, optimizer) into the name of the next rule file,
``hpc_2.0.0/{division}_common.yaml``, and executes the code in that file. An untrusted log could thereby name any
file, or a rule file that includes itself endlessly. package_checker and result_summarizer use the same checker, so
a single guard around all tools is enough. The guard also caches the parsed rule files, because the checker parses
four or five files for each log, which takes three quarters of the time of a check.
"""

import io
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from types import SimpleNamespace
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance

RULE_FILE = re.compile(r"\w+_\d+\.\d+\.\d+/\w+\.yaml", re.ASCII)
"""Names of the rule files in mlperf-logging. The last part of such a name contains no dot or slash, except in
.yaml, so it cannot refer to a file outside the package's folder."""
MOST_RULE_FILES = 64
"""Maximum number of rule files per log. A log requires four or five, and one more for each repeated record."""

_YAML = mlp_compliance.yaml  # the parser that the checker uses


class RuleFileRefused(Exception):
    """Raised when a log requests a rule file that does not belong to the checker, or too many rule files."""


@contextmanager
def guarded() -> Iterator[list[logging.LogRecord]]:
    """Context manager for calling the official tools. Yields the list of the tools' log records, which grows while
    they run.

    If a rule file is refused, the tool that requested it fails with RuleFileRefused.
    """
    mlp_compliance.enqueued_configs.clear()  # a global, still set if an earlier check crashed
    try:
        with _own_rule_files_only(), _parsed_once(), _captured() as messages:
            yield messages
    finally:
        mlp_compliance.enqueued_configs.clear()


@contextmanager
def _own_rule_files_only() -> Iterator[None]:
    checker = mlp_compliance.ComplianceChecker
    official = checker.configured_checks
    folder = os.path.dirname(os.path.abspath(mlp_compliance.__file__))

    def configured_checks(self: Any, loglines: Any, config_file: str) -> None:
        """Replacement for the only method in which mlperf-logging opens a rule file. Each log has a checker of its
        own."""
        name = config_file.removeprefix(folder + os.sep)
        if not RULE_FILE.fullmatch(name):
            raise RuleFileRefused(f"it requests the rule file {name!r}, which does not belong to the checker")
        self.rule_files_read = getattr(self, "rule_files_read", 0) + 1
        if self.rule_files_read > MOST_RULE_FILES:
            raise RuleFileRefused(f"it requests more than {MOST_RULE_FILES} rule files, including {name!r}")
        official(self, loglines, config_file)

    checker.configured_checks = configured_checks
    try:
        yield
    finally:
        checker.configured_checks = official


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Context manager in which each rule file is parsed only once. This is possible because the checker only calls
    ``yaml.load`` and does not modify the result."""
    mlp_compliance.yaml = SimpleNamespace(load=lambda file, Loader: _rules(file.name), BaseLoader=None)
    try:
        yield
    finally:
        mlp_compliance.yaml = _YAML


@cache
def _rules(path: str) -> Any:
    """The parsed content of a rule file, with every value as text."""
    with open(path, encoding="utf-8") as file:
        return _YAML.load(file, Loader=_YAML.BaseLoader)


@contextmanager
def _captured() -> Iterator[list[logging.LogRecord]]:
    """Context manager that yields the list of records that reach the root logger. Neither these records nor
    printed output reach the terminal.

    The root logger gets a handler, because the tools call functions such as ``logging.info``, which would
    configure a root logger without handlers.
    """
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [Collector()]
    root.setLevel(logging.INFO)
    try:
        discarded = io.StringIO()
        with redirect_stdout(discarded), redirect_stderr(discarded), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield records
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
