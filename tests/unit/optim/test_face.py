import importlib
import importlib.util
import pathlib
import re
import sys
import types

import pytest

import dpmech as dm

ROOT = pathlib.Path(__file__).parents[3]


def test_without_torch_the_missing_extra_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    for name in [name for name in sys.modules if name.startswith("dpmech.optim")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(dm.exceptions.MissingDependencyError, match=r"pip install '\.\[torch\]'"):
        importlib.import_module("dpmech.optim")


def test_names_that_do_not_exist():
    with pytest.raises(AttributeError, match="'dpmech' has no attribute 'optimizer'"):
        dm.optimizer  # noqa: B018 - the access is the test


def test_optim_is_imported_on_demand():
    pytest.importorskip("torch")
    assert dm.__getattr__("optim") is importlib.import_module("dpmech.optim")
    assert {"NoiseStream", "PrivateOptimizer", "clipped_gradients"} <= set(dm.optim.__all__)
    for name in dm.optim.__all__:
        assert getattr(dm.optim, name).__doc__, name
        assert not isinstance(getattr(dm.optim, name), types.ModuleType), name


def test_every_name_is_documented():
    pytest.importorskip("torch")
    pages = " ".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name in dm.optim.__all__:
        assert re.search(rf"\b{name}\b", pages), name
