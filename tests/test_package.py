import pathlib
import subprocess
import sys
import types

import pytest

import dpmech as dm

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "dpmech"
SUPPORT = {"conftest.py", "oracles.py", "bins_oracles.py", "forged_files.py", "strategies.py"}


def test_import_needs_no_heavy_package():
    code = "import sys, dpmech; print(*sorted({'torch', 'matplotlib', 'numba', 'opacus'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == ""
    assert found.stderr == ""


def test_public_names_are_exactly_all():
    public = {name for name, value in vars(dm).items() if not name.startswith("_")}
    submodules = {
        name for name in public if isinstance(getattr(dm, name), types.ModuleType) and name not in dm.__all__
    }
    assert public - submodules == set(dm.__all__)
    assert len(dm.__all__) == len(set(dm.__all__))


@pytest.mark.parametrize("name", sorted(dm.__all__))
def test_every_public_name_has_a_docstring_of_its_own(name):
    value = getattr(dm, name)
    text = value.__doc__
    assert text is not None
    assert len(text.strip()) > 20
    if isinstance(value, type):
        inherited = [base.__doc__ for base in value.__mro__[1:]]
        assert text not in inherited
        for member, function in vars(value).items():
            if callable(function) and not member.startswith("_") and not isinstance(function, type):
                assert function.__doc__, f"{name}.{member}"


def test_all_lists_what_the_package_offers():
    expected = {
        "calibrate_sigma",
        "epsilon",
        "delta",
        "sensitivity",
        "rmse",
        "max_se",
        "per_step_error",
        "Bounds",
        "Adjacency",
        "PrivacyBudget",
        "Calibration",
        "Identity",
        "LambdaCGD",
        "SquareRoot",
        "InverseSquareRoot",
        "BandedToeplitz",
        "BandedInverse",
        "BLT",
        "Diagonal",
        "Dense",
        "ColumnNormalized",
        "EveryStep",
        "SingleParticipation",
        "MinSep",
        "FixedEpochs",
        "Poisson",
        "CyclicPoisson",
        "BallsInBins",
        "Pld",
        "Prv",
        "Rdp",
        "Exact",
    }
    assert expected <= set(dm.__all__)


def test_every_test_file_is_collected():
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name == "reference":
            assert path.name.startswith("make_")
        elif path.name not in SUPPORT:
            assert path.name.startswith("test_"), f"{path} is never collected"
            assert "def test_" in path.read_text(encoding="utf-8"), f"{path} holds no test"


def test_oracles_do_not_use_what_they_check():
    for name in ("oracles.py", "reference/make_toeplitz.py"):
        assert "import dpmech" not in (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert "from dpmech" not in (ROOT / "tests" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_documented(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 350
    assert lines[0].lstrip("r").startswith('"""')


def test_version_and_type_marker():
    assert dm.__version__.count(".") >= 1
    assert (PACKAGE / "py.typed").exists()


def test_a_full_calibration_warns_of_nothing():
    code = (
        "import numpy as np, dpmech as dm; np.seterr(all='raise', under='ignore');"
        "dm.calibrate_sigma(dm.LambdaCGD(50, 0.9), 1.0, 1e-5, participation=dm.MinSep(10, 3)).rmse();"
        "dm.calibrate_sigma(dm.Identity(50), 1.0, 1e-5, participation=dm.Poisson(0.1)).max_se();"
        "dm.sensitivity(dm.ColumnNormalized(dm.InverseSquareRoot(30, 4)), dm.MinSep(7, 3))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
