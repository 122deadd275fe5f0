"""Records of the registry of deployments, against its schema (`tests/reference/registry_schema.json`)."""

import dataclasses
import json
import pathlib

import jsonschema
import pytest
import yaml

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.reports import as_registry_json, as_registry_yaml, missing, read_answers, registry_record
from tests.support.command_line import done, run
from tests.support.reviewed import HOSTILE, review_of, run_of, small

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[2] / "reference" / "registry_schema.json").read_text(encoding="utf-8")
)
FULL = """
said_by = "Ada"
[dpfy]
tuning = "On public data."
[registry]
curator = "Example Ltd"
product = "A next-word model."
use = "Keyboards."
date = 2026-11-29
domain = "Messages."
rationale = "As in earlier releases."
composition = "The only release."
[deployment]
name = "Keyboard model 3"
curator_type = "Industry"
region = "Europe"
sector = "Technology"
privacy_units = "41000"
release_type = "One release"
data_source_type = "Static"
record_authors = "Ada Example"
"""


def checked(record):
    checker = jsonschema.FormatChecker(formats=["date"])
    jsonschema.Draft202012Validator(SCHEMA, format_checker=checker).validate(record)


def with_answers(review, folder, text=FULL):
    (folder / "answers.toml").write_text(text, encoding="utf-8")
    return dataclasses.replace(review, said=read_answers(folder / "answers.toml"))


@pytest.fixture(scope="module")
def plain():
    return review_of(small().certificate(1.0, 10.0))


def test_a_filled_record_is_one_of_the_third_tier(plain, tmp_path):
    record = registry_record(with_answers(plain, tmp_path))
    checked(record)
    assert missing(record) == []
    assert record["deployment"]["administrative"]["tier"] == 3
    assert record["url_slug"] == "keyboard-model-3"
    basic = record["deployment"]["basic"]
    assert basic["publication_date"] == "2026-11-29"
    loss = record["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 2.0, "delta": 1e-5}
    assert loss["number_of_privacy_units"] == 41000
    assert plain.certificate.fingerprint() in loss["privacy_parameters_details"]


def test_without_answers_the_record_is_of_no_tier_and_says_what_it_lacks(plain):
    record = registry_record(plain)
    with pytest.raises(jsonschema.ValidationError):
        checked(record)
    lacks = missing(record)
    assert "basic.name" in lacks
    assert "basic.publication_date" in lacks
    assert record["deployment"]["administrative"]["tier"] == 1
    # What nobody said is stated nowhere.
    assert "release_type" not in record["deployment"]["deployment_model"]


def test_a_date_that_the_schema_refuses_is_named(plain, tmp_path):
    record = registry_record(with_answers(plain, tmp_path, FULL.replace("2026-11-29", '"last autumn"')))
    with pytest.raises(jsonschema.ValidationError):
        checked(record)
    assert missing(record) == ["basic.publication_date as YYYY-MM-DD, not last autumn"]


def test_yaml_and_json_read_back_as_the_same_record(plain, tmp_path):
    for text in (
        FULL,
        FULL.replace('"Messages."', json.dumps(HOSTILE + "\U0001f600 \x85\u2028: - #", ensure_ascii=False)),
    ):
        review = with_answers(plain, tmp_path, text)
        record = registry_record(review)
        written = as_registry_yaml(review)
        assert yaml.safe_load(written) == record
        assert json.loads(as_registry_json(review)) == record
        assert isinstance(
            yaml.safe_load(written)["deployment"]["privacy_loss"]["privacy_parameters"]["delta"], float
        )


def test_the_eps_of_a_run_is_rounded_up():
    own = small().certificate(1.0, 10.0)
    executed = dm.executed_epsilon(own, 6)
    full = run_of(own)
    part = dataclasses.replace(full, steps=6, executed=executed, stopped_by_plan=True, most_participations=2)
    review = review_of(part)
    eps = registry_record(review)["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"]
    assert executed.upper <= eps < own.budget.eps
    assert eps == pytest.approx(executed.upper, rel=1e-5)


def test_a_refused_claim_has_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = small().certificate(1.0, 10.0)
    own.save("good.json")
    weak = with_checksum(dataclasses.replace(own, sigma=0.9 * own.sigma))
    (tmp_path / "weak.json").write_text(weak.to_json())
    printed = done("report", "weak.json", "--format", "registry", code=1).stdout
    assert "no record for a registry" in printed
    assert "epsilon" not in printed.replace("eps", "")
    done("report", "weak.json", "--format", "registry", "--out", "weak.yaml", code=1)
    assert not (tmp_path / "weak.yaml").exists()
    result = run("report", "good.json", "--format", "registry")
    assert result.exit_code == 0
    assert "a record of the first tier needs basic.name" in result.stderr
    assert yaml.safe_load(result.stdout)["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 2.0
    done("report", "good.json", "--format", "registry", "--out", "good.json.json")
    assert json.loads((tmp_path / "good.json.json").read_text())["deployment"]


def test_answers_in_fields_of_several_carry_the_names_of_people(plain, tmp_path):
    text = (
        FULL
        + '[registry.security]\ntext = "Also proved."\nsaid_by = "Eve"\n'
        + '[nist]\nrandomness = "Noise of the system."\n'
    )
    record = registry_record(with_answers(plain, tmp_path, text))
    mechanisms = record["deployment"]["implementation"]["mechanisms"]
    assert mechanisms.endswith("Ada says: Noise of the system. Eve says: Also proved.")


def test_the_declared_size_of_the_data_is_not_replaced_by_an_answer(tmp_path):
    review = review_of(small().certificate(1.0, 10.0, dataset_size=160))
    record = registry_record(with_answers(review, tmp_path))
    assert record["deployment"]["privacy_loss"]["number_of_privacy_units"] == 160


@pytest.mark.parametrize("name", ["dpmech.checker", "the DPMECH checker"])
def test_answers_in_the_name_of_the_checker_are_refused(plain, tmp_path, name):
    with pytest.raises(dm.InvalidParameterError, match=r"said_by.*not a program's"):
        with_answers(plain, tmp_path, FULL.replace("Ada", name, 1))
