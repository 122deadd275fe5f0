"""Two processes with gloo whose data, losses or settings differ: refused in both, and nothing is shown.

Run as a script it is one of the processes; the tests look at what both of them found.
"""

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split  # noqa: E402

from dpmech.optim import make_private  # noqa: E402 - after the check for torch
from tests.support.two_processes import as_process, found_by_both  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # two processes import torch

SIZE, N = 320, 8
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))


class Wrapped(Dataset):
    """A dataset of one's own, of which nothing is known but what it hands out."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        x, y = self.inner[index]
        return x + 0.0, y


def whole(seed=0, size=SIZE):
    rng = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(size, 3, generator=rng), torch.randn(size, 1, generator=rng))


def squared(model, x, y):
    return (model(x) - y).square().mean()


def absolute(model, x, y):
    return (model(x) - y).abs().mean()


def smoothed(share):
    return lambda model, x, y: squared(model, x, y) * (1 - share)


class Rotated(torch.nn.Linear):
    """Its directions are a plain attribute, which is not copied to other processes."""

    def __init__(self, seed):
        super().__init__(3, 1)
        self.directions = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))

    def forward(self, x):
        return super().forward(x @ self.directions)


class Drawing(torch.optim.SGD):
    """Adds noise of its own to the weights, as stochastic rounding and Langevin dynamics do."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for param in self.param_groups[0]["params"]:
                param.add_(torch.randn_like(param), alpha=0.01)
        return loss


def train(
    data,
    *,
    optimizer=torch.optim.SGD,
    seed=5,
    loads=False,
    loss=squared,
    lr=0.1,
    change=lambda data: None,
    late_lr=None,
    directions=1,
    evaluates=False,
    half=False,
):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(Rotated(directions), torch.nn.Dropout(0.1))
    sgd = optimizer(model.parameters(), lr=lr)
    model, optimizer, loader = make_private(
        model, sgd, DataLoader(data), CAL, 1.0, loss=loss, expected_batch_size=len(data) / 4
    )
    while optimizer.steps_left:
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                model.backward(*batch)
            optimizer.step()
        change(data)
        model.train(not evaluates)
        if loads:
            model.load_state_dict({name: 0.9 * value for name, value in model.state_dict().items()})
        if late_lr is not None:
            sgd.param_groups[0]["lr"] = late_lr
    return f"{optimizer.run_record()} weights {[param.tolist() for param in model.parameters()]}"


def reassigned(rank):
    def change(data):
        if rank == 1:
            data.indices = list(reversed(data.indices))

    return change


def cases(rank):
    """What each is called, and how it is made in this process."""
    half = SIZE // 2
    nearly = whole()
    nearly.tensors[1][: SIZE // 4] += rank
    return {
        "the same": lambda: train(whole()),
        "the same split": lambda: train(
            random_split(whole(), [half, half], torch.Generator().manual_seed(7))[0]
        ),
        # Every process its own generator, as unseeded ones are.
        "unseeded split": lambda: train(
            random_split(whole(), [half, half], torch.Generator().manual_seed(rank))[0]
        ),
        "other data": lambda: train(whole(rank)),
        "other data of one's own class": lambda: train(Wrapped(whole(rank))),
        "a quarter of the labels": lambda: train(Wrapped(nearly)),
        "sizes": lambda: train(whole(size=SIZE - rank)),
        "losses": lambda: train(whole(), loss=[squared, absolute][rank]),
        "numbers in losses": lambda: train(whole(), loss=smoothed(0.1 * rank)),
        "the rank in a loss": lambda: train(whole(), loss=lambda *batch: squared(*batch) + 0 * rank),
        "learning rates": lambda: train(whole(), lr=0.1 + rank),
        "later learning rates": lambda: train(whole(), late_lr=0.1 * (1 + rank)),
        "an optimizer that draws": lambda: train(whole(), optimizer=Drawing, seed=5 + rank),
        "weights loaded in one": lambda: train(whole(), loads=rank == 1),
        "tensors of the model": lambda: train(whole(), directions=rank),
        "modes": lambda: train(whole(), evaluates=rank == 1),
        "autocast": lambda: train(whole(), half=rank == 1),
        "views that change": lambda: train(Subset(whole(), list(range(half))), change=reassigned(rank)),
        "an example that stands twice here": lambda: train(Subset(whole(), [0, 1, 2, 3 - rank] * 1)),
    }


def find(rank, _):
    found = {}
    for name, run in cases(rank).items():
        try:
            found[name] = ("record", run(), "")
        except dm.DpmechError as error:
            found[name] = (type(error).__name__, str(error), repr(vars(error)))
    return found


@pytest.fixture(scope="module")
def ranks():
    return found_by_both(__file__)


@pytest.mark.parametrize(
    "name", ["the same", "the same split", "the rank in a loss", "an optimizer that draws"]
)
def test_what_agrees_is_recorded(ranks, name):
    for rank in ranks:
        kind, text, _ = rank[name]
        assert kind == "record", text
        assert "8 of 8 steps executed" in text
        assert "2 processes" in text
    weights = [rank[name][1].partition("weights")[2] for rank in ranks]
    assert weights[0] == weights[1] != ""


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("unseeded split", "processes have different data"),
        ("other data", "processes have different data"),
        ("other data of one's own class", "processes have different data"),
        ("a quarter of the labels", "processes have different data"),  # missed with 0.75^64 = 1.0e-8
        ("sizes", "different sizes"),
        ("losses", "disagree on the loss"),
        ("numbers in losses", "disagree on the loss"),
        ("learning rates", "disagree on learning rates"),
        ("later learning rates", "disagree on learning rates"),
        ("weights loaded in one", "disagree on the weights"),
        ("tensors of the model", "disagree on the loss or attributes of the model"),
        ("modes", "disagree on autocast, or on which parts of the model are in train or eval mode"),
        ("autocast", "disagree on autocast"),
        ("views that change", "the dataset changed since"),
    ],
)
def test_what_differs_is_refused_in_both_and_not_shown(ranks, name, match):
    for rank in ranks:
        kind, text, attributes = rank[name]
        assert kind in {"CertificateError", "UnsupportedCombinationError"}, text
        assert match in text
        assert len(text) <= 400
        assert str(SIZE) not in text + attributes
        assert not any(len(word) >= 32 for word in f"{text} {attributes}".replace("'", " ").split()), text


def test_all_refuse_what_stands_twice_in_one(ranks):
    assert "holds examples twice" in ranks[1]["an example that stands twice here"][1]
    assert "in another process" in ranks[0]["an example that stands twice here"][1]


if __name__ == "__main__":
    as_process(find)
