"""What installing mlhpc brings, from setup.cfg and the metadata of what is installed here."""

from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def setup_cfg() -> ConfigParser:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def required() -> set[str]:
    """The distributions that ``pip install mlhpc`` installs, without any extra: what setup.cfg requires, what that
    requires, and so on."""
    names = setup_cfg()["options"]["install_requires"].split("\n")[1:]
    packages: set[str] = set()
    while names:
        requirement = Requirement(names.pop())
        name = canonicalize_name(requirement.name)
        if name not in packages and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            packages.add(name)
            names += metadata.requires(name) or []
    return packages
