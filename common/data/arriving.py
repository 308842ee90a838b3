"""Samples that training reads while they are being staged."""

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from mlhpc.common.formats.archive import Member, Sample, file_of


class Arriving(Sequence[Sample]):
    """A sequence of ``samples``, each located when it is requested: in the folder ``staged`` if its file has
    arrived there by then, otherwise in ``source``."""

    def __init__(self, samples: Sequence[Sample], staged: Path, source: Path) -> None:
        self._samples, self._staged, self._source = samples, staged, source

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        sample = self._samples[index]
        path = file_of(sample)
        if path.exists():
            return sample
        at_source = self._source / path.relative_to(self._staged)
        return Member(at_source, sample.number) if isinstance(sample, Member) else at_source
