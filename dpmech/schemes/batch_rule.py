"""BatchRule: what can be seen in the batches of a run, whatever scheme they were sampled by."""

import dataclasses

from dpmech.mechanism import Pattern


@dataclasses.dataclass(frozen=True)
class BatchRule:
    """What a tracker checks of every batch. That batches have the right law cannot be seen in them.

    Args:
        pattern: how often and how far apart one example takes part; None where every step is sampled anew.
        cycle: how many groups take turns, each example in one of them; None without groups.
        epoch: how many steps an epoch has in each of which everyone takes part once, in an order of its own;
            None without that.
        dataset_size: the number of examples that the claim is about; None where any will do.
        largest: the most examples of one batch; None without a limit.
        exactly: how many examples every batch has; None where that is left to chance or to the dataset.
    """

    pattern: Pattern | None
    cycle: int | None = None
    epoch: int | None = None
    dataset_size: int | None = None
    largest: int | None = None
    exactly: int | None = None
