"""BatchOptimizer: a PrivateOptimizer that is synchronized with the loader of its batches."""

import dataclasses
import functools
import secrets
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dpmech.certificates import (
    NO_GENERATOR,
    Certificate,
    CheckpointHistory,
    CheckpointMatch,
    Randomness,
    RunRecord,
)
from dpmech.drawing import Sampler
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.ledgers import RunningEpsilon, executed_epsilon
from dpmech.numerics import Bounds
from dpmech.optim.clipping import ClippedSum, ClippingMode
from dpmech.optim.deferred import Then
from dpmech.optim.noise import NoiseStream
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.processes import processes
from dpmech.optim.repeatable import Arithmetic
from dpmech.optim.runs.adding_up import check_add_up
from dpmech.optim.runs.loader import PrivateLoader, StepRandomness
from dpmech.optim.runs.same_data import check_same_numbers
from dpmech.optim.runs.unchanged import Unchanged

# Keys of a state dict in addition to those of PrivateOptimizer.
_MODE, _WEIGHTS, _ARITHMETIC = "dpmech_clipping_mode", "dpmech_weights", "dpmech_arithmetic"
_FACTOR_COST, _TRAINING = "dpmech_factor_cost", "dpmech_modes"
_MODES = ("train", "eval")  # of schedule-free optimizers: where gradients are taken, and where they evaluate


class BatchOptimizer(PrivateOptimizer):
    """A PrivateOptimizer that takes step t on exactly batch t of its loader.

    With microbatches, `step` and `zero_grad` may be called after each of them: all but the last microbatch of
    a batch only accumulate (`batch_complete` is true after the last one, for learning-rate schedulers).

    Args:
        loader: the loader.
        *args: as for PrivateOptimizer.
        dataset_size: the public number of examples, for the certificate of the run; None if there is none.
        unchanged: compares the contents of the model before every step.
        **kwargs: as for PrivateOptimizer.

    Attributes:
        clipping_mode: how gradients are clipped, "per_example", "ghost" or "loop"; None if not known yet. A
            resumed run keeps it, because sums would otherwise be rounded differently.
        factor_cost: the cost of the factors of ghost clipping as a multiple of its estimate, which decides
            which weights have them. A resumed run keeps it too.
        takes_any_mode: whether a loaded state may have another mode than the one that was chosen.
        trained_names: of the parameters that get noise, in the order of its rows.

    Raises:
        CertificateError: if the loader's batches are not the certified ones.
    """

    def __init__(
        self,
        loader: PrivateLoader,
        *args: Any,
        dataset_size: int | None,
        unchanged: Unchanged,
        **kwargs: Any,
    ) -> None:
        self._loader = loader
        self._unchanged = unchanged
        self._dataset_size = dataset_size
        self.clipping_mode: ClippingMode | None = None
        self.factor_cost = 1.0
        self.takes_any_mode = False
        self._saved = False  # whether a state was saved, from which steps may be repeated
        self._broken = False  # whether the newest batch's sums, rows or weights were only partly updated
        self._coming: tuple[int, int] | None = None
        self._weights: dict[str, str] | None = None  # of a loaded state, until the first step
        self._modes: list[str] | None = None  # of the newest gradients, or of those before a loaded state
        self._names: dict[int, str] | None = None
        self._forget: Callable[[], object] = lambda: None
        self._compared = False  # whether all gradients of a batch were compared
        super().__init__(*args, **kwargs)
        self.trained_names = unchanged.names_in_order(self._trained)
        devices = (param.device for param in self._trained)
        self._arithmetic = Arithmetic(devices, kwargs.get("process_group"))
        loader.randomness = StepRandomness(self._stream.derived_secret)
        loader.discard = weakref.WeakMethod(self._discard)
        self._spent = RunningEpsilon(self.claim)
        certified = (self.claim.participation, self.claim.strategy.n)
        realised = (loader.sampler.participation, loader.sampler.n)
        if certified != realised:
            raise CertificateError(
                f"certified is {certified[0]!r} over {certified[1]} steps, but the loader realizes "
                f"{realised[0]!r} over {realised[1]}",
                claimed=certified,
                recomputed=realised,
            )

    @property
    def rule(self) -> torch.optim.Optimizer:
        """The wrapped optimizer, for its diagnostics; its steps are taken by this one."""
        return self._inner

    @property
    def batch_complete(self) -> bool:
        """Whether the newest microbatch was the last of its batch, so that `step` released a result."""
        return self.loader.progress.complete

    def epsilon_spent(self, delta: float | None = None) -> Bounds:
        """Bounds on eps of the steps so far, for logging: computed at about 32 steps of a run, and cached.

        The upper bound is valid, and at most steps a few percent above the true value. **It holds only for a
        number of steps that was fixed in advance**; a run that is stopped based on its loss or its accuracy
        is charged the full budget (`claim.achieved`), as in a ledger.

        It may reach that of the whole plan before the last step: a started epoch is charged whole where
        participation repeats every epoch, and a random allocation from its first step. The budget is not
        exhausted then: the `steps_left` are paid for, and cost nothing more.

        Args:
            delta: in (0, 1); None is that of the claim.

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: if no bound is known for a delta below the claim's.
        """
        return self._spent.after(self.record.steps, delta)

    def undo(self) -> None:
        """Cancel a run before its first step: the wrapped optimizer and the seed can be used again."""
        self.close()
        self._guard.release()

    def watch_gradients(self, model: nn.Module, forget: Callable[[], object]) -> None:
        """Compare per-example gradients with those of the batch, for some parameters at every batch.

        All are compared at the first batch that has examples.

        Args:
            model: whose parameters are trained.
            forget: makes hooks forget calls whose backward pass never ended.
        """
        self._forget = forget
        self._names = {id(param): name for name, param in model.named_parameters()}

    def forget_gradients(self) -> None:
        """Before a forward pass: remove gradients that a step, or an earlier run, left on the parameters.

        Otherwise a backward pass would add to them, as if they belonged to the batch's gradient.
        """
        self._intake.forget_own()

    def take_whole_sums(self, sharded: object) -> None:
        """From now on take sums of sharded parameters, if any, whole: over this process's examples."""
        self._batch.whole = bool(sharded)

    def follow(self, scheduler: Any) -> None:
        """Register a learning-rate scheduler, which checkpoints compare, so that its changes are expected.

        Args:
            scheduler: of the wrapped optimizer.
        """
        self._guard.follow(scheduler, forget=not self._saved)

    @property
    def loader(self) -> PrivateLoader:
        """The loader of the batches, which cannot be replaced."""
        return self._loader

    @property
    def handed_examples(self) -> int | None:
        """Number of examples in the loader's newest batch; None before. Private under random sampling."""
        return self.loader.progress.handed if self.loader.progress.batches else None

    def accumulate(self, clipped: ClippedSum | None = None, *, examples: int | None = None) -> None:
        """As PrivateOptimizer; each example of the loader's newest batch counts once.

        Raises:
            UnsupportedCombinationError: if more examples are added than the batch has, or the model was
                made private again.
        """
        self._unchanged.check_newest()
        self._check_broken()
        progress = self.loader.progress
        count, left_out = None, 0
        if clipped is None:
            given = [getattr(param, "grad_sample", None) for param in self._trained]
            count = max((_examples(sample) for sample in given if sample is not None), default=None)
            if count is not None and examples is not None:
                count = examples
            if count and self._names is not None and progress.counted is None:
                check_add_up(
                    self._trained,
                    self._names,
                    progress.handed,
                    whole=not self._compared,
                    deferred=self._deferred,
                    last=progress.complete,
                )
                self._compared = True
        elif isinstance(clipped, ClippedSum):
            # A sum without its number of examples is assumed to contain those of the batch.
            count, left_out = clipped.examples, clipped.left_out
            count = progress.handed if count is None else count
        if count is not None:
            progress.check_room(count)
            self._note_modes(begun=progress.begun)
        self._coming = None if count is None else (count, left_out)
        super().accumulate(clipped, examples=examples)
        self._broken = False

    def _note_modes(self, *, begun: bool) -> None:
        trained = zip(self.trained_names, self._trained, strict=True)
        frozen = [name for name, param in trained if not param.requires_grad]
        modes, before = self._unchanged.modes() + frozen, self._modes
        if modes != before and before is not None and (begun or self._weights is not None):
            changed = ", ".join(name or "the model" for name in sorted({*modes} ^ {*before}))
            raise UnsupportedCombinationError(
                f"train or eval mode, autocast or requires_grad changed ({changed}) after the last step "
                "before a load, or between two microbatches of one batch: a step may be repeated with the "
                "same noise on another sum, or the secret number of microbatches decides how examples are "
                "trained",
                supported="the modes of the step before, or a state saved after a step in the new ones; "
                "load_checkpoint(..., accept_changed=('model',)) if nobody has seen anything that was "
                "released after the state",
            )
        self._modes = modes

    def _note_batch(self) -> None:
        self._broken = True
        if self._coming is not None:
            self.loader.progress.count(*self._coming)

    def _discard(self) -> bool:
        """Discard what there is of a batch without a step; whether the batch can be returned again.

        It then has the same examples, random numbers and noise, and so the same sum.
        """
        if self._stream.steps_taken != self.loader.progress.stepped:
            return False
        self._broken = True  # until all is gone: a step of a part would release another sum
        self._guard.forget_part()
        self._forget()
        self._inner.zero_grad(set_to_none=True)
        self._intake.clear()
        self._batch.clear()
        self._coming, self._broken = None, False
        return True

    def _check_broken(self) -> None:
        if self._broken and self._saved:
            raise UnsupportedCombinationError(
                f"step {self.loader.progress.stepped} was interrupted: continuing here and resuming from "
                "the saved state would release different sums under the same noise",
                supported="a new run that resumes from the newest checkpoint",
            )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as in PrivateOptimizer
        """The private step of a batch after its last microbatch; after the others, accumulate only.

        Raises:
            UnsupportedCombinationError: without a batch of the loader, if the model changed other than by
                steps, if settings changed between microbatches of one batch, and as PrivateOptimizer.step and
                `accumulate`.
        """
        progress = self.loader.progress
        progress.check_step()
        self._guard.check_part(last=progress.complete)
        if not progress.complete:
            if closure is not None:
                raise UnsupportedCombinationError(
                    "a closure in the middle of a batch", supported="closures with full batches"
                )
            self.accumulate()
            progress.check_counted()
            progress.close_batch()
            return None
        self._check_in_step()
        before = progress.stepped
        try:
            loss = self._released(closure)
            self._broken = False
            return loss
        finally:
            # Also after an update that failed midway; not if the step was refused before it began.
            if progress.stepped > before:
                self.loader.randomness.end()
                self._unchanged.note_step()

    def register_step_pre_hook(self, hook: Any) -> RemovableHandle:
        """As torch's, on the wrapped optimizer: once per batch, on gradients with their noise."""
        return self._inner.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> RemovableHandle:
        """As torch's, on the wrapped optimizer: once per batch, as the number of microbatches is secret."""
        return self._inner.register_step_post_hook(hook)

    def _check_batch(self) -> None:
        self.loader.progress.check_counted()
        self._deferred.settle(self._changes())
        stepped, group = self.loader.progress.stepped, self.loader.process_group
        if processes(group) > 1 and (stepped == 1 or stepped % self.loader.sampler.steps_per_epoch == 0):
            passed = self.loader.progress.counted is not None
            weights = self._unchanged.digest(self._stream.derived_secret("weights"), sharded=False)
            check_same_numbers(self.param_groups, weights, self._modes if passed else None, group)
        self._broken = True  # until the weights are updated; refusals come before this point

    def _check_unchanged(self) -> None:
        for values, then in self._changes():
            then(values.tolist())

    def _changes(self) -> list[tuple[Tensor, Then]]:
        """Check the contents of the model, but for what is returned: values, and what finishes the check."""
        later = self._unchanged.check_later()
        if self._weights is not None:
            key = bytes.fromhex(self._weights["key"])
            if self._unchanged.digest(key) != self._weights["digest"]:
                raise UnsupportedCombinationError(
                    "the model does not have the weights that the loaded state was saved with: the first "
                    "step would reuse on another sum the noise that already followed that state",
                    supported="model.load_state_dict with the weights saved together with it, and no changes "
                    "until the first step; a new run for other weights",
                )
        return later

    def __getattr__(self, name: str) -> Any:
        """`train` and `eval`, where the wrapped optimizer has them (schedule-free optimizers)."""
        inner = vars(self).get("_inner")
        if name in _MODES and hasattr(inner, name):
            return functools.partial(self._switch, name)
        raise AttributeError(f"the optimizer of make_private around {type(inner).__name__} has no {name}")

    def _switch(self, mode: str) -> None:
        """Move the weights of a schedule-free optimizer, which depends on released values alone."""
        if all(group.get("train_mode") is (mode == "train") for group in self.param_groups):
            return
        self._check_unchanged()
        self._guard.switch(mode)
        self._unchanged.note_weights()
        if self._weights is not None:  # the first step must still follow from the loaded ones
            key = bytes.fromhex(self._weights["key"])
            self._weights = {"key": key.hex(), "digest": self._unchanged.digest(key)}

    def note_weights(self) -> None:
        """Declare a change of trained parameters between steps, based on released values (such as clamping).

        Changes other than those of steps are refused, as a forward pass may have written data there. After
        `load_state_dict` no change may precede the first step. If a state was saved, the run record states
        that repeated steps may release different values.
        """
        self._unchanged.note_weights()
        self._unchanged.changed_by_hand += 1

    def _note_row(self) -> None:
        # Before the update of the weights: if that fails, batch and row are still spent.
        self.loader.progress.note_step()
        self._arithmetic.note_step()
        # The same in all processes: an optimizer that draws would give each of them other weights.
        self.loader.randomness.begin(f"update {self.loader.progress.stepped}")
        self._weights = None
        self._note_by_hand()

    def _note_by_hand(self) -> None:
        """Note whether weights were changed by hand: further steps then do not follow from saved states."""
        if self._unchanged.changed_by_hand:
            self._unchanged.changed_by_hand = 0
            if self._saved:
                self.loader.set_up.note_by_hand()

    def _check_in_step(self) -> None:
        rows, batches = self._stream.steps_taken, self.loader.progress.stepped
        if rows != batches:
            raise UnsupportedCombinationError(
                f"{rows} rows of noise were used on {batches} batches", supported="one for every batch"
            )

    def state_dict(self) -> dict[str, Any]:
        """As PrivateOptimizer.

        Raises:
            UnsupportedCombinationError: if batches and rows of noise disagree, or the contents of the model
                do not come from its steps.
        """
        self._check_in_step()
        self._check_broken()
        self._check_unchanged()
        self._note_by_hand()
        self._arithmetic.check_saved()
        key = secrets.token_bytes(32)
        state = super().state_dict() | {
            _MODE: self.clipping_mode,
            _FACTOR_COST: self.factor_cost,
            _TRAINING: {"modes": self._modes, "names": self.trained_names},
            _ARITHMETIC: self._arithmetic.state_dict(),
            _WEIGHTS: {"key": key.hex(), "digest": self._unchanged.digest(key)},
        }
        self._saved, self._broken = True, False
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear gradients; what was accumulated of a batch stays, as it belongs to the next step."""
        self._inner.zero_grad(set_to_none=set_to_none)
        self._intake.clear()

    def load_state_dict(self, state_dict: dict[str, Any], *, any_weights: bool = False) -> None:
        """As PrivateOptimizer; the loader's state is loaded first.

        At the first step the model must have the weights that the state was saved with.

        Args:
            state_dict: of `state_dict`.
            any_weights: whether it may have others, on the caller's responsibility: nobody may have seen
                anything that a step after the state released.

        Raises:
            CertificateError: if the loader is at another step, gradients were clipped in another mode, or the
                parameters were in another order.
        """
        saved = state_dict.get(_MODE)
        # A run with a loss may have gone on in a loop, which any model can.
        looped = saved == "loop" and self._names is None
        taken = looped or self.takes_any_mode or saved is None
        if not taken and self.clipping_mode not in (None, saved):
            raise CertificateError(
                f"the state is of clipping_mode {saved!r}, here it is {self.clipping_mode!r}: sums would "
                "round differently, and repeated steps would not repeat what they released",
                claimed=saved,
                recomputed=self.clipping_mode,
            )
        trained = state_dict.get(_TRAINING, {})
        if trained.get("names", self.trained_names) != self.trained_names:
            raise CertificateError(
                "the optimizer of the state has the parameters in another order: each would have the noise "
                "of another one, and anyone who has seen both can subtract it. Accepted: the order of the "
                "state, such as that of model.parameters() (the order of a set changes)",
                claimed=trained["names"],
                recomputed=self.trained_names,
            )
        self._saved = True
        self.clipping_mode = saved
        self.factor_cost = state_dict.get(_FACTOR_COST, 1.0)
        self._weights = None if any_weights else state_dict.get(_WEIGHTS)
        self._modes = trained.get("modes")
        self._arithmetic.load_state_dict(state_dict.get(_ARITHMETIC))
        ours = (_MODE, _FACTOR_COST, _TRAINING, _WEIGHTS, _ARITHMETIC)
        super().load_state_dict({key: value for key, value in state_dict.items() if key not in ours})
        mine, theirs = self.record.steps, self.loader.steps_taken
        if mine != theirs:
            raise CertificateError(
                f"the optimizer's state is after {mine} steps, but the loader is at step {theirs}: load its "
                "state of the same moment first",
                claimed=mine,
                recomputed=theirs,
            )

    def certificate(self) -> Certificate:
        """The claim with the clip norm, denominator and public dataset size of this run, as in its record.

        Save it to resume the run later, and for its reviewers: `claim.certificate()` may leave these open.
        """
        return self.claim.certificate(
            self._norms.terms, self.expected_batch_size, dataset_size=self._dataset_size
        )

    def run_record(
        self, *, stopped_by_plan: bool = False, rng: np.random.Generator | int | None = None
    ) -> RunRecord:
        """A record of this run, to save next to the weights.

        Args:
            stopped_by_plan: whether the number of steps was decided independently of everything that the
                run released; see `dm.executed_epsilon`.
            rng: for accountants that sample, if stopped early by plan.

        Raises:
            InvalidParameterError: on a bad argument.
            CertificateError: if processes or participations disagree with the certificate.
            UnsupportedCombinationError: if the contents of the model do not come from its steps.
        """
        if not isinstance(stopped_by_plan, bool):
            raise InvalidParameterError("stopped_by_plan", stopped_by_plan, "True or False")
        self._check_unchanged()
        self.loader.check_data()
        steps = self.record.steps
        certificate = self.certificate()
        seen = self.loader.tracker.summary()
        if seen["steps"] != steps:
            raise CertificateError(
                f"{steps} steps were taken on {seen['steps']} batches",
                claimed=steps,
                recomputed=seen["steps"],
            )
        sampler = self.loader.sampler
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
            processes=self.loader.processes,
            stopped_by_plan=stopped_by_plan,
            uniqueness=self.loader.uniqueness,
            checkpoint_history=self._checkpoint_history(),
            # Of the first meter, or of the first that refutes the noise.
            noise_check=min(
                (check for meter in self._meters if (check := meter.noise_check()) is not None),
                key=lambda check: not check.findings,
                default=None,
            ),
        )

    def _checkpoint_history(self) -> CheckpointHistory | None:
        known = self.loader.checkpoint_history
        if known is None or not known.loads:
            return known
        settings = CheckpointMatch.UNKNOWN if self._guard.changed else known.settings
        return dataclasses.replace(known, settings=settings, same_rounding=self._arithmetic.repeats)


def _randomness(source: Sampler | NoiseStream) -> Randomness:
    """The random generator of batches or noise."""
    drawn = isinstance(source, NoiseStream) or source.participation.random or source.reshuffled
    generator = source.generator if drawn else NO_GENERATOR
    return Randomness(type(source).__name__, source.fingerprint(), source.seeded, generator)


def _examples(grad_sample: Any) -> int:
    """Number of examples of a per-example gradient, a tensor or a list of them; the intake checks shapes."""
    parts = grad_sample if isinstance(grad_sample, list | tuple) else [grad_sample]
    return sum(len(part) for part in parts)
