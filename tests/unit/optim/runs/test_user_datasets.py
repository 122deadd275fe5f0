"""Runs under a claim about users: compared with a naive loop over users, and refusals."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import FlatClipping, UserDataset, UserExamples, make_private
from dpmech.optim import processes as agreement
from dpmech.optim.clipping import Batch, ExampleGradients
from dpmech.optim.runs.example_loss import ExampleLoss, UserLoss
from dpmech.optim.runs.user_datasets import check_same_choice
from dpmech.optim.state import Afresh
from tests.support.training import declared

N, MOST = 6, 3
F = torch.nn.functional
IDS = ["ann"] * 4 + ["bob"] + ["cem"] * 2 + ["dan"] * 3 + ["eve"] + ["fay"]


def examples():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(3.0 * torch.randn(len(IDS), 4, generator=generator), torch.arange(len(IDS)) % 3)


def classifier():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def loss(model, x, y):
    return F.cross_entropy(model(x), y)


def calibration(participation=None, **options):
    mechanism = dm.Mechanism(dm.Identity(N), participation or dm.MinSep(2), **options)
    return dm.calibrate_sigma(mechanism, 8.0, 1e-5)


USERS = calibration(unit=dm.Unit.USER)
SEVERAL = calibration(dm.Poisson(0.5, max_examples_per_user=MOST))
TOGETHER = dm.calibrate_sigma(
    dm.SquareRoot(N, 2), 8.0, 1e-5, participation=dm.CyclicPoisson(0.5, 2, max_examples_per_user=MOST)
)
EXAMPLES = calibration()


def made(cal, dataset, **options):
    model = classifier()
    options = {"loss": loss, "generator": 1, "rng": 2} | options
    if not cal.participation.users_together:
        options = declared(cal, DataLoader(dataset), **options)
    else:
        options = {"expected_batch_size": 0.25 * len(dataset)} | options
    return make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(dataset), cal, 1.0, **options
    )


def test_items_are_users():
    data = UserDataset(examples(), IDS, MOST)
    assert len(data) == 6
    x, y, mask = data[0]
    assert torch.equal(x, examples().tensors[0][:3])
    assert mask.tolist() == [1.0, 1.0, 1.0]
    x, y, mask = data[2]
    assert torch.equal(x[:2], examples().tensors[0][5:7])
    assert (y.tolist(), mask.tolist()) == ([2, 0, 2], [1.0, 1.0, 0.0])
    assert list(data[5][2]) == [1.0, 0.0, 0.0]
    with pytest.raises(IndexError):
        data[6]


def test_only_kept_examples_are_used():
    kept = UserExamples(examples(), IDS, MOST)
    assert len(kept) == len(IDS) - 1
    assert kept.indices == [place for place in range(len(IDS)) if place != 3]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("given", [loss, torch.nn.CrossEntropyLoss()])
@pytest.mark.parametrize("mode", ["per_example", "loop"])
def test_each_user_is_clipped_as_one(mode, reduction, given):
    """Against gradients of every user by autograd, one after another."""
    model, data, clip = classifier(), UserDataset(examples(), IDS, MOST), 0.3
    whole = ExampleLoss(UserLoss(given, "auto", reduction), "example")
    batch = Batch(torch.utils.data.default_collate([data[user] for user in range(6)]), {})
    whole.resolve(model, batch)
    found, losses = ExampleGradients(model, Afresh(whole, model), mode).clipped(batch, FlatClipping(clip))
    expected = [torch.zeros_like(param) for param in model.parameters()]
    places = {
        one: [place for place, own in enumerate(IDS) if own == one][:MOST] for one in dict.fromkeys(IDS)
    }
    norms = []
    for user, own in enumerate(places.values()):
        x, y = (tensor[own] for tensor in examples().tensors)
        value = F.cross_entropy(model(x), y, reduction=reduction)
        assert float(losses[user]) == pytest.approx(float(value.detach()), rel=1e-5)
        gradients = torch.autograd.grad(value, list(model.parameters()))
        norm = torch.sqrt(sum((one**2).sum() for one in gradients))
        norms.append(float(norm))
        for total, one in zip(expected, gradients, strict=True):
            total.add_(one * min(1.0, clip / float(norm)))
    assert max(norms) > clip
    for total, one in zip(found.sums, expected, strict=True):
        assert torch.allclose(total.float(), one, rtol=1e-4, atol=1e-6)


def test_a_run_of_users_takes_its_steps():
    model, optimizer, loader = made(USERS, UserDataset(examples(), IDS, MOST), unit="user")
    assert optimizer.expected_batch_size == 3.0
    before = [param.detach().clone() for param in model.parameters()]
    while optimizer.steps_left:
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert loader.sampler.dataset_size == 6


@pytest.mark.parametrize("most", [1, 2])
def test_no_user_is_split_over_physical_batches(most):
    """The contribution of a batch is the same however few users are held at once."""
    data = UserDataset(examples(), IDS, MOST)
    found = []
    for seed, physical in enumerate((None, most)):
        model, optimizer, loader = made(
            USERS, data, unit="user", max_physical_batch_size=physical, generator=10 * most + seed
        )
        model.backward(*next(iter(loader)))
        found.append(torch.cat([one.double().flatten() for one in optimizer._batch.take()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert 0.0 < float(found[1].norm()) <= 3 * 1.0


def test_tensors_of_ids_bound_users():
    numbers = torch.tensor([list(dict.fromkeys(IDS)).index(one) for one in IDS])
    assert len(UserDataset(examples(), numbers, MOST)) == 6
    assert len(UserExamples(examples(), list(numbers), MOST)) == len(IDS) - 1


class OfTwo:
    """torch.distributed as seen by one of two processes, if the other one says `other`, or the same."""

    other = None

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self, group):
        return 2

    def get_backend(self, group):
        return "gloo"

    def get_rank(self, group):
        return 0

    def all_gather_object(self, found, mine, group):
        if self.other is None:
            OfTwo.other = mine
        found[:] = [mine, self.other]


@pytest.mark.parametrize("kind", [UserDataset, UserExamples])
def test_processes_keep_the_same_examples(kind, monkeypatch):
    """An index in a batch must be the same example everywhere, or a user could add more than certified."""
    ids, data = ["ann"] * 40, list(range(40))
    check_same_choice(kind(data, ids, 3, keyed=True), None)  # a single process
    monkeypatch.setattr(agreement, "dist", OfTwo())
    monkeypatch.setattr(OfTwo, "other", None)
    check_same_choice(kind(data, ids, 3, keyed=True, rng=5), None)
    check_same_choice(kind(data, ids, 3, keyed=True, rng=5), None)
    with pytest.raises(dm.exceptions.CertificateError, match="which examples of users are kept"):
        check_same_choice(kind(data, ids, 3, keyed=True), None)
    with pytest.raises(dm.exceptions.CertificateError, match="which examples of users are kept"):
        made(SEVERAL if kind is UserExamples else USERS, kind(examples(), IDS, 2), generator=7)


def test_a_run_of_examples_of_users_takes_its_steps():
    model, optimizer, loader = made(SEVERAL, UserExamples(examples(), IDS, MOST), unit="user")
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    assert optimizer.steps_left == N - 2
    # Fewer than certified are allowed.
    made(SEVERAL, UserExamples(examples(), IDS, MOST - 1), generator=5)


def test_all_examples_of_a_user_go_into_one_group():
    kept = UserExamples(examples(), IDS, MOST)
    model, optimizer, loader = made(TOGETHER, kept, unit="user")
    owners, groups = kept.contributions.owners, {}
    for step in range(N):
        for user in owners[loader.sampler.indices(step)]:
            groups.setdefault(user, set()).add(step % 2)
    assert set(map(len, groups.values())) == {1}
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    assert dm.verify(optimizer.run_record()).ok


def test_examples_put_back_after_they_were_left_out_are_refused():
    data = UserExamples(examples(), IDS, MOST)
    data.indices = list(range(len(IDS)))
    with pytest.raises(dm.UnsupportedCombinationError, match="have changed since they were chosen"):
        made(SEVERAL, data)


def trained(model, optimizer, loader):
    for batch in loader:
        model.backward(*batch)
        optimizer.step()


def test_a_run_that_spreads_examples_of_one_user_over_groups_is_stopped():
    model, optimizer, loader = made(TOGETHER, UserExamples(examples(), IDS, MOST), unit="user")
    batches = loader.sampler
    batches._owners = None  # the planted fault: every example separately
    batches._prepare()
    with pytest.raises(
        dm.exceptions.CertificateError, match="examples of one user are in two of the 2 groups"
    ):
        trained(model, optimizer, loader)


def test_unsampled_examples_of_users_take_their_steps():
    cal = calibration(dm.MinSep(2, max_examples_per_user=MOST))
    model, optimizer, loader = made(cal, UserExamples(examples(), IDS, MOST), unit="user", rng=None)
    while optimizer.steps_left:
        for batch in loader:
            model.backward(*batch)
            optimizer.step()
    record = optimizer.run_record()
    assert (record.smallest_separation, record.most_participations) == (2, 3)
    assert dm.verify(record).ok
    with pytest.raises(dm.UnsupportedCombinationError, match="nothing bounds those of a TensorDataset"):
        made(cal, examples(), rng=None, generator=7)


@pytest.mark.parametrize(
    ("cal", "dataset", "options", "error", "words"),
    [
        (
            USERS,
            examples(),
            {},
            dm.UnsupportedCombinationError,
            "users, who are sampled, but a TensorDataset",
        ),
        (
            USERS,
            UserExamples(examples(), IDS, 2),
            {},
            dm.UnsupportedCombinationError,
            "up to 2 examples of a user",
        ),
        (USERS, UserDataset(examples(), IDS, 2), {"loss": None}, dm.UnsupportedCombinationError, "hooks"),
        (
            USERS,
            UserDataset(examples(), IDS, 2),
            {"clipping_mode": "ghost"},
            dm.UnsupportedCombinationError,
            "clipping_mode='ghost'",
        ),
        (
            USERS,
            UserDataset(examples(), IDS, 2),
            {"unit": "example"},
            dm.exceptions.CertificateError,
            "protects one user",
        ),
        (
            USERS,
            UserDataset(examples(), IDS, 2),
            {"unit": "people"},
            dm.InvalidParameterError,
            "unit must be",
        ),
        (USERS, UserDataset(examples(), IDS, 2), {"user_loss": "max"}, dm.InvalidParameterError, "user_loss"),
        (
            EXAMPLES,
            UserDataset(examples(), IDS, 2),
            {},
            dm.UnsupportedCombinationError,
            "are users, but the claim",
        ),
        (EXAMPLES, examples(), {"unit": "user"}, dm.exceptions.CertificateError, "protects one example"),
        (TOGETHER, examples(), {}, dm.UnsupportedCombinationError, "nothing bounds those of a TensorDataset"),
        (SEVERAL, examples(), {}, dm.UnsupportedCombinationError, "nothing bounds those of a TensorDataset"),
        (
            SEVERAL,
            UserExamples(examples(), IDS, MOST + 1),
            {},
            dm.exceptions.CertificateError,
            "up to 4 examples, but 3 are",
        ),
    ],
)
def test_data_of_another_unit_are_refused(cal, dataset, options, error, words):
    with pytest.raises(error, match=words):
        made(cal, dataset, **options)


@pytest.mark.parametrize(
    "how", [{"loss": None}, {"clipping_mode": "ghost"}, {}], ids=["hooks", "ghost", "loss"]
)
def test_one_example_per_user_is_all_that_users_contribute(how):
    """The examples are then clipped instead of users, in every mode."""
    kept = UserExamples(examples(), IDS, 1)
    assert len(kept) == kept.contributions.users == 6
    if how == {"loss": None}:
        pytest.importorskip("opacus")
    model, optimizer, loader = made(USERS, kept, unit="user", **how)
    assert (optimizer.expected_batch_size, loader.sampler.dataset_size) == (3.0, 6)
    while optimizer.steps_left:
        for batch in loader:
            if how == {"loss": None}:
                optimizer.zero_grad()
                F.cross_entropy(model(batch[0]), batch[1]).backward()
            else:
                model.backward(*batch)
            optimizer.step()
    assert dm.verify(optimizer.run_record()).ok


def test_one_example_that_changed_is_refused():
    kept = UserExamples(examples(), IDS, 1)
    kept.indices = list(range(6))
    with pytest.raises(dm.UnsupportedCombinationError, match="have changed since they were chosen"):
        made(USERS, kept)


OWNERS = [[one, "zoe"] if place % 4 == 0 else [one] for place, one in enumerate(IDS)]
ZEROED = calibration(dm.Poisson(0.5, max_examples_per_user=MOST), adjacency=dm.Adjacency.ZERO_OUT)


def test_records_of_several_owners_are_trained_on_under_zero_out():
    kept = UserExamples(examples(), OWNERS, MOST, several_owners=True)
    counts = {one: sum(one in OWNERS[place] for place in kept.indices) for one in (*IDS, "zoe")}
    assert max(counts.values()) == counts["zoe"] == MOST
    assert "belong to several users" in str(ZEROED.certificate())
    assert "belong to several users" not in str(SEVERAL.certificate())
    model, optimizer, loader = made(ZEROED, kept, unit="user")
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    assert dm.verify(optimizer.run_record()).ok


UNITS_ZEROED = calibration(dm.Poisson(0.5), unit=dm.Unit.USER, adjacency=dm.Adjacency.ZERO_OUT)


def test_one_record_of_every_owner_is_trained_on_under_every_sampling():
    """Nobody owns two of them, so that records are sampled as examples are."""
    kept = UserExamples(examples(), OWNERS, 1, several_owners=True)
    owned = [one for place in kept.indices for one in OWNERS[place]]
    assert len(owned) == len(set(owned)) > len(kept)
    said = str(UNITS_ZEROED.certificate())
    assert "whole contribution of several users, its owners" in said
    assert "whole contribution" not in str(USERS.certificate()) + str(ZEROED.certificate())
    model, optimizer, loader = made(UNITS_ZEROED, kept, unit="user")
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    assert dm.verify(optimizer.run_record()).ok


@pytest.mark.parametrize(
    ("cal", "dataset", "error", "words"),
    [
        (
            USERS,
            UserExamples(examples(), OWNERS, 1, several_owners=True),
            dm.UnsupportedCombinationError,
            "records have multiple owners, and the claim is for ADD_REMOVE",
        ),
        (
            UNITS_ZEROED,
            UserExamples(examples(), OWNERS, 2, several_owners=True),
            dm.UnsupportedCombinationError,
            "up to 2 examples of a user",
        ),
        (
            SEVERAL,
            UserExamples(examples(), OWNERS, MOST, several_owners=True),
            dm.UnsupportedCombinationError,
            "records have multiple owners, and the claim is for ADD_REMOVE",
        ),
        (
            ZEROED,
            UserExamples(examples(), OWNERS, MOST + 1, several_owners=True),
            dm.exceptions.CertificateError,
            "up to 4 examples, but 3 are",
        ),
        (
            dm.calibrate_sigma(
                dm.SquareRoot(N, 2),
                8.0,
                1e-5,
                participation=dm.CyclicPoisson(0.5, 2, max_examples_per_user=MOST),
                adjacency=dm.Adjacency.ZERO_OUT,
            ),
            UserExamples(examples(), OWNERS, MOST, several_owners=True),
            dm.UnsupportedCombinationError,
            "puts all records of a person into one group",
        ),
    ],
    ids=["one, add remove", "one, too many", "add remove", "too many", "groups"],
)
def test_shared_records_are_refused_where_no_claim_covers_them(cal, dataset, error, words):
    with pytest.raises(error, match=words):
        made(cal, dataset)


def test_shared_records_are_the_same_in_all_processes(monkeypatch):
    monkeypatch.setattr(agreement, "dist", OfTwo())
    monkeypatch.setattr(OfTwo, "other", None)
    check_same_choice(UserExamples(examples(), OWNERS, 2, several_owners=True), None)
    check_same_choice(UserExamples(examples(), list(map(set, OWNERS)), 2, several_owners=True), None)
    with pytest.raises(dm.exceptions.CertificateError, match="which examples of users are kept"):
        check_same_choice(UserExamples(examples(), OWNERS, 1, several_owners=True), None)


def test_lists_of_owners_are_asked_for_by_name():
    for kind in (UserExamples, UserDataset):
        with pytest.raises(dm.InvalidParameterError, match="SharedContributions"):
            kind(examples(), OWNERS, MOST)
    for options, words in (
        ({"keyed": True}, "samples nothing"),
        ({"rng": 1}, "samples nothing"),
        ({"several_owners": 1}, "several_owners must be True or False"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=words):
            UserExamples(examples(), OWNERS, MOST, **{"several_owners": True} | options)
    with pytest.raises(dm.InvalidParameterError, match="one for every example of the dataset"):
        UserExamples(examples(), OWNERS[:-1], MOST, several_owners=True)


@pytest.mark.parametrize("kind", [UserDataset, UserExamples])
def test_ids_are_one_for_every_example(kind):
    with pytest.raises(dm.InvalidParameterError, match="one for every example of the dataset"):
        kind(examples(), IDS[:-1], 2)
    with pytest.raises(dm.InvalidParameterError, match="tensors, arrays or numbers"):
        UserDataset([{"x": 1}], np.array([4]), 1)[0]
