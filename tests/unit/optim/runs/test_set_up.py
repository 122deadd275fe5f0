"""Which changes of dataset, model and loss are detected by a checkpoint, and which are allowed."""

import copy
import dataclasses
import functools
import math
import os
import random
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import dpmech as dm
from dpmech.optim import (
    CanaryData,
    MeanOverViews,
    clipped_gradients,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from dpmech.optim.runs import code_prints
from dpmech.optim.runs.code_prints import Printer
from dpmech.optim.runs.example_loss import UserLoss
from dpmech.optim.state import references
from tests.support.training import classification, classifier, declared, private_run

F = nn.functional
CAL = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 8.0, 1e-5, participation=dm.MinSep(4))
SAVED = dm.certificates.CheckpointHistory(
    dm.certificates.CheckpointMatch.SAME,
    dm.certificates.CheckpointMatch.SAME,
    dm.certificates.CheckpointMatch.SAME,
)
ALL_SAME = dataclasses.replace(SAVED, loads=1)
SIZE = 40


def data(size=SIZE):
    return classification(size)


def plain_loss(model, x, target):
    return F.cross_entropy(model(x), target)


def made(dataset=None, model=None, loss=plain_loss, **options):
    loader = DataLoader(data() if dataset is None else dataset, **options.pop("loader", {}))
    options = {"generator": 1, "clip_norm": 1.0, "loss": loss} | options
    return private_run(CAL, classifier() if model is None else model, loader, **options)


def moved(path, before, after, **options):
    """Save a run after two steps and load it into another; return that."""
    model, optimizer, loader = made(**before)
    batches = iter(loader)
    for _ in range(2):
        model.backward(*next(batches))
        optimizer.step()
    save_checkpoint(path, model, optimizer, loader)
    parts = made(**{"generator": None} | after)
    load_checkpoint(path, *parts, **options)
    return parts


def refused(path, before, after, part, match=""):
    with pytest.raises(dm.exceptions.CertificateError, match=f"of another run: another {part}.*{match}"):
        moved(path, before, after)
    _, optimizer, loader = moved(path, before, after, accept_changed=(part,))
    record = optimizer.run_record()
    assert getattr(record.checkpoint_history, part) == dm.certificates.CheckpointMatch.ACCEPTED
    assert f"another {part}" in str(record)
    assert dm.verify(record).ok
    assert loader.steps_taken == 2


# ---- the loss


TEMPERATURE = 1.0
SETTINGS = types.SimpleNamespace(temperature=1.0, name="a run")


def scaled(model, x, target, factor=1.0):
    return factor * F.cross_entropy(model(x), target)


def closing_over(value):
    return lambda model, x, target: F.cross_entropy(model(x), target) * (1.0 if value is None else 2.0)


def by_global(model, x, target):
    return F.cross_entropy(model(x) / TEMPERATURE, target)


def by_settings(model, x, target):
    return F.cross_entropy(model(x) / SETTINGS.temperature, target)


def helper(x):
    return x


def by_helper(model, x, target):
    return F.cross_entropy(helper(model(x)), target)


class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, model, x, target):
        return self.factor * F.cross_entropy(model(x), target)

    def of_example(self, model, x, target):
        return self(model, x, target)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, model, x, target):
        return self.factor * F.cross_entropy(model(x), target)


def with_module(criterion):
    return lambda model, x, target: criterion(model(x), target)


LOSSES = {
    "code": (plain_loss, lambda model, x, target: 0.5 * F.cross_entropy(model(x), target)),
    "constant": (
        lambda model, x, target: F.cross_entropy(model(x), target, label_smoothing=0.1),
        lambda model, x, target: F.cross_entropy(model(x), target, label_smoothing=0.2),
    ),
    "name": (lambda model, x, target: model(x).sum(), lambda model, x, target: model(x).mean()),
    "inner function": (
        lambda model, x, target: sum(map(lambda y: y.sum() * 2, [model(x)])),
        lambda model, x, target: sum(map(lambda y: y.sum() * 3, [model(x)])),
    ),
    "closure": (closing_over(1.0), closing_over(2.0)),
    "tensor of a closure": (closing_over(torch.ones(2)), closing_over(torch.tensor([1.0, 2.0]))),
    "array of a closure": (closing_over(np.ones(2)), closing_over(np.ones(3))),
    "container of a closure": (closing_over({"a": [1, 2]}), closing_over({"a": [1, 3]})),
    "set of a closure": (closing_over({"a", "b"}), closing_over({"a", "c"})),
    "function of a closure": (closing_over(math.sin), closing_over(math.cos)),
    "partial": (functools.partial(scaled, factor=1.0), functools.partial(scaled, factor=2.0)),
    "object": (Callable(1.0), Callable(2.0)),
    "object with slots": (Slotted(1.0), Slotted(2.0)),
    "bound method": (Callable(1.0).of_example, Callable(2.0).of_example),
    "setting of a module": (
        with_module(nn.CrossEntropyLoss(label_smoothing=0.1)),
        with_module(nn.NLLLoss()),
    ),
    "values of a module": (
        with_module(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0]))),
        with_module(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))),
    ),
    "attribute of a module": (
        with_module(nn.CrossEntropyLoss(label_smoothing=0.1)),
        with_module(nn.CrossEntropyLoss(label_smoothing=0.2)),
    ),
}


@pytest.mark.parametrize("name", list(LOSSES))
def test_another_loss(name, tmp_path):
    before, after = LOSSES[name]
    with pytest.raises(dm.exceptions.CertificateError, match=r"another loss \(code or constants\)"):
        moved(tmp_path / "run.pt", {"loss": before}, {"loss": after})
    assert digest(before) == digest(before) != digest(after)


def twice(image):
    return torch.cat([image[:1], image[:1] * 2])


def thrice(image):
    return torch.cat([image[:1], image[:1] * 3])


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize(
    "around",
    [
        lambda loss: UserLoss(loss, "auto", "mean"),
        MeanOverViews,
        lambda loss: UserLoss(MeanOverViews(loss, twice, 2), "auto", "sum"),
    ],
)
def test_another_loss_inside_a_loss_of_the_library(around, name):
    before, after = (around(loss) for loss in LOSSES[name])
    assert of_run(before) == of_run(around(LOSSES[name][0])) != of_run(after)
    assert of_run(before)[1] == of_run(LOSSES[name][0])[1]  # as completely as alone


def test_another_setting_of_a_loss_of_the_library(tmp_path):
    made = [
        MeanOverViews(plain_loss, twice, 2),
        MeanOverViews(plain_loss, thrice, 2),
        UserLoss(plain_loss, "auto", "mean"),
        UserLoss(plain_loss, "auto", "sum"),
    ]
    assert len({of_run(one) for one in made}) == len(made)
    with pytest.raises(dm.exceptions.CertificateError, match=r"another loss \(code or constants\)"):
        moved(tmp_path / "run.pt", {"loss": made[0]}, {"loss": made[1]})


def test_another_label_smoothing():
    helpers = pytest.importorskip("transformers.trainer_pt_utils")
    hf = pytest.importorskip("dpmech.optim.hf.private_run")
    made = [hf.SmoothedLoss(helpers.LabelSmoother(epsilon), False) for epsilon in (0.1, 0.1, 0.2)]
    first, same, other = map(of_run, made)
    assert first == same != other


def test_another_embedding_noise(monkeypatch):
    hf = pytest.importorskip("dpmech.optim.hf.embedding_noise")
    # as where dpmech is installed
    monkeypatch.setattr(references, "installed", lambda module: module.startswith("dpmech"))
    monkeypatch.setattr(code_prints, "installed", references.installed)
    made = [
        hf.EmbeddingNoise(alpha, loss)
        for alpha, loss in [(5.0, plain_loss), (5.0, plain_loss), (6.0, plain_loss), (5.0, F.mse_loss)]
    ]
    found = [of_run(one) for one in made]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert found[0][1]


def of_run(loss):
    """Its digest as `SetUp` takes it."""
    printer = Printer(home=loss)
    return printer.of(loss, frozenset()), printer.complete


def digest(value):
    printer = Printer()
    found = printer.of(value, frozenset())
    return found, printer.complete


def test_a_loss_that_changed_is_refused_before_anything_is_loaded(tmp_path):
    refused(tmp_path / "run.pt", {}, {"loss": LOSSES["code"][1]}, "loss")
    parts = model, optimizer, loader = made(loss=LOSSES["code"][1], generator=None)
    before = [param.clone() for param in model.parameters()]
    with pytest.raises(dm.exceptions.CertificateError):
        load_checkpoint(tmp_path / "run.pt", *parts)
    assert (loader.steps_taken, optimizer.record.steps) == (0, 0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [("TEMPERATURE", 2.0), ("SETTINGS", types.SimpleNamespace(temperature=2.0)), ("helper", lambda x: 2 * x)],
)
def test_a_loss_reads_globals(name, value, tmp_path, monkeypatch):
    loss = {"TEMPERATURE": by_global, "SETTINGS": by_settings, "helper": by_helper}[name]
    moved(tmp_path / "run.pt", {"loss": loss}, {"loss": loss})
    before = digest(loss)
    monkeypatch.setitem(globals(), name, value)
    assert digest(loss) != before


def test_a_loss_reads_attributes_that_it_names_in_words(monkeypatch):
    def loss(model, inputs, targets):
        return getattr(SETTINGS, "temperature") * SETTINGS.scale  # noqa: B009 - what is tested

    monkeypatch.setitem(globals(), "SETTINGS", types.SimpleNamespace(temperature=1.0, scale=1.0))
    before = digest(loss)
    monkeypatch.setitem(globals(), "SETTINGS", types.SimpleNamespace(temperature=2.0, scale=1.0))
    assert digest(loss) != before


def test_values_unused_by_a_loss_may_change(monkeypatch):
    before = digest(by_settings)
    monkeypatch.setitem(globals(), "SETTINGS", types.SimpleNamespace(temperature=1.0, name="another run"))
    monkeypatch.setitem(globals(), "TEMPERATURE", 3.0)
    assert digest(by_settings) == before


def test_a_loss_of_an_installed_package(monkeypatch):
    """Its code counts, and everything in its package that it refers to; only the code of other packages."""
    for module in (code_prints, references):
        monkeypatch.setattr(module, "installed", lambda module: module == __name__)

    def both():
        return Printer(home=by_global).of(by_global), Printer().of(by_global)

    own, foreign = both()
    assert Printer().of(by_settings) != foreign
    assert Printer().of(Callable(1.0)) != Printer().of(Slotted(1.0))
    monkeypatch.setitem(globals(), "TEMPERATURE", 2.0)
    assert both()[0] != own
    assert both()[1] == foreign


SOURCE = """
import torch
FACTORS = {"a", "b", "c", "d"}
def helper(x, among=frozenset({"x", "y", "z"})):
    return x if "x" in {"x", "y", "w"} else among
class Own:
    scale = 2.0
    def __init__(self): self.seen = {"one": 1, "two": FACTORS}
    def __call__(self, model, x, y):
        return self.scale * torch.nn.functional.mse_loss(helper(model(x)), y) if self.seen else FACTORS
def build():
    own = Own()
    return lambda model, x, y: own(model, x, y)
"""


@pytest.mark.slow
def test_a_digest_is_the_same_in_every_process(tmp_path):
    """Under other hash seeds, at other addresses, on other lines, in a module or in a script."""
    (tmp_path / "losses.py").write_text(SOURCE)
    (tmp_path / "script.py").write_text(
        "# a comment\n\n" + SOURCE + "\nimport prints\nprints.show(build())\n"
    )
    (tmp_path / "prints.py").write_text(
        "from dpmech.optim.runs.code_prints import Printer\n"
        "def show(value):\n    printer = Printer()\n    print(printer.of(value).hex(), printer.complete)\n"
        "if __name__ == '__main__':\n    import losses\n    show(losses.build())\n"
    )
    found = set()
    for seed, script in (("1", "prints.py"), ("2", "prints.py"), ("3", "script.py")):
        done = subprocess.run(
            [sys.executable, str(tmp_path / script)],
            env=os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().split()[1] == "True"


def test_a_loss_under_another_python(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())
    state = torch.load(path)
    state["loader"]["set_up"]["python"] = "3.9"
    state["loader"]["set_up"]["prints"]["loss"]["sums"] = {"code or constants": "0" * 64}
    torch.save(state, path)
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"the loss .* made under Python 3\.9, this is 3\.1"
    ):
        load_checkpoint(path, *made())
    load_checkpoint(path, *made(), accept_changed=["loss"])


def test_a_closure_over_the_model_is_no_other_loss(tmp_path):
    """Its weights differ if it is built without a seed, and come from the checkpoint."""

    def case(seed):
        model = classifier()
        nn.init.normal_(model[0].weight, generator=torch.Generator().manual_seed(seed))

        def loss(given, x, target):
            return F.cross_entropy(given(x), target) + 0.0 * model[0].out_features

        return {"model": model, "loss": loss}

    *_, loader = moved(tmp_path / "run.pt", case(1), case(2))
    assert loader.checkpoint_history == ALL_SAME


def test_uncovered_values_are_stated():
    generator = np.random.default_rng(1)
    assert digest(closing_over(generator))[1] is False
    deep = 1
    for _ in range(30):
        deep = [deep]
    assert digest(closing_over(deep))[1] is False
    assert digest(closing_over(torch.zeros(2).to_sparse()))[1] is False
    many = list(range(100_000))
    for value in (many, dict.fromkeys(many), set(many), torch.zeros(100_000), np.zeros(100_000)):
        assert digest(closing_over(value))[1] is False
    assert digest(closing_over(many)) != digest(closing_over(many[:-1]))
    around = []
    around.append(around)
    assert digest(closing_over(around))[1] is True


def test_the_loss_is_unknown_under_opacus(tmp_path):
    pytest.importorskip("opacus")
    save_checkpoint(tmp_path / "run.pt", *made(loss=None))
    parts = made(loss=None, generator=None)
    load_checkpoint(tmp_path / "run.pt", *parts)
    assert parts[1].run_record().checkpoint_history == dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.UNKNOWN,
        loads=1,
    )
    with pytest.raises(dm.exceptions.CertificateError, match="another loss"):
        load_checkpoint(tmp_path / "run.pt", *made(generator=None))


# ---- the model


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def forward(self, x):
        return self._factor * x


class Masked(nn.Module):
    def __init__(self, *values, persistent=False):
        super().__init__()
        self.register_buffer("mask", torch.tensor(values), persistent=persistent)

    def forward(self, x):
        return self.mask * x


def of_another_class():
    class Scale(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self._factor = factor

        def forward(self, x):
            return self._factor * x * x

    return Scale(1.0)


def frozen():
    model = classifier()
    model[0].weight.requires_grad_(False)
    return model


MODELS = {
    "class": (lambda: classifier(nn.Tanh()), lambda: classifier(nn.ReLU())),
    "setting": (lambda: classifier(nn.Dropout(0.1)), lambda: classifier(nn.Dropout(0.2))),
    "attribute": (lambda: classifier(Scale(1.0)), lambda: classifier(Scale(2.0))),
    "forward": (lambda: classifier(Scale(1.0)), lambda: classifier(of_another_class())),
    "buffer": (
        lambda: classifier(Masked(1.0, 1.0, 1.0, 1.0)),
        lambda: classifier(Masked(1.0, 1.0, 1.0, 0.0)),
    ),
    "frozen": (classifier, frozen),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_another_model(name, tmp_path):
    before, after = MODELS[name]
    match = r"another model \(structure\)"
    with pytest.raises(dm.exceptions.CertificateError, match=match):
        moved(tmp_path / "run.pt", {"model": before()}, {"model": after()})
    *_, loader = moved(tmp_path / "run.pt", {"model": before()}, {"model": before()})
    assert loader.checkpoint_history == ALL_SAME


def test_heads_of_attention_are_no_part_of_its_repr():
    one, other = (nn.MultiheadAttention(8, heads) for heads in (2, 4))
    assert one.extra_repr() == other.extra_repr()
    assert Printer(one).model(one) != Printer(other).model(other)


def test_restored_values_do_not_make_another_model(tmp_path):
    one, other = (
        classifier(Masked(1.0, 1.0, 1.0, 1.0, persistent=True)),
        classifier(Masked(0.0, 1.0, 1.0, 1.0, persistent=True)),
    )
    nn.init.zeros_(other[0].weight)
    *_, loader = moved(tmp_path / "run.pt", {"model": one}, {"model": other.eval()})
    assert loader.checkpoint_history == ALL_SAME


# ---- the dataset


def changed(index, place):
    tensors = [tensor.clone() for tensor in data().tensors]
    tensors[place][index] += 1
    return TensorDataset(*tensors)


class Transformed(Dataset):
    """Examples by a function of (features, label)."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.function(*data()[index])


def half(examples):
    return default_collate([(0.5 * x, y) for x, y in examples])


@pytest.mark.parametrize(
    ("after", "match"),
    [
        ({"dataset": changed(slice(None), 0)}, r"\(examples\[0\]\)"),
        ({"dataset": changed(slice(None), 1)}, r"\(examples\[1\]\)"),
        ({"dataset": TensorDataset(*(one.flip(0) for one in data().tensors))}, r"\(examples\[0\]"),
        ({"dataset": TensorDataset(data().tensors[0].double(), data().tensors[1])}, r"\(examples\[0\]\)"),
        ({"dataset": Transformed(lambda x, y: {"x": x, "y": y})}, "examples"),
        ({"loader": {"collate_fn": half}}, "collate_fn"),
    ],
    ids=["features", "labels", "order", "dtype", "form", "collate_fn"],
)
def test_another_dataset(after, match, tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())
    with pytest.raises(dm.exceptions.CertificateError, match=f"another dataset .*{match}"):
        load_checkpoint(path, *made(**after))


def test_another_dataset_may_be_accepted(tmp_path):
    refused(tmp_path / "run.pt", {}, {"dataset": changed(slice(None), 0)}, "dataset", r"examples\[0\]")


def test_another_length(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())
    with pytest.raises(dm.exceptions.CertificateError, match=r"another dataset \(.*length"):
        load_checkpoint(path, *made(data(12)))


def test_all_of_a_small_dataset_is_looked_at(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made(data(16)))
    changed = data(16)
    changed.tensors[0][11, 2] += 1e-6
    with pytest.raises(dm.exceptions.CertificateError, match="another dataset"):
        load_checkpoint(path, *made(changed))


def noisy(x, y):
    return x + torch.randn(3) + float(np.random.normal()) + random.random(), y  # noqa: NPY002 - as transforms do


def flipped(x, y):
    return (x.flip(0) if torch.rand(()) < 0.5 else x), y


@pytest.mark.parametrize("function", [noisy, flipped])
@pytest.mark.parametrize("workers", [0, 1])
def test_random_transforms_are_no_other_dataset(function, workers, tmp_path):
    case = {"dataset": Transformed(function), "loader": {"num_workers": workers}}
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made(**case))
    torch.manual_seed(99)
    parts = made(**case | {"loader": {"num_workers": 0}})
    load_checkpoint(path, *parts)
    assert parts[2].checkpoint_history == ALL_SAME
    with pytest.raises(dm.exceptions.CertificateError, match="another dataset"):
        load_checkpoint(path, *made(Transformed(lambda x, y: (x, y))))


def test_parts_that_differ_between_readings_are_omitted(tmp_path):
    chance = np.random.default_rng()
    path = tmp_path / "run.pt"
    case = Transformed(lambda x, y: (x + float(chance.normal()), y))
    save_checkpoint(path, *made(case))
    parts = made(case)
    load_checkpoint(path, *parts)
    assert parts[2].checkpoint_history.dataset == dm.certificates.CheckpointMatch.UNKNOWN
    with pytest.raises(dm.exceptions.CertificateError, match=r"another dataset \(examples\[1\]\)"):
        load_checkpoint(path, *made(Transformed(lambda x, y: (x + float(chance.normal()), 1 - y))))


def test_a_dataset_that_became_random(tmp_path):
    chance = np.random.default_rng()
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())
    with pytest.raises(dm.exceptions.CertificateError, match=r"another dataset \(examples\[0\]\)"):
        load_checkpoint(path, *made(Transformed(lambda x, y: (x + float(chance.normal()), y))))


def test_looking_at_examples_moves_no_random_numbers(tmp_path):
    parts = made(Transformed(noisy))

    def states():
        arrays = np.random.get_state()[1].tolist()  # noqa: NPY002 - the very state that must stay
        return torch.get_rng_state().tolist(), random.getstate(), arrays

    before = states()
    save_checkpoint(tmp_path / "run.pt", *parts)
    assert states() == before


def test_gaps_of_canaries(tmp_path):
    def case(seed):
        torch.manual_seed(1)
        real = TensorDataset(data().tensors[0][:20], torch.zeros(20, dtype=torch.long))
        whole = CanaryData(real, 20, target=0, rng=seed)
        return {"dataset": whole, "model": nn.Linear(whole.width, 2)}

    path = tmp_path / "run.pt"
    save_checkpoint(path, *made(**case(1)))
    load_checkpoint(path, *made(**case(1)))
    with pytest.raises(dm.exceptions.CertificateError, match="another dataset"):
        load_checkpoint(path, *made(**case(2)))


class Opaque:
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "complete"),
    [
        ({"a": [1, None, "x", b"y", 2.5, (3j, ...)]}, True),
        (np.array(["a", None], dtype=object), True),
        (types.SimpleNamespace(mode="L", size=(1, 2), tobytes=lambda: b"ab"), True),
        (torch.float16, True),
        (torch.ones(2, dtype=torch.bfloat16), True),
        (torch.ones(3, dtype=torch.complex64).conj(), True),
        (range(3), True),
        (np.float32(1.5), True),
        (bytearray(b"ab"), True),
        (random.Random(1), False),
        (Opaque(), False),
    ],
)
def test_what_digests_cover(value, complete):
    assert digest(value)[1] is complete
    assert digest(value) != digest([value])


# ---- statements of checkpoints


def test_an_accepted_change_stays_in_the_record(tmp_path):
    path = tmp_path / "run.pt"
    other = LOSSES["code"][1]
    parts = moved(path, {}, {"loss": other}, accept_changed=("loss",))
    save_checkpoint(path, *parts)
    again = made(loss=other, generator=None)
    load_checkpoint(path, *again)  # no changes since
    record = again[1].run_record()
    assert record.checkpoint_history == dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.ACCEPTED,
        loads=2,
    )
    assert any("took the responsibility" in line for line in dm.verify(record, rigorous=True).failures)
    with pytest.raises(dm.exceptions.CertificateError, match="another loss"):
        load_checkpoint(path, *made(generator=None))


def test_runs_without_checkpoints_state_it(tmp_path):
    parts = made()
    assert parts[1].run_record().checkpoint_history is None
    save_checkpoint(tmp_path / "run.pt", *parts)
    assert parts[1].run_record().checkpoint_history == SAVED
    load_checkpoint(tmp_path / "none.pt", *made(), missing_ok=True)


@pytest.mark.parametrize("names", ["loss", ["losses"], ["loss", "noise"]])
def test_names_that_may_be_accepted(names, tmp_path):
    with pytest.raises(dm.InvalidParameterError, match="accept_changed"):
        load_checkpoint(tmp_path / "run.pt", *made(), accept_changed=names)


def test_a_checkpoint_without_fingerprints(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())
    state = torch.load(path)
    for damage in ({}, {"key": "0"}, {"prints": {}}, {"checkpoint_history": {}}):
        set_up = state["loader"]["set_up"] | damage if damage else {}
        torch.save(state | {"loader": state["loader"] | {"set_up": set_up}}, path)
        with pytest.raises(dm.exceptions.CertificateError, match="has no fingerprints"):
            load_checkpoint(path, *made())


def test_the_same_noise_on_other_sums_gives_them_away(tmp_path):
    """The refused case: the difference of two releases is the exact difference of two sums."""
    path = tmp_path / "run.pt"
    save_checkpoint(path, *made())

    def released(loss):
        """The private gradient of the first step, and the gradient without noise."""
        model, optimizer, loader = made(loss=loss, generator=None)
        load_checkpoint(path, model, optimizer, loader, accept_changed=("loss",))
        batch = next(iter(loader))
        bare = (
            clipped_gradients(model.module, loss, batch, 1.0).sums[0].float() / optimizer.expected_batch_size
        )
        model.backward(*batch)
        optimizer.step()
        return model.module[0].weight.grad, bare

    (one, bare_one), (other, bare_other) = released(plain_loss), released(LOSSES["code"][1])
    assert float((one - bare_one).abs().max()) > 0.01  # each alone is hidden by noise
    torch.testing.assert_close(one - other, bare_one - bare_other, rtol=0.0, atol=1e-6)
    assert float((bare_one - bare_other).abs().max()) > 1e-3


def doubled(_, inputs, output):
    return 2.0 * output


def with_hook(kind, hook):
    model = classifier()
    register = {
        "forward": model.register_forward_hook,
        "before": model[0].register_forward_pre_hook,
        "weights": model[0].weight.register_hook,
    }[kind]
    register(hook)
    return model


HOOKS = {
    "forward": (doubled, lambda _, inputs, output: 3.0 * output),
    "before": (lambda _, inputs: (2.0 * inputs[0],), lambda _, inputs: (3.0 * inputs[0],)),
    "weights": (lambda grad: 2.0 * grad, lambda grad: 3.0 * grad),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_belong_to_the_model(tmp_path, kind):
    one, other = (with_hook(kind, hook) for hook in HOOKS[kind])
    refused(tmp_path / "run.pt", {"model": one}, {"model": other}, "model")
    refused(tmp_path / "run.pt", {"model": with_hook(kind, HOOKS[kind][0])}, {}, "model")


def test_hooks_of_gradients_belong_to_the_model():
    # torch.func has none, Opacus has.
    prints = []
    for factor in (2.0, 3.0, 3.0):
        model = classifier()
        model[0].register_full_backward_hook(lambda _, before, after, factor=factor: (factor * before[0],))
        prints.append(Printer(model).model(model))
    assert prints[0] != prints[1] == prints[2]


def test_the_same_hooks_are_the_same_model(tmp_path):
    parts = moved(tmp_path / "run.pt", *({"model": with_hook("forward", doubled)} for _ in range(2)))
    assert parts[1].run_record().checkpoint_history == ALL_SAME


def test_another_optimizer_cannot_resume(tmp_path):
    # RAdam reads Adam's groups and state, and would compute other weights from the same gradients.
    path = tmp_path / "run.pt"
    kinds = torch.optim.Adam, torch.optim.RAdam
    runs = []
    for kind in kinds:
        model = classifier()
        loader = DataLoader(data())
        given = declared(CAL, loader, loss=plain_loss)
        runs.append(make_private(model, kind(model.parameters()), loader, CAL, 1.0, **given))
    model, optimizer, loader = runs[0]
    model.backward(*next(iter(loader)))
    optimizer.step()
    save_checkpoint(path, model, optimizer, loader)
    optimizer.close()
    with pytest.raises(dm.exceptions.CertificateError, match="another optimizer"):
        load_checkpoint(path, *runs[1])


@pytest.mark.parametrize("sizes", [(None, 4), (4, 5)])
def test_another_physical_batch_size_cannot_resume(tmp_path, sizes):
    before, after = ({"max_physical_batch_size": size} for size in sizes)
    with pytest.raises(dm.exceptions.CertificateError, match="microbatches"):
        moved(tmp_path / "run.pt", before, after)
    moved(tmp_path / "run.pt", before, before)


# ---- plain states, and weights


def stepped(parts, steps):
    model, optimizer, loader = parts
    for _ in range(steps):
        model.backward(*next(iter(loader)))
        optimizer.step()
    return parts


def bare(parts):
    model, optimizer, loader = parts
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return weights, copy.deepcopy(optimizer.state_dict()), copy.deepcopy(loader.state_dict())


def resumed(state, **options):
    weights, optimizer, loader = state
    parts = made(**{"generator": None} | options)
    parts[2].load_state_dict(loader)
    parts[1].load_state_dict(optimizer)
    parts[0].load_state_dict(weights)
    return parts


def test_plain_states_identify_their_run():
    """Two records with one noise, each of another dataset: anyone with both results subtracts the noise."""
    state = bare(stepped(made(), 2))
    with pytest.raises(dm.exceptions.CertificateError, match="of another run: another dataset"):
        resumed(state, dataset=classification(SIZE, seed=9))
    with pytest.raises(dm.exceptions.CertificateError, match="of another run: another loss"):
        resumed(state, loss=lambda model, x, target: 2.0 * plain_loss(model, x, target))
    with pytest.raises(dm.exceptions.CertificateError, match="of another run: another model"):
        resumed(state, model=classifier(nn.ReLU()))
    parts = stepped(resumed(state), 1)
    record = parts[1].run_record()
    assert record.checkpoint_history == ALL_SAME
    assert "resumed from a saved state once" in str(record)
    assert dm.verify(record, rigorous=False).ok
    again = resumed(bare(parts))
    assert dm.RunRecord.from_json(again[1].run_record().to_json()).checkpoint_history.loads == 2


@pytest.mark.parametrize("by", ["file", "bare states"])
@pytest.mark.parametrize("change", ["loaded", "clamped"])
def test_weights_stay_from_a_load_to_the_first_step(by, change, tmp_path):
    path = tmp_path / "run.pt"
    parts = stepped(made(), 2)
    save_checkpoint(path, *parts)
    state = bare(parts)
    if by == "file":
        model, optimizer, loader = made(generator=None)
        load_checkpoint(path, model, optimizer, loader)
    else:
        model, optimizer, loader = resumed(state)
    if change == "loaded":
        model.load_state_dict({name: value + 0.1 for name, value in state[0].items()})
    else:
        clamp(model)
        optimizer.note_weights()
    for refused in (
        lambda: stepped((model, optimizer, loader), 1),
        optimizer.state_dict,
        optimizer.run_record,
    ):
        with pytest.raises(dm.UnsupportedCombinationError, match="the weights that the loaded state"):
            refused()
    assert optimizer.record.steps == 2
    model.load_state_dict(state[0])  # unchanged: nothing is lost
    assert optimizer.state_dict()["state"] == state[1]["state"]


def test_a_checkpoint_file_with_other_weights_takes_no_step(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *stepped(made(), 2))
    state = torch.load(path, weights_only=True)
    state["model"] = {name: 1.001 * value for name, value in state["model"].items()}
    torch.save(state, path)
    parts = made(generator=None)
    load_checkpoint(path, *parts)
    with pytest.raises(dm.UnsupportedCombinationError, match="the weights that the loaded state"):
        stepped(parts, 1)
    assert parts[1].record.steps == 2


def test_new_weights_are_no_others_than_changed_ones():
    state = bare(stepped(made(), 2))
    parts = made(generator=None, model=classifier(seed=2))
    parts[2].load_state_dict(state[2])
    parts[1].load_state_dict(state[1])
    with pytest.raises(dm.UnsupportedCombinationError, match="the weights that the loaded state"):
        stepped(parts, 1)
    parts[1].close()


def clamp(model):
    with torch.no_grad():
        for param in model.parameters():
            param.clamp_(-0.01, 0.01)


def test_other_weights_are_the_callers_responsibility(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, *stepped(made(), 2))
    one = made(generator=None, model=classifier(nn.ReLU()))
    load_checkpoint(path, *one, accept_changed=["model"])
    clamp(one[0])
    one[1].note_weights()
    stepped(one, 1)
    assert one[1].run_record().checkpoint_history.model == dm.certificates.CheckpointMatch.ACCEPTED


def test_weights_that_were_changed_by_hand_are_in_the_record(tmp_path):
    """After a saved state, from which steps may be repeated; before any there is nothing to repeat."""
    parts = stepped(made(), 1)
    clamp(parts[0])
    parts[1].note_weights()
    stepped(parts, 1)
    save_checkpoint(tmp_path / "run.pt", *parts)
    assert parts[1].run_record().checkpoint_history.model == dm.certificates.CheckpointMatch.SAME
    parts[0].load_state_dict(parts[0].state_dict())
    assert (
        parts[1].run_record().checkpoint_history.model == dm.certificates.CheckpointMatch.SAME
    )  # no step was based on it yet
    stepped(parts, 1)
    assert parts[1].run_record().checkpoint_history.model == dm.certificates.CheckpointMatch.UNKNOWN
