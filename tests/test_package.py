import ast
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.accountant import Accountant
from dpmech.mechanism import kinds

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "dpmech"
SUPPORT = PACKAGE.parent / "tests" / "support"
parsed = functools.cache(ast.parse)
SOURCES = {str(path.relative_to(ROOT)): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_import_needs_no_heavy_package():
    # All of these take longer to import than everything else together.
    heavy = {
        "torch",
        "matplotlib",
        "numba",
        "opacus",
        "absl",
        "jsonschema",
        "scipy.fft",
        "scipy.linalg",
        "scipy.optimize",
        "scipy.signal",
        "scipy.special",
        "scipy.stats",
        "dp_accounting",
        "prv_accountant",
    }
    code = f"import sys, dpmech.cli; print(*sorted({heavy} & set(sys.modules)))"
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


def undocumented(name, value):
    """What lacks a docstring of its own: a public object, or public methods of it."""
    text = value.__doc__
    own = text is not None and len(text.strip()) > 20
    if isinstance(value, type):
        own = own and text not in [base.__doc__ for base in value.__mro__[1:]]
        for member, function in vars(value).items():
            public = callable(function) and not member.startswith("_") and not isinstance(function, type)
            if public and not function.__doc__:
                yield f"{name}.{member}"
    if not own:
        yield name


def test_every_public_name_has_a_docstring_of_its_own():
    assert [one for name in dm.__all__ for one in undocumented(name, getattr(dm, name))] == []


def test_a_missing_docstring_is_seen():
    class Base:
        """A docstring that is long enough to say something."""

        def method(self):
            pass

    class Child(Base):
        __doc__ = Base.__doc__

    assert list(undocumented("Base", Base)) == ["Base.method"]
    assert list(undocumented("Child", Child)) == ["Child"]
    assert list(undocumented("short", types.SimpleNamespace(__doc__="short"))) == ["short"]


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
    }
    assert expected <= set(dm.__all__)
    assert {"Pld", "Prv", "Rdp", "Exact"} <= set(vars(dm.methods))


# What the tests of neighbouring data sets beside them run: features, faults, and the comparison.
NEIGHBOURS = [
    ROOT / "tests" / "property" / "neighbours" / f"{name}.py"
    for name in ("check", "features", "integrations", "own_loops", "planted", "registry")
]
# What the test of recorded values runs: its table, the library behind it, the file, and the command.
RECORDED = [
    ROOT / "tests" / "regression" / f"{name}.py" for name in ("__main__", "library", "plans", "record")
]


def test_every_test_file_is_collected():
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name == "reference":
            assert path.name.startswith("make_")
        elif path.name != "conftest.py" and path.parent != SUPPORT and path not in (*NEIGHBOURS, *RECORDED):
            assert path.name.startswith("test_"), f"{path} is never collected"
            assert "def test_" in path.read_text(encoding="utf-8"), f"{path} holds no test"


@pytest.mark.slow
def test_the_suite_is_collected_where_only_the_test_extra_is_installed(tmp_path):
    """`make test-core` runs it so on other versions of Python, which have no torch."""
    optional = ("torch", "transformers", "datasets", "accelerate", "lightning", "opacus", "matplotlib")
    for entry in pathlib.Path(np.__file__).parents[1].iterdir():
        if not entry.name.startswith(optional) and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    asked = [sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-qq"]
    found = subprocess.run(
        asked,
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert "could not import 'torch'" in found.stdout


def test_oracles_do_not_use_what_they_check():
    for name in ("support/oracles.py", "support/participation_laws.py", "reference/make_toeplitz.py"):
        assert "import dpmech" not in (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert "from dpmech" not in (ROOT / "tests" / name).read_text(encoding="utf-8")


def test_files_are_short_and_documented():
    lines = {name: path.read_text(encoding="utf-8").splitlines() for name, path in SOURCES.items()}
    assert {name: len(found) for name, found in lines.items() if len(found) > 700} == {}
    assert [name for name, found in lines.items() if not found[0].lstrip("r").startswith('"""')] == []


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


def packages_crossed(importer, imported):
    """Packages of dpmech that an import enters, and that the importing file is not in."""
    here = importer.relative_to(ROOT).with_suffix("").parts
    here = here if here[-1] == "__init__" else here[:-1]
    # The folder of a sampling scheme is a package of its own: no face of all schemes names what is in it.
    own_face = imported[:2] == ("dpmech", "schemes") and len(imported) > 2
    for depth in range(3 if own_face else 2, len(imported) + 1):
        if here[:depth] != imported[:depth] and (ROOT.joinpath(*imported[:depth]) / "__init__.py").exists():
            yield ".".join(imported[:depth])


def test_a_package_is_entered_through_its_face():
    past = []
    for name, path in SOURCES.items():
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "dpmech":
                continue
            crossed = list(packages_crossed(path, tuple(node.module.split("."))))
            if crossed not in ([], [node.module]):
                past.append(f"{name} enters {node.module} past {crossed[0]}")
    assert past == []


def test_the_test_of_faces_can_fail():
    inside = PACKAGE / "engines" / "renyi.py"
    deep = ("dpmech", "mechanism", "strategies", "base")
    assert list(packages_crossed(inside, deep)) == ["dpmech.mechanism", "dpmech.mechanism.strategies"]
    assert list(packages_crossed(inside, ("dpmech", "engines", "accountant"))) == []


def faces():
    return sorted(
        path
        for path in PACKAGE.rglob("__init__.py")
        if path.parent not in {PACKAGE, PACKAGE / "cli", PACKAGE / "checker"}
    )


def test_a_face_says_what_its_package_is_for_and_lists_its_names():
    silent, other_names = [], {}
    for path in faces():
        tree, name = parsed(path.read_text(encoding="utf-8")), str(path.parent.relative_to(ROOT))
        if len(ast.get_docstring(tree) or "") <= 20:
            silent.append(name)
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if not (alias.asname or alias.name).startswith("_")
        }
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
        ]
        if sorted(imported) != sorted(listed[0] if listed else []):
            other_names[name] = imported ^ set(listed[0] if listed else [])
    assert silent == []
    assert other_names == {}


def subclasses(kind):
    """All classes below one, however far."""
    return {one for child in kind.__subclasses__() for one in {child, *subclasses(child)}}


PARTICIPATIONS = {kind.__name__ for kind in kinds()}
# Fewer would be found if not all modules that have one were loaded with the package.
ACCOUNTANTS = {kind.__name__ for kind in subclasses(Accountant) if kind.__module__.startswith("dpmech.")}


def matched_classes(source, classes):
    """Those of some classes that some code asks for: by isinstance, by match, or by type()."""
    found = set()
    for node in ast.walk(parsed(source)):
        asked = []
        if isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"isinstance", "issubclass"}:
            asked = [node.args[1]]
        elif isinstance(node, ast.Compare) and any(
            isinstance(one, ast.Call) and getattr(one.func, "id", "") == "type" for one in ast.walk(node)
        ):
            asked = [node]
        names = {getattr(one, "id", getattr(one, "attr", "")) for part in asked for one in ast.walk(part)}
        found |= names & classes
    return found


def test_nobody_asks_which_class_a_participation_has():
    """A scheme may ask which of its own it has."""
    asked = {}
    for name, path in SOURCES.items():
        folder = ".".join(path.relative_to(ROOT).parts[:-1])
        own = {kind.__name__ for kind in kinds() if kind.__module__ == f"{folder}.participation"}
        asked[name] = matched_classes(path.read_text(encoding="utf-8"), PARTICIPATIONS) - own
    assert {name: classes for name, classes in asked.items() if classes} == {}


def test_nobody_asks_which_class_an_accountant_has():
    asked = {
        name: matched_classes(path.read_text(encoding="utf-8"), ACCOUNTANTS) for name, path in SOURCES.items()
    }
    assert {name: classes for name, classes in asked.items() if classes} == {}


def test_every_accountant_of_the_package_is_looked_for():
    written = re.compile(r"^class (\w+)\((?:\w*Accountant)\):", re.MULTILINE)
    paths = [*(PACKAGE / "engines").rglob("*.py"), *(PACKAGE / "schemes").rglob("*.py")]
    assert {
        name for path in paths for name in written.findall(path.read_text(encoding="utf-8"))
    } == ACCOUNTANTS


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(x, Poisson)",
        "isinstance(x, MinSep | Poisson)",
        "isinstance(x, (dm.Poisson, int))",
        "match x:\n    case Poisson(q):\n        pass",
        "match x:\n    case MinSep() | dm.Poisson():\n        pass",
        "type(x) is Poisson",
        "type(x) in {MinSep, Poisson}",
    ],
)
def test_the_test_of_classes_can_fail(source):
    assert "Poisson" in matched_classes(source, PARTICIPATIONS)
    other = source.replace("Poisson", "int").replace("MinSep", "str")
    assert matched_classes(other, PARTICIPATIONS) == set()


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(x, GaussianAccountant)",
        "isinstance(x, CertifiedAccountant | GaussianAccountant)",
        "issubclass(x, (accounting.GaussianAccountant, int))",
        "match x:\n    case GaussianAccountant(sensitivity=bounds):\n        pass",
        "match x:\n    case InTurnAccountant() | accounting.GaussianAccountant():\n        pass",
        "type(x) is GaussianAccountant",
        "type(x) in {InTurnAccountant, GaussianAccountant}",
    ],
)
def test_the_test_of_accountants_can_fail(source):
    assert "GaussianAccountant" in matched_classes(source, ACCOUNTANTS)
    assert matched_classes(re.sub(r"\w+Accountant", "Accountant", source), ACCOUNTANTS) == set()


def test_nothing_stands_flat_that_has_a_room():
    flat = {path.stem for path in PACKAGE.glob("*.py")}
    assert flat == {
        "__init__",
        "__main__",
        "exceptions",
        "files",
        "guards",
        "methods",
        "plots",
    }


def test_the_picture_of_the_layers_is_that_of_the_code():
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / "docs" / "draw_layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.page_with(module.picture()) == page
    assert module.picture() in page
    # What the page tells the reader to open is there.
    for name in re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", page):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name
