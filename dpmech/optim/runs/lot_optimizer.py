"""LotOptimizer: a PrivateOptimizer in step with the loader that draws its lots."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from dpmech.certificates import Certificate, Randomness, RunRecord
from dpmech.composition import RunningEpsilon, executed_epsilon
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.numerics import Bounds
from dpmech.optim.clipping import ClippedSum, ClippingMode
from dpmech.optim.noise import NoiseStream
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.runs.added_up import check_add_up
from dpmech.optim.runs.loader import PrivateLoader
from dpmech.optim.runs.unchanged import Unchanged
from dpmech.samplers import Sampler

__all__ = ["LotOptimizer"]

_MODE = "dpmech_clipping_mode"  # what is ours in a state dict, beside what PrivateOptimizer has


class LotOptimizer(PrivateOptimizer):
    """A PrivateOptimizer that takes step t on the whole of lot t of its loader, and on nothing else.

    With physical batches smaller than lots, `step` and `zero_grad` may be called after every batch: all but
    the last of a lot only accumulate (`lot_complete` says which it was, for learning-rate schedulers).

    Args:
        loader: the loader.
        *args: as for PrivateOptimizer.
        dataset_size: the public number of examples, for the certificate of the run; None where none is.
        unchanged: what compares the contents of the model before every step; None for nothing, where no
            model is known.
        **kwargs: as for PrivateOptimizer.

    Attributes:
        clipping_mode: how gradients are clipped, "per_example" or "ghost"; None where it is not known yet. A
            run that goes on from a checkpoint keeps it, as sums would round differently.

    Raises:
        CertificateError: if the loader's lots are not those that were certified.
    """

    def __init__(
        self,
        loader: PrivateLoader,
        *args: Any,  # noqa: ANN401 - as there
        dataset_size: int | None = None,
        unchanged: Unchanged | None = None,
        **kwargs: Any,  # noqa: ANN401 - as there
    ) -> None:
        self._loader = loader
        self._unchanged = unchanged
        self._dataset_size = dataset_size
        self.clipping_mode: ClippingMode | None = None
        self._names: dict[int, str] | None = None
        super().__init__(*args, **kwargs)
        self._spent = RunningEpsilon(self.claim)
        certified = (self.claim.participation, self.claim.strategy.n)
        realised = (loader.sampler.participation, loader.sampler.n)
        if certified != realised:
            raise CertificateError(
                f"certified is {certified[0]!r} over {certified[1]} steps, the loader realises "
                f"{realised[0]!r} over {realised[1]}",
                claimed=certified,
                recomputed=realised,
            )

    @property
    def lot_complete(self) -> bool:
        """Whether the newest batch was the last of its lot, so that `step` released something."""
        return self._loader.progress.complete

    def epsilon_spent(self, delta: float | None = None) -> Bounds:
        """Bounds on eps of the steps so far, to be logged: computed at some 32 steps of a run, and kept.

        The upper end is never below the truth, and some percent above it at most steps. **It holds only for a
        number of steps that was fixed in advance**; a run that is stopped because of its loss or its accuracy
        owes the whole claim (`claim.achieved`), which is also what a ledger charges.

        Args:
            delta: in (0, 1); None is that of the claim.

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: if no bound is known, at a delta below the claim's.
        """
        return self._spent.after(self.record.steps, delta)

    def undo(self) -> None:
        """End a run that did not begin: the wrapped optimizer and the seed may be used for another."""
        self.close()
        self._guard.release()

    def watch_gradients(self, model: nn.Module) -> None:
        """Compare per-example gradients with those of the batch once, at the first lot that has examples.

        Args:
            model: whose parameters are trained.
        """
        # What a run before left on a parameter would be taken for a part of the batch's gradient.
        self._names = {id(param): name for name, param in model.named_parameters() if param.grad is None}

    @property
    def loader(self) -> PrivateLoader:
        """What draws the lots."""
        return self._loader

    @property
    def handed_examples(self) -> int | None:
        """Examples of the loader's newest batch; None before the first. Private under random sampling."""
        return self._loader.progress.handed if self._loader.progress.batches else None

    def accumulate(self, clipped: ClippedSum | None = None, *, examples: int | None = None) -> None:
        """As PrivateOptimizer; an example of the loader's newest batch counts once.

        Raises:
            UnsupportedCombinationError: if more examples are added than the batch holds, or the model was
                made private again.
        """
        if self._unchanged is not None:
            self._unchanged.check_newest()
        progress = self._loader.progress
        found, left_out = None, 0
        if clipped is None:
            given = [getattr(param, "grad_sample", None) for param in self._trained]
            found = max((_examples(one) for one in given if one is not None), default=None)
            if found is not None and examples is not None:
                found = examples
            if found and self._names is not None and progress.counted is None:
                check_add_up(self._trained, self._names, progress.handed)
                self._names = None
        elif isinstance(clipped, ClippedSum):
            # A sum that does not say how many examples it holds is taken for those of the batch.
            found, left_out = clipped.examples, clipped.left_out
            found = progress.handed if found is None else found
        if found is not None:
            progress.check_room(found)
        super().accumulate(clipped, examples=examples)
        if found is not None:
            progress.count(found, left_out)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as in PrivateOptimizer
        """The private step of a lot after its last batch; after the others, accumulate only.

        Raises:
            UnsupportedCombinationError: without a batch of the loader, if the model changed otherwise than by
                steps, and as PrivateOptimizer.step and `accumulate`.
        """
        progress = self._loader.progress
        progress.check_step()
        if not progress.complete:
            if closure is not None:
                raise UnsupportedCombinationError(
                    "a closure in the middle of a lot", supported="closures with whole lots"
                )
            self.accumulate()
            progress.check_counted()
            progress.close_batch()
            return None
        self._check_in_step()
        before = progress.stepped
        try:
            return self._released(closure)
        finally:
            # Also after an update that failed half-way; not where the step was refused before it began.
            if self._unchanged is not None and progress.stepped > before:
                self._unchanged.note_step()

    def _check_lot(self) -> None:
        self._loader.progress.check_counted()
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if self._unchanged is not None:
            self._unchanged.check()

    def note_weights(self) -> None:
        """Say that you changed trained parameters between steps, by what was released (clamping, averages).

        Other changes than those of steps are refused, as a forward pass may have written data there.
        """
        if self._unchanged is not None:
            self._unchanged.note_weights()

    def _note_row(self) -> None:
        # Before the update of the weights: if that fails, lot and row are spent all the same.
        self._loader.progress.note_step()

    def _check_in_step(self) -> None:
        rows, lots = self._stream.steps_taken, self._loader.progress.stepped
        if rows != lots:
            raise UnsupportedCombinationError(
                f"{rows} rows of noise were spent on {lots} lots", supported="one for every lot"
            )

    def state_dict(self) -> dict[str, Any]:
        """As PrivateOptimizer.

        Raises:
            UnsupportedCombinationError: if lots and rows of noise no longer belong together, or the model
                holds what no step gave it.
        """
        self._check_in_step()
        self._check_unchanged()
        return super().state_dict() | {_MODE: self.clipping_mode}

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear gradients; what was accumulated of a lot stays, as it belongs to the coming step."""
        self._inner.zero_grad(set_to_none=set_to_none)
        self._intake.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PrivateOptimizer; the loader's state is loaded first.

        Raises:
            CertificateError: if the loader stands at another step, or gradients were clipped in another mode.
        """
        saved = state_dict.get(_MODE)
        if saved is not None and self.clipping_mode not in (None, saved):
            raise CertificateError(
                f"the state is of clipping_mode {saved!r}, here it is {self.clipping_mode!r}: sums would "
                "round differently, and steps taken again would not repeat what they released",
                claimed=saved,
                recomputed=self.clipping_mode,
            )
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _MODE})
        self.clipping_mode = saved
        mine, theirs = self.record.steps, self._loader.steps_taken
        if mine != theirs:
            raise CertificateError(
                f"the optimizer's state is after {mine} steps, the loader stands at {theirs}: load its state "
                "of the same moment first",
                claimed=mine,
                recomputed=theirs,
            )

    def run_record(
        self, *, stopped_by_plan: bool = False, rng: np.random.Generator | int | None = None
    ) -> RunRecord:
        """What this run did, to save beside the weights.

        Args:
            stopped_by_plan: whether the number of steps was decided without looking at anything that the
                run released; see `dm.executed_epsilon`.
            rng: for sampled accountants, if stopped early by plan.

        Raises:
            InvalidParameterError: on a bad argument.
            CertificateError: if processes or participations disagree with the certificate.
            UnsupportedCombinationError: if the model holds what no step gave it.
        """
        if not isinstance(stopped_by_plan, bool):
            raise InvalidParameterError("stopped_by_plan", stopped_by_plan, "True or False")
        self._check_unchanged()
        steps = self.record.steps
        certificate = self._certificate()
        seen = self._loader.tracker.summary()
        if seen["steps"] != steps:
            raise CertificateError(
                f"{steps} steps were taken on {seen['steps']} lots", claimed=steps, recomputed=seen["steps"]
            )
        sampler = self._loader.sampler
        return RunRecord(
            certificate=certificate,
            steps=steps,
            executed=executed_epsilon(certificate, steps, rng=rng)
            if stopped_by_plan or steps == 0
            else certificate.achieved,
            sampler=_randomness(sampler),
            noise=_randomness(self._stream),
            smallest_separation=seen.get("smallest_separation"),
            most_participations=seen.get("most_participations"),
            processes=self._loader.processes,
            stopped_by_plan=stopped_by_plan,
            uniqueness=self._loader.uniqueness,
            continuity=self._loader.continuity,
        )

    def _certificate(self) -> Certificate:
        """The certificate with what this run fixed."""
        return self.claim.certificate(
            self._norms.terms, self.expected_batch_size, dataset_size=self._dataset_size
        )


def _randomness(source: Sampler | NoiseStream) -> Randomness:
    """What lots or noise were made from."""
    cipher = "" if source.generator == "philox" else f", {source.generator}"
    return Randomness(type(source).__name__ + cipher, source.fingerprint(), source.seeded)


def _examples(grad_sample: Any) -> int:  # noqa: ANN401 - what Opacus leaves on a parameter
    """Examples of a per-example gradient, which is a tensor or a list of them; the intake checks shapes."""
    parts = grad_sample if isinstance(grad_sample, list | tuple) else [grad_sample]
    return sum(len(part) for part in parts)
