"""Commands as a test runs them, and the schema of what they print."""

import functools
import importlib.resources
import json

import jsonschema
from click.testing import CliRunner

from dpmech import cli

SIZES = ("--dataset-size", "120", "--batch-size", "10", "--epochs", "3")
BUDGET = ("--eps", "2", "--delta", "1e-5")


def run(*arguments):
    """The result of a command."""
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def done(*arguments, code=0):
    """The same, of one that ends with this exit code."""
    result = run(*arguments)
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result


def told(*arguments, code=0):
    """What a command prints with --json, held against the schema."""
    document = json.loads(done(*arguments, "--json", code=code).stdout)
    validator(document["schema"]["name"]).validate(document)
    return document


@functools.cache
def schema():
    text = importlib.resources.files("dpmech").joinpath("schemas/command-line-1.json").read_text("utf-8")
    return json.loads(text)


@functools.cache
def validator(name):
    """Of the documents of one command."""
    own = {"$ref": f"#/$defs/{name.removeprefix('dpmech ').replace(' ', '-')}", "$defs": schema()["$defs"]}
    return jsonschema.Draft202012Validator(own)
