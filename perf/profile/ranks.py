"""Communication and input of each rank in a profiled step (Farrell et al. 2021, figure 6, tables 8 and 9)."""

from collections.abc import Sequence

from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.common.timing.profile import Profile
from mlhpc.quantities import digits, four_digits


def exchange_table(ranks: Sequence[Profile]) -> Table:
    """Communication of each rank."""
    return table(
        "exchange-by-rank",
        [(rank, each, each.exchange) for rank, each in enumerate(ranks) if each.exchange],
        {
            "rank": lambda row: str(row[0]),
            "ms per step": lambda row: ms(row[1].wall),
            "not hidden, ms": lambda row: ms(row[2].exposed),
            "share": lambda row: number(row[2].exposed and row[2].exposed / row[1].wall, "{:.1%}".format),
            "messages": lambda row: number(sum(m.calls for m in row[2].messages), four_digits),
            "MB per step": lambda row: _mega(row[2].bytes),
            "GB/s": lambda row: _giga(row[2].rate),
        },
    )


def message_table(ranks: Sequence[Profile]) -> Table:
    """A histogram of rank 0's message sizes."""
    exchange = ranks[0].exchange
    return table(
        "messages",
        exchange.messages if exchange else (),
        {
            "message, MB": lambda m: _mega(m.bytes),
            "a step": lambda m: number(m.calls, four_digits),
            "ms each": lambda m: ms(m.seconds),
            "GB/s": lambda m: _giga(m.bytes / m.seconds if m.seconds else None),
        },
    )


def reading_table(ranks: Sequence[Profile]) -> Table:
    """Input of each rank."""
    return table(
        "input-by-rank",
        [(rank, each, each.reading) for rank, each in enumerate(ranks) if each.reading],
        {
            "rank": lambda row: str(row[0]),
            "MB per step": lambda row: _mega(row[2].bytes),
            "GB/s while training": lambda row: _giga(row[2].bytes / row[1].wall),
            "loader alone, GB/s": lambda row: _giga(row[2].alone),
            "waited, ms": lambda row: ms(row[2].waited),
            "share": lambda row: number(row[2].waited / row[1].wall, "{:.1%}".format),
        },
    )


EXCHANGE_NOTE = (
    "Not hidden: all-reduce without concurrent computation, including waits for late ranks. GB/s: a rank's "
    "gradients over the time in which at least one message is under way (Horovod: from rank 0's timeline, without "
    "waiting and copying); by size: a message's bytes over its own time, which other messages may share."
)
_READING_NOTE = (
    "Bytes of files as stored. Loader alone: the same number of batches, of another epoch, read without "
    "computation; the page cache is not dropped. With fewer steps than loading.prefetch no wait is seen."
)
_ON_A_GPU = (
    " Waits are the host's; meanwhile the GPU computes what was queued before. In the parts of a step, the wait "
    "for a batch is therefore at most the time in which no kernel ran."
)


def reading_note(ranks: Sequence[Profile]) -> str:
    """An explanation of the input table for the measured device."""
    return _READING_NOTE + (_ON_A_GPU if ranks[0].gpu else "")


def ms(seconds: float | None) -> Cell:
    """A cell in milliseconds."""
    return number(None if seconds is None else 1e3 * seconds, digits)


def _mega(size: float) -> Cell:
    return number(size / 1e6, four_digits)


def _giga(rate: float | None) -> Cell:
    return number(None if rate is None else rate / 1e9, digits)
