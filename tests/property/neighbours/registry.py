"""The ways to train that the check of neighbouring data sets knows: registered, so that tests find them."""

import weakref

import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import make_private
from tests.property.neighbours.check import ADD_REMOVE, BATCH, REPLACE_ONE, ZERO_OUT, Ended, Feature

FEATURES: dict[str, Feature] = {}
ALL = (ADD_REMOVE, ZERO_OUT, REPLACE_ONE)
N = 4
_OPEN = weakref.WeakSet()


def feature(
    name,
    *covers,
    adjacencies=ALL,
    strategy=None,
    participation=None,
    unit=dm.Unit.EXAMPLE,
    **settings,
):
    """Register a function that trains a `Run`.

    Args:
        name: of the feature.
        *covers: "axis: value", see `test_completeness.py`.
        adjacencies: under which the library accepts it.
        strategy: C; None for one whose noise is correlated over two steps.
        participation: None for MinSep(2).
        unit: of the claim, where the participation does not say it.
        **settings: of `Feature`.
    """
    own = dm.LambdaCGD(N, 0.5) if strategy is None else strategy
    taking_part = dm.MinSep(2) if participation is None else participation

    def register(train):
        assert name not in FEATURES, name
        FEATURES[name] = Feature(
            name,
            train,
            adjacencies,
            lambda adjacency: dm.Mechanism(own, taking_part, adjacency, unit),
            frozenset(covers),
            **settings,
        )
        return train

    return register


def loss_of_one(model, inputs):
    return model(inputs).sum()


def plain(records):
    """A batch as the collate function of torch makes it."""
    return torch.stack(records)


def close_earlier():
    """End what a run before left open, where it was refused: its seed is used again."""
    for earlier in list(_OPEN):
        earlier.close()


def private(run, model=None, data=None, *, clip_norm=None, collate=plain, shuffle=False, **options):
    """Model, optimizer and loader of make_private for a run; those of the run before are closed."""
    batch_size = BATCH if run.claim.participation.unrestricted else 1
    close_earlier()
    model = run.kind.model() if model is None else model
    given = {"expected_batch_size": run.batch, "generator": 1}
    if run.claim.participation.random:
        given["rng"] = run.seed
    if run.claim.participation.unrestricted or "drop_last" in options:
        given["dataset_size"] = run.size
    if "clipping" not in options:
        given["clip_norm"] = run.clip if clip_norm is None else clip_norm
    parts = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(
            run.data if data is None else data, batch_size=batch_size, collate_fn=collate, shuffle=shuffle
        ),
        run.claim,
        **given | options,
    )
    _OPEN.add(parts[1])
    return parts


def by_loss(run, *, stop=None, parts=None, places=None, **options):
    """The loop of make_private with a loss of one example."""
    if parts is None:
        parts = private(run, **{"loss": loss_of_one, "loss_takes": "batch_of_one"} | options)
    model, optimizer, loader = parts
    while optimizer.steps_left:
        for batch in loader:
            model.backward(*(batch if isinstance(batch, tuple | list) else [batch]))
            optimizer.step()
            if optimizer.record.steps == stop:
                return None
    return ended(*parts, places)


def by_hooks(run, *, skip_empty=False, **options):
    """The loop that Opacus users know."""
    model, optimizer, loader = parts = private(run, **options)
    while optimizer.steps_left:
        for batch in loader:
            optimizer.zero_grad()
            if len(batch) or not skip_empty:
                model(batch).mean().backward()
            optimizer.step()
    return ended(*parts)


def batches_of(sampler, places=None):
    """The batches as positions of records; `places` are those of the sampler's numbers."""
    found = [sampler.indices(step).tolist() for step in range(sampler.n)]
    return found if places is None else [[places[one] for one in batch] for batch in found]


def weights_of(model):
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def public_of(optimizer):
    """What an optimizer tells whoever asks."""
    return {
        "phi": optimizer.phi,
        "clip_norm": optimizer.clip_norm,
        "expected_batch_size": optimizer.expected_batch_size,
        "executed": repr(optimizer.record),
    }


def ended(model, optimizer, loader, places=None):
    """What a run of make_private left; it is closed."""
    record = optimizer.run_record().to_dict()["run"]
    # A hash of the key, 128 secret bits, and of the size of the data set: random to whoever has no key.
    del record["sampler"]["fingerprint"]
    public = {"weights": weights_of(model), "record": record} | public_of(optimizer)
    optimizer.close()
    return Ended(batches_of(loader.sampler, places), public)
