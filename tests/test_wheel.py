"""The wheel: built, installed with the runtime dependencies only, and put through the README's ten lines."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.support.pages import PAGES

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def ten_lines():
    """The README's example, and what it says that this prints."""
    found = re.search(
        r"## Ten lines\n\n(?:<!--.*?-->\n)?```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL
    )
    return found.group(1), found.group(2)


def done(*command, **options):
    """Run a command outside of the checkout; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=1500, **options
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    probe = subprocess.run(
        [sys.executable, *PIP, "download", "--no-deps", "--dest", folder / "probe", "hatchling>=1.26"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if probe.returncode != 0:
        pytest.skip(f"no packages to be had here: {probe.stderr.strip().splitlines()[-1:]}")
    done(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder / "built", str(ROOT), cwd=folder)
    (built,) = (folder / "built").glob("dpmech-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment that holds the wheel and what it requires, no extra."""
    folder = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", folder)
    interpreter = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    done(interpreter, *PIP, "install", "--quiet", str(wheel), cwd=folder)
    return interpreter


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "dpmech").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if not re.match(r"dpmech-[^/]+\.dist-info/", name)}
    assert packed - {"dpmech/commit.txt"} == source
    assert "dpmech/py.typed" in names
    assert any(re.fullmatch(r"dpmech/schemas/.*\.json", name) for name in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_is_the_same_when_it_is_built_again(wheel, tmp_path):
    """From a copy at another place and time, with other permissions of its files."""
    git = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=False)
    if git.returncode != 0:
        pytest.skip("no git repository to copy")
    copy = tmp_path / "copy"
    names = done("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    for name in filter(None, names):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, target)
            target.chmod(0o600)
    # The same commit, and the same differences from it.
    common = done("git", "-C", str(ROOT), "rev-parse", "--path-format=absolute", "--git-common-dir").strip()
    done("git", "clone", "--quiet", "--no-checkout", "--shared", common, tmp_path / "clone")
    shutil.move(tmp_path / "clone" / ".git", copy / ".git")
    head = git.stdout.decode().strip()
    done("git", "-C", copy, "update-ref", "--no-deref", "HEAD", head)
    done("git", "-C", copy, "config", "core.fileMode", "false")
    done("git", "-C", copy, "reset", "--quiet")
    done(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path / "again", copy, cwd=tmp_path)
    (again,) = (tmp_path / "again").glob("dpmech-*.whl")
    assert again.name == wheel.name
    first, second = (zipfile.ZipFile(one) for one in (wheel, again))
    assert first.read("dpmech/commit.txt").decode().startswith(head)
    for name in first.namelist():
        assert first.read(name) == second.read(name), name
    assert wheel.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_the_readme_runs_from_the_wheel_without_any_extra(python, tmp_path):
    missing = done(
        python,
        "-c",
        "from importlib.util import find_spec; "
        "print(*(name for name in ('torch', 'matplotlib', 'opacus') if find_spec(name)))",
        cwd=tmp_path,
    )
    assert missing.strip() == ""
    where = done(python, "-c", "import dpmech; print(dpmech.__file__)", cwd=tmp_path)
    assert pathlib.Path(where.strip()).is_relative_to(python.parents[1])
    code, expected = ten_lines()
    # What rests on draws moves a little from run to run; test_readme.py looks at the numbers.
    number = r"\d+\.?\d*(?:e-\d+)?"
    printed = done(python, "-W", "error", "-c", code, cwd=tmp_path)
    assert re.sub(number, "#", printed) == re.sub(number, "#", expected)
    assert printed.splitlines()[5:] == expected.splitlines()[5:]


@pytest.mark.slow
def test_the_command_and_its_schema_come_with_the_wheel(python, tmp_path):
    command = python.parent / "dpmech"
    told = done(command, "--version", cwd=tmp_path)
    assert importlib.metadata.version("dpmech") in told
    if (ROOT / ".git").exists():
        assert re.search(r"\(commit [0-9a-f]{12}(-modified)?\)", told)
    plan = ["--strategy", "identity", "--dataset-size", "100", "--batch-size", "10", "--epochs", "2"]
    budget = ["--sampling", "poisson", "--eps", "2", "--delta", "1e-3", "--out", "certificate.json"]
    done(command, "calibrate", *plan, *budget, cwd=tmp_path)
    assert "VERIFIED" in done(command, "verify", "--rigorous", "certificate.json", cwd=tmp_path)
    asked = subprocess.run(
        [python, "-c", "import dpmech.optim"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "pip install torch" in asked.stderr


# ---- what the pages say about installing

# There is no release: the name alone finds nothing.
BY_NAME = re.compile(
    r"pip3? install [^\n`]*(?<![\w/.-])['\"]?dpmech\b(?![/-])|additional_dependencies: \[dpmech"
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install dpmech", True),
        ("run: pip install --quiet 'dpmech[torch]'", True),
        ("additional_dependencies: [dpmech]", True),
        ("pip install .", False),
        ("pip install '.[torch]'", False),
        ("pip install tools/dpmech", False),
        ("pip install dist/dpmech-0.1.0-py3-none-any.whl", False),
    ],
)
def test_the_scan_for_install_lines_tells_names_from_paths(line, found):
    assert bool(BY_NAME.search(line)) == found


def test_nobody_is_told_to_install_what_no_index_has():
    paths = [*PAGES, *(ROOT / "dpmech").rglob("*.py")]
    told = [path for path in paths if BY_NAME.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in told] == []
