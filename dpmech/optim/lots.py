"""Lots: how far loader and optimizer have come, and that they go in step."""

from dpmech.exceptions import UnsupportedCombinationError

__all__ = ["LotProgress"]


class LotProgress:
    """Shared by a PrivateLoader and its optimizer: step t must be taken on the whole of lot t.

    Attributes:
        drawn: lots of which at least one physical batch was handed out.
        complete: whether the last physical batch of the newest lot was handed out.
        stepped: steps taken.
        handed: examples of the newest physical batch.
        counted: how many of them the optimizer has; None before it looked.
    """

    def __init__(self) -> None:
        self.drawn = 0
        self.complete = True
        self.stepped = 0
        self.handed = 0
        self.counted: int | None = None

    def hand_out(self, examples: int, *, first: bool, last: bool) -> None:
        """Note that the loader hands out a physical batch of so many examples.

        Raises:
            UnsupportedCombinationError: if the lot before was not stepped on.
        """
        if first:
            if self.drawn != self.stepped:
                raise UnsupportedCombinationError(
                    f"a new lot is drawn before optimizer.step() on lot {self.drawn - 1}: lots and rows of "
                    "noise would no longer belong together",
                    supported="optimizer.step() after every batch of the loader",
                )
            self.drawn += 1
        elif self.counted is None:
            raise UnsupportedCombinationError(
                f"a batch of lot {self.drawn - 1} was passed over",
                supported="every batch of a lot in its step",
            )
        self.complete = last
        self.handed = examples
        self.counted = None

    def count(self, examples: int) -> None:
        """Note that gradients of so many examples reached the optimizer.

        Raises:
            UnsupportedCombinationError: if it has more than the batch holds: one example would count twice,
                with twice the sensitivity.
        """
        total = examples if self.counted is None else self.counted + examples
        if total > self.handed:
            raise UnsupportedCombinationError(
                f"gradients of {total} examples from a batch of {self.handed}: one example would add more "
                "than one clipped gradient to the step",
                supported="one backward pass for every batch",
            )
        self.counted = total

    def check_counted(self) -> None:
        """Raise UnsupportedCombinationError if the newest batch has examples and no gradient came.

        A batch all of whose examples got weight 0 has come, with none.
        """
        if self.handed and self.counted is None:
            raise UnsupportedCombinationError(
                "optimizer.step() before the backward pass of the batch: the step would be noise alone",
                supported="backward, then step",
            )

    def check_step(self) -> None:
        """Raise UnsupportedCombinationError unless there is a lot to step on."""
        if self.drawn != self.stepped + 1:
            raise UnsupportedCombinationError(
                f"optimizer.step() without a lot: {self.stepped} steps were taken on {self.drawn} lots",
                supported="one step for every batch that the loader of make_private hands out",
            )

    def note_step(self) -> None:
        """Note that the optimizer took the step of the newest lot."""
        self.stepped += 1

    def resume(self, steps: int) -> None:
        """Go on after `steps` whole lots."""
        self.drawn = self.stepped = steps
        self.complete = True
