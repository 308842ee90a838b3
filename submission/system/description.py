"""Creates the system description of a submission: the official fields, as far as the machine and Slurm provide
them, and the names of missing fields.

Fields and required values: MLPerf submission rules (mlcommons/policies, submission_rules.adoc,
"<system_desc_id>.json metadata"); the same names are required by mlperf-logging 4.1.68, system_desc_checker.
Fields are never guessed: a field is read from a file or a tool of the system, set by the user, or empty.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error, require_new
from mlhpc.common.files.untrusted import clean, parse_json, printable, read_text
from mlhpc.errors import UserError, did_you_mean

OPTIONAL = (
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches",
    "host_processor_interconnect", "accelerator_frequency", "accelerator_on-chip_memories",
    "accelerator_interconnect_topology", "hw_notes", "sw_notes",
)  # fmt: skip
"""Fields that must exist but may be empty."""
EXTRA = ("system_type", "host_network_card_count")
"""Fields in the rules that the checker does not require; they are written only if the user sets them."""
ORDER = (
    "submitter", "division", "system_type", "status", "system_name", "number_of_nodes",
    "host_processors_per_node", "host_processor_model_name", "host_processor_core_count",
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches",
    "host_processor_interconnect", "host_memory_capacity", "host_storage_type", "host_storage_capacity",
    "host_networking", "host_network_card_count", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect",
    "accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration",
    "accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology",
    "cooling", "hw_notes", "framework", "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip
"""All fields, in the order of the published descriptions."""
REQUIRED = tuple(key for key in ORDER if key not in OPTIONAL + EXTRA)
"""Fields that must have a meaningful value."""
NOTES = ("hw_notes", "sw_notes")  # free text, always optional

CHOICES = {
    "division": ("closed", "open"),
    "status": (
        "Available on-premise", "Available cloud", "Preview", "Research, Development, or Internal (RDI)"
    ),
}  # fmt: skip
"""Allowed values of some fields (mlperf-logging, system_desc_checker)."""


@dataclass(frozen=True)
class Description:
    """A system description. ``fields``: all official fields in order, empty if unknown. ``missing``: required
    fields without a value, each with a hint. ``open``: optional fields without a value."""

    fields: dict[str, Any]
    missing: dict[str, str]
    open: tuple[str, ...]

    def to_json(self) -> str:
        """The content of a system description file."""
        return json.dumps(self.fields, indent=2, ensure_ascii=False) + "\n"


def describe(nodes: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> Description:
    """The description of a system of ``nodes`` (:func:`~mlhpc.submission.system.node.node_facts` of each), in
    which the fields ``given`` by the user take precedence. A field that differs between nodes is left empty."""
    read_fields: dict[str, Any] = {}
    hints = {key: " or ".join(map(json.dumps, values)) for key, values in CHOICES.items()}
    hints |= {key: hint for node in nodes for key, hint in node["hints"].items()}
    for key in ORDER:
        values = {json.dumps(node["fields"].get(key, "")) for node in nodes}
        if len(values) == 1:
            read_fields[key] = json.loads(values.pop())
        else:
            hints[key] = "the nodes differ: " + "; ".join(sorted(values)[:4])
    if read_fields.get("number_of_nodes") == "1":  # without Slurm, only this node is known
        read_fields["number_of_nodes"] = str(len(nodes))
    fields = {
        key: given.get(key, read_fields.get(key, "")) for key in ORDER if key not in EXTRA or key in given
    }
    if fields["number_of_nodes"] == "1":
        fields["host_networking_topology"] = fields["host_networking_topology"] or "N/A"
    missing = {key: hints.get(key, "") for key in REQUIRED if not fields[key]}
    still_open = tuple(key for key in OPTIONAL if not fields[key] and key not in NOTES)
    return Description(fields, missing, still_open)


def given_fields(settings: Iterable[str]) -> dict[str, str]:
    """The fields set by ``key=value`` texts. Raises UserError for a key that is not an official field and for a
    value that is not allowed."""
    given = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not value:
            raise UserError(f"--set {setting!r} must be FIELD=VALUE, such as cooling=Water-cooled")
        if key not in ORDER:
            raise UserError(f"no field {key!r} in a system description; {did_you_mean(key, ORDER)}")
        if key in CHOICES and value not in CHOICES[key]:
            raise UserError(f"--set {key}={value} is not allowed; {did_you_mean(value, CHOICES[key])}")
        given[key] = value
    return given


def read(path: Path) -> dict[str, Any]:
    """The fields of a system description. Raises UserError if it is not a JSON object."""
    try:
        fields = parse_json(read_text(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or 'no such file'}; see mlhpc doctor --system") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: invalid JSON ({printable(str(error))}); fix or regenerate it") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} must be a JSON object with the fields of a system description")
    return {printable(key): clean(value) for key, value in fields.items()}


def write(description: Description, path: Path) -> None:
    """Write the description as JSON. Raises UserError if ``path`` exists or cannot be written."""
    require_new(path)
    with as_user_error(path, "cannot be written", "choose another --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, description.to_json().encode())
