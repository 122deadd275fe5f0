"""What CI servers read, of good files, bad ones, missing ones, and ones with hostile names."""

import functools
import json
import os
import pathlib
import re
import urllib.parse

import jsonschema
import pytest

import dpmech as dm
from dpmech.cli.formats import Verdicts, github, sarif
from dpmech.cli.formats import junit as junit_of
from dpmech.verifying import Check, Verification
from tests.support import junit, saved
from tests.support.command_line import done, run

SUPPORT = pathlib.Path(__file__).parents[2] / "support"
HOSTILE = '::error::x,y\n##[error]%0A<a href="j">&]]>\'\x1b[2J\x00\ufffe\u202e'


@functools.cache
def sarif_schema():
    schema = json.loads((SUPPORT / "sarif-2.1.0.json").read_text())
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema)


def results(text):
    """The results of a valid SARIF log, as (file, rule, message)."""
    log = json.loads(text)
    sarif_schema().validate(log)
    (run_,) = log["runs"]
    rules = run_["tool"]["driver"]["rules"]
    found = []
    for one in run_["results"]:
        assert rules[one["ruleIndex"]]["id"] == one["ruleId"]
        (place,) = one["locations"]
        uri = place["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/]+", uri)
        found.append((urllib.parse.unquote(uri), one["ruleId"], one["message"]["text"]))
    prints = [one["partialFingerprints"]["fileAndCheck/v1"] for one in run_["results"]]
    assert len(set(prints)) == len(prints)
    return found, run_["invocations"][0]["executionSuccessful"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved.calibration("min-sep").certificate().save("good one.json")
    text = pathlib.Path("good one.json").read_text()
    pathlib.Path("edited.json").write_text(text.replace('"min_sep": 4', '"min_sep": 5'))
    pathlib.Path("policy.toml").write_text('max_eps = 1\nforbidden_guarantees = ["exact"]\n')
    return tmp_path


FILES = ("good one.json", "edited.json", "missing.json")
REASON = "missing.json must be a readable file (No such file or directory)"


def test_junit_is_what_servers_read(folder):
    found = junit.read(done("verify", *FILES, "--format", "junit", code=2).stdout)
    good = {test: said for test, said in found.items() if test[0] == "good one.json"}
    assert set(good.values()) == {None}
    assert len(good) == len(dm.verify("good one.json").checks)
    kind, message = found["edited.json", "file"]
    assert kind == "failure"
    assert message.startswith("the checksum is broken")
    assert found["missing.json", "file"] == ("error", REASON)


def test_sarif_follows_its_schema(folder):
    found, complete = results(done("verify", *FILES, "--format", "sarif", code=2).stdout)
    assert [(file, rule) for file, rule, _ in found] == [
        ("edited.json", "dpmech/file"),
        ("missing.json", "dpmech/not-verified"),
    ]
    assert found[1][2] == REASON
    assert not complete
    assert results(done("verify", FILES[0], "--format", "sarif").stdout) == ([], True)


def test_the_schema_of_sarif_can_fail(folder):
    log = json.loads(done("verify", *FILES, "--format", "sarif", code=2).stdout)
    for change in ({"version": "2.0.0"}, {"runs": [{"tool": {}}]}, {"more": 1}):
        assert not sarif_schema().is_valid(log | change)
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert not sarif_schema().is_valid(log)


def test_workflow_commands_are_one_a_line(folder):
    lines = done("verify", *FILES, "--format", "github", code=2).stdout.splitlines()
    assert lines[0].startswith(
        "::notice file=good one.json,line=1,title=dpmech verify::VERIFIED: exact; claim PROVED"
    )
    assert lines[1].startswith(
        "::error file=edited.json,line=1,title=dpmech verify%3A file::file: the checksum is"
    )
    assert lines[2] == f"::error file=missing.json,line=1,title=dpmech verify%3A not verified::{REASON}"
    assert len(lines) == 3


@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif", "github"])
def test_every_broken_rule_is_told_in_every_format(form, folder):
    result = done("verify", FILES[0], "--policy", "policy.toml", "--format", form, code=1)
    for name in ("max_eps", "forbidden_guarantees"):
        assert f"policy {name}" in result.stdout or f"policy-{name}" in result.stdout
    if form == "junit":
        found = junit.read(result.stdout)
        assert found[FILES[0], "policy max_eps"] == ("failure", "eps 2, at most 1 is allowed")
    if form == "sarif":
        found, complete = results(result.stdout)
        assert [rule for _, rule, _ in found] == [
            "dpmech/policy-max_eps",
            "dpmech/policy-forbidden_guarantees",
        ]
        assert complete
    if form == "github":
        assert len(result.stdout.splitlines()) == 2
    if form == "json":
        assert [
            check["name"] for check in json.loads(result.stdout)["files"][0]["checks"] if not check["ok"]
        ] == [
            "policy max_eps",
            "policy forbidden_guarantees",
        ]


@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif", "github"])
def test_exit_codes_are_those_of_text(form, folder):
    for files, code in (((FILES[0],), 0), (FILES[:2], 1), (FILES, 2), (FILES[2:], 2)):
        assert run("verify", *files, "--format", form).exit_code == code


def test_json_is_a_format_under_two_names(folder):
    assert done("verify", FILES[0], "--json").stdout == done("verify", FILES[0], "--format", "json").stdout
    result = run("verify", FILES[0], "--json", "--format", "junit")
    assert result.exit_code == 2
    assert "--format must be left out, or json, with --json" in result.stderr


def hostile():
    """A verification in which everything that a file may say is hostile, twice over."""
    bad = Check(HOSTILE, ok=False, detail=HOSTILE)
    found = Verification(HOSTILE, None, (bad, bad, Check("fine", ok=True, detail=HOSTILE)))
    return Verdicts([found], {f"{HOSTILE}2": HOSTILE})


def test_hostile_names_are_text_in_junit():
    found = junit.read(junit_of(hostile()))
    kinds = [None if said is None else said[0] for said in found.values()]
    assert kinds == ["failure", "failure", None, "error"]
    for (suite, _), said in found.items():
        assert '<a href="j">&]]>' in suite
        assert said is None or "\\n##[error]%0A<a href" in said[1]


def test_hostile_names_are_text_in_sarif():
    found, _ = results(sarif(hostile()))
    assert len(found) == 3
    for file, _, message in found:
        assert file.startswith("::error::x,y\n##[error]%0A")
        assert message.startswith("::error::x,y\\n##[error]")
        assert "\x1b" not in message


def test_hostile_names_begin_no_command_of_their_own():
    lines = github(hostile()).splitlines()
    assert len(lines) == 3
    for line in lines:
        # As the runner reads a command: its name, its properties up to the next `::`, its data.
        name, properties, data = re.fullmatch(r"::(\w+) ((?:(?!::).)*)::(.*)", line).groups()
        assert name == "error"
        keys = [part.split("=")[0] for part in properties.split(",")]
        assert keys == ["file", "line", "title"]
        assert all(one.isprintable() for one in data)
        assert "%250A" in data


# Where a runner looks for commands: two colons that begin a line, two marks with a bracket anywhere.
COMMAND = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["::error::a.json", "a\n::error::b.json", "##[error]a.json", "b ##vso[a].json"]
)
@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif"])
@pytest.mark.parametrize("fault", [None, "broken", "missing"])
def test_no_name_of_a_file_is_a_command_to_a_runner(name, form, fault, folder):
    """A file called `a` and, on a second line, `::error::b` gave the log of the runner a line of its own."""
    content = pathlib.Path(FILES[0]).read_text()
    if fault != "missing":
        broken = content.replace('"schema_version": 1', '"x": 1')
        pathlib.Path(name).write_text(content if fault is None else broken)
    result = done("verify", name, "--format", form, code={None: 0, "broken": 1, "missing": 2}[fault])
    for text in (result.stdout, result.stderr):
        assert COMMAND.search(text) is None, text
    if form in ("json", "sarif") and fault != "missing":
        assert json.loads(result.stdout)
    if form == "json" and fault != "missing":
        assert json.loads(result.stdout)["files"][0]["source"] == name


@pytest.mark.parametrize(
    "call",
    [
        ("show",),
        ("risk",),
        ("verify", "--details"),
        ("sign", "--key", "key.pem", "--issuer", "i"),
        ("report", "--format", "markdown", "--claim-only"),
        ("report", "--format", "json", "--claim-only"),
        ("report", "--claim-only", "--out", "::error::.html"),
    ],
)
def test_other_commands_print_no_command_either(call, folder):
    dm.certificates.new_key("key.pem")
    for name in ("::error::a.json", "##[error]a.json", "a\n::error::b.json"):
        pathlib.Path(name).write_text(pathlib.Path(FILES[0]).read_text())
        result = done(call[0], name, *call[1:])
        for text in (result.stdout, result.stderr):
            assert COMMAND.search(text) is None, text


@pytest.mark.slow
def test_names_in_ledgers_and_claims_are_text(folder):
    hostile = "run\n::error::x\nother.json: VERIFIED: exact"
    for command in (
        ("ledger", "add", "l.json", FILES[0], "--name", hostile, "--new"),
        ("ledger", "add-counts", "l.json", "--name", f"{hostile} 2", "--sigma", "20"),
        ("ledger", "show", "l.json", "--claims"),
        ("ledger", "show", "l.json", "--claims", "--json"),
        ("show", "l.json"),
        ("verify", "l.json", "--details"),
        ("ledger", "add-mechanism", "l.json", "--name", f"{hostile} 3", "--kind", "zcdp", "--rho", "0.1"),
    ):
        result = done(*command)
        assert COMMAND.search(result.stdout + result.stderr) is None
        assert not any(line.startswith("other.json") for line in result.stdout.splitlines())
    refused = done("ledger", "add", "l.json", FILES[0], "--name", "run 4", "--batch", hostile, code=2)
    assert "--batch must be printable text" in refused.output
    assert COMMAND.search(refused.output) is None


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("a b/c.json", "a%20b/c.json"),
        ("https:evil.json", "https%3Aevil.json"),
        ("//host/share.json", None),
        ("100%.json", "100%25.json"),
        (os.fsdecode(b"\xff.json"), "%FF.json"),
    ],
)
def test_paths_become_uris(source, uri):
    text = sarif(Verdicts([], {source: "why"}))
    log = json.loads(text)
    sarif_schema().validate(log)
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == (uri or pathlib.Path(source).as_uri())
    text.encode("utf-8")


def test_a_file_with_a_hostile_name_goes_through_the_command(folder):
    name = "a,b:c%d <&>.json"
    pathlib.Path(FILES[0]).rename(name)
    pathlib.Path("policy.toml").write_text("max_eps = 1\n")
    call = ("verify", name, "--policy", "policy.toml", "--format")
    assert (name, "policy max_eps") in junit.read(done(*call, "junit", code=1).stdout)
    assert results(done(*call, "sarif", code=1).stdout)[0][0][0] == name
    line = done(*call, "github", code=1).stdout
    assert line.startswith("::error file=a%2Cb%3Ac%25d <&>.json,line=1,title=")
