"""``mlhpc doctor`` reports the frameworks that are installed here."""

from importlib import metadata

from mlhpc.doctor import node


def test_the_versions_of_installed_frameworks_are_reported():
    facts = node._load_frameworks("none")
    assert facts["tensorflow"]["version"] == metadata.version("tensorflow-cpu") == node._horovod_built_for()
    assert facts["tensorflow"]["horovod"]["gloo"]
    assert facts["torch"]["version"].startswith(metadata.version("torch"))
