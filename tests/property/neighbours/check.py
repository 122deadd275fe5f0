"""Two neighbouring data sets through the code that trains: what one record changes before the noise is added.

Training is run for real, on both data sets, with the same keys. A `Tape` reads the sums of every step just
before their noise, and the noise that they then get, so that differences are measured in the unit that is
certified: the standard deviation of the noise that is there, over the sigma of the claim. What is released
may be chosen adaptively, so differences are those at *equal releases*: every run but the first gets the
releases of the first in place of its own, and what it does next follows from them.

Whatever a run makes public must then be equal bit for bit. There is a `Violation` where the difference is
more than the claim allows, or is found in a step that the record takes no part in, or where others moved.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import Dataset

import dpmech as dm
from dpmech.optim.noise import NoiseStream
from dpmech.optim.noise.addition import Addition
from dpmech.optim.noise.normals import NormalSource
from dpmech.samplers import sampler_for

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = dm.Adjacency.ADD_REMOVE, dm.Adjacency.ZERO_OUT, dm.Adjacency.REPLACE_ONE
# Names of `planted.py` that every way to train is held against.
PLANTED = ("long clip norm", "a row counts 1.05 times", "noise 5 % short")
BATCH = 3  # where nothing else says how large a batch is
CLIP = 0.5  # no power of its own: a clip norm of 1 would hide one that is missing
_ROUNDING = 1e-6  # of float32 sums; clipped gradients are shorter than their limit by 6e-5
_ZERO = 1e-12  # two sums over the same records may be added up in another order


class Violation(AssertionError):
    """More than the claim allows."""


# ---- data


class Rows(Dataset):
    """Records, with a gap where one is None: as with `CanaryData`, whoever is absent moves nobody."""

    def __init__(self, records):
        self.records = list(records)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        # What an empty batch is like is asked of the first record, whether it is there or not.
        return (
            torch.ones_like(next(one for one in self.records if one is not None))
            if record is None
            else record
        )

    def __getitems__(self, indices):
        return [self.records[index] for index in indices if self.records[index] is not None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Records whose gradients are known: of a linear loss, at any weights.

    Attributes:
        model: makes the model, with weights that do not depend on anything.
        blocks: how many parameters it has.
        record: the record whose gradient has the given length in each parameter, along +1 or -1.
    """

    model: Callable[[], torch.nn.Module]
    blocks: int
    record: Callable[..., torch.Tensor]


class _TwoParts(torch.nn.Module):
    """The gradient of `forward` in its weights is the record itself."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 1, bias=False)
        self.second = torch.nn.Linear(2, 1, bias=False)
        for param in self.parameters():
            torch.nn.init.constant_(param, 0.25)

    def forward(self, inputs):
        return self.first(inputs[:, :3]) + self.second(inputs[:, 3:])


class _Outer(torch.nn.Module):
    """The gradient is an outer product of two halves of the record: large enough for factors to be taken."""

    WIDTH = 40

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(self.WIDTH, self.WIDTH, bias=False)
        torch.nn.init.constant_(self.layer.weight, 0.25)

    def forward(self, inputs):
        given, wanted = inputs.split(self.WIDTH, dim=1)
        return (self.layer(given) * wanted).sum(dim=1, keepdim=True)


def _two_parts(lengths, sign=1):
    record = torch.zeros(5)
    record[0], record[3] = lengths[0] * sign, lengths[-1] * sign
    return record


def _outer(lengths, sign=1):
    record = torch.zeros(2 * _Outer.WIDTH)
    root = math.sqrt(math.hypot(*lengths))
    record[0], record[_Outer.WIDTH] = root, root * sign
    return record


PARTS = Kind(_TwoParts, 2, _two_parts)
OUTER = Kind(_Outer, 1, _outer)

# In clip norms. 1e20 squared is no number of float32; a norm may be lost in the other direction too.
_LENGTHS = (0.0, 1e-30, 0.7, 1.0 - 2.0**-14, 1.0, 1.0 + 1e-7, 1.2, 1e4, 1e18, 1e20, math.inf, math.nan)
# (length in the first parameter, in the last one, sign): long ones along the others and against them, one
# just short enough not to be scaled down, a short one, a zero, and one without a finite gradient.
LONG = ((1e4, 1e4, -1), (1e4, 1e4, 1))
WORST = (*LONG, (0.7069, 0.7069, -1))
_FEW = (*WORST, (0.3, 0.4, 1), (0.0, 0.0, 1), (math.nan, 0.0, 1))


def candidates(kind, clip, shapes):
    """The records of some shapes, in units of the clip norm."""
    return [kind.record([first * clip, last * clip], sign) for first, last, sign in shapes]


def thorough():
    """The few, and every length."""
    yield from _FEW
    for length in _LENGTHS:
        yield length, 0.0, -1


def others(kind, clip, count):
    """Records that are in both data sets: short, long, at the clip norm, antiparallel and zero."""
    lengths = [(0.5, 1), (3.0, -1), (1.0, 1), (0.0, 1), (1e4, -1), (0.2, -1), (2.0, 1)]
    made = itertools.islice(itertools.cycle(lengths), count)
    return [kind.record([length * clip] * kind.blocks, sign) for length, sign in made]


# ---- the code under test, with a tape


@dataclasses.dataclass
class Step:
    """What was released at one step.

    Attributes:
        sums: before the noise, in float64.
        dtypes: of the tensors that they came in, to which the released sums are rounded.
        stddevs: standard deviation of each one's noise.
        released: the means with their noise, and what the sums were divided by.
    """

    sums: list[torch.Tensor]
    dtypes: list[torch.dtype]
    stddevs: list[float]
    released: list[tuple[torch.Tensor, float]]


class Tape:
    """Reads the sums and the noise of every step, and replaces releases by those of another run.

    Normal numbers are all 1 meanwhile, one of the outcomes that they may have: row t of the noise is then the
    standard deviation times the sum of row t of C^-1, which is known.
    """

    def __init__(self, releases=None):
        self.steps: dict[int, Step] = {}
        self._releases = releases

    @contextlib.contextmanager
    def reading(self):
        mean_step, add = NoiseStream.mean_step, Addition.add
        noise: dict[int, list[torch.Tensor]] = {}

        def noted(addition, start, part):
            noise.setdefault(addition.slot.index, []).append(part.double().clone())
            add(addition, start, part)

        def taped(stream, sums, divisors, clip_norm=None):
            step, before = stream.steps_taken, [total.double().clone() for total in sums]
            dtypes = [total.dtype for total in sums]
            noise.clear()
            means = mean_step(stream, sums, divisors, clip_norm)
            own = float(np.linalg.solve(stream._claim.strategy.to_dense(), np.ones(stream.n))[step])
            rows = [torch.cat(noise[index]) / own for index in sorted(noise)]
            stddevs = [float(row[0]) for row in rows]
            for row, stddev, old, mean, divisor in zip(rows, stddevs, before, means, divisors, strict=True):
                assert stddev > 0.0
                torch.testing.assert_close(row, torch.full_like(row, stddev), rtol=1e-5, atol=0.0)
                noisy = (old.flatten() + row * own) / divisor
                most = 1e-6 * float(noisy.abs().max()) + 1e-5 * abs(stddev * own) / divisor
                torch.testing.assert_close(mean.double().flatten(), noisy, rtol=0.0, atol=most)
            if self._releases is not None:
                for mean, divisor, (released, then) in zip(
                    means, divisors, self._releases[step], strict=True
                ):
                    mean.copy_(released * (then / divisor))
            assert step not in self.steps, f"two releases of step {step}"
            kept = [(mean.clone(), divisor) for mean, divisor in zip(means, divisors, strict=True)]
            self.steps[step] = Step(before, dtypes, stddevs, kept)
            return means

        def ones(source, out, *position):
            out.fill_(1.0)

        with contextlib.ExitStack() as patched:
            patched.enter_context(mock.patch.object(NoiseStream, "mean_step", taped))
            patched.enter_context(mock.patch.object(Addition, "add", noted))
            # Fingerprints name the keys of the operating system.
            patched.enter_context(mock.patch("secrets.randbits", lambda bits: (1 << bits) // 3))
            for kind in _concrete(NormalSource):
                patched.enter_context(mock.patch.object(kind, "fill", ones))
                patched.enter_context(mock.patch.object(kind, "fill_all", ones))
            yield self

    @property
    def releases(self):
        return {number: step.released for number, step in self.steps.items()}


def _concrete(kind):
    for one in kind.__subclasses__():
        yield from _concrete(one)
        if "fill" in vars(one):
            yield one


@dataclasses.dataclass
class Run:
    """What a feature trains on, and under which claim.

    Attributes:
        claim: certificate or calibration.
        records: all records in order, None for a gap.
        owners: whose each of them is; the subject's id is "subject".
        kind: of records.
        clip: the clip norm.
        seed: of the sampler.
        batch: the public expected batch size.
        way: how the subject is there: "record", or absent as a "gap", "shorter", or "masked".
        size: the declared number of examples or users, whoever is absent.
    """

    claim: Any
    records: list
    owners: list
    kind: Kind
    clip: float
    seed: int
    batch: float
    way: str
    size: int

    @property
    def data(self):
        return Rows(self.records)


@dataclasses.dataclass
class Ended:
    """What a run left.

    Attributes:
        batches: for every step, the positions in `Run.records` that took part.
        public: everything that is released, by name; tensors or plain values.
    """

    batches: list[list[int]]
    public: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A way to train, and what of the library it covers.

    Attributes:
        name: what it is called.
        train: takes a Run and trains to the end; returns an Ended.
        adjacencies: under which it is accepted; all others must be refused.
        mechanism: of an adjacency.
        covers: names of what it covers, "clipping mode: ghost".
        kind: of its records.
        records: how many the subject has; more than one for users.
        count: of all records.
        at: where the subject's records may stand: "first" or "last".
        absent: how records are absent: "gap", "shorter" (the last ones are not there), or "masked".
        plants: the names of faults that must be found in it, see `planted.py`.
        shrinks: how many times less than certified the worst record does, where that is known; 1 for nothing.
        method: of accounting.
        searched: whether sigma is searched, where no method without samples certifies a given one.
        slow: whether its tests take seconds.
        thorough: whether all lengths are tried, or a few.
        wants: what the batches must be like, for a seed to be taken: a function of them and of the subject's
            numbers.
        kept: how many of the subject's records take part, where the data set leaves some out; None for all.
        users: whether what is sampled is users, of two records each, and not records.
    """

    name: str
    train: Callable[[Run], Ended]
    adjacencies: tuple[dm.Adjacency, ...]
    mechanism: Callable[[dm.Adjacency], dm.Mechanism]
    covers: frozenset[str] = frozenset()
    kind: Kind = PARTS
    records: int = 1
    count: int = 6
    at: tuple[str, ...] = ("last", "first")
    absent: tuple[str, ...] = ("gap",)
    plants: tuple[str, ...] = PLANTED
    shrinks: float = 1.0
    method: Any = None
    searched: bool = False
    slow: bool = False
    thorough: bool = False
    wants: Callable[..., bool] | None = None
    kept: int | None = None
    users: bool = False

    def claim(self, adjacency):
        return _claim(self.mechanism(adjacency), self.method, searched=self.searched)

    @property
    def own(self):
        """How many numbers of the sampler are the subject's."""
        return 1 if self.users else self.records if self.kept is None else self.kept

    @property
    def units(self):
        """How many examples or users a sampler draws from."""
        rest = self.count - self.records
        return self.own + (rest // 2 if self.users else rest)


@functools.cache
def _claim(mechanism, method, *, searched):
    if searched:
        return dm.calibrate_sigma(mechanism, 8.0, 1e-3, method=method, rng=5)
    return dm.certify_sigma(mechanism, 1.25, delta=1e-3, method=method)


# ---- the check


@dataclasses.dataclass(frozen=True)
class Found:
    """The largest part of what is certified that a record was seen to change, at one step and over all."""

    step: float
    whole: float

    def with_(self, other):
        return Found(max(self.step, other.step), max(self.whole, other.whole))


def check(feature, adjacency, *, shapes=None, places=None):
    """Search for the record that changes the most, and hold it against the claim.

    Args:
        feature: how to train.
        adjacency: between which data sets.
        shapes: of the records that are tried; None for those of the feature.
        places: of the subject; None for those of the feature.

    Returns:
        What was found.

    Raises:
        Violation: if it is more than certified.
    """
    claim = feature.claim(adjacency)
    found = Found(0.0, 0.0)
    for at in feature.at if places is None else places:
        tried = shapes or (
            LONG[:1] if at != feature.at[0] else list(thorough()) if feature.thorough else _FEW
        )
        ways = feature.absent if adjacency is ADD_REMOVE else ("record",)
        for way in ways if at == "last" else [way for way in ways if way != "shorter"]:
            found = found.with_(_search(feature, claim, at, way, tried))
    return found


def _search(feature, claim, at, way, shapes):
    adjacency, seed, subject = claim.adjacency, _seed(feature, claim, at), _subject(feature, at)
    zero = feature.kind.record([0.0, 0.0])
    first = _ran(feature, claim, at, seed, None if adjacency is ADD_REMOVE else zero, way)
    seen = [first]
    if adjacency is not ADD_REMOVE:  # there the first run has a zero already
        shapes = [shape for shape in shapes if any(shape[:2])]
    for record in candidates(feature.kind, CLIP, shapes):
        seen.append(_ran(feature, claim, at, seed, record, "record", first[1].releases))
    found = Found(0.0, 0.0)
    for one, other in itertools.combinations(seen, 2):
        if one is first or adjacency is REPLACE_ONE:
            found = found.with_(_compare(feature, claim, subject, one, other))
    return found


def _subject(feature, at):
    first = 0 if at == "first" else feature.count - feature.records
    return list(range(first, first + feature.records))


def _ran(feature, claim, at, seed, record, way, releases=None):
    subject, rest = [record] * feature.records, others(feature.kind, CLIP, feature.count - feature.records)
    whose = [f"other {number}" for number in range(len(rest))]
    if feature.records > 1:  # users have two records each
        whose = [f"other {number // 2}" for number in range(len(rest))]
    own = ["subject"] * feature.records
    if record is None and way == "shorter":
        subject, own = [], []
    records, owners = (subject + rest, own + whose) if at == "first" else (rest + subject, whose + own)
    run = Run(claim, records, owners, feature.kind, CLIP, seed, _batch(feature, claim), way, feature.units)
    quick = mock.patch(
        "importlib.metadata.version", _version
    )  # certificates name versions: a fifth of the time
    with quick, warnings.catch_warnings(), Tape(releases).reading() as tape:
        warnings.simplefilter("ignore")  # operators are told of gradients that are not finite
        ended = feature.train(run)
    return ended, tape


_version = functools.cache(importlib.metadata.version)


def _batch(feature, claim):
    """The expected batch size, a public number: of all records, whoever is absent."""
    options = _owners(feature, claim)
    if claim.participation.unrestricted:
        options = {"batch_size": BATCH, "declared_size": feature.units}
    return max(1.0, float(sampler_for(claim, feature.units, **options).mean_batch_size))


def _owners(feature, claim):
    if not claim.participation.users_together:
        return {}
    rest = [f"other {number // 2}" for number in range(feature.units - feature.own)]
    return {"user_ids": [*rest, *["subject"] * feature.own]}


def _together_with_others(batches, own):
    """All of the subject is in some batch, and nowhere alone."""
    joined = [set(batch) for batch in batches if own & set(batch)]
    return any(own <= batch for batch in joined) and all(batch - own for batch in joined)


def _seed(feature, claim, at):
    """A seed with which chance puts the subject into batches as the feature wants them."""
    if not claim.participation.random:
        return 0
    wants = feature.wants or _together_with_others
    first = 0 if at == "first" else feature.units - feature.own
    own = set(range(first, first + feature.own))
    owners = _owners(feature, claim)
    if at == "first" and owners:
        owners = {"user_ids": owners["user_ids"][::-1]}
    for seed in range(20_000):
        sampler = sampler_for(claim, feature.units, rng=seed, **owners)
        if wants([sampler.indices(step).tolist() for step in range(sampler.n)], own):
            return seed
    raise AssertionError(f"no seed for {feature.name}")


def _compare(feature, claim, subject, one, other):
    """What changed between two runs, over what may."""
    (ended, tape), (ended2, tape2) = one, other
    n, adjacency = claim.strategy.n, claim.adjacency
    if not set(tape.steps) == set(tape2.steps) == set(range(n)):
        raise Violation(f"{feature.name}: steps {sorted(tape.steps)} and {sorted(tape2.steps)} of {n}")
    for step, (batch, batch2) in enumerate(zip(ended.batches, ended2.batches, strict=True)):
        if set(batch) - set(subject) != set(batch2) - set(subject):
            raise Violation(f"{feature.name}: other records moved at step {step}: {batch}, {batch2}")
    changes = np.zeros((n, sum(total.numel() for total in tape.steps[0].sums)))
    factor = 2.0 if adjacency is REPLACE_ONE else 1.0
    step_ratio = 0.0
    for step in range(n):
        left, right = tape.steps[step], tape2.steps[step]
        if left.dtypes != right.dtypes:
            raise Violation(
                f"{feature.name}, {adjacency.name}: releases of step {step} are rounded to {left.dtypes} or "
                f"{right.dtypes}, which their last bits show"
            )
        if not np.allclose(left.stddevs, right.stddevs, rtol=1e-6, atol=0.0):
            raise Violation(f"{feature.name}: noise at step {step}: {left.stddevs}, {right.stddevs}")
        parts = [
            (a - b).flatten() * (claim.sigma / stddev)
            for a, b, stddev in zip(left.sums, right.sums, left.stddevs, strict=True)
        ]
        changes[step] = torch.cat(parts).numpy()
        times = max(
            len(set(ended.batches[step]) & set(subject)), len(set(ended2.batches[step]) & set(subject))
        )
        change = float(np.linalg.norm(changes[step]))
        if not change <= factor * times * (1.0 + _ROUNDING) + _ZERO:
            raise Violation(
                f"{feature.name}, {adjacency.name}: the sums of step {step} changed by {change:.6f}, "
                f"certified is {factor * times:g}: {times} of its records are in the batch"
            )
        step_ratio = max(step_ratio, change / factor / claim.participation.examples)
    _check_pattern(feature, claim, subject, ended, ended2, changes)
    whole = _whole(claim, changes)
    if not whole <= 1.0 + _ROUNDING:
        raise Violation(f"{feature.name}, {adjacency.name}: {whole:.6f} times the certified sensitivity")
    _check_public(feature, ended.public, ended2.public)
    return Found(step_ratio, whole)


def _whole(claim, changes):
    """The change over all steps, over the certified sensitivity."""
    weights = claim.strategy.to_dense()
    most = claim.mechanism.sensitivity.upper
    if claim.participation.per_release:  # every release is accounted for by itself
        return (
            max(
                float(np.linalg.norm(column) * np.linalg.norm(change))
                for column, change in zip(weights.T, changes, strict=True)
            )
            / most
        )
    return float(np.linalg.norm(weights @ changes)) / most


def _check_pattern(feature, claim, subject, ended, ended2, changes):
    """Every record takes part in steps that the participation allows, by a reading of its own."""
    changed = {step for step in range(len(changes)) if np.linalg.norm(changes[step]) > _ZERO}
    pattern = claim.participation.pattern(claim.strategy.n)
    joined = set()
    for place in subject:
        steps = [
            step
            for step, (batch, batch2) in enumerate(zip(ended.batches, ended2.batches, strict=True))
            if place in batch or place in batch2
        ]
        joined |= set(steps)
        if claim.participation.per_release:
            continue
        gaps = np.diff(steps)
        even = not pattern.evenly_spaced or len(set(gaps.tolist())) <= 1
        close = gaps.size and gaps.min() < pattern.min_sep
        if close or len(steps) > pattern.max_participations or not even:
            raise Violation(
                f"{feature.name}: record {place} took part in steps {steps}, certified is {pattern}"
            )
    if not changed <= joined:
        raise Violation(
            f"{feature.name}: steps {sorted(changed - joined)} changed, in which nobody took part"
        )


def _check_public(feature, one, other):
    """Whatever is released is a function of the releases, which are equal here."""
    if set(one) != set(other):
        raise Violation(f"{feature.name}: one run made public {sorted(one)}, the other {sorted(other)}")
    for name, value in one.items():
        if isinstance(value, dict):
            _check_public(feature, value, other[name])
            continue
        equal = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        if not equal:
            raise Violation(f"{feature.name}: {name} differs at equal releases: {value}, {other[name]}")
