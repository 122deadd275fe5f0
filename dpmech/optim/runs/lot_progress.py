"""Lots: how far loader and optimizer have come, and that they go in step."""

from collections import Counter
from collections.abc import Iterable

from dpmech.exceptions import UnsupportedCombinationError

__all__ = ["LotProgress"]


class LotProgress:
    """Shared by a PrivateLoader and its optimizer: step t must be taken on the whole of lot t.

    Attributes:
        batches: physical batches handed out so far.
        drawn: lots of which at least one physical batch was handed out.
        complete: whether the last physical batch of the newest lot was handed out.
        begun: whether any gradient of the newest lot reached the optimizer.
        stepped: steps taken.
        handed: examples of the newest physical batch.
        counted: how many of them the optimizer has; None before it looked.
        left_out: rows of the batch beside them that got weight 0.
        calls: of the model with gradients, as far as it is watched: how many may have used each of its
            trained parameters on the newest batch.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.drawn = 0
        self.complete = True
        self.begun = False
        self.stepped = 0
        self.handed = 0
        self.counted: int | None = None
        self.left_out = 0
        self.calls: Counter[int] = Counter()
        # Calls whose backward pass may still come, in later batches too; Opacus stores none in eval mode.
        self._pending: Counter[int] = Counter()

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
            self.begun = False
        else:
            if self.handed and self.counted is None:
                raise UnsupportedCombinationError(
                    f"a batch of lot {self.drawn - 1} was passed over",
                    supported="every batch of a lot in its step",
                )
            self.check_counted()
            self.close_batch()
        self.batches += 1
        self.counted = None
        self.left_out = 0
        self.handed = examples
        self.complete = last
        self.calls = Counter(self._pending)
        self.drawn += first  # last: without it there is nothing to step on

    def take_back(self) -> None:
        """Forget the newest lot if nothing of it reached the optimizer, so that it is handed out again."""
        if self.drawn == self.stepped + 1 and not self.begun:
            self.complete = True
            self.drawn -= 1

    def note_call(self, params: Iterable[int], *, training: bool) -> None:
        """Note a call with gradients of a model or a part of it.

        Args:
            params: identities of the trained parameters that it may use.
            training: whether it is in training mode.
        """
        used = list(params)
        self.calls.update(used)
        if training:
            self._pending.update(used)

    def close_batch(self) -> None:
        """Note that the gradients of the newest batch, and of all calls so far, reached the optimizer."""
        self._pending.clear()

    def check_room(self, examples: int) -> None:
        """Raise UnsupportedCombinationError if the batch does not hold that many examples more."""
        total = examples if self.counted is None else self.counted + examples
        if total > self.handed:
            raise UnsupportedCombinationError(
                # Without the numbers: how large a sampled batch is stays private.
                "gradients of more examples than the batch holds: one example would add more than one "
                "clipped gradient to the step",
                supported="one backward pass for every batch",
            )

    def count(self, examples: int, left_out: int = 0) -> None:
        """Note that gradients of so many examples are about to be added, and that rows got weight 0.

        Before they are: whoever is interrupted in between loses them, and cannot add them twice.
        """
        self.begun = True
        self.counted = examples + (self.counted or 0)
        self.left_out += left_out

    def check_counted(self) -> None:
        """Raise UnsupportedCombinationError unless all examples of the newest batch came, each as one row.

        Rows with weight 0 may be examples that were left out or padding. Fewer rows than examples are
        something else than examples (time steps, pairs, packed sequences): what one example adds is then
        not bounded by the clip norm.
        """
        if self.handed and self.counted is None:
            raise UnsupportedCombinationError(
                "optimizer.step() before the backward pass of the batch: the step would be noise alone",
                supported="backward, then step",
            )
        found = self.counted or 0
        if found + self.left_out < self.handed:
            raise UnsupportedCombinationError(
                "fewer gradients than the batch has examples: what was clipped is not one example each",
                supported="models, losses and collate functions that keep examples apart, along the first "
                "dimension",
            )
        most = max(self.calls.values(), default=0)
        if most > 1:
            raise UnsupportedCombinationError(
                f"the model was called {most} times on one batch, or one part of it was: gradients of one "
                "example may stand in several rows, each clipped by itself",
                supported="one call of the model for every batch (others under torch.no_grad())",
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
        self.close_batch()

    def resume(self, steps: int) -> None:
        """Go on after `steps` whole lots."""
        self.drawn = self.stepped = steps
        self.complete = True
