from tests.support.changed import ALWAYS, ROOT, selected


def chosen(*files):
    return set(selected(list(files))) - set(ALWAYS)


def test_what_always_runs_is_there():
    assert all((ROOT / name).exists() for name in ALWAYS)
    assert set(selected([])) == set(ALWAYS)


def test_a_module_has_its_mirrored_tests():
    assert chosen("dpmech/mechanism/objectives.py") == {"tests/unit/mechanism/test_objectives.py"}


def test_a_module_without_selected_its_own_has_those_of_its_folder():
    assert chosen("dpmech/optim/noise/rows.py") == {"tests/unit/optim/noise"}
    assert chosen("dpmech/mechanism/strategies/blt.py") == {"tests/unit/mechanism"}
    assert chosen("dpmech/guards.py") == {"tests/unit/test_calibration.py"}


def test_other_files():
    assert chosen("tests/unit/mechanism/test_objectives.py") == {"tests/unit/mechanism/test_objectives.py"}
    assert chosen("tests/bench/test_bench_noise.py", "pyproject.toml") == set()
    assert chosen("verification/sde/sgd.py") == {"tests/test_verification.py"}
    pages = {f"tests/test_{one}.py" for one in ("blocks", "front_door", "pages", "readme")}
    assert chosen("README.md") == chosen("dpmech/schemes/poisson/page.md") == pages
    assert chosen("dpmech/gone/away.py") == {"tests/unit/test_calibration.py"}
