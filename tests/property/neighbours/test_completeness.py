"""Whatever the library offers for training is tried by some feature: the lists are the library's own."""

import ast
import dataclasses
import inspect
import pathlib
import typing

import pytest

import dpmech as dm

pytest.importorskip("torch")

from dpmech import (
    optim,
    samplers,
)
from dpmech.drawing.base import Sampler
from dpmech.mechanism import Unit
from dpmech.mechanism.participation import kinds
from dpmech.optim.runs.clipping_choice import AskedMode
from dpmech.samplers import sampler_for
from tests.property.neighbours import features, integrations, own_loops, test_processes  # noqa: F401 - register
from tests.property.neighbours.check import BATCH
from tests.property.neighbours.planted import PLANTS
from tests.property.neighbours.registry import FEATURES

# Options of make_private that say nothing about what one record adds, or are given by every feature.
SET_BY_ALL = {
    "model",
    "optimizer",
    "loader",
    "calibration",
    "clip_norm",  # a rule, and a number
    "loss",  # with it and without: the two loops
    "expected_batch_size",
    "clipping",  # the rules
    "clipping_mode",  # the modes
    "loss_takes",
    "rng",  # of every random scheme
    "generator",  # of the noise, which is read off as it is
}
NOT_SUMS = {
    "mode": "how the noise is formed, which tests/unit/optim/noise compares",
    "public_buffers": "what may change beside the weights, and is released without noise on purpose",
    "process_group": "a group of processes; test_processes.py has the default one",
}
# Names that dpmech.optim exports from clipping, runs and canaries which add nothing to a sum.
NO_WAY_TO_TRAIN = {
    "BetterParameterWarning": "a warning",
    "NonFiniteGradientsWarning": "a warning",
    "CanaryData": "a data set with gaps, as Rows is",
    "CanaryWatch": "reads what was released",
    "NoiseMeter": "reads what was released",
    "Clipping": "the base of the rules",
    "ExecutedSteps": "what a run has done, for its record",
    "BatchOptimizer": "what make_private returns",
    "PerExampleModel": "what make_private returns",
    "PrivateLoader": "what make_private returns",
    "fix": "changes layers before training",
    "make_private": "every feature",
    "make_private_with_epsilon": "a calibration, then make_private",
}


def covered(axis):
    return {
        value
        for one in FEATURES.values()
        for name, value in (item.split(": ", 1) for item in one.covers)
        if name == axis
    }


def concrete(kind):
    for one in kind.__subclasses__():
        yield from concrete(one)
        if (
            not inspect.isabstract(one)
            and not one.__name__.startswith("_")
            and one.__module__.startswith("dpmech.")
        ):
            yield one


def test_clipping_modes_in_both_loops():
    loops = {"loss", "hooks"}  # make_private with a loss, and without
    assert covered("loop") == loops
    modes = set(typing.get_args(AskedMode))
    for loop in loops:
        tried = {
            item.removeprefix("mode: ")
            for one in FEATURES.values()
            if f"loop: {loop}" in one.covers
            for item in one.covers
        }
        # Under hooks the training loop calls the model on whole batches: a loop is refused.
        assert modes - ({"loop"} if loop == "hooks" else set()) <= tried, loop


def test_clipping_rules():
    rules = {one.__name__ for one in concrete(optim.Clipping)} | {optim.AdaptiveClip.__name__}
    assert covered("rule") == rules


def test_participations_and_their_samplers():
    own = {one for one in kinds() if one.__module__.startswith("dpmech.")}
    mechanisms = [one.mechanism(one.adjacencies[0]) for one in FEATURES.values()]
    tried = {(type(one.participation), *one.participation.given()): one for one in mechanisms}
    # Every field that may be left out is said somewhere, and not said somewhere else.
    for kind in own:
        said = [set(names) for one, *names in tried if one is kind]
        assert set.union(*said) == {field.name for field in dataclasses.fields(kind)}
        assert set.intersection(*said) == {
            field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
        }
    assert covered("participation") | {"MinSep"} == {one.__name__ for one in own}
    classes = set()
    for mechanism in tried.values():
        participation = mechanism.participation
        options = {"batch_size": BATCH, "declared_size": 6} if participation.unrestricted else {}
        options |= {"user_ids": list("aabbcc")} if participation.users_together else {}
        classes.add(type(sampler_for(mechanism, 6, **options)))
    assert classes == {
        one
        for one in vars(samplers).values()
        if inspect.isclass(one) and issubclass(one, Sampler) and one is not Sampler
    }


def test_adjacencies_and_units():
    assert {adjacency for one in FEATURES.values() for adjacency in one.adjacencies} == set(dm.Adjacency)
    assert {one.mechanism(one.adjacencies[0]).unit for one in FEATURES.values()} == set(Unit)
    # Users who are sampled, and users whose examples are: both are units of claims.
    assert covered("unit") | {Unit.EXAMPLE.name} == {one.name for one in Unit}


def test_options_of_make_private():
    options = set(inspect.signature(optim.make_private).parameters)
    assert options == SET_BY_ALL | set(NOT_SUMS) | (covered("option") & options)


def test_what_is_exported():
    """From the packages that form sums; update rules and noise come after them."""
    own = {
        name
        for name in optim.__all__
        if getattr(getattr(optim, name), "__module__", "").startswith(
            (
                "dpmech.optim.clipping",
                "dpmech.optim.runs",
                "dpmech.optim.canaries",
                "dpmech.optim.private_optimizer",
            )
        )
    }
    rules = {one.__name__ for one in concrete(optim.Clipping)}
    assert own - rules == covered("export") & own | set(NO_WAY_TO_TRAIN)
    assert {"SharedContributions"} <= covered("export")


def test_integrations():
    """The packages of dpmech.optim that call make_private, but for `runs` itself and the check of a device.

    That one trains on random numbers, by the same calls as any user.
    """
    found = set()
    for path in pathlib.Path(optim.__file__).parent.glob("*/*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        if "make_private" in names and path.parent.name not in {"runs", "device_check"}:
            found.add(path.parent.name)
    assert covered("integration") == found


def test_every_fault_is_planted_somewhere():
    assert {fault for one in FEATURES.values() for fault in one.plants} == set(PLANTS)
    assert set(test_processes.SHARED) <= set(FEATURES)
