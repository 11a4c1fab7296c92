"""Counts the bytes of batches that this process sent and received.

"Sent" is what a pickle of a batch carries, "received" what an unpickle reads or maps. Each process has one
counter: the driver's tells what went through the driver, a worker's what that worker moved.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TransferCount:
    """Bytes of batches sent and received by one process."""

    sent: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        """Bytes moved in either direction."""
        return self.sent + self.received

    def __sub__(self, other: TransferCount) -> TransferCount:
        return TransferCount(self.sent - other.sent, self.received - other.received)

    def __add__(self, other: TransferCount) -> TransferCount:
        return TransferCount(self.sent + other.sent, self.received + other.received)


_count = TransferCount()


def transfer_count() -> TransferCount:
    """What this process has moved since it started; subtract two readings to measure a section."""
    return _count


def count_sent(nbytes: int) -> None:
    """Add to what this process has sent."""
    global _count
    _count = TransferCount(_count.sent + nbytes, _count.received)


def count_received(nbytes: int) -> None:
    """Add to what this process has received."""
    global _count
    _count = TransferCount(_count.sent, _count.received + nbytes)
