"""Sums are added in a fixed order on every device; records name runs whose model may add in any order."""

import json
import socket
import warnings
from importlib import resources

import jsonschema
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dpmech.optim import load_checkpoint, repeatable, save_checkpoint  # noqa: E402
from dpmech.optim.clipping.factored import Factored, Piece  # noqa: E402
from dpmech.optim.repeatable import Arithmetic  # noqa: E402
from tests.support.device_runs import Run, by_loss  # noqa: E402
from tests.support.other_device import There, known, other, other_device  # noqa: E402

pytestmark = pytest.mark.skipif(not known(), reason="this torch registers no device from Python")

ORDERED = {torch.ops.aten.index_add_, torch.ops.aten.scatter_add_, torch.ops.aten.index_put_}


class Settings(TorchDispatchMode):
    """Notes torch's setting at each addition to given places."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in ORDERED:
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            self.seen.append((torch.are_deterministic_algorithms_enabled(), warns))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def asked():
    """torch.use_deterministic_algorithms(True) during a test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def looked_up():
    """Gradients of an embedding of which rows are used several times."""
    left, right = torch.tensor([[0, 1, 0], [2, 2, 2]]), torch.randn(2, 3, 4)
    return Factored([Piece(There(left), There(right))], (3, 4))


def sums(factored):
    factored.weighted_sum(There(torch.ones(2, dtype=torch.float64)), None)
    factored.formed()


def test_sums_at_given_places_are_ordered_on_devices():
    with other_device(), Settings() as settings:
        sums(looked_up())
    assert settings.seen == [(True, True), (True, True)]
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_setting_of_the_caller_stays(asked):
    with other_device(), Settings() as settings:
        sums(looked_up())
    assert settings.seen == [(True, False), (True, False)]
    assert torch.are_deterministic_algorithms_enabled()


def test_the_setting_of_the_compiler_stays(monkeypatch):
    """torch.use_deterministic_algorithms sets it too, and tells nobody what it was."""
    from torch._inductor import config

    monkeypatch.setattr(config, "deterministic", True)
    with other_device():
        sums(looked_up())
    assert config.deterministic


def test_an_error_leaves_the_setting():
    with other_device():
        bad = Factored([Piece(There(torch.tensor([[7]])), There(torch.ones(1, 1, 4)))], (3, 4))
        with pytest.raises((IndexError, RuntimeError)):
            bad.weighted_sum(There(torch.ones(1, dtype=torch.float64)), None)
    assert not torch.are_deterministic_algorithms_enabled()


def resumed(path, *, there=True):
    """The record of a run that was saved after one step and resumed."""
    first = Run(by_loss("per_example"), there=there).train(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        save_checkpoint(path, first.private, first.optimizer, first.loader)
        save_checkpoint(path, first.private, first.optimizer, first.loader)
    said = [str(one.message) for one in caught if "rounded differently" in str(one.message)]
    first.close()
    second = Run(by_loss("per_example", generator=None, rng=None), there=there)
    load_checkpoint(path, second.private, second.optimizer, second.loader)
    second.train(1)
    record = second.optimizer.run_record()
    second.close()
    return record, said


def test_a_device_whose_kernels_may_add_in_any_order_is_named(tmp_path):
    with other_device():
        record, said = resumed(tmp_path / "run.pt")
    assert len(said) == 1
    assert "use_deterministic_algorithms(True)" in said[0]
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in said[0]
    assert "pretend" in said[0]
    assert record.checkpoint_history.same_rounding is False
    assert "; repeated steps may have been rounded differently" in str(record)
    assert dm.RunRecord.from_json(record.to_json()) == record
    schema = json.loads(resources.files("dpmech.schemas").joinpath("run-record-1.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(record.to_json()))
    checks = {check.name: check for check in dm.verify(record).checks}
    assert "repeated steps may have been rounded differently" in checks["checkpoints"].detail


@pytest.mark.usefixtures("asked")
def test_the_setting_makes_them_repeat(tmp_path):
    with other_device():
        record, said = resumed(tmp_path / "run.pt")
    assert said == []
    assert record.checkpoint_history.same_rounding
    assert "rounded" not in record.to_json()


def test_another_kind_of_device_rounds_differently():
    here = Arithmetic([torch.device("cpu")])
    here.note_step()
    assert here.repeats
    here.load_state_dict({"repeats": True, "devices": ["some GPU"]})
    assert not here.repeats
    here.load_state_dict(Arithmetic([torch.device("cpu")]).state_dict())
    assert here.repeats


def test_another_number_of_threads_rounds_differently():
    threads = torch.get_num_threads()
    saved = Arithmetic([torch.device("cpu")])
    saved.note_step()
    try:
        torch.set_num_threads(threads + 1)
        here = Arithmetic([torch.device("cpu")])
        here.load_state_dict(saved.state_dict())
        assert not here.repeats
        saved.note_step()
        assert not saved.repeats
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("change", ["products in bfloat16", "without oneDNN"])
def test_other_settings_round_differently(change):
    """TF32 keeps ten bits: two sums under the same noise would differ by a thousandth."""
    saved = Arithmetic([torch.device("cpu")])
    saved.note_step()
    json.dumps(saved.state_dict())
    try:
        if change == "without oneDNN":
            torch.backends.mkldnn.set_flags(_enabled=False)
        else:
            torch.set_float32_matmul_precision("medium")
        here = Arithmetic([torch.device("cpu")])
        here.load_state_dict(saved.state_dict())
        assert not here.repeats
        here.load_state_dict(Arithmetic([torch.device("cpu")]).state_dict())
        assert here.repeats
        saved.note_step()
        assert not saved.repeats
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)
        torch.set_float32_matmul_precision("highest")
    here.load_state_dict(Arithmetic([torch.device("cpu")]).state_dict())
    assert here.repeats


def over(backend, hosts, monkeypatch, *, version=(2, 27, 5)):
    """The arithmetic of the second of two processes."""

    def gather(found, mine, group):
        assert mine[1] == hosts[1]
        found[:] = [(mine[0], host) for host in hosts]

    group = {"is_initialized": lambda: True, "get_world_size": lambda group: 2, "all_gather_object": gather}
    for name, stands_in in (group | {"get_backend": lambda group: backend}).items():
        monkeypatch.setattr(torch.distributed, name, stands_in)
    monkeypatch.setattr(socket, "gethostname", lambda: hosts[1])
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    return Arithmetic([torch.device("cpu")], None)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"hosts": ["b", "a"]}, False),
        ({"hosts": ["a", "a"]}, False),
        ({"version": (2, 28, 0)}, False),
        ({"backend": "cpu:gloo,cuda:nccl"}, True),
        ({"backend": "ucc"}, False),
        ({"backend": "gloo", "hosts": ["c", "d"]}, False),
    ],
)
def test_nccl_adds_in_an_order_of_the_machines(change, same, monkeypatch):
    given = {"backend": "nccl", "hosts": ["a", "b"]}
    state = over(**given, monkeypatch=monkeypatch).state_dict()
    json.dumps(state)
    there = over(**given | change, monkeypatch=monkeypatch)
    there.load_state_dict(state)
    assert there.repeats == same


def test_gloo_adds_in_the_order_of_the_ranks(monkeypatch):
    state = over("gloo", ["a", "b"], monkeypatch).state_dict()
    assert state == Arithmetic([torch.device("cpu")]).state_dict()
    there = over("gloo", ["c", "d"], monkeypatch, version=(2, 28, 0))
    there.load_state_dict(state)
    assert there.repeats


def test_a_run_tells_its_arithmetic_its_processes(monkeypatch):
    asked = []
    monkeypatch.setattr(repeatable, "order_of_sums", lambda group: asked.append(group) or ["there"])
    run = Run(by_loss("per_example"), there=False)
    assert asked == [None]
    assert "there" in run.optimizer.state_dict()["dpmech_arithmetic"]["devices"]
    run.close()


def test_states_without_an_entry_are_of_older_runs():
    here = Arithmetic([torch.device("cpu")])
    here.load_state_dict(None)
    assert here.repeats
    with other_device():
        there = Arithmetic([other()])
        there.load_state_dict(None)
        assert not there.repeats
    with pytest.raises(dm.InvalidParameterError, match="state of the arithmetic"):
        here.load_state_dict({"repeats": 1, "devices": ["cpu"]})


def test_the_cpu_repeats(tmp_path):
    record, said = resumed(tmp_path / "run.pt", there=False)
    assert said == []
    assert record.checkpoint_history.same_rounding


@pytest.mark.usefixtures("asked")
def test_kernels_that_are_chosen_by_speed_do_not_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with other_device():
        record, said = resumed(tmp_path / "run.pt")
    assert len(said) == 1
    assert record.checkpoint_history.same_rounding is False


def test_what_was_added_in_any_order_before_the_state_counts(tmp_path):
    """The setting came too late: steps before it are part of the run."""
    path = tmp_path / "run.pt"
    with other_device():
        run = Run(by_loss("per_example"), there=True).train(1)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.warns(RuntimeWarning, match="before the first step"):
                save_checkpoint(path, run.private, run.optimizer, run.loader)
        finally:
            torch.use_deterministic_algorithms(False)
        run.close()


@pytest.mark.parametrize("value", [1, "no", None])
def test_a_history_says_yes_or_no(value):
    same = dm.certificates.CheckpointMatch.SAME
    with pytest.raises(dm.InvalidParameterError, match="same_rounding"):
        dm.certificates.CheckpointHistory(same, same, same, same_rounding=value)
