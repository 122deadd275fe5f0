"""PrivateOptimizer: makes any torch optimizer private under its certificate."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpmech.certificates import AdaptiveClip, Claim
from dpmech.exceptions import (
    CertificateError,
    HorizonError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_real
from dpmech.optim.certified_settings import check_claim, resolved_batch_size, resolved_clipping, resolved_rule
from dpmech.optim.clipping import Accumulator, ClippedSum, Clipping, FlatClipping, Intake
from dpmech.optim.deferred import Deferred
from dpmech.optim.inner_optimizer import InnerOptimizer
from dpmech.optim.noise import Generator, NoiseMode, NoiseStream, Uncopied
from dpmech.optim.processes import Group, check_agreement, check_current_device, processes, write_grad


@dataclasses.dataclass(frozen=True)
class ExecutedSteps:
    """Steps executed under a claim.

    The claim holds for any number of steps up to n: stopping early is post-processing of fewer releases, and
    never costs more than claimed.

    Attributes:
        claim: the calibration or certificate.
        steps: noisy gradients released so far, in [0, n].
        clip_norm: joint clip norm of one example's gradient; or the AdaptiveClip by which it changes.
        expected_batch_size: the public denominator.
    """

    claim: Claim
    steps: int
    clip_norm: float | AdaptiveClip
    expected_batch_size: float


class ClipNorms:
    """The clipping of the next batch, the norm to which its noise is scaled, and the variance of that noise.

    Args:
        claim: the calibration or certificate.
        clip_norm: of one example's gradient; or an AdaptiveClip; None uses the certificate's, else 1.
        clipping: None or a Clipping, of fixed norms.
        parameters: the trained parameters.
        expected_batch_size: the public denominator.
        group: the processes that train together. In one process the count is on the CPU, since the host
            needs it with its noise; else on the device of the first parameter, where it is summed.

    Attributes:
        clipping: of the next batch.
        counts: a tensor for the count that is released with the gradients; empty for a fixed norm.
        stddevs: noise of every parameter's private gradient, for a row of C^-1 of norm 1 and `phi_scale` 1.

    Raises:
        InvalidParameterError: on a bad argument.
        CertificateError: if the certificate fixes something else.
    """

    def __init__(
        self,
        claim: Claim,
        clip_norm: float | AdaptiveClip | None,
        clipping: Clipping | None,
        parameters: Sequence[Tensor],
        expected_batch_size: float,
        group: Group,
    ) -> None:
        self._batch_size = expected_batch_size
        self._rule = resolved_rule(claim, clip_norm, clipping)
        self._row_norms = claim.strategy.noising_row_norms()
        self._last: float | None = None
        self.counts: list[Tensor] = []
        if self._rule is None:
            fixed = None if isinstance(clip_norm, AdaptiveClip) else clip_norm
            self.clipping = resolved_clipping(claim, fixed, clipping).over(parameters)
            norms = self.clipping.noise_norms(parameters, claim.sigma)
            self.stddevs = [claim.sigma * norm / expected_batch_size for norm in norms]
        else:
            self.clipping = FlatClipping(self._rule.initial)
            self.stddevs = [self._rule.gradient_sigma(claim.sigma) / expected_batch_size] * len(parameters)
            device = torch.device("cpu") if processes(group) == 1 else parameters[0].device
            self.counts.append(torch.zeros(1, dtype=torch.float64, device=device))

    @property
    def terms(self) -> float | AdaptiveClip:
        """The clip norm or rule in a certificate."""
        return self.clipping.joint_norm if self._rule is None else self._rule

    @property
    def noise(self) -> Clipping | AdaptiveClip:
        """The `clip_norm` argument of a NoiseStream."""
        return self.clipping if self._rule is None else self._rule

    @property
    def of_step(self) -> float | None:
        """The `clip_norm` argument of NoiseStream.mean_step for the next step."""
        return None if self._rule is None else self.clipping.joint_norm

    @property
    def phi_scale(self) -> float:
        """Ratio of the last step's noise variance (the first's, before any) to that of `stddevs`."""
        if self._rule is None:
            return 1.0
        return (self.clipping.joint_norm if self._last is None else self._last) ** 2

    def phis(self, step: int) -> list[float]:
        """Phi of the last step (the first's, before any), one value per parameter."""
        return [float((own * self._row_norms[step]) ** 2) * self.phi_scale for own in self.stddevs]

    def advance(self, sums: list[Tensor]) -> None:
        """Remove the noised count from the results of a step, and compute the next norm."""
        if self._rule is None:
            return
        count = float(sums.pop())
        self._last = self.clipping.joint_norm
        self.clipping = FlatClipping(
            self._rule.after(self._last, count, expected_batch_size=self._batch_size)
        )

    def describe(self) -> str:
        """The settings that must not change during a run."""
        return repr(self.clipping if self._rule is None else self._rule)

    def state_dict(self) -> dict[str, Any]:
        """The norms of the next and of the last step; empty for a fixed norm."""
        return {} if self._rule is None else {"clip_norms": [self.clipping.joint_norm, self._last]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved norms."""
        if self._rule is None:
            return
        norms = state.get("clip_norms")
        if not isinstance(norms, list | tuple) or len(norms) != 2:
            raise InvalidParameterError("clip_norms of the state", norms, "two numbers")
        self.clipping = FlatClipping(norms[0])
        self._last = None if norms[1] is None else check_real("clip_norms of the state", norms[1])


_KEY = "dpmech"  # the key of our entry in a state dict, in addition to those of torch


class PrivateOptimizer(Uncopied, torch.optim.Optimizer):
    """A torch optimizer whose gradients are clipped, summed, noised and averaged as a certificate specifies.

    Each `step` adds row t of sigma clip_norm C^-1 Z to the sum of clipped per-example gradients, divides by
    the public `expected_batch_size`, writes the result to `param.grad` and the variance of its noise to
    `group["phi"]`, and steps the wrapped optimizer, whose groups and state it shares.

    Clipped sums come from `param.grad_sample` (Opacus' GradSampleModule), which `step` and `accumulate` read
    and clear, or from a ClippedSum passed to `accumulate`. Call `accumulate` once per microbatch and `step`
    once per batch; a step without any example consists of noise only, and counts as a step. Under
    torch.distributed every process contributes different examples, and `expected_batch_size` counts those of
    all of them; do not let DistributedDataParallel average the raw gradients first.

    **Guarantee:** that of the calibration, for all released parameters, if batches follow `participation`.

    Args:
        optimizer: any torch.optim.Optimizer with one gradient evaluation per step.
        calibration: a Calibration or a Certificate.
        clip_norm: clip norm of one example's gradient, > 0; or an AdaptiveClip. None uses the clip norm of
            the certificate, or 1.
        expected_batch_size: the public denominator, > 0: expected number of examples of one step over all
            microbatches and processes. None uses the value of the certificate.
        clipping: None clips the whole gradient to clip_norm; or a PerLayerClipping or PerMatrixClipping,
            whose joint norm is clip_norm.
        generator: generator of the noise. None uses a key from the operating system, and a cipher on CPUs and
            CUDA; for others, see NoiseStream.
        mode: how the noise is computed, as for NoiseStream.
        loss_scale: the constant by which a float16 loss was multiplied; gradients are divided by it before
            they are clipped. (A GradScaler is refused: its scale and its skipped steps depend on the data.)
        process_group: the processes that train together; None for the default group.

    Raises:
        InvalidParameterError: on a bad argument.
        CertificateError: if clip_norm or expected_batch_size differs from the certificate's, or if processes
            disagree.
        UnsupportedCombinationError: for an optimizer that evaluates gradients several times per step; if a
            live stream or optimizer of this process uses an equal generator; as NoiseStream.
        NumericalError: if rounding may leave more than 1e-6 less noise than certified.

    References:
        noise_share eq. 1 (Phi), lambda_cgd Algorithm 1, for a general C^-1.

    Examples:
        >>> import torch, dpmech as dm
        >>> from dpmech.optim import PrivateOptimizer
        >>> weights = torch.nn.Parameter(torch.zeros(2))
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(100, 0.9), 8.0, 1e-5)
        >>> sgd = torch.optim.SGD([weights], lr=0.1)
        >>> opt = PrivateOptimizer(sgd, cal, expected_batch_size=2, generator=1)
        >>> weights.grad_sample = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> opt.step()
        >>> opt.steps_left, abs(opt.phi / cal.noise_variance(0, 1.0, 2) - 1) < 1e-9
        (99, True)
    """

    _step_supports_amp_scaling = True  # makes GradScaler.step set `found_inf`, which is refused below

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        calibration: object,
        clip_norm: float | AdaptiveClip | None = None,
        expected_batch_size: float | None = None,
        *,
        clipping: Clipping | None = None,
        generator: Generator | None = None,
        mode: NoiseMode | None = None,
        loss_scale: float = 1.0,
        process_group: Group = None,
    ) -> None:
        if isinstance(optimizer, PrivateOptimizer):
            raise InvalidParameterError("optimizer", optimizer, "a torch.optim.Optimizer, not yet private")
        self._guard = InnerOptimizer(optimizer)
        claim = check_claim(calibration)
        self._claim = claim
        self._batch_size = resolved_batch_size(claim, expected_batch_size)
        self._wrapped = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._wrapped = True
        self._inner = optimizer
        self._share()
        params = [param for group in self.param_groups for param in group["params"]]
        self._trained = [param for param in params if param.requires_grad]
        if not self._trained:
            raise InvalidParameterError("optimizer", optimizer, "one with parameters that require gradients")
        check_current_device(self._trained, process_group)  # before anything is exchanged
        self._intake = Intake(self._trained, [param for param in params if not param.requires_grad])
        self._norms = ClipNorms(claim, clip_norm, clipping, self._trained, self._batch_size, process_group)
        counts = self._norms.counts
        self._deferred = Deferred()
        self._batch = Accumulator(
            self._trained, self.clipping, loss_scale, process_group, counts, self._deferred
        )
        check_agreement("the optimizer", {"expected_batch_size": self._batch_size}, process_group)
        noise = self._norms.noise
        self._stream = NoiseStream(
            claim, self._trained + counts, noise, generator, mode=mode, process_group=process_group
        )
        self._meters: list[Any] = []  # NoiseMeters, in the order in which they came
        self._metered: Sequence[Any] = ()  # what those of a loaded state had recorded
        self._guard.close()

    # ---- settings and progress

    @property
    def clip_norm(self) -> float:
        """Joint clip norm of one example's gradient; with an AdaptiveClip that of the next step."""
        return self.clipping.joint_norm

    @property
    def clipping(self) -> Clipping:
        """The clipping of every example's gradient in the next step."""
        return self._norms.clipping

    @property
    def expected_batch_size(self) -> float:
        """The public denominator."""
        return self._batch_size

    @property
    def claim(self) -> Claim:
        """The calibration or certificate; the sampler must realize its `participation`."""
        return self._claim

    @property
    def phi(self) -> float | tuple[float, ...]:
        """Variance per coordinate of the noise in the last step's gradient (before any step: in the first).

        A float, or one per trained parameter if they differ (PerMatrixClipping).
        """
        values = self._norms.phis(max(self._stream.steps_taken - 1, 0))
        return values[0] if len(set(values)) == 1 else tuple(values)

    @property
    def steps_left(self) -> int:
        """Number of steps before HorizonError."""
        return self._stream.steps_left

    @property
    def noise_generator(self) -> str:
        """What computes the normal numbers of the noise from its key, as in run records."""
        return self._stream.generator

    @property
    def dropped_examples(self) -> int:
        """Number of examples excluded so far because of non-finite gradients. Raw data: do not publish."""
        return self._batch.dropped

    @property
    def record(self) -> ExecutedSteps:
        """The steps executed so far."""
        return ExecutedSteps(
            claim=self._claim,
            steps=self._stream.steps_taken,
            clip_norm=self._norms.terms,
            expected_batch_size=self._batch_size,
        )

    # ---- training

    def accumulate(self, clipped: ClippedSum | None = None, *, examples: int | None = None) -> None:
        """Add a microbatch to the batch of the next step.

        Call it after every backward pass: each row is treated as a separate example, and earlier
        passes cannot be detected here. After several passes, give the number of `examples` in them:
        if it is the number of all rows, each row is one example; if it is the number of rows of every
        pass, they are the same examples in the same order, whose gradients are added before clipping.

        Args:
            clipped: None reads, clips and clears `grad_sample` of the parameters; or a sum of clipped
                gradients.
            examples: number of examples in `grad_sample`, >= 0; None for one per row of a single pass.

        Raises:
            InvalidParameterError: if the sum has another clipping than this optimizer, or
                parameters that it does not train; if the number of examples does not fit the rows.
            UnsupportedCombinationError: on gradients that would bypass clipping or noise, or those of several
                backward passes without `examples`.
        """
        if examples is not None and clipped is not None:
            raise InvalidParameterError("examples", examples, "None with a ClippedSum, which has its own")
        self._guard.check()
        self._batch.reclip(self.clipping)  # here, so that no interrupt can separate norm and noise
        samples = self._intake.take(examples, self._deferred)
        if clipped is None:
            self._batch.add_samples(samples, self._note_batch)
        elif any(sample is not None for sample in samples):
            raise UnsupportedCombinationError(
                "parameters have grad_sample while a ClippedSum is accumulated", supported="one of the two"
            )
        else:
            self._batch.add_clipped(clipped, self._note_batch)
            self._intake.leave_zeros()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch's stubs have two overloads for it
        """One private step over all accumulated gradients and the current `grad_sample`.

        Args:
            closure: None, or a function that computes the loss and the per-example gradients; called once.

        Returns:
            The result of the closure. (The guarantee does not cover a loss.)

        Raises:
            HorizonError: beyond the last certified step.
            UnsupportedCombinationError: on gradients that would bypass clipping or noise, or if parameters
                were added.
            NumericalError: before the first release, if 32 or more examples had no finite gradient.
        """
        return self._released(closure)

    def _released(self, closure: Callable[[], float] | None) -> float | None:
        # Separate from `step`, which torch wraps in every class that defines it: hooks would run for each.
        if self.steps_left == 0:
            raise HorizonError(self._stream.n, self._stream.n)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.accumulate()
        step = self._stream.steps_taken
        if step == 0:
            self._deferred.settle()
            self._batch.check_probe()
        self._check_batch()
        sums = self._batch.take()
        divisors = [self._batch_size] * len(self._trained) + [1.0] * len(self._norms.counts)
        means = self._stream.mean_step(sums, divisors, self._norms.of_step)
        self._note_row()
        clipped = self._norms.clipping.blocks(self._trained)
        self._norms.advance(means)
        try:
            for mean, param in zip(means, self._trained, strict=True):
                if param.requires_grad:
                    write_grad(param, mean)
                else:
                    param.grad = None  # frozen since then: not updated, so its noise is discarded
            self._write_phis(step)
            deviations = [self._norms.phi_scale**0.5 * one for one in self._norms.stddevs]
            for meter in self._meters:
                meter.see(step, deviations, clipped)
            self._guard.step()
        finally:
            self._intake.note_own()  # also after an interrupt: the current gradients are noised
        return loss

    def _write_phis(self, step: int) -> None:
        """Write Phi of a step to `group["phi"]`: a float, or a list if parameters differ."""
        own = {id(param): phi for param, phi in zip(self._trained, self._norms.phis(step), strict=True)}
        for group in self.param_groups:
            values = [own.get(id(param)) for param in group["params"]]
            distinct = {value for value in values if value is not None}
            listed = [0.0 if value is None else value for value in values]
            group["phi"] = distinct.pop() if len(distinct) == 1 else listed

    def add_meter(self, meter: Any) -> None:
        """Show a NoiseMeter every private gradient from now on, and save its state with this optimizer's.

        If a state was loaded, the meter continues with what the one in its place had recorded.
        """
        self._meters.append(meter)
        for saved in self._metered[len(self._meters) - 1 : len(self._meters)]:
            meter.load_state_dict(saved)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear gradients, per-example gradients and the sums accumulated for the next step."""
        self._inner.zero_grad(set_to_none=set_to_none)
        self._intake.clear()
        self._batch.clear()

    def note_weights(self) -> None:
        """No effect here; see BatchOptimizer of make_private, which compares the model."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the noise covers only the initial parameters.

        Raises:
            UnsupportedCombinationError: always, once the optimizer is built.
        """
        if self._wrapped:
            raise UnsupportedCombinationError(
                "a parameter group was added to a PrivateOptimizer: its parameters would have no noise",
                supported="adding all groups to the torch optimizer before it is wrapped",
            )
        super().add_param_group(param_group)

    # ---- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped optimizer under torch's keys, and under "dpmech" the state of the noise.

        As secret as the data: it contains the key of the noise, and before a `step` sums without noise.
        """
        own: dict[str, Any] = {"stream": self._stream.state_dict(), "batch": self._batch.state_dict()}
        own |= self._fixed() | self._norms.state_dict() | {"settings_changed": self._guard.changed}
        if self._meters:
            own["observed"] = [meter.state_dict() for meter in self._meters]
        return {**self._inner.state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`, bit for bit; only before the first step. On failure it is closed.

        Raises:
            CertificateError: if the certificate, clipping, denominator or optimizer class differs.
            InvalidParameterError: if it is not a state of a PrivateOptimizer, or steps were already taken.
        """
        own = state_dict.get(_KEY)
        fixed = self._fixed()
        if not isinstance(own, dict) or not {"stream", *fixed, "batch"} <= set(own):
            raise InvalidParameterError(
                "state_dict", sorted(map(str, state_dict)), f"one with a {_KEY!r} entry"
            )
        for name, mine in fixed.items():
            if own[name] != mine:
                raise CertificateError(
                    f"the state has another {name} than this optimizer", claimed=own[name], recomputed=mine
                )
        try:
            self._stream.load_state_dict(own["stream"])
            self._guard.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
            self._guard.changed = bool(own.get("settings_changed", False))
            self._share()
            self._norms.load_state_dict(own)
            self._batch.load_state_dict(own["batch"])
            self._metered = own.get("observed", ())
            for meter, saved in zip(self._meters, self._metered, strict=False):
                meter.load_state_dict(saved)
        except BaseException:
            self.close()  # it has the rows of the state, but not the rest
            raise

    def close(self) -> None:
        """End it: no more steps, and another one may take the torch optimizer, resume, or use the seed."""
        self._stream.close()
        self._guard.ended = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._guard.ended

    def __setattr__(self, name: str, value: object) -> None:
        if name == "found_inf":  # GradScaler.step sets it on optimizers that scale gradients themselves
            raise UnsupportedCombinationError(
                "GradScaler skips steps and changes its scale when a gradient overflows: that depends on the "
                "data and is not noised",
                supported="bfloat16 autocast without a scaler, or a constant loss_scale",
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return (
            f"PrivateOptimizer({type(self._inner).__name__}, {self._stream!r}, {self._norms.describe()}, "
            f"{self._claim.participation!r}, expected_batch_size={self._batch_size:g})"
        )

    def _fixed(self) -> dict[str, Any]:
        clipping = self._norms.describe()
        return {"expected_batch_size": self._batch_size, "clipping": clipping, "optimizer": self._guard.kind}

    def _share(self) -> None:
        """Share groups and state with the wrapped optimizer, as the same objects."""
        self.param_groups = self._inner.param_groups
        self.state = self._inner.state

    def _check_batch(self) -> None:
        """Read what is deferred: the last checks before a release. A subclass may know more of them."""
        self._deferred.settle()

    def _note_batch(self) -> None:
        """Hook for a subclass that counts examples: those of `accumulate` are about to be added."""

    def _note_row(self) -> None:
        """Hook for a subclass that knows the batches: a row of noise was used for this one."""
