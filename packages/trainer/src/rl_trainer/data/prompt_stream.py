"""The order of training prompts, as a function of seed and position alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import CheckpointError, DataError


class PromptStream:
    """Endless epochs over `size` rows, each a seeded permutation; a batch may span two epochs.

    Every row comes once per epoch. The whole state is how many rows were taken, so that a resumed run
    goes on exactly where the saved one stood, at an epoch boundary too.

    Args:
        size: rows of the dataset, at least one.
        seed: decides each epoch's order together with the epoch's number.
        shuffle: False: the file's order in every epoch.
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise DataError("there are no training prompts; check data.train_files and the length filter")
        self.size, self.seed, self.shuffle, self.position = size, seed, shuffle, 0

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next `count` rows as (epoch, row)."""
        positions = range(self.position, self.position + count)
        self.position += count
        orders = {epoch: self.order(epoch) for epoch in {p // self.size for p in positions}}
        return [(p // self.size, int(orders[p // self.size][p % self.size])) for p in positions]

    def batches(self, batch_size: int, epochs: int) -> Iterator[list[tuple[int, int]]]:
        """Batches to the end of the last epoch; the last one may be smaller."""
        end = epochs * self.size
        while self.position < end:
            yield self.take(min(batch_size, end - self.position))

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of one epoch, `[size]` int64."""
        if not self.shuffle:
            return np.arange(self.size)
        return np.random.default_rng([self.seed, epoch]).permutation(self.size)

    def state_dict(self) -> dict[str, int]:
        """Position and what it depends on."""
        return {"position": self.position, "size": self.size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position.

        Raises:
            CheckpointError: the data or the seed are not those of the saved run.
        """
        for name, have in (("size", self.size), ("seed", self.seed)):
            if state[name] != have:
                raise CheckpointError(
                    f"the checkpoint was made with {name} {state[name]} of the training data, this run has "
                    f"{have}; use the same data and trainer.seed, or start a new run folder"
                )
        self.position = state["position"]
