"""RunRecord: what a training run did under its certificate, restarts included, in one JSON file."""

import dataclasses
import enum
import json
from typing import Any, Self

from dpmech.certificates.certificate import Certificate
from dpmech.certificates.document import (
    SCHEMA_VERSION,
    Document,
    checksum_of_document,
    differences,
    from_plain,
    parse,
    to_plain,
)
from dpmech.exceptions import CertificateError, DpmechError, InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import Bounds, counted, typed, up

_PARTS = ("dataset", "model", "loss")


class Uniqueness(enum.StrEnum):
    """How the dataset was checked for repeated examples.

    FLATTENED: views were resolved down to tensors, arrays and plain sequences. EXAMPLE_IDS: the dataset
    provides example ids. NOT_CHECKED: views were resolved down to a dataset of unknown type.

    Example:
        >>> import dpmech as dm
        >>> [one.value for one in dm.certificates.Uniqueness]
        ['flattened', 'by example_ids', 'not checked']
    """

    FLATTENED = "flattened"
    EXAMPLE_IDS = "by example_ids"
    NOT_CHECKED = "not checked"


class CheckpointMatch(enum.StrEnum):
    """Whether a part of a run is unchanged since its first checkpoint was saved.

    SAME: its fingerprint matched at every load. ACCEPTED: it differed at a load, and the caller accepted
    this. UNKNOWN: a part of it has no fingerprint.

    Example:
        >>> import dpmech as dm
        >>> [kept.value for kept in dm.certificates.CheckpointMatch]
        ['same', 'changed, accepted by the caller', 'not wholly fingerprinted']
    """

    SAME = "same"
    ACCEPTED = "changed, accepted by the caller"
    UNKNOWN = "not wholly fingerprinted"


@dataclasses.dataclass(frozen=True)
class CheckpointHistory:
    """What is known about the parts of a run that saved or loaded checkpoints.

    Steps after a checkpoint may be repeated with the same noise. If the sums of gradients differ from the
    first time, anyone who has both results can cancel the noise.

    Attributes:
        dataset: a sample of its examples.
        model: its structure.
        loss: the loss of one example.
        loads: how often the run resumed from a saved state.
        settings: settings of the optimizer. UNKNOWN if the run resumed from a saved state and its learning
            rate or another setting changed, except by a scheduler that checkpoints compare; never ACCEPTED.
        same_rounding: False if the run resumed from a saved state and repeated steps may have been rounded
            differently, because the kernels of the device add in any order or because the device is of
            another kind.

    Example:
        >>> import dpmech as dm
        >>> from dpmech.certificates import CheckpointHistory, CheckpointMatch
        >>> history = CheckpointHistory(CheckpointMatch.SAME, CheckpointMatch.SAME, CheckpointMatch.UNKNOWN)
        >>> history.loss.value
        'not wholly fingerprinted'
    """

    dataset: CheckpointMatch
    model: CheckpointMatch
    loss: CheckpointMatch
    loads: int = 0
    settings: CheckpointMatch = CheckpointMatch.SAME
    same_rounding: bool = True

    def __post_init__(self) -> None:
        check_integer("loads", self.loads, minimum=0)
        if not isinstance(self.same_rounding, bool):
            raise InvalidParameterError("same_rounding", self.same_rounding, "True or False")
        for name in (*_PARTS, "settings"):
            if not isinstance(getattr(self, name), CheckpointMatch):
                raise InvalidParameterError(name, getattr(self, name), "a CheckpointMatch")
        if self.settings == CheckpointMatch.ACCEPTED:
            raise InvalidParameterError(
                "settings", self.settings, "CheckpointMatch.SAME or CheckpointMatch.UNKNOWN"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `loads`, `settings` and `same_rounding` only if they are not 0, SAME and True."""
        found: dict[str, Any] = {name: getattr(self, name).value for name in _PARTS}
        found |= {"settings": self.settings.value} if self.settings != CheckpointMatch.SAME else {}
        found |= {} if self.same_rounding else {"same_rounding": False}
        return found | ({"loads": self.loads} if self.loads else {})

    def of_kind(self, kind: CheckpointMatch) -> tuple[str, ...]:
        """Which of dataset, model and loss have this match."""
        return tuple(name for name in _PARTS if getattr(self, name) == kind)


KIND = "run record"
NO_GENERATOR = "none"  # for batches in a fixed order, which need no random numbers
# Names of the tests in `dm.audits.NoiseAudit`.
_TESTS = {"scale", "steps", "lags", "repeats", "coordinates", "shape", "resolution"}
_MOST_LETTERS = 60  # longest source, in one line
# Generators of samplers and noise streams, and whether they are cryptographic.
_GENERATORS = {
    "philox": False,
    "chacha20, seeded": False,  # a key of 64 bits or fewer may be behind it
    "chacha20, pairs": True,
    "chacha20, lattice": True,
    "aes-128-ctr": True,
    "aes-128-ctr, ziggurat": True,
    "aes-128-ctr, lattice": True,
}


@dataclasses.dataclass(frozen=True)
class Randomness:
    """Identifies the random numbers of a run without revealing them.

    Attributes:
        source: what generated them, in words.
        fingerprint: SHA-256 (hex) derived from the key; equal for equal keys.
        seeded: whether the caller supplied the key. In this case, it is only as secret as its source, and a
            short key can be found from the fingerprint.
        generator: the algorithm that derived the numbers from the key, such as "philox" or "aes-128-ctr,
            ziggurat"; "none" for batches in a fixed order; None if unstated, as in earlier records.

    Example:
        >>> import dpmech as dm
        >>> dm.certificates.Randomness("system entropy", 64 * "0", seeded=False).seeded
        False
    """

    source: str
    fingerprint: str
    seeded: bool
    generator: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise InvalidParameterError("source", self.source, "text")
        if self.generator is not None and (not isinstance(self.generator, str) or not self.generator):
            raise InvalidParameterError("generator", self.generator, "text, or None")
        if (
            not isinstance(self.fingerprint, str)
            or len(self.fingerprint) != 64
            or set(self.fingerprint) - set("0123456789abcdef")
        ):
            raise InvalidParameterError("fingerprint", self.fingerprint, "64 hexadecimal digits")
        if not isinstance(self.seeded, bool):
            raise InvalidParameterError("seeded", self.seeded, "True or False")

    @property
    def cryptographic(self) -> bool:
        """Whether the generator is a cipher; False if unstated or unknown."""
        return self.generator is not None and _GENERATORS.get(self.generator, False)

    @property
    def generator_words(self) -> str:
        """The generator and whether it is cryptographic; quoted if unknown."""
        if self.generator is None:
            return "a generator that is not stated"
        if self.generator == NO_GENERATOR:
            return "no random numbers"
        name = self.generator if self.generator in _GENERATORS else _quoted(self.generator)
        return f"{name} ({'cryptographic' if self.cryptographic else 'not a cryptographic generator'})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the generator is left out if unstated."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class NoiseCheck:
    """The result of the noise meter of a run: released noise compared with that of the certificate.

    Attributes:
        ratio: estimate of the noise scale over the certified one, > 0.
        values: number of values, >= 2.
        steps: the first steps of the run, in which they were released, >= 1.
        level: bound on the probability that noise as certified has findings, in (0, 1).
        findings: names of the tests that refute it, see `dm.audits.NoiseAudit`; empty if none does.

    Example:
        >>> import dpmech as dm
        >>> print(dm.certificates.NoiseCheck(0.499, 10_000, 12, 1e-9, ("scale",)))
        noise refuted at level 1e-09 (scale): 0.499 of the certified scale in 10000 values of 12 steps
    """

    ratio: float
    values: int
    steps: int
    level: float
    findings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_real("ratio", self.ratio, minimum=0.0, open_minimum=True)
        check_integer("values", self.values, minimum=2)
        check_integer("steps", self.steps, minimum=1)
        check_real("level", self.level, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        if not isinstance(self.findings, tuple) or not all(isinstance(one, str) for one in self.findings):
            raise InvalidParameterError("findings", self.findings, "a tuple of names")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the names are joined by commas."""
        return dataclasses.asdict(self) | {"findings": ",".join(self.findings)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**plain | {"findings": tuple(filter(None, plain["findings"].split(",")))})

    def __str__(self) -> str:
        found = ", ".join(one if one in _TESTS else _quoted(one) for one in self.findings)
        verdict = f"refuted at level {typed(self.level)} ({found})" if found else "not refuted"
        return (
            f"noise {verdict}: {self.ratio:.3f} of the certified scale in {self.values} values of "
            f"{counted(self.steps, 'step')}"
        )


@dataclasses.dataclass(frozen=True)
class RunRecord(Document):
    """A run under a certificate: steps, realised participations, random numbers and the resulting eps.

    It contains nothing about individual examples. It states how often examples took part if the certificate
    fixes this number (min-separation, epochs, Balls-in-Bins), and omits it if it is secret (Poisson
    sampling).

    **Guarantee:** (`executed.upper`, `certificate.budget.delta`), of the kind that the certificate states. It
    records what the trainer observed, which is evidence against mistakes but not against fraud.

    Args:
        certificate: a certificate with clip_norm and expected_batch_size.
        steps: number of noisy gradients released, in [0, n].
        executed: eps at the certified delta: that of the certificate, or less if the run was stopped by plan
            (see `dm.executed_epsilon`).
        sampler: random numbers of the batches.
        noise: random numbers of the noise.
        smallest_separation: fewest steps between two participations of one example; None if no example took
            part twice, or if it is secret.
        most_participations: most participations of one example; None if it is secret.
        processes: number of processes that trained together, >= 1.
        stopped_by_plan: whether the number of steps was decided without looking at anything the run released.
            Only in this case may fewer steps cost less. A decision to stop because of the loss depends on the
            releases, and is charged the full budget.
        uniqueness: how the dataset was checked for repeated examples.
        checkpoint_history: checkpoints of the run; None if it neither saved nor loaded any.
        noise_check: the result of a noise meter; None without one.

    Raises:
        InvalidParameterError: if an argument is invalid.
        CertificateError: if the participations are not the certified ones, if eps is above the claim, or if
            noise, or batches that must be random, came from no random numbers.

    Example:
        `optimizer.run_record()` creates one after a run; by hand:

        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> batches, noise = (
        ...     dm.certificates.Randomness("system entropy", 64 * digit, seeded=False) for digit in "01"
        ... )
        >>> run = dm.RunRecord(
        ...     cal.certificate(1.0, 10.0), 12, cal.achieved, batches, noise,
        ...     smallest_separation=4, most_participations=3,
        ... )
        >>> run.headline
        'exact; 12 of 12 steps executed, eps 2 at delta 1e-05'
    """

    certificate: Certificate
    steps: int
    executed: Bounds
    sampler: Randomness
    noise: Randomness
    smallest_separation: int | None = None
    most_participations: int | None = None
    processes: int = 1
    stopped_by_plan: bool = False
    uniqueness: Uniqueness = Uniqueness.NOT_CHECKED
    checkpoint_history: CheckpointHistory | None = None
    noise_check: NoiseCheck | None = None

    def __post_init__(self) -> None:
        own = self.certificate
        if not isinstance(own, Certificate) or own.clip_norm is None or own.expected_batch_size is None:
            raise InvalidParameterError(
                "certificate", own, "a Certificate with clip_norm and expected_batch_size"
            )
        check_integer("steps", self.steps, minimum=0, maximum=own.strategy.n)
        check_integer("processes", self.processes, minimum=1)
        if not isinstance(self.stopped_by_plan, bool):
            raise InvalidParameterError("stopped_by_plan", self.stopped_by_plan, "True or False")
        if not isinstance(self.executed, Bounds):
            raise InvalidParameterError("executed", self.executed, "Bounds on eps")
        if not isinstance(self.uniqueness, Uniqueness):
            raise InvalidParameterError("uniqueness", self.uniqueness, "a Uniqueness")
        if self.checkpoint_history is not None and not isinstance(self.checkpoint_history, CheckpointHistory):
            raise InvalidParameterError(
                "checkpoint_history", self.checkpoint_history, "a CheckpointHistory, or None"
            )
        checked = self.noise_check
        if checked is not None and (not isinstance(checked, NoiseCheck) or checked.steps > self.steps):
            raise InvalidParameterError(
                "noise_check", checked, f"a NoiseCheck of at most {self.steps} steps, or None"
            )
        problem = self._misfit()
        if problem:
            raise CertificateError(
                f"the realised participations are not those of {own.participation!r}: {problem}",
                claimed=own.participation,
                recomputed=(self.smallest_separation, self.most_participations),
            )
        for what, one, due in (
            ("batches", self.sampler, own.participation.random),
            ("noise", self.noise, True),
        ):
            if due and one.generator == NO_GENERATOR:
                raise CertificateError(
                    f"the {what} of the run came from no random numbers, and the claim requires random ones",
                    claimed=one.generator,
                )
        if self.executed.lower < 0.0:
            raise InvalidParameterError("executed", self.executed, "Bounds on eps, which is >= 0")
        if self.steps == 0 and self.executed.upper > 0.0 and self.executed != own.achieved:
            raise CertificateError(
                f"no step was executed, which costs eps 0, not {typed(self.executed.upper)}",
                claimed=self.executed,
                recomputed=0.0,
            )
        if self.executed.upper > own.achieved.upper:
            raise CertificateError(
                f"eps {typed(self.executed.upper)} of the run is above the certified "
                f"{typed(own.achieved.upper)}",
                claimed=own.achieved.upper,
                recomputed=self.executed.upper,
            )
        if not self._cheaper_allowed() and self.executed != own.achieved:
            raise CertificateError(
                f"eps {typed(self.executed.upper)} is not the certified {typed(own.achieved.upper)}, though "
                "the run was not stopped before its end by plan",
                claimed=own.achieved,
                recomputed=self.executed,
            )

    @property
    def headline(self) -> str:
        """Steps, eps and delta, the charge for stopping early, and the certificate's guarantee."""
        own = self.certificate
        return (
            f"{own.headline}; {self.steps} of {own.strategy.n} steps executed, eps {up(self.executed.upper)} "
            f"at delta {typed(own.budget.delta)}{self._stop()}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, including its certificate and its checksum; what `save` writes."""
        content: dict[str, Any] = {
            "guarantee": self.headline,
            "schema_version": SCHEMA_VERSION,
            "run": to_plain(self._run()),
            "certificate": self.certificate.to_dict(),
        }
        return content | {"checksum": checksum_of_document(content)}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Like `load`, from the text of a file."""
        record, derived = cls.read(text)
        record.certificate.check_quickly(derived)
        return record

    @classmethod
    def read(cls, text: str) -> tuple[Self, dict[str, Any]]:
        """Parse a run record; also return the numbers of its certificate that are costly to recompute.

        Raises:
            CertificateError: if its version or kind is unknown, or it is inconsistent.
        """
        document = parse(text, KIND)
        certificate, derived = Certificate.read(json.dumps(document["certificate"]))
        run = from_plain(document["run"])
        try:
            record = cls(
                certificate=certificate,
                steps=run["steps"],
                executed=Bounds.from_dict(run["executed"]),
                sampler=Randomness(**run["sampler"]),
                noise=Randomness(**run["noise"]),
                smallest_separation=run["smallest_separation"],
                most_participations=run["most_participations"],
                processes=run["processes"],
                stopped_by_plan=run["stopped_by_plan"],
                uniqueness=Uniqueness(run["uniqueness"]),
                checkpoint_history=_checkpoint_history(run["checkpoint_history"]),
                noise_check=NoiseCheck.from_dict(run["noise_check"]) if "noise_check" in run else None,
            )
        except CertificateError:
            raise
        except (DpmechError, ArithmeticError, RecursionError, TypeError, ValueError) as error:
            raise CertificateError(f"the run is not one that dpmech could have recorded: {error}") from error
        found = list(differences({"guarantee": document["guarantee"]}, {"guarantee": record.headline}))
        if found:
            raise CertificateError("entries contradict each other: " + "; ".join(found))
        return record, derived

    def __str__(self) -> str:
        least = self.smallest_separation
        apart = "" if least is None else f", {counted(least, 'step')} apart"
        often = (
            "participations secret"
            if self.most_participations is None
            else f"at most {counted(self.most_participations, 'participation')}{apart}"
        )
        seeds = "seeded by the caller" if self.sampler.seeded or self.noise.seeded else "OS entropy"
        made = "; ".join(
            f"{name}: {_quoted(one.source)}, from {one.generator_words}"
            for name, one in (("batches", self.sampler), ("noise", self.noise))
        )
        text = f"{self.headline}; {often}; {counted(self.processes, 'process')}; {seeds} ({made})"
        if self.certificate.dataset_size is not None:
            size = f"dataset size {self.certificate.dataset_size:,}"
            text += f"; declared {size}" if self.certificate.mechanism.hides_size else f"; {size}, public"
        if self.uniqueness == Uniqueness.NOT_CHECKED:
            text += "; the dataset was not checked for duplicate examples"
        accepted = (
            self.checkpoint_history.of_kind(CheckpointMatch.ACCEPTED)
            if self.checkpoint_history is not None
            else ()
        )
        if self.checkpoint_history is not None and self.checkpoint_history.loads:
            text += f"; resumed from a saved state {_times(self.checkpoint_history.loads)}"
        if (
            self.checkpoint_history is not None
            and self.checkpoint_history.settings == CheckpointMatch.UNKNOWN
        ):
            text += "; settings of later steps not compared"
        if self.checkpoint_history is not None and not self.checkpoint_history.same_rounding:
            text += "; repeated steps may have been rounded differently"
        if self.noise_check is not None:
            text += f"; {self.noise_check}"
        if accepted:
            text += f"; resumed from a checkpoint with another {' and another '.join(accepted)}"
        return text

    def _run(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "executed": self.executed.to_dict(),
            "stopped_by_plan": self.stopped_by_plan,
            "smallest_separation": self.smallest_separation,
            "most_participations": self.most_participations,
            "processes": self.processes,
            "sampler": self.sampler.to_dict(),
            "noise": self.noise.to_dict(),
            "uniqueness": self.uniqueness.value,
            "checkpoint_history": None
            if self.checkpoint_history is None
            else self.checkpoint_history.to_dict(),
            **({} if self.noise_check is None else {"noise_check": self.noise_check.to_dict()}),
        }

    def _stop(self) -> str:
        """The charge for a run that ended before its last step."""
        if self.steps == self.certificate.strategy.n:
            return ""
        if self.executed == self.certificate.achieved and self.stopped_by_plan:
            return ", the full claim: no smaller bound is known for the executed steps"
        if self.executed == self.certificate.achieved:
            return ", the full claim: the decision to stop may depend on results"
        if self.steps == 0:
            return ", because nothing was released"
        return ", the number of steps was decided without looking at results"

    def _cheaper_allowed(self) -> bool:
        return self.steps == 0 or (self.stopped_by_plan and self.steps < self.certificate.strategy.n)

    def _misfit(self) -> str:
        """How the realised participations differ from the certified ones; empty if they do not."""
        schema, n = self.certificate.participation, self.certificate.strategy.n
        most, separation = self.most_participations, self.smallest_separation
        if schema.per_release:
            secret = most is None and separation is None
            return "" if secret else "under Poisson sampling they are secret and must not be recorded"
        if most is None:
            return "how often one example took part is not recorded"
        check_integer("most_participations", most, minimum=0)
        if (separation is None) != (most < 2):
            return f"{most} participations and a smallest separation of {separation!r}"
        pattern = schema.pattern(n)
        if most > pattern.max_participations:
            return f"one example took part {most} times, {pattern.max_participations} were certified"
        if separation is None:
            return "" if most <= self.steps else f"{most} participations in {self.steps} steps"
        check_integer("smallest_separation", separation, minimum=1)
        if separation < pattern.min_sep or (pattern.evenly_spaced and separation != pattern.min_sep):
            return f"two participations {separation} steps apart, {pattern.min_sep} were certified"
        if (most - 1) * separation >= self.steps:
            return f"{most} participations {separation} steps apart do not fit {self.steps} steps"
        return ""


def is_run_record(text: str) -> bool:
    """Whether the text of a file says that it is a run record; its content is not checked."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "run" in document


def _checkpoint_history(plain: dict[str, Any] | None) -> CheckpointHistory | None:
    if plain is None:
        return None
    loads, same_rounding = plain.get("loads", 0), plain.get("same_rounding", True)
    kept: dict[str, Any] = {
        name: CheckpointMatch(value)
        for name, value in plain.items()
        if name not in ("loads", "same_rounding")
    }
    return CheckpointHistory(**kept, loads=loads, same_rounding=same_rounding)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _quoted(source: str) -> str:
    """Quote text from the recorder of a run: a file may contain any, line breaks included."""
    return repr(source if len(source) <= _MOST_LETTERS else f"{source[:_MOST_LETTERS]}...")
