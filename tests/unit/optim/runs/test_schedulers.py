"""A learning-rate schedule is compared when a run resumes; the record states if none is known."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import load_checkpoint, make_private, save_checkpoint
from tests.support.training import classification

CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5, participation=dm.MinSep(2))
DATA = classification(64)


def halving(step):
    return 0.5**step


def by_third(step):
    return 3.0**-step


def built(make=None):
    torch.manual_seed(0)
    model = nn.Linear(DATA[0][0].numel(), 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    options = {"loss": nn.CrossEntropyLoss(), "expected_batch_size": 32}
    parts = make_private(model, sgd, DataLoader(DATA), CAL, 1.0, **options)
    return parts, None if make is None else make(sgd)


def train(parts, scheduler, steps=6):
    model, optimizer, loader = parts
    while optimizer.steps_left and steps:
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
            steps -= 1
            if scheduler is not None:
                scheduler.step()
            if not steps:
                break
    record = optimizer.run_record()
    optimizer.close()
    return record


def slow(sgd):
    return lr_scheduler.StepLR(sgd, 100, gamma=0.1)


def quick(sgd):
    return lr_scheduler.StepLR(sgd, 1, gamma=0.1)


def test_an_unknown_schedule_is_stated_in_the_record(tmp_path):
    path = tmp_path / "run.pt"
    parts, schedule = built(quick)
    save_checkpoint(path, *parts)
    assert (
        train(parts, schedule).checkpoint_history.settings == dm.certificates.CheckpointMatch.SAME
    )  # the first run with it
    parts, schedule = built(quick)
    load_checkpoint(path, *parts)
    record = train(parts, schedule)
    assert record.checkpoint_history.settings == dm.certificates.CheckpointMatch.UNKNOWN
    assert "settings of later steps not compared" in str(record)
    read = dm.RunRecord.from_json(record.to_json())
    assert read == record
    details = [one.detail for one in dm.verify(read).checks if one.name == "checkpoints"]
    assert "settings of later steps not compared" in details[0]
    parts, _ = built()
    load_checkpoint(path, *parts)
    assert (
        train(parts, None).checkpoint_history.settings == dm.certificates.CheckpointMatch.SAME
    )  # nothing changed


def test_changes_before_a_state_stay_recorded(tmp_path):
    path = tmp_path / "run.pt"
    parts, schedule = built(quick)
    train_then_save(path, parts, schedule)
    parts, _ = built()
    load_checkpoint(path, *parts)
    assert train(parts, None).checkpoint_history.settings == dm.certificates.CheckpointMatch.UNKNOWN


def train_then_save(path, parts, schedule, **options):
    model, optimizer, loader = parts
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
        schedule.step()
    save_checkpoint(path, *parts, **options)
    optimizer.close()


SCHEDULES = {
    "step": (quick, slow),
    "class": (quick, lambda sgd: lr_scheduler.ExponentialLR(sgd, 0.1)),
    "function": (
        lambda sgd: lr_scheduler.LambdaLR(sgd, halving),
        lambda sgd: lr_scheduler.LambdaLR(sgd, by_third),
    ),
    "one cycle": (
        lambda sgd: lr_scheduler.OneCycleLR(sgd, 1.0, total_steps=7),
        lambda sgd: lr_scheduler.OneCycleLR(sgd, 2.0, total_steps=7),
    ),
    "cyclic": (
        lambda sgd: lr_scheduler.CyclicLR(sgd, 0.1, 1.0, cycle_momentum=False),
        lambda sgd: lr_scheduler.CyclicLR(sgd, 0.1, 2.0, cycle_momentum=False),
    ),
    "restarts": (
        lambda sgd: lr_scheduler.CosineAnnealingWarmRestarts(sgd, 2, 2),
        lambda sgd: lr_scheduler.CosineAnnealingWarmRestarts(sgd, 3, 2),
    ),
    "milestones": (
        lambda sgd: lr_scheduler.MultiStepLR(sgd, [2, 4]),
        lambda sgd: lr_scheduler.MultiStepLR(sgd, [2, 5]),
    ),
    "in turn": (
        lambda sgd: lr_scheduler.SequentialLR(
            sgd, [lr_scheduler.LinearLR(sgd), lr_scheduler.StepLR(sgd, 1)], [2]
        ),
        lambda sgd: lr_scheduler.SequentialLR(
            sgd, [lr_scheduler.LinearLR(sgd), lr_scheduler.StepLR(sgd, 2)], [2]
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("late", [False, True])
def test_a_scheduler_is_compared(name, late, tmp_path):
    path = tmp_path / "run.pt"
    one, other = SCHEDULES[name]
    parts, schedule = built(one)
    if late:
        train_then_save(path, parts, schedule, scheduler=schedule)
        rates = schedule.get_last_lr()
    else:
        save_checkpoint(path, *parts, scheduler=schedule)
        rates = schedule.get_last_lr()
        train(parts, schedule)
    parts, schedule = built(other)
    with pytest.raises(dm.exceptions.CertificateError, match="another scheduler"):
        load_checkpoint(path, *parts, scheduler=schedule)
    parts, schedule = built(one)
    load_checkpoint(path, *parts, scheduler=schedule)
    assert schedule.get_last_lr() == rates
    record = train(parts, schedule)
    assert record.checkpoint_history.settings == dm.certificates.CheckpointMatch.SAME
    assert record.checkpoint_history.loads == 1


def test_a_scheduler_is_not_left_out(tmp_path):
    path = tmp_path / "run.pt"
    parts, schedule = built(quick)
    save_checkpoint(path, *parts, scheduler=schedule)
    parts[1].close()
    with pytest.raises(dm.exceptions.CertificateError, match="no scheduler was passed"):
        load_checkpoint(path, *built()[0])
    parts, schedule = built(quick)
    save_checkpoint(path, *parts)
    parts[1].close()
    parts, schedule = built(quick)
    with pytest.raises(dm.exceptions.CertificateError, match="no scheduler was saved"):
        load_checkpoint(path, *parts, scheduler=schedule)
    with pytest.raises(dm.InvalidParameterError, match="scheduler"):
        save_checkpoint(path, *parts, scheduler=0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda sgd: sgd.param_groups[0].update(lr=0.01),
        lambda sgd: sgd.param_groups[0].update(weight_decay=0.1),
    ],
)
def test_changes_outside_the_scheduler_are_detected(change, tmp_path):
    path = tmp_path / "run.pt"
    parts, schedule = built(slow)
    save_checkpoint(path, *parts, scheduler=schedule)
    parts[1].close()
    parts, schedule = built(slow)
    load_checkpoint(path, *parts, scheduler=schedule)
    model, optimizer, loader = parts
    for number, batch in enumerate(loader):
        if number == 1:
            change(schedule.optimizer)
        model.backward(*batch)
        optimizer.step()
    assert optimizer.run_record().checkpoint_history.settings == dm.certificates.CheckpointMatch.UNKNOWN


def test_a_schedule_based_on_results_is_not_followed(tmp_path):
    path = tmp_path / "run.pt"

    def make(sgd):
        return lr_scheduler.ReduceLROnPlateau(sgd, patience=0)

    parts, schedule = built(make)
    save_checkpoint(path, *parts, scheduler=schedule)
    parts[1].close()
    parts, schedule = built(make)
    load_checkpoint(path, *parts, scheduler=schedule)
    model, optimizer, loader = parts
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
        schedule.step(1.0)
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
        schedule.step(1.0)
    assert optimizer.run_record().checkpoint_history.settings == dm.certificates.CheckpointMatch.UNKNOWN


def in_microbatches(*, at, make):
    """Train under hooks in microbatches of 5 of 32 examples, and step the scheduler where `at` says so."""
    pytest.importorskip("opacus")
    torch.manual_seed(0)
    model = nn.Linear(DATA[0][0].numel(), 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    given = {"expected_batch_size": 32, "max_physical_batch_size": 5}
    model, optimizer, loader = make_private(model, sgd, DataLoader(DATA), CAL, 1.0, **given)
    scheduler = make(optimizer)
    try:
        while optimizer.steps_left:
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                if at(optimizer):
                    scheduler.step()
        return optimizer.param_groups[0]["lr"]
    finally:
        optimizer.close()


def test_schedules_follow_steps_and_not_the_secret_number_of_microbatches():
    assert in_microbatches(at=lambda optimizer: optimizer.batch_complete, make=quick) == pytest.approx(0.5e-6)
    with pytest.raises(
        dm.UnsupportedCombinationError, match="lr, steps of the scheduler changed between two"
    ):
        in_microbatches(at=lambda optimizer: True, make=quick)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"steps of the scheduler changed.*batch_complete"
    ):
        in_microbatches(at=lambda optimizer: True, make=slow)  # changes nothing yet


def test_step_hooks_follow_steps_and_see_only_gradients_with_noise():
    seen, ended = [], []

    def make(optimizer):
        before = lambda inner, *_: seen.append([one.grad_sample for one in inner.param_groups[0]["params"]])  # noqa: E731
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(lambda *_: ended.append(optimizer.record.steps))

    in_microbatches(at=lambda optimizer: False, make=make)
    assert seen == [[None, None]] * 6
    assert ended == [1, 2, 3, 4, 5, 6]
