"""Unit tests run without a framework: importing one from a test, or from the code it calls, is an error."""

import builtins
from types import ModuleType
from typing import Any

import pytest

FRAMEWORKS = {"tensorflow", "keras", "horovod", "torch", "torchvision", "nvidia"}


@pytest.fixture(autouse=True)
def no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails also if the framework was loaded before, by a test of another folder in the same process.

    Libraries may import one: SciPy asks PyTorch, if it is loaded, whether an array is a tensor.
    """
    real = builtins.__import__

    def checked(name: str, namespace: dict[str, Any] | None = None, *rest: Any, **options: Any) -> ModuleType:
        importer = str((namespace or {}).get("__file__", ""))
        if name.partition(".")[0] in FRAMEWORKS and "site-packages" not in importer:
            raise AssertionError(f"{importer} imports {name}: move this test to tests/numeric")
        return real(name, namespace, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", checked)
