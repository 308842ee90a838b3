"""The contents of a data set's folder, uncompressed: isal does not always choose the same of equal matches."""

import gzip
import json
from pathlib import Path


def content(root: Path) -> dict[str, object]:
    """By path, the uncompressed bytes of every file; of the manifest its facts and the paths it lists."""
    contents: dict[str, object] = {}
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            contents[str(path.relative_to(root))] = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            if path.name == "manifest.json":
                manifest = json.loads(data)
                files = manifest["files"]["paths"]
                contents[str(path.relative_to(root))] = (manifest["facts"], files)
    return contents
