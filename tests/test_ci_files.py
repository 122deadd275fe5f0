"""What a repository takes from this one: the action and the hook, parsed, and their very commands run."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import dpmech as dm
from tests.support import saved

yaml = pytest.importorskip("yaml", reason="reads the files of CI servers")

ROOT = pathlib.Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
INSTALL, VERIFY = ACTION["runs"]["steps"]


def resolved(text, inputs):
    """An expression as the runner evaluates it: inputs, and the folder of the action."""

    def value(found):
        for name in found[1].split("||"):
            key = name.strip()
            chosen = inputs[key.removeprefix("inputs.")] if key.startswith("inputs.") else f"{ROOT}"
            assert key == "github.action_path" or key.startswith("inputs.")
            if chosen:
                return chosen
        return ""

    return re.sub(r"\$\{\{ (.*?) \}\}", value, text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository with certificates, and `dpmech` on the path."""
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    for path in (bin_folder, tmp_path / "certificates" / "deep"):
        path.mkdir(parents=True)
    command = bin_folder / "dpmech"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dpmech "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    saved.calibration("min-sep").certificate().save("certificates/good.json")
    saved.calibration("single").certificate().save("certificates/deep/also good.json")
    return tmp_path


def step(one, **inputs):
    """A step as the runner of a composite action runs it."""
    defaults = {name: entry["default"] for name, entry in ACTION["inputs"].items()}
    given = defaults | {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(given) == set(defaults)
    assert one["shell"] == "bash"
    environment = {name: resolved(value, given) for name, value in one["env"].items()}
    script = pathlib.Path("step.sh")
    script.write_text(one["run"])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_the_action_is_one():
    assert set(ACTION) == {"name", "description", "inputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    assert all(set(entry) == {"description", "default"} for entry in ACTION["inputs"].values())
    assert all(isinstance(entry["default"], str) for entry in ACTION["inputs"].values())
    used = set(re.findall(r"inputs\.([\w-]+)", yaml.safe_dump(ACTION["runs"])))
    assert used == set(ACTION["inputs"])
    for one in (INSTALL, VERIFY):
        # What somebody types never becomes a part of a script.
        assert "${{" not in one["run"]


@pytest.mark.parametrize("name", ["action.yml", ".pre-commit-hooks.yaml"])
def test_no_host_is_named(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//|index-url|\.(?:com|org|io)\b", text)


@pytest.mark.parametrize(("source", "due"), [("", str(ROOT)), ("dist/my wheel.whl", "dist/my wheel.whl")])
def test_the_action_installs_a_checkout_or_a_wheel(source, due, folder):
    # In place of Python, what tells how it was called: nothing is fetched.
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    result = step(INSTALL, install=source)
    assert result.stdout.splitlines() == ["-m", "pip", "install", "--quiet", f"{due}[sign]"]
    assert INSTALL["if"] == "inputs.install != 'none'"


def test_the_action_verifies_what_it_finds(folder):
    result = step(VERIFY)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("::notice file=certificates/good.json,line=1,")
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.slow
def test_the_action_takes_every_input(folder):
    public = dm.certificates.new_key("key.pem")
    dm.sign("certificates/good.json", "key.pem", "somebody")
    pathlib.Path("policy.toml").write_text("max_eps = 1\n")
    result = step(
        VERIFY,
        files="certificates/**/*.json",
        rigorous="true",
        policy="policy.toml",
        key=str(public),
        require_signature="true",
        format="json",
        output="found.json",
    )
    assert result.returncode == 1
    assert result.stdout == ""
    deep, good = json.loads(pathlib.Path("found.json").read_text())["files"]
    assert good["source"] == "certificates/good.json"
    assert [one["issuer"] for one in good["signed"]] == ["somebody"]
    assert [line.split(":")[0] for line in good["failures"]] == ["policy max_eps"]
    assert [line.split(":")[0] for line in deep["failures"]] == ["signature", "policy max_eps"]


def test_nothing_to_verify_is_no_success(folder):
    result = step(VERIFY, files="nothing/*.json")
    assert result.returncode == 2
    assert result.stdout.startswith("::error ")


@pytest.mark.parametrize("name", ["rigorous", "require-signature"])
@pytest.mark.parametrize("value", ["True", "TRUE", "yes", "1", "on", " true", "", "false\n::notice::"])
def test_a_switch_that_is_neither_true_nor_false_is_no_success(name, value, folder):
    result = step(VERIFY, **{name.replace("-", "_"): value})
    assert (result.returncode, result.stderr) == (2, "")
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"::error title=dpmech verify::the input {name} must be true or false, got '")


@pytest.mark.parametrize(
    "files",
    ["certificates/*.json nothing/*.json", "nothing/**/*.json certificates/good.json", "a[1].json", " ", ""],
)
def test_every_pattern_has_to_match(files, folder):
    result = step(VERIFY, files=files)
    assert result.returncode == 2
    assert result.stdout.startswith("::error title=dpmech verify::")
    assert "VERIFIED" not in result.stdout


def test_a_name_is_a_name_though_it_looks_like_a_pattern_and_lines_separate_names(folder):
    os.rename("certificates/good.json", "certificates/a[1].json")
    result = step(VERIFY, files="certificates/a[1].json\ncertificates/deep/*.json\n")
    assert result.returncode == 0, result.stdout + result.stderr
    found = [re.match(r"::notice file=([^,]*),", line)[1] for line in result.stdout.splitlines()]
    assert found == ["certificates/a[1].json", "certificates/deep/also good.json"]


@pytest.mark.parametrize("name", ["certificates/*.json", "certificates/.hidden.json"])
def test_no_name_hides_other_files_or_itself(name, folder):
    os.rename("certificates/good.json", name)
    pathlib.Path("certificates/.forged.json").write_text("{}")
    result = step(VERIFY)
    assert result.returncode == 1
    found = [re.match(r"::\w+ file=([^,]*),", line)[1] for line in result.stdout.splitlines()]
    assert sorted(found) == sorted(["certificates/.forged.json", name])


def test_a_file_that_is_named_like_an_option_is_not_obeyed(folder):
    """As pre-commit appends the names of files: without anything between them and the options."""
    pathlib.Path("strict.toml").write_text("max_eps = 0.1\n")
    for number, option in enumerate(("--policy=x", "--key=x", "-h")):
        name = pathlib.Path(option) / "certificates" / f"{number}.json"
        name.parent.mkdir(parents=True)
        name.write_text("max_eps = 100\n")
        command = [
            *shlex.split(HOOK["entry"]),
            "--policy",
            "strict.toml",
            str(name),
            "certificates/good.json",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"dpmech verify: {name} is a file here, and reads as an option")
    # What is meant as a name is one.
    for command in (["--", str(name)], [f"./{name}"]):
        result = subprocess.run(
            ["dpmech", "verify", *command, "certificates/good.json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert "certificates/good.json: VERIFIED" in result.stdout


def test_the_hook_runs_on_certificates(folder):
    assert set(HOOK) == {"id", "name", "description", "entry", "language", "files", "require_serial"}
    assert HOOK["language"] == "python"
    names = ["certificates/good.json", "a/certificates/b.json", "certificates/good.json.dsse", "package.json"]
    assert [name for name in names if re.search(HOOK["files"], name)] == names[:2]
    result = subprocess.run(
        [*shlex.split(HOOK["entry"]), names[0]], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("certificates/good.json: VERIFIED: exact")
