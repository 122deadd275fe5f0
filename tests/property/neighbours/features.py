"""Every way to train of `dpmech.optim` in one process, registered for the check of neighbouring data sets."""

import tempfile

import torch

import dpmech as dm
from dpmech.optim import (
    AdaptiveClip,
    ClippedSum,
    FlatClipping,
    MeanOverViews,
    PerLayerClipping,
    PerMatrixClipping,
    PrivateOptimizer,
    UserDataset,
    UserExamples,
    clipped_gradients,
    load_checkpoint,
    save_checkpoint,
)
from dpmech.samplers import sampler_for
from tests.property.neighbours.check import (
    ADD_REMOVE,
    CLIP,
    FEW,
    OUTER,
    REPLACE_ONE,
    ZERO_OUT,
    Ended,
    Rows,
)
from tests.property.neighbours.registry import (
    ALL,
    N,
    by_hooks,
    by_loss,
    ended,
    feature,
    lots_of,
    loss_of_one,
    private,
    public_of,
    weights_of,
)

SAMPLED = (ADD_REMOVE, ZERO_OUT)

# ---- how gradients are formed and clipped


@feature("loss, per example", "loop: LossOfOneExample", "mode: per_example", "rule: FlatClipping", absent=("gap", "shorter"))
def _(run):
    return by_loss(run, clipping_mode="per_example")


@feature("loss, ghost", "loop: LossOfOneExample", "mode: ghost", kind=OUTER)
def _(run):
    parts = private(run, loss=loss_of_one, loss_takes="batch_of_one", clipping_mode="ghost")
    found = by_loss(run, parts=parts)
    assert parts[1].clipping_mode == "ghost"
    return found


@feature("loss, auto", "loop: LossOfOneExample", "mode: auto", kind=OUTER, lengths=FEW)
def _(run):
    return by_loss(run, clipping_mode="auto")


@feature("hooks, per example", "loop: OpacusHooks", "mode: per_example")
def _(run):
    return by_hooks(run, clipping_mode="per_example")


@feature("hooks, ghost", "loop: OpacusHooks", "mode: ghost", kind=OUTER)
def _(run):
    return by_hooks(run, clipping_mode="ghost")


@feature("hooks, auto", "loop: OpacusHooks", "mode: auto", lengths=FEW)
def _(run):
    return by_hooks(run, clipping_mode="auto")


def _layers(run):
    return PerLayerClipping([0.6 * run.clip, 0.8 * run.clip])


def _matrices(run):
    return PerMatrixClipping(dm.BlockClipping.from_joint([0.3 * run.clip, 1.9 * run.clip], run.claim.sigma))


@feature("layers, loss", "rule: PerLayerClipping")
def _(run):
    return by_loss(run, clipping=_layers(run), clipping_mode="per_example")


@feature("layers, hooks", "rule: PerLayerClipping", lengths=FEW)
def _(run):
    return by_hooks(run, clipping=_layers(run))


@feature("matrices, loss", "rule: PerMatrixClipping")
def _(run):
    return by_loss(run, clipping=_matrices(run), clipping_mode="per_example")


@feature("matrices, hooks", "rule: PerMatrixClipping", lengths=FEW)
def _(run):
    return by_hooks(run, clipping=_matrices(run))


def _rule(run):
    return AdaptiveClip(run.clip, quantile=0.5, rate=0.05, count_share=0.5)


@feature("adaptive, loss", "rule: AdaptiveClip")
def _(run):
    return by_loss(run, clip_norm=_rule(run))


@feature("adaptive, ghost", "rule: AdaptiveClip", kind=OUTER, lengths=FEW)
def _(run):
    return by_loss(run, clip_norm=_rule(run), clipping_mode="ghost")


@feature("adaptive, hooks", "rule: AdaptiveClip", lengths=FEW)
def _(run):
    return by_hooks(run, clip_norm=_rule(run))
