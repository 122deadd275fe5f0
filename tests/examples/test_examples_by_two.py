"""The four examples by two gloo processes under torchrun: one model, that of one process, one record.

Run as a script it is one of the processes, for all of them; the tests look at what they saved.
"""

import functools
import importlib
import os
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for package in ("sklearn", "transformers", "babel", "peft", "opacus"):
    pytest.importorskip(package)

import finishing  # noqa: E402 - after the check for torch

import dpmech as dm  # noqa: E402
from tests.support.torchrun import by_two  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# What is given, and how many steps that is.
RUNS = {
    "tabular": (["--epochs", "2"], 10),
    "images_from_scratch": (["--epochs", "1"], 5),
    "texts_with_padding": (["--epochs", "1", "--batch", "400", "--examples", "1631"], 4),
    "lora_table_to_text": (["--epochs", "1", "--examples", "200"], 10),
}
# Its batches are one example smaller where two processes share them.
SEPARATE = "tabular"


def fewer(names, split):
    """Every fifth name."""
    return names(split)[::5]


def process(folder, names=tuple(RUNS)):
    """Run examples in this process, with seeds, and save the weights that each ends with."""
    rank = os.environ.get("RANK", "0")
    for name in names:
        example = importlib.import_module(name)
        call = "make_private_with_epsilon" if name == "tabular" else "make_private"
        original, written, trained = getattr(example, call), example.finish, []
        names_of = getattr(example, "names", None)

        def made(model, *arguments, make=original, to=trained, **options):
            to.extend(param for param in model.parameters() if param.requires_grad)
            return make(model, *arguments, generator=1, rng=2, **options)

        def saved(record, target, _, name=name):
            if rank == "0":
                target.mkdir(parents=True, exist_ok=True)
                record.save(target / "run.json")
            return ""

        setattr(example, call, made)
        example.finish = written if name == SEPARATE else saved
        if name == "texts_with_padding":
            example.names = functools.partial(fewer, names_of)
        torch.manual_seed(0)
        try:
            assert example.main([str(folder / name), *RUNS[name][0]]) == 0
        finally:
            setattr(example, call, original)
            example.finish = written
            if names_of is not None:
                example.names = names_of
        flat = torch.cat([param.detach().flatten() for param in trained])
        np.save(folder / f"{name}-{rank}.npy", flat.numpy())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(of one process, of two)"""
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    process(alone, [name for name in RUNS if name != SEPARATE])
    by_two(__file__, together)
    return alone, together


@pytest.mark.parametrize("name", list(RUNS))
def test_two_processes_train_one_model(name, folders):
    alone, together = folders
    first, second = (np.load(together / f"{name}-{rank}.npy") for rank in range(2))
    np.testing.assert_array_equal(first, second)
    if name != SEPARATE:
        own = np.load(alone / f"{name}-0.npy")
        np.testing.assert_allclose(first, own, rtol=1e-2, atol=1e-2 * np.abs(own).max())


@pytest.mark.parametrize("name", list(RUNS))
def test_the_record_says_that_two_trained_and_holds(name, folders):
    record = dm.RunRecord.load(folders[1] / name / "run.json")
    assert (record.processes, record.steps) == (2, RUNS[name][1])
    if name != SEPARATE:
        alone = dm.RunRecord.load(folders[0] / name / "run.json")
        assert alone.processes == 1
        assert (record.noise, record.sampler) == (alone.noise, alone.sampler)
    else:  # the example verified it
        assert (folders[1] / name / "report.md").exists()


if __name__ == "__main__":
    sys.exit(finishing.together(functools.partial(process, pathlib.Path(sys.argv[1]))))
