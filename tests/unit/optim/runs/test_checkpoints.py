"""Checkpoints of several processes, with the other processes simulated."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import load_checkpoint, make_private, processes, save_checkpoint
from dpmech.optim.runs.set_up import SetUp
from tests.support.training import classification, classifier, private_run, train

SAME = dm.certificates.CheckpointHistory(
    dm.certificates.CheckpointMatch.SAME,
    dm.certificates.CheckpointMatch.SAME,
    dm.certificates.CheckpointMatch.SAME,
)


class Part:
    """A model, an optimizer or a loader of two processes after some steps."""

    processes = 2
    process_group = "a group"

    def __init__(self, steps=None):
        self.state = {"steps": steps, "set_up": {"of": "this run"}}
        self.set_up = SetUp([0], list, {})
        self.set_up.compare = lambda state: (
            {} if state == {"of": "this run"} else {"loss": "another loss"},
            SAME,
        )

    def state_dict(self):
        return copy.deepcopy(self.state)

    def load_state_dict(self, state, **options):
        self.state = state


class Loader(Part):
    def load_state_dict(self, state, accepted):
        self.set_up.resume(state["set_up"], accepted, self.process_group, self.processes)
        self.state = state


@pytest.fixture
def run(tmp_path, monkeypatch):
    """save(*steps) as this process, then load(others) next to a process with checkpoints of `others`."""
    path = tmp_path / "run.pt"

    def save(*steps):
        for step in steps:
            save_checkpoint(path, Part(step), Part(step), Part(step), extra=f"after {step}")

    def load(others, problem="", theirs=((), SAME), **options):
        asked = iter([(sorted(others), problem), (list(theirs[0]), theirs[1])])

        def gather(answers, mine, group):
            assert group == "a group"
            answers[:] = [mine, (mine[0], next(asked))]

        monkeypatch.setattr(processes.dist, "all_gather_object", gather)
        load.parts = parts = Part(), Part(), Loader()
        found = load_checkpoint(path, *parts, **options)
        assert len({part.state["steps"] for part in parts}) == 1
        return found, parts[0].state["steps"]

    return path, save, load


@pytest.mark.parametrize(
    ("mine", "others", "step"),
    [
        ((0, 4, 8), (4, 8), 8),
        ((0, 4, 8), (0, 4), 4),  # the other was killed before it wrote 8
        ((0, 4), (4, 8), 4),  # this one was
        ((0,), (0,), 0),
        ((0,), (0, 4), 0),
    ],
)
def test_processes_resume_from_the_newest_common_step(run, mine, others, step):
    path, save, load = run
    save(*mine)
    assert load(others) == (f"after {step}", step)
    kept = {file.name: torch.load(file)["loader"]["steps"] for file in path.parent.iterdir()}
    assert kept["run.pt"] == step  # newer files are deleted, or the next save would displace the common one
    save(step + 4)
    assert load([step, step + 4]) == (f"after {step + 4}", step + 4)
    save(step + 8)
    assert load([step, step + 4]) == (f"after {step + 4}", step + 4)


def test_the_newest_file_counts_if_two_have_the_same_step(run):
    path, save, load = run
    save(0)
    save_checkpoint(path, Part(0), Part(0), Part(0), extra="again")
    assert load([0]) == ("again", 0)


@pytest.mark.parametrize(("mine", "others"), [((), ()), ((0,), ()), ((), (0,))])
def test_a_run_killed_in_its_first_save_may_start_afresh(run, mine, others):
    _, save, load = run
    save(*mine)
    assert load(others, missing_ok=True) == (None, None)
    with pytest.raises(dm.InvalidParameterError, match="missing_ok"):
        load(others)


@pytest.mark.parametrize(("mine", "others"), [((4,), ()), ((), (0, 4)), ((8, 12), (0, 4))])
def test_steps_are_never_lost_in_silence(run, mine, others):
    _, save, load = run
    save(*mine)
    with pytest.raises(dm.exceptions.CertificateError, match="none in common"):
        load(others, missing_ok=True)


def test_a_bad_file_is_refused_by_all(run):
    path, save, load = run
    save(4)
    with pytest.raises(dm.InvalidParameterError, match="junk elsewhere"):
        load([4], problem="junk elsewhere")
    path.write_bytes(b"junk")
    with pytest.raises(dm.InvalidParameterError, match="a checkpoint"):
        load([4])


def test_all_processes_refuse_another_run_if_one_must(run):
    path, save, load = run
    save(0, 4, 8)
    with pytest.raises(dm.exceptions.CertificateError, match="of another run: another dataset elsewhere"):
        load([0, 4], theirs=(["another dataset elsewhere"], SAME))
    # Nothing was deleted: the newest checkpoint still exists.
    assert torch.load(path)["loader"]["steps"] == 8
    assert load([0, 4]) == ("after 4", 4)


def test_a_change_that_one_process_accepted_is_in_the_records_of_all(run):
    path, save, load = run
    save(4)
    kept = dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.UNKNOWN,
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.ACCEPTED,
    )
    assert load([4], theirs=((), kept)) == ("after 4", 4)
    assert load.parts[2].set_up.checkpoint_history == kept
    state = torch.load(path)
    torch.save(state | {"loader": state["loader"] | {"set_up": {"of": "another run"}}}, path)
    with pytest.raises(dm.exceptions.CertificateError, match="another loss"):
        load([4])
    load([4], accept_changed=["loss"])


def made(**seeds):
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))
    model = classifier(torch.nn.Dropout(0.5))
    return private_run(cal, model, classification(20), clip_norm=1.0, **seeds)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("stop", [2, 4, 7])
def test_dropout_repeats_in_the_middle_of_an_epoch(stop, tmp_path):
    """A second release with other dropout and the same noise would reveal their difference."""
    pytest.importorskip("opacus")
    path = tmp_path / "run.pt"
    parts = made(generator=1)

    def save(steps):
        if steps == stop:
            save_checkpoint(path, *parts)

    expected = train(*parts, after_step=save)
    resumed = made()
    load_checkpoint(path, *resumed)
    torch.testing.assert_close(train(*resumed), expected, rtol=0.0, atol=0.0)
    resumed = made()
    load_checkpoint(path, *resumed)
    torch.manual_seed(99)
    torch.testing.assert_close(train(*resumed), expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("change", ["eval mode", "autocast", "frozen"])
def test_a_resumed_run_trains_in_the_modes_of_the_run_that_was_saved(change, tmp_path):
    """The noise of a repeated step would be added to another sum."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))

    def started():
        model = classifier(torch.nn.Dropout(0.5))
        return private_run(cal, model, classification(20), clip_norm=1.0, loss=torch.nn.CrossEntropyLoss())

    def step(model, optimizer, loader, *, changed):
        model.train(not changed or change != "eval mode")
        next(model.parameters()).requires_grad_(not changed or change != "frozen")
        x, y = next(iter(loader))
        with torch.autocast("cpu", torch.bfloat16, enabled=changed and change == "autocast"):
            model.backward(x, y)
        optimizer.step()

    path = tmp_path / "run.pt"
    parts = started()
    step(*parts, changed=False)
    parts[0].eval()  # for an evaluation
    save_checkpoint(path, *parts)
    for accepted in ((), ("model",)):
        resumed = started()
        load_checkpoint(path, *resumed, accept_changed=accepted)
        if not accepted:
            with pytest.raises(
                dm.UnsupportedCombinationError, match="train or eval mode, autocast or requires_grad changed"
            ):
                step(*resumed, changed=True)
        step(*resumed, changed=bool(accepted))
        step(*resumed, changed=True)  # as a run may, which repeats it after another interruption
        assert resumed[1].record.steps == 3


def test_parameters_are_resumed_in_the_same_order(tmp_path):
    """Each would have the noise of the other, and the difference of two releases none."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))

    def started(order):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
        sgd = torch.optim.SGD([model[place].weight for place in order], lr=0.1)
        options = {"expected_batch_size": 5, "loss": torch.nn.CrossEntropyLoss()}
        return make_private(model, sgd, DataLoader(classification(20)), cal, 1.0, **options)

    path = tmp_path / "run.pt"
    save_checkpoint(path, *started((0, 1)))
    load_checkpoint(path, *started((0, 1)))
    with pytest.raises(dm.exceptions.CertificateError, match="the parameters in another order"):
        load_checkpoint(path, *started((1, 0)))


def evaluated(model):
    next(part for part in model.modules() if isinstance(part, torch.nn.Dropout)).eval()


def frozen(model):
    next(model.parameters()).requires_grad_(False)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("change", [evaluated, frozen])
def test_modes_do_not_change_between_microbatches(change):
    pytest.importorskip("opacus")
    model, optimizer, loader = made(max_physical_batch_size=2)
    batches = iter(loader)

    def step():
        x, y = next(batches)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    change(model)
    with pytest.raises(dm.UnsupportedCombinationError, match="between two microbatches of one batch"):
        step()
    assert optimizer.record.steps == 0


def test_one_process_may_start_without_a_checkpoint(tmp_path):
    parts = made()
    assert load_checkpoint(tmp_path / "run.pt", *parts, missing_ok=True) is None
    with pytest.raises(dm.InvalidParameterError, match="a readable file"):
        load_checkpoint(tmp_path / "run.pt", *parts)
    for _ in range(2):
        save_checkpoint(tmp_path / "run.pt", *parts)
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_a_link_to_a_checkpoint_stays_one(run):
    path, save, load = run
    real = path.parent / "disk" / "real.pt"
    real.parent.mkdir()
    path.symlink_to(real)
    save(0, 4)
    assert path.is_symlink()
    assert sorted(file.name for file in real.parent.iterdir()) == ["real.pt", "real.pt.previous"]
    assert load([0]) == ("after 0", 0)
    assert path.is_symlink()
    assert torch.load(real)["loader"]["steps"] == 0
    assert sorted(file.name for file in path.parent.iterdir()) == ["disk", "run.pt"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_machine_may_have_another_number_of_gpus(tmp_path, monkeypatch, count):
    parts = [Part(3) for _ in range(3)]
    for part in parts:
        part.processes = 1
    generators, found = [torch.full((16,), number, dtype=torch.uint8) for number in range(2)], {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: generators)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: found.update({device: int(state[0])})
    )
    save_checkpoint(tmp_path / "run.pt", *parts)
    model, optimizer, loader = Part(), Part(), Part()
    loader.processes = 1
    loader.load_state_dict = lambda state, accepted: None
    load_checkpoint(tmp_path / "run.pt", model, optimizer, loader)
    assert found == {number: number for number in range(min(count, 2))}
