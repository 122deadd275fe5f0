"""A loss that only compares the examples of a batch is refused, as it is constant on one of them."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import dpmech as dm  # noqa: E402
from dpmech.optim import UserDataset  # noqa: E402
from tests.support.training import private_run  # noqa: E402

CAL = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5)
SIZE = 12
F = nn.functional


def drawn(*shape):
    return torch.randn(SIZE, *shape, generator=torch.Generator().manual_seed(1))


def labels(count):
    return torch.randint(count, (SIZE,), generator=torch.Generator().manual_seed(2))


LABELLED = TensorDataset(drawn(5), labels(3))
PAIRS = TensorDataset(drawn(5), drawn(5))
TOKENS = TensorDataset(drawn(4).mul(20).long() % 50, drawn(4).mul(30).long() % 50)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(50, 8), nn.Dropout(0.5), nn.Linear(8, 50)

    def forward(self, x):
        return self.head(self.drop(self.embed(x)))


def trained(model, dataset, loss, mode="auto"):
    """A step of private training."""
    model, optimizer, loader = private_run(
        CAL, model, DataLoader(dataset, batch_size=4), generator=1, loss=loss, clipping_mode=mode
    )
    model.backward(*next(iter(loader)))
    optimizer.step()
    return optimizer.record.steps


def contrasted(model, x, y):
    rows = F.normalize(model(x))
    return F.cross_entropy(rows @ rows.T, torch.arange(len(x)))


def paired(model, one, other):
    """As for images and their captions."""
    rows = F.normalize(model(one)) @ F.normalize(model(other)).T
    return F.cross_entropy(rows, torch.arange(len(one))) + F.cross_entropy(rows.T, torch.arange(len(one)))


def views_contrasted(model, one, other):
    rows, n = F.normalize(torch.cat([model(one), model(other)])), len(one)
    scores = (rows @ rows.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return F.cross_entropy(scores, (torch.arange(2 * n) + n) % (2 * n))


def hardest(model, x, y):
    distances, same = torch.cdist(model(x), model(x)), y[:, None] == y[None]
    return F.relu((distances * same).amax(1) - (distances + 1e9 * same).amin(1) + 1.0).mean()


def supervised(model, x, y):
    rows, itself = F.normalize(model(x)), torch.eye(len(x), dtype=torch.bool)
    scores = (rows @ rows.T).masked_fill(itself, -1e9).log_softmax(1)
    positive = (y[:, None] == y[None]) & ~itself
    return -((scores * positive).sum(1) / positive.sum(1).clamp(min=1)).mean()


def ranked(model, x, y):
    scores = model(x)[:, 0]
    return (F.softplus(scores - scores[:, None]) * (y[:, None] > y[None])).sum()


def relative(model, x, y):
    """A policy gradient whose rewards are centred over the batch."""
    rewards = x.sum(1)
    gains = (rewards - rewards.mean()) / (rewards.std(unbiased=False) + 1e-4)
    return -(gains * model(x).log_softmax(1).gather(1, y[:, None])[:, 0]).mean()


COMPARED = {
    "contrasted": (contrasted, LABELLED),
    "paired": (paired, PAIRS),
    "views": (views_contrasted, PAIRS),
    "hardest triplets": (hardest, LABELLED),
    "supervised": (supervised, LABELLED),
    "ranked": (ranked, LABELLED),
    "relative": (relative, LABELLED),
}


@pytest.mark.parametrize("mode", ["auto", "loop"])
@pytest.mark.parametrize("name", COMPARED)
def test_a_loss_that_is_constant_on_one_example_is_refused(name, mode):
    loss, dataset = COMPARED[name]
    with pytest.raises(dm.UnsupportedCombinationError, match=r"compares the examples .* pairs or groups"):
        trained(network(), dataset, loss, mode)


def test_values_of_the_data_do_not_matter():
    """Neither those for which a comparison has a gradient, nor those for which a loss of one has none."""
    for x in (torch.full((SIZE, 5), torch.nan), torch.zeros(SIZE, 5)):
        with pytest.raises(dm.UnsupportedCombinationError, match="compares the examples"):
            trained(network(), TensorDataset(x, labels(3)), contrasted)
    zeros = TensorDataset(torch.zeros(SIZE, 5), labels(3))
    assert trained(network(), zeros, lambda model, x, y: (model(x).sum(1) * x.sum(1)).mean()) == 1


USERS = dm.calibrate_sigma(
    dm.Mechanism(dm.Identity(6), dm.Poisson(0.5), dm.Adjacency.ZERO_OUT, unit=dm.Unit.USER), 8.0, 1e-5
)


def of_users(loss):
    """A run of users with up to three examples."""
    users = UserDataset(LABELLED, [number // 3 for number in range(SIZE)], 3)
    loader = DataLoader(users, batch_size=2)
    return private_run(USERS, network(), loader, generator=1, rng=2, loss=loss)


def test_a_loss_that_compares_the_examples_of_a_user_is_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="compares the examples"):
        of_users(contrasted)
    of_users(nn.CrossEntropyLoss())
    of_users(lambda model, x, y: (F.cross_entropy(model(x), y, reduction="none") * (y == 9)).mean())


# ---- losses of one example that have no gradient on random values


def masked(model, x, y):
    return (F.cross_entropy(model(x).transpose(1, 2), y, reduction="none") * (y == 13)).sum() / len(x)


def masked_at_random(model, x, y):
    mask = torch.rand(len(x), 1) < 0.1
    return (F.cross_entropy(model(x).transpose(1, 2), y, reduction="none") * mask).mean()


def other_ids(model, x, y):
    return (model(x).square().mean((1, 2)) * (x != y).double().mean(1)).mean()


def dead(model, x, y):
    return F.relu(model(x).sum((1, 2)) - 1e6).mean()


@pytest.mark.parametrize("loss", [masked, masked_at_random, other_ids, dead])
def test_a_mean_of_losses_of_examples_is_not_refused(loss):
    torch.manual_seed(0)
    assert trained(Language(), TOKENS, loss) == 1


def test_groups_that_are_one_example_are_not_refused():
    groups = TensorDataset(drawn(3, 5))
    assert trained(network(), groups, lambda model, x: contrasted(model, x[0], None)) == 1
    triplets = lambda model, x: F.triplet_margin_loss(*model(x[0])[:, None])  # noqa: E731
    assert trained(network(), groups, triplets) == 1
