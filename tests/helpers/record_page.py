"""docs/reference/record.md: the files of a run, from the models that write and read them and from a run that was
recorded (tests/data/run). As a program it writes the page."""

import inspect
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mlhpc.iobench.report import record as io
from mlhpc.record import events
from mlhpc.record.environment import Environment
from mlhpc.record.history import HistoryRecord
from mlhpc.record.rank_table import RankTable
from mlhpc.record.result import Result
from mlhpc.record.series import CampaignRecord, CellRecord, ServersRecord

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs/reference/record.md"
RUN = CHECKOUT / "tests/data/run"
"""``mlhpc run cosmoflow --preset smoke``, shortened to four epochs, and staged."""
FILES: dict[str, type[BaseModel]] = {
    "result.json": Result,
    "env.json": Environment,
    "ranks.json": RankTable,
}
OTHERS: dict[str, type[BaseModel]] = {
    "campaign.json": CampaignRecord,
    "cell.json of a study": CellRecord,
    "servers.json of a study": ServersRecord,
    "result.json of mlhpc io run": io.Result,
    "records of a history": HistoryRecord,
}
"""Files whose models the page only names."""
HEAD = """# Files of a run

Written by `python tests/helpers/record_page.py` from the models in `record/` and a run that was recorded; a test
keeps it up to date. Later versions may add keys, and readers ignore those they do not know. Keys with an asterisk
are always there. Unknown values are null. Times are in seconds, sizes in bytes.

A run's folder is its complete record: `result.json`, `env.json`, `config.toml` (all settings, as
`mlhpc run --config` takes them; `mlhpc presets` explains them), `events.rankN.jsonl` (from rank 256 on in folders
of 256), `ranks.json` once the run has ended, `run.log` (MLLOG, as MLPerf requires), and `report.html` once
`mlhpc report` has written it. The JSON schema of a file, for other programs:

    python -c "from mlhpc.record.result import Result; import json; print(json.dumps(Result.model_json_schema()))"
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## events.rankN.jsonl\n",
        _text(events.__doc__ or ""),
    ]
    parts.append(_example("events.rank0.jsonl"))
    for name, model in FILES.items():
        schema = model.model_json_schema()
        parts += [f"## {name}\n", _keys(schema)]
        if (RUN / name).exists():
            parts.append(_example(name))
        known = vars(sys.modules[model.__module__])
        parts += [
            _keys(part, f"**{name}**") for name, part in schema.get("$defs", {}).items() if name in known
        ]
    models = (f"- {name}: `{model.__module__}.{model.__name__}`" for name, model in OTHERS.items())
    return "\n".join([*parts, "## Other files\n", *models, ""])


def _keys(schema: dict[str, Any], name: str = "") -> str:
    """The description of a model, and its keys with their types; those of one type in a row together."""
    required = schema.get("required", ())
    kinds = [
        (f"`{key}`" + "*" * (key in required), _kind(value)) for key, value in schema["properties"].items()
    ]
    grouped = [
        f"{', '.join(key for key, _ in same)}: {kind}"
        for kind, same in groupby(kinds, key=lambda pair: pair[1])
    ]
    about = ": ".join(filter(None, (name, _text(schema.get("description", "")).strip())))
    return f"{about}\n\n- " + "\n- ".join(grouped) + "\n"


def _kind(schema: dict[str, Any]) -> str:
    if options := schema.get("anyOf"):
        return " or ".join(map(_kind, options))
    if reference := schema.get("$ref"):
        return str(reference).rpartition("/")[2]
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else None):
        return " or ".join(json.dumps(value) for value in values)
    if schema.get("type") == "array":
        parts = schema.get("prefixItems")
        return f"[{', '.join(map(_kind, parts))}]" if parts else f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object":
        values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
        return " of ".join(["object", *(_kind(value) for value in values if isinstance(value, dict))])
    return str(schema.get("type", "any"))


def _text(docstring: str) -> str:
    """A docstring in Markdown."""
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(docstring))
    return re.sub(r"\bNone\b", "null", text) + "\n"


def _example(name: str) -> str:
    text = (RUN / name).read_text()
    if name.endswith(".json"):
        return f"```json\n{_compact(json.loads(text))}```\n"
    records = [json.loads(line) for line in text.splitlines()]
    first = {(record["event"], record["name"]): _dense(record) for record in reversed(records)}
    return "The first of each kind in a run:\n\n```json\n" + "\n".join(reversed(first.values())) + "\n```\n"


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _compact(value: dict[str, Any]) -> str:
    """JSON with a line for each key, and one for each object of a list."""
    lines = []
    for key, part in value.items():
        text = _dense(part)
        if isinstance(part, list) and part and isinstance(part[0], dict):
            text = "[\n  " + ",\n  ".join(map(_dense, part)) + "]"
        lines.append(f' "{key}":{text}')
    return "{" + ",\n".join(lines)[1:] + "}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
