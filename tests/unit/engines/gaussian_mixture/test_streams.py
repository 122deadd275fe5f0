"""Independence of samples rests on the list of stages: each has streams of its own, keyed in one place."""

import ast
import functools
import itertools
import pathlib

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import samples as blocks
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.streams import (
    ADD,
    REMOVE,
    AddDraw,
    RemoveDraw,
    Stage,
    generator,
    stage_seed,
)

PACKAGE = pathlib.Path(dm.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
STREAMS = "engines/gaussian_mixture/streams.py"
ENTROPY = (5, 6, 7, 8)


def calls(name):
    """Every call of a function or method of that name in the package: (file, call)."""
    for file, node in all_calls():
        called = node.func
        if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == name:
            yield file, node


@functools.cache
def all_calls():
    trees = [(file, ast.parse(text)) for file, text in SOURCES.items()]
    return [(file, node) for file, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_two_stages_share_a_stream():
    words = [
        tuple(stage_seed(ENTROPY, stage, block).generate_state(8)) for stage in Stage for block in range(3)
    ]
    words += [tuple(stage_seed(ENTROPY, stage).generate_state(8)) for stage in Stage]
    assert len(set(words)) == len(words)
    flat = [word for some in words for word in some]
    # 68 streams of 8 words of 32 bits: two equal words are a chance of 3e-5
    assert len(set(flat)) == len(flat)


def test_no_two_draws_of_any_stage_share_a_stream():
    firsts = [
        generator(stage_seed(ENTROPY, stage, 0), draw).random()
        for stage, draws in itertools.product(Stage, (RemoveDraw, AddDraw))
        for draw in draws
        if (draws is RemoveDraw) == stage.name.startswith("REMOVE")
    ]
    assert len(set(firsts)) == len(firsts)


def test_stages_of_the_two_directions_are_all_different_and_all_but_the_gradient_belong_to_one():
    stages = [stage for one in (REMOVE, ADD) for stage in (*one.rounds, one.sizing, one.main, one.enlarged)]
    assert len(set(stages)) == len(stages)
    assert set(Stage) - set(stages) == {Stage.RESPONSIBILITIES}
    for name, one in (("REMOVE", REMOVE), ("ADD", ADD)):
        assert all(stage.name.startswith(name) for stage in (*one.rounds, one.sizing, one.main, one.enlarged))


@pytest.mark.parametrize("draw", RemoveDraw)
def test_a_draw_is_the_child_that_numpy_would_spawn(draw):
    child = np.random.SeedSequence(ENTROPY, spawn_key=(60, 4)).spawn(len(RemoveDraw))[draw]
    ours = generator(stage_seed(ENTROPY, Stage.REMOVE_MAIN, 4), draw)
    assert ours.random() == np.random.default_rng(child).random()


def test_keys_are_made_in_one_module_only():
    made = [
        (file, call.func.attr)
        for name in ("SeedSequence", "spawn")
        for file, call in calls(name)
        if file != STREAMS and (call.args[1:] or call.keywords or name == "spawn")
    ]
    assert not made
    assert len([file for file, _ in calls("SeedSequence") if file == STREAMS]) == 2
    for file, text in SOURCES.items():
        assert file == STREAMS or "spawn_key" not in text, file


def test_no_stage_is_a_bare_number():
    """Where a stage is due stands a member of Stage, or something that was typed as one."""
    due = {"stage_seed": 1, "pilot_sample": 2, "weight_sample": 2, "_blocks": 2, "_chunk": 2, "adapt": 2}
    seen = 0
    for name, position in due.items():
        for _, call in calls(name):
            seen += 1
            given = call.args[position]
            assert isinstance(given, ast.Name | ast.Attribute | ast.Subscript), ast.unparse(call)
            assert not any(isinstance(node, ast.BinOp) for node in ast.walk(given)), ast.unparse(call)
    assert seen >= 12


def test_every_stage_and_every_draw_is_used():
    attributes = {
        node.attr
        for file, text in SOURCES.items()
        if file != STREAMS
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
    }
    assert {"rounds", "sizing", "main", "enlarged", "RESPONSIBILITIES"} <= attributes
    assert {draw.name for draws in (RemoveDraw, AddDraw) for draw in draws} <= attributes


def test_an_estimate_and_a_bound_take_each_stage_once(monkeypatch):
    """What runs is what the list says: no stage of one call is drawn twice, and the main ones are drawn."""
    drawn = []
    original = blocks.stage_seed

    def noted(entropy, stage, block):
        drawn.append((entropy, stage, block))
        return original(entropy, stage, block)

    monkeypatch.setattr(blocks, "stage_seed", noted)
    from dpmech.engines.gaussian_mixture.certified_bound import certify_delta
    from dpmech.engines.gaussian_mixture.estimate import estimate_delta

    gram = DenseGram(np.diag([1.0, 0.8, 0.5]))
    estimate_delta(gram, 1.0, rng=np.random.default_rng(0), rel_error=0.2)
    certify_delta(gram, 1.0, rng=np.random.default_rng(1), beta=1e-2, rel_gap=1.0)
    assert len(set(drawn)) == len(drawn)
    assert all(isinstance(stage, Stage) for _, stage, _ in drawn)
    for entropy in {entropy for entropy, _, _ in drawn}:
        stages = {stage for one, stage, _ in drawn if one == entropy}
        assert {Stage.REMOVE_ROUND_1, Stage.REMOVE_SIZING, Stage.REMOVE_MAIN, Stage.ADD_MAIN} <= stages


def test_parts_of_a_mixture_stand_where_its_slots_say():
    gram = DenseGram(0.3 * np.eye(30))
    mixture = RemoveProposal.at(gram, 0.5)
    slots = mixture.slots
    order = [slots.nominal, slots.scaled, *slots.tuples, *slots.groups, *slots.collective]
    assert order == list(range(len(mixture.names))) == list(range(mixture.weights.size))
    assert [mixture.names[slot] for slot in slots.tuples] == ["star", "free tuples"]
    assert [mixture.names[slot] for slot in slots.groups] == [group.name for group in mixture.groups]
    assert tuple(mixture.names[slot] for slot in slots.collective) == mixture.collective.names
    add = AddProposal.at(gram, 0.5)
    assert len(add.names) == add.weights.size
