"""PrivateOptimizer in loops without a loader, registered for the check of neighbouring data sets."""

import torch

import dpmech as dm
from dpmech.optim import ClippedSum, FlatClipping, PrivateOptimizer, clipped_gradients
from dpmech.samplers import sampler_for
from tests.property.neighbours.check import PLANTED, ZERO_OUT, Ended
from tests.property.neighbours.features import layers, rule
from tests.property.neighbours.registry import N, batches_of, feature, public_of, weights_of


def _own_loop(run, give, *, clip=None, padded=False, **options):
    """PrivateOptimizer with a sampler, and no loader."""
    model = run.kind.model()
    params = list(model.parameters())
    rng = {"rng": run.seed} if run.claim.participation.random else {}
    sampler = sampler_for(run.claim, len(run.records), **rng)
    given = {"clip_norm": run.clip if clip is None else clip, "generator": 1} | options
    optimizer = PrivateOptimizer(
        torch.optim.SGD(params, lr=0.1), run.claim, expected_batch_size=run.batch, **given
    )
    for step in range(sampler.n):
        if padded:
            places, mask = (one.tolist() for one in sampler.padded(step))
        else:
            places = sampler.indices(step).tolist()
            mask = [run.records[place] is not None for place in places]
            if run.way != "masked":
                places = [place for place, there in zip(places, mask, strict=True) if there]
                mask = [True] * len(places)
        stand_in = torch.full((5,), 1e4)
        records = [stand_in if run.records[place] is None else run.records[place] for place in places]
        rows = torch.stack(records) if records else torch.zeros(0, 5)
        give(optimizer, model, rows, torch.tensor(mask, dtype=torch.float32))
        optimizer.step()
    optimizer.close()
    return Ended(batches_of(sampler), {"weights": weights_of(model)} | public_of(optimizer))


def _bare(model, row):
    return model(row[None]).sum()


def _put(model, rows):
    """The gradients of single examples, as hooks leave them."""
    model.first.weight.grad_sample = rows[:, None, :3].clone()
    model.second.weight.grad_sample = rows[:, None, 3:].clone()


def _masked_samples(optimizer, model, rows, mask):
    # Where the mask is 0 the loss of the row was multiplied by 0.
    _put(model, torch.where(mask[:, None] > 0, rows, torch.zeros_like(rows)))
    optimizer.accumulate()


@feature("grad_sample", "export: PrivateOptimizer", "padding: zero rows", absent=("gap", "shorter", "masked"))
def _(run):
    return _own_loop(run, _masked_samples)


@feature(
    "grad_sample, adaptive",
    "padding: zero rows",
    absent=("gap", "shorter"),
    plants=(*PLANTED, "count 5 % long"),
)
def _(run):
    return _own_loop(run, _masked_samples, clip=rule(run))


@feature(
    "grad_sample, adaptive, padded",
    "padding: zero rows",
    absent=("masked",),
)
def _(run):
    return _own_loop(run, _masked_samples, clip=rule(run))


@feature("grad_sample, layers", "rule: PerLayerClipping")
def _(run):
    return _own_loop(run, _masked_samples, clip=run.clip, clipping=layers(run))


@feature("grad_sample, several passes", "accumulate: examples")
def _(run):
    def give(optimizer, model, rows, mask):
        del mask
        for param, values in (
            (model.first.weight, rows[:, None, :3]),
            (model.second.weight, rows[:, None, 3:]),
        ):
            param.grad_sample = [0.25 * values, 0.75 * values]
        optimizer.accumulate(examples=len(rows))

    return _own_loop(run, give)


@feature("grad_sample, several batches", "accumulate: examples")
def _(run):
    def give(optimizer, model, rows, mask):
        del mask
        for param, values in (
            (model.first.weight, rows[:, None, :3]),
            (model.second.weight, rows[:, None, 3:]),
        ):
            param.grad_sample = [values[:1], values[1:]]
        optimizer.accumulate(examples=len(rows))

    return _own_loop(run, give)


@feature("grad_sample, one at a time", "accumulate: microbatches")
def _(run):
    def give(optimizer, model, rows, mask):
        for row, own in zip(rows, mask, strict=True):
            _masked_samples(optimizer, model, row[None], own[None])

    return _own_loop(run, give)


@feature("grad_sample, loss scale", "accumulate: loss_scale")
def _(run):
    def give(optimizer, model, rows, mask):
        _masked_samples(optimizer, model, 1024.0 * rows, mask)

    return _own_loop(run, give, loss_scale=1024.0)


@feature("clipped_gradients", "export: clipped_gradients", "padding: weights", absent=("gap", "masked"))
def _(run):
    def give(optimizer, model, rows, mask):
        optimizer.accumulate(clipped_gradients(model, _bare, rows, run.clip, microbatch_size=2, weights=mask))

    return _own_loop(run, give)


@feature("from_grads", "export: ClippedSum", plants=("sum 5 % long", "noise 5 % short"))
def _(run):
    def give(optimizer, model, rows, mask):
        del mask
        finite = torch.isfinite(rows.square().sum(dim=1))
        rows = rows[finite].double()
        norms = rows.norm(dim=1, keepdim=True)
        total = (rows * (0.9999 * run.clip / norms).clamp(max=1.0)).sum(dim=0).float()
        count = max(len(rows), 1)
        model.first.weight.grad, model.second.weight.grad = total[None, :3] / count, total[None, 3:] / count
        params = list(model.parameters())
        optimizer.accumulate(
            ClippedSum.from_grads(params, FlatClipping(run.clip), scale=count, examples=len(rows))
        )

    return _own_loop(run, give)


@feature(
    "batches of one shape",
    "padding: TruncatedPoissonSampler.padded",
    participation=dm.Poisson(0.7, truncated_batch_size=3, dataset_size=6),
    strategy=dm.Identity(N),
    adjacencies=(ZERO_OUT,),
)
def _(run):
    def give(optimizer, model, rows, mask):
        optimizer.accumulate(clipped_gradients(model, _bare, rows, run.clip, weights=mask))

    return _own_loop(run, give, padded=True)
