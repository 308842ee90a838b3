"""What ``mlhpc doctor`` says of the frameworks, held against what is installed here."""

from importlib import metadata

from mlhpc.doctor import node


def test_the_installed_frameworks_say_their_versions():
    told = node._load_frameworks("none")
    assert told["tensorflow"]["version"] == metadata.version("tensorflow-cpu") == node._horovod_built_for()
    assert told["tensorflow"]["horovod"]["gloo"]
    assert told["torch"]["version"].startswith(metadata.version("torch"))
