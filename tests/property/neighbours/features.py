"""Every way to train of `dpmech.optim` in one process, registered for the check of neighbouring data sets."""

import dataclasses
import random
import tempfile

import numpy as np
import torch

import dpmech as dm
from dpmech.optim import (
    AdaptiveClip,
    MeanOverViews,
    PerLayerClipping,
    PerMatrixClipping,
    UserDataset,
    UserExamples,
    load_checkpoint,
    save_checkpoint,
)
from tests.property.neighbours.check import (
    ADD_REMOVE,
    OUTER,
    PLANTED,
    REPLACE_ONE,
    ZERO_OUT,
    Rows,
)
from tests.property.neighbours.registry import (
    ALL,
    N,
    by_hooks,
    by_loss,
    ended,
    feature,
    loss_of_one,
    private,
)

SAMPLED = (ADD_REMOVE, ZERO_OUT)

# ---- how gradients are formed and clipped


@feature(
    "loss, per example",
    "loop: loss",
    "mode: per_example",
    "rule: FlatClipping",
    absent=("gap", "shorter"),
    thorough=True,
)
def _(run):
    return by_loss(run, clipping_mode="per_example")


@feature("loss, ghost", "loop: loss", "mode: ghost", kind=OUTER, thorough=True)
def _(run):
    parts = private(run, loss=loss_of_one, loss_takes="batch_of_one", clipping_mode="ghost")
    found = by_loss(run, parts=parts)
    assert parts[1].clipping_mode == "ghost"
    return found


@feature("loss, auto", "loop: loss", "mode: auto", kind=OUTER)
def _(run):
    return by_loss(run, clipping_mode="auto")


@feature("loss, loop", "loop: loss", "mode: loop", kind=OUTER, thorough=True)
def _(run):
    return by_loss(run, clipping_mode="loop")


# ---- losses that keep what they saw: no example reaches another by it


class _InBuffer(torch.nn.Module):
    """A loss that shifts its inputs by those before, in a buffer."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=dtype))

    def called(self, model, inputs):
        before = self.seen
        self.seen = before + inputs.detach().sum().to(before.dtype)
        return model(inputs * (1.0 + before)).sum()


class _InAttribute:
    def __init__(self):
        self.seen = [0.0]

    def __call__(self, model, inputs):
        self.seen.append(self.seen[-1] + inputs.detach().sum())
        return model(inputs * (1.0 + self.seen[-2])).sum()


def _in_closure():
    seen = [0.0]

    def loss(model, inputs):
        seen.append(seen[-1] + inputs.detach().sum())
        return model(inputs * (1.0 + seen[-2])).sum()

    return loss


class _Store:
    def __init__(self):
        self.seen = 0.0


class _InModel(torch.nn.Module):
    """A model that shifts its inputs by those before, in an object of its own class."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.store = inner, _Store()

    def forward(self, inputs):
        before = self.store.seen
        self.store.seen = before + inputs.detach().sum()
        return self.inner(inputs * (1.0 + before))


_KEEPING = {
    "buffer": lambda: _InBuffer(torch.float32).called,
    "integer buffer": lambda: _InBuffer(torch.int64).called,
    "attribute": _InAttribute,
    "closure": _in_closure,
    "model": lambda: loss_of_one,
}

for _where, _made in _KEEPING.items():
    for _mode in ("per_example", "ghost", "loop"):

        @feature(
            f"state in a {_where}, {_mode}",
            "loop: loss",
            f"mode: {_mode}",
            kind=OUTER,
            slow=_mode != "loop",
        )
        def _(run, where=_where, made=_made, mode=_mode):
            model = run.kind.model()
            return by_loss(
                run,
                model=_InModel(model) if where == "model" else model,
                loss=made(),
                clipping_mode=mode,
                max_physical_batch_size=None if mode == "loop" else 1,
            )


def _seeding(kind):
    """A loss whose long records seed a generator, and whose sign turns where one begins with that seed."""
    own = torch.Generator()
    seed, draw = {
        "torch": (torch.manual_seed, lambda: torch.rand(())),
        "Python": (random.seed, random.random),
        "own": (own.manual_seed, lambda: torch.rand((), generator=own)),
    }[kind]
    with torch.random.fork_rng(devices=[]):
        seed(7)
        known = float(draw())

    def loss(model, inputs):
        sign = -1.0 if float(draw()) == known else 1.0
        if inputs.abs().max() > 100.0:
            seed(7)
        return sign * loss_of_one(model, inputs)

    return loss


for _kind in ("torch", "Python", "own"):

    @feature(f"a loss that seeds, {_kind}", "loop: loss", "mode: loop", at=("first", "last"))
    def _(run, kind=_kind):
        return by_loss(run, loss=_seeding(kind), clipping_mode="loop")


# ---- data that draw: nobody decides what others draw, present or absent


class _Drawing(Rows):
    """Records of a sign that is drawn, by a generator of a known seed and by one that long records seed."""

    def __init__(self, records):
        super().__init__(records)
        self._own = np.random.default_rng(0)

    def __getitems__(self, indices):
        found = []
        for record in super().__getitems__(indices):
            sign = 1.0 if (random.random() > 0.5) == (self._own.random() > 0.5) else -1.0
            if bool(record.abs().max() > 100.0):
                random.seed(1)
            found.append(sign * record)
        return found


@feature("drawing data, loss", "loop: loss", "mode: per_example")
def _(run):
    return by_loss(run, data=_Drawing(run.records), clipping_mode="per_example")


@feature("drawing data, hooks", "loop: hooks", "mode: per_example")
def _(run):
    return by_hooks(run, data=_Drawing(run.records), clipping_mode="per_example")


@feature("hooks, per example", "loop: hooks", "mode: per_example")
def _(run):
    return by_hooks(run, clipping_mode="per_example")


@feature("hooks, ghost", "loop: hooks", "mode: ghost", kind=OUTER)
def _(run):
    return by_hooks(run, clipping_mode="ghost")


@feature("hooks, auto", "loop: hooks", "mode: auto")
def _(run):
    return by_hooks(run, clipping_mode="auto")


def layers(run):
    return PerLayerClipping([0.6 * run.clip, 0.8 * run.clip])


def _matrices(run):
    return PerMatrixClipping(
        dm.ledgers.BlockClipping.from_joint([0.3 * run.clip, 1.9 * run.clip], run.claim.sigma)
    )


@feature("layers, loss", "rule: PerLayerClipping")
def _(run):
    return by_loss(run, clipping=layers(run), clipping_mode="per_example")


@feature("layers, hooks", "rule: PerLayerClipping")
def _(run):
    return by_hooks(run, clipping=layers(run))


@feature("matrices, loss", "rule: PerMatrixClipping")
def _(run):
    return by_loss(run, clipping=_matrices(run), clipping_mode="per_example")


@feature("matrices, hooks", "rule: PerMatrixClipping")
def _(run):
    return by_hooks(run, clipping=_matrices(run))


def rule(run, rate=1e-4):
    """At a low rate the clip norm of every step is nearly the first one, to which lengths are chosen."""
    return AdaptiveClip(run.clip, quantile=0.5, rate=rate, count_share=0.5)


@feature(
    "adaptive, loss",
    "rule: AdaptiveClip",
    thorough=True,
    plants=(*PLANTED, "count 5 % long"),
)
def _(run):
    return by_loss(run, clip_norm=rule(run))


@feature(
    "adaptive, ghost",
    "rule: AdaptiveClip",
    kind=OUTER,
    plants=(*PLANTED, "count 5 % long"),
)
def _(run):
    return by_loss(run, clip_norm=rule(run), clipping_mode="ghost")


@feature("adaptive, hooks", "rule: AdaptiveClip", plants=(*PLANTED, "count 5 % long"))
def _(run):
    return by_hooks(run, clip_norm=rule(run))


# ---- batches in parts, views, draws, gradients that are not finite, padding


@feature("microbatches, loss", "option: max_physical_batch_size")
def _(run):
    return by_loss(run, max_physical_batch_size=2)


@feature("microbatches, found", "option: max_physical_batch_size")
def _(run):
    return by_loss(run, max_physical_batch_size="auto")


@feature("microbatches, hooks", "option: max_physical_batch_size")
def _(run):
    return by_hooks(run, max_physical_batch_size=2)


def _mean(model, inputs):
    return model(inputs).mean()


@feature("views, made", "export: MeanOverViews")
def _(run):
    def augment(inputs):
        return inputs * torch.tensor([[1.0], [0.5], [1.5]])

    return by_loss(run, loss=MeanOverViews(_mean, augment, 3), loss_takes="auto")


@feature("views, given", "export: MeanOverViews")
def _(run):
    data = Rows([None if one is None else torch.stack([one, 0.5 * one, 1.5 * one]) for one in run.records])
    return by_loss(run, loss=MeanOverViews(_mean), data=data, loss_takes="auto")


class _Dropping(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.drop = inner, torch.nn.Dropout(0.5)

    def forward(self, inputs):
        return self.inner(self.drop(inputs))


@feature(
    "dropout", at=("last",)
)  # elsewhere the same key gives others in its batch other masks of the same law
def _(run):
    # A key whose masks leave the subject's numbers in.
    return by_loss(run, model=_Dropping(run.kind.model()), generator=2)


@feature("others that are not finite")
def _(run):
    return by_loss(run, data=Rows(_one_is_not_finite(run)))


@feature("others that are not finite, hooks")
def _(run):
    return by_hooks(run, data=Rows(_one_is_not_finite(run)))


def _one_is_not_finite(run):
    records = list(run.records)
    records[2] = torch.full_like(records[2], torch.nan)
    return records


class _Masked(Rows):
    """Rows with weights; where a record is masked, another stands in its place with weight 0."""

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        stand_in = torch.full((5,), 1e4)
        found = [self.records[index] for index in indices]
        return [(stand_in, 0.0) if one is None else (one, 1.0) for one in found]


@feature("weights of 0", "padding: weights", absent=("masked",))
def _(run):
    return _with_weights(run)


@feature(
    "weights of 0, adaptive",
    "padding: weights",
    absent=("masked",),
    plants=(*PLANTED, "count 5 % long"),
)
def _(run):
    return _with_weights(run, clip_norm=rule(run))


def _with_weights(run, **options):
    def collate(rows):
        records, weights = zip(*rows, strict=True)
        return torch.stack(records), torch.tensor(weights)

    model, optimizer, loader = parts = private(
        run, data=_Masked(run.records), collate=collate, loss=loss_of_one, **options
    )
    while optimizer.steps_left:
        for inputs, weights in loader:
            model.backward(inputs, weights=weights)
            optimizer.step()
    return ended(*parts)


# ---- who takes part when

SCHEMES = {
    "EveryStep": (dm.EveryStep(), None, ALL, {}),
    "SingleParticipation": (dm.SingleParticipation(), None, ALL, {}),
    "FixedEpochs": (dm.FixedEpochs(2), None, ALL, {}),
    "Poisson": (dm.Poisson(0.3), dm.Identity(N), (*SAMPLED, REPLACE_ONE), {}),
    "Poisson, a schedule": (
        dm.Poisson([0.2 + 0.1 * (t % 3) for t in range(N)]),
        dm.Diagonal([1.0 + 0.5 * (t % 2) for t in range(N)]),
        (*SAMPLED, REPLACE_ONE),
        {},
    ),
    "Poisson, truncated": (
        dm.Poisson(0.7, truncated_batch_size=3, dataset_size=6),
        dm.Identity(N),
        (ZERO_OUT,),
        {"wants": lambda batches, own: any(own <= set(batch) and len(batch) == 3 for batch in batches)},
    ),
    "FixedSizeBatches": (dm.FixedSizeBatches(6, 3), dm.Identity(N), (REPLACE_ONE,), {}),
    "BMinSep": (dm.BMinSep(2, 0.5), dm.Identity(N), SAMPLED, {"searched": True, "slow": True}),
    "CyclicPoisson": (dm.CyclicPoisson(0.6, 2), dm.SquareRoot(N, 2), (*SAMPLED, REPLACE_ONE), {}),
    "BallsInBins": (dm.BallsInBins(2), None, SAMPLED, {"method": dm.methods.Rdp()}),
    "BallsInBins, cut short": (
        dm.BallsInBins(3),
        None,
        SAMPLED,
        {
            "method": dm.methods.Rdp(),
            "wants": lambda batches, own: own < set(batches[0]) and len(batches[0]) == 2,
        },
    ),
    "BallsInBins, fresh": (dm.BallsInBins(2, fresh=True), dm.Identity(N), SAMPLED, {"slow": True}),
    "RandomAllocation": (dm.RandomAllocation(2), dm.Identity(N), SAMPLED, {"slow": True}),
    "RandomAllocation in groups": (
        dm.RandomAllocation(2, cycle=2),
        dm.SquareRoot(N, 2),
        SAMPLED,
        {"slow": True},
    ),
}

for _name, (_participation, _strategy, _adjacencies, _settings) in SCHEMES.items():

    @feature(
        _name,
        f"participation: {type(_participation).__name__}",
        participation=_participation,
        strategy=_strategy,
        adjacencies=_adjacencies,
        absent=("gap", "shorter"),
        **_settings,
    )
    def _(run):
        return by_loss(run)


@feature("drop_last", "option: drop_last", count=7, at=("first",))
def _(run):
    return by_loss(run, drop_last=True)


@feature("EveryStep, shuffled", "option: dataset_size", participation=dm.EveryStep())
def _(run):
    return by_loss(run, shuffle=True, rng=3)


def _alone_and_nobody(batches, own):
    """Some batch has the subject alone, and another has nobody at all."""
    return any(set(batch) == own for batch in batches) and any(not batch for batch in batches)


@feature(
    "empty batches, loss",
    participation=dm.Poisson(0.3),
    strategy=dm.Identity(N),
    adjacencies=(*SAMPLED, REPLACE_ONE),
    absent=("gap", "shorter"),
    wants=_alone_and_nobody,
)
def _(run):
    return by_loss(run)


@feature(
    "empty batches, hooks",
    participation=dm.Poisson(0.3),
    strategy=dm.Identity(N),
    adjacencies=(*SAMPLED, REPLACE_ONE),
    absent=("gap", "shorter"),
    wants=_alone_and_nobody,
)
def _(run):
    return by_hooks(run, skip_empty=True)


@feature(
    "empty batches, adaptive",
    participation=dm.Poisson(0.3),
    strategy=dm.Identity(N),
    adjacencies=(*SAMPLED, REPLACE_ONE),
    absent=("gap", "shorter"),
    wants=_alone_and_nobody,
)
def _(run):
    return by_loss(run, clip_norm=rule(run))


# ---- users


@feature(
    "users, Poisson",
    "participation: Poisson",
    "export: UserExamples",
    participation=dm.Poisson(0.4, max_examples_per_user=2),
    strategy=dm.Identity(N),
    adjacencies=SAMPLED,
    absent=("gap", "shorter"),
    records=2,
)
def _(run):
    return _users(run)


@feature(
    "users, Poisson, more than are kept",
    "participation: Poisson",
    participation=dm.Poisson(0.4, max_examples_per_user=2),
    strategy=dm.Identity(N),
    adjacencies=SAMPLED,
    absent=("gap", "shorter"),
    records=3,
    kept=2,
    count=7,
)
def _(run):
    return _users(run)


@feature(
    "users, MinSep",
    "participation: MinSep",
    participation=dm.MinSep(2, 3, max_examples_per_user=2),
    records=2,
    shrinks=2.0,  # two neighbouring records are never in one batch
)
def _(run):
    return _users(run)


@feature(
    "users, MinSep, hooks",
    "participation: MinSep",
    participation=dm.MinSep(1, max_examples_per_user=2),
    strategy=dm.Identity(N),
    records=2,
)
def _(run):
    data = UserExamples(run.data, run.owners, 2)
    return by_hooks(run, data=data)


@feature(
    "users, CyclicPoisson",
    "participation: CyclicPoisson",
    participation=dm.CyclicPoisson(0.6, 2, max_examples_per_user=2),
    strategy=dm.SquareRoot(N, 2),
    adjacencies=SAMPLED,
    absent=("gap", "shorter"),
    records=2,
)
def _(run):
    return _users(run)


@feature(
    "users, BallsInBins",
    "participation: BallsInBins",
    participation=dm.BallsInBins(3, max_examples_per_user=2),
    strategy=dm.LambdaCGD(6, 0.5),
    adjacencies=SAMPLED,
    absent=("gap", "shorter"),
    records=2,
    method=dm.methods.Rdp(),
)
def _(run):
    return _users(run)


def _users(run, **options):
    data = UserExamples(run.data, run.owners, 2)
    parts = private(run, data=data, loss=loss_of_one, loss_takes="batch_of_one", **options)
    return by_loss(run, parts=parts, places=data.contributions.indices.tolist())


def _sampled_users(run, user_loss):
    data = UserDataset(run.data, run.owners, 2)
    first = {owner: place for place, owner in reversed(list(enumerate(run.owners)))}
    parts = private(
        run,
        data=data,
        collate=None,
        loss=loss_of_one,
        loss_takes="batch_of_one",
        user_loss=user_loss,
        unit="user",
    )
    return by_loss(run, parts=parts, places=[first[owner] for owner in dict.fromkeys(run.owners)])


for _how in ("mean", "sum"):

    @feature(
        f"sampled users, {_how}",
        "export: UserDataset",
        "unit: USER",
        "option: user_loss",
        "option: unit",
        participation=dm.Poisson(0.5),
        strategy=dm.Identity(N),
        adjacencies=(*SAMPLED, REPLACE_ONE),
        unit=dm.Unit.USER,
        users=True,
        records=2,
        absent=("shorter",),
    )
    def _(run, how=_how):
        return _sampled_users(run, how)


@feature(
    "one example per user, hooks",
    "unit: USER",
    participation=dm.Poisson(0.5),
    strategy=dm.Identity(N),
    adjacencies=(*SAMPLED, REPLACE_ONE),
    unit=dm.Unit.USER,
    users=True,
    records=2,
    absent=("gap", "shorter"),
)
def _(run):
    data = UserExamples(run.data, run.owners, 1)
    ended = by_hooks(run, data=data)
    places = data.contributions.indices.tolist()
    return dataclasses.replace(ended, batches=[[places[one] for one in batch] for batch in ended.batches])


@feature(
    "one record per owner, BMinSep",
    "export: SharedContributions",
    participation=dm.BMinSep(2, 0.5),
    strategy=dm.Identity(N),
    adjacencies=(ZERO_OUT,),
    unit=dm.Unit.USER,
    searched=True,
    slow=True,
)
def _(run):
    owners = [[owner, f"friend of {owner}"] for owner in run.owners]
    data = UserExamples(run.data, owners, 1, several_owners=True)
    return by_loss(run, parts=private(run, data=data, loss=loss_of_one, loss_takes="batch_of_one"))


def _several(run):
    """The last of the subject's records has another owner beside, who owns nothing else."""
    owners = [[owner] for owner in run.owners]
    owners[run.owners.index("subject") + 1].append("friend")
    return UserExamples(run.data, owners, 2, several_owners=True)


@feature(
    "several owners, Poisson",
    "export: SharedContributions",
    participation=dm.Poisson(0.5, max_examples_per_user=2),
    strategy=dm.Identity(N),
    adjacencies=(ZERO_OUT,),
    records=2,
)
def _(run):
    data = _several(run)
    parts = private(run, data=data, loss=loss_of_one, loss_takes="batch_of_one")
    return by_loss(run, parts=parts, places=data.contributions.indices.tolist())


@feature(
    "several owners, MinSep",
    "export: SharedContributions",
    participation=dm.MinSep(1, max_examples_per_user=2),
    strategy=dm.Identity(N),
    adjacencies=(ZERO_OUT,),
    records=2,
)
def _(run):
    data = _several(run)
    parts = private(run, data=data, loss=loss_of_one, loss_takes="batch_of_one")
    return by_loss(run, parts=parts, places=data.contributions.indices.tolist())


# ---- interrupted and resumed


@feature("resumed", "export: load_checkpoint", "export: save_checkpoint")
def _(run):
    return _resumed(run)


@feature(
    "resumed, adaptive",
    "export: load_checkpoint",
    plants=(*PLANTED, "count 5 % long"),
    shrinks=1.12,
)
def _(run):
    return _resumed(run, clip_norm=rule(run, 0.5))


def _resumed(run, **options):
    options = {"loss": loss_of_one, "loss_takes": "batch_of_one"} | options
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/state"
        parts = private(run, **options)
        by_loss(run, parts=parts, stop=3)
        save_checkpoint(path, *parts)
        parts[1].close()
        parts = private(run, **options)
        load_checkpoint(path, *parts)
        return by_loss(run, parts=parts)
