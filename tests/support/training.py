"""What the tests of private training train: small datasets and models, runs, and loops over them."""

import weakref

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpmech as dm
from dpmech.optim import PerExampleModel, make_private
from dpmech.samplers import sampler_for

# Optimizers of earlier runs: two live ones with one seed are refused.
_RUNS = weakref.WeakSet()


def classification(size, features=3, classes=2, *, seed=0):
    """Normal inputs with random labels."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, features, generator=rng)
    return TensorDataset(inputs, torch.randint(classes, (size,), generator=rng))


def regression(size, *shape, seed=3):
    """Normal inputs of a shape, with the sums over their last axis as targets."""
    inputs = torch.randn(size, *shape, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(-1, keepdim=True))


def classifier(*middle, widths=(3, 4, 2), seed=1):
    """Two linear layers with something between them, tanh unless said otherwise."""
    torch.manual_seed(seed)
    first, last = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
    return nn.Sequential(first, *(middle or (nn.Tanh(),)), last)


def linear(inputs=3, outputs=1, *, bias=False, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


def cross_entropy(model, x, target):
    return nn.functional.cross_entropy(model(x), target)


def squared_error(model, x, target):
    return (model(x) - target).square().mean()


def declared(cal, loader, **options):
    """Options of `make_private` with the numbers that ADD_REMOVE wants declared.

    They are computed from the data here, as nobody may do who trains on private ones.
    """
    if (
        not isinstance(cal, dm.certificates.Claim)
        or not cal.mechanism.hides_size
        or not hasattr(loader.dataset, "__len__")
    ):
        return options
    size, own, drop_last = len(loader.dataset), cal.participation, options.get("drop_last", False)
    if own.unrestricted or drop_last:
        options = {"dataset_size": size} | options
    given = options.get("expected_batch_size", cal.expected_batch_size)
    if given is None and loader.batch_size == 1 and not own.unrestricted:
        sampler = sampler_for(own, size, n=cal.strategy.n, drop_last=drop_last, rng=1)
        options["expected_batch_size"] = sampler.mean_batch_size
    return options


def private_run(cal, model, data, *, lr=0.1, **options):
    """Model, optimizer and loader of `make_private` under SGD; closes the runs before it.

    Args:
        cal: calibration or certificate.
        model: is trained where its parameters require gradients.
        data: dataset, or a loader of one.
        lr: learning rate.
        options: of `make_private`; with `loss` gradients come from torch.func, else from Opacus' hooks.
    """
    for earlier in _RUNS:
        earlier.close()
    sgd = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=lr)
    loader = DataLoader(data) if isinstance(data, Dataset) else data
    parts = make_private(model, sgd, loader, cal, **declared(cal, loader, **options))
    _RUNS.add(parts[1])
    return parts


def backward(model, batch, loss):
    """The gradients of a batch, by torch.func or by Opacus' hooks, as the run was made."""
    x, target = batch
    if isinstance(model, PerExampleModel):
        model.backward(x, target)
    else:
        loss(model, x, target).backward()


def train(model, optimizer, loader, *, loss=cross_entropy, steps=None, after_step=None):
    """Train to the end, or until so many steps were made; returns the weights.

    Args:
        model: first part of `private_run`.
        optimizer: the second.
        loader: the third.
        loss: what Opacus' hooks see; with torch.func the run has its own.
        steps: at which the loop stops.
        after_step: is called with the number of steps made, after each.
    """
    while optimizer.steps_left:
        for batch in loader:
            optimizer.zero_grad()
            backward(model, batch, loss)
            optimizer.step()
            if after_step is not None:
                after_step(loader.steps_taken)
            if steps is not None and optimizer.record.steps == steps:
                return weights(model)
    return weights(model)


def weights(model):
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def parameters(shapes, dtype=torch.float32, *, seed=1):
    """Parameters without a model, of normal values that do not depend on the type."""
    rng = np.random.default_rng(seed)
    return [nn.Parameter(torch.tensor(rng.standard_normal(shape), dtype=dtype)) for shape in shapes]


def give_samples(params, seed, examples=5, *, scale=1.0):
    """Give every parameter normal per-example gradients, as Opacus' hooks do."""
    rng = torch.Generator().manual_seed(seed)
    for param in params:
        samples = scale * torch.randn(examples, *param.shape, generator=rng)
        param.grad_sample = samples.to(param.dtype)


def normal_gradients(shapes, steps, *, seed=0, scale=lambda rng: 1.0):
    """For every step and shape normal numbers, times what `scale` draws."""
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(shape) * scale(rng) for shape in shapes] for _ in range(steps)]


def apply_gradients(optimizer, params, gradients, phis=None):
    """One step of an update rule for every list of gradients.

    Args:
        optimizer: takes `phi`, the variance of the noise in a gradient, from its groups.
        params: all of its parameters.
        gradients: arrays, for every step one a parameter.
        phis: of every step; None leaves what the groups have.

    Returns:
        The parameters afterwards, float64 arrays.
    """
    for number, arrays in enumerate(gradients):
        for param, array in zip(params, arrays, strict=True):
            param.grad = torch.tensor(array, dtype=param.dtype)
        if phis is not None:
            for group in optimizer.param_groups:
                group["phi"] = phis[number]
        optimizer.step()
    return [param.detach().double().numpy() for param in params]
