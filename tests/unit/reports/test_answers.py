import dataclasses
import json
import re
import tomllib

import pytest

from dpmech.exceptions import InvalidParameterError
from dpmech.reports import (
    Answers,
    answers_template,
    as_html,
    as_json,
    as_markdown,
    checklists,
    read_answers,
)
from dpmech.reports.answers import Said
from dpmech.reports.checklists import questions
from tests.support.command_line import done, run
from tests.support.reviewed import HOSTILE, Page, review_of, run_of, save_all, small
from tests.unit.reports.test_rendering import MADE


def filled(review, text):
    """The template with this text at every question that is a text of its own."""
    lines = answers_template(review).split("\n")
    kept = lines[
        : lines.index("[deployment]  # other fields of a registry of deployments: --format registry")
    ]
    by = [re.sub(r'^(said_by = )""', r'\1"Ada"', line) for line in kept]
    by = [re.sub(r'^(said_on = )"".*', r"\g<1>2026-01-31", line) for line in by]
    return "\n".join(re.sub(r'= ""(  #.*)?$', f"= {json.dumps(text)}", line) for line in by)


def read(tmp_path, text):
    path = tmp_path / "answers.toml"
    path.write_text(text, encoding="utf-8")
    return read_answers(path)


def items(review):
    return {answer.key: answer for one in checklists(review) for answer in one.answers}


def with_answers(review, said):
    return dataclasses.replace(review, said=said)


@pytest.fixture(scope="module")
def plain():
    return review_of(small().certificate(1.0, 10.0))


def test_the_template_asks_what_is_open_and_filled_in_it_leaves_nothing_open(plain, tmp_path):
    text = answers_template(plain)
    asked = tomllib.loads(text)
    for key, answer in items(plain).items():
        section, name = key.split(".")
        assert (name in asked.get(section, {})) == (not answer.stated), key
    assert read(tmp_path, text) == Answers()
    said = read(tmp_path, filled(plain, "7"))
    found = items(with_answers(plain, said))
    assert all(answer.stated for answer in found.values())
    assert {a.said_by for a in found.values() if a.basis == "answers"} == {"Ada, 2026-01-31"}
    # What the files say is as it was.
    for key, answer in items(plain).items():
        if answer.stated:
            assert (found[key].text, found[key].basis) == (answer.text, answer.basis)


def test_an_answer_says_who_gave_it_in_every_format(plain, tmp_path):
    said = read(
        tmp_path,
        """
        said_by = "Ada Example"
        said_on = 2026-11-29
        [dpfy]
        tuning = "On public data."
        [nist]
        security = { text = "Encrypted disks.", said_by = "Bo, security" }
        """,
    )
    review = with_answers(plain, said)
    page = " ".join("".join(Page(as_html(review, made=MADE)).text).split())
    for text in (page, as_markdown(review).replace("\\", "")):
        assert "On public data. [said by Ada Example, 2026-11-29]" in text
        assert "Encrypted disks. [said by Bo, security]" in text
    data = {one["key"]: one for group in json.loads(as_json(review))["checklists"] for one in group["items"]}
    assert data["dpfy.tuning"]["basis"] == "answers"
    assert data["dpfy.tuning"]["said_by"] == "Ada Example, 2026-11-29"


def test_no_answer_replaces_what_the_files_state(plain, tmp_path):
    said = read(tmp_path, 'said_by = "Mallory"\n[nist]\nepsilon = "eps 0.1"\n')
    review = with_answers(plain, said)
    answer = items(review)["nist.epsilon"]
    assert answer.text.startswith("eps 2 at delta 1e-05")
    assert (answer.basis, answer.remark, answer.said_by) == ("certificate", "eps 0.1", "Mallory")
    text = " ".join("".join(Page(as_html(review, made=MADE)).text).split())
    assert re.search(r"eps 2 at delta 1e-05: exact. \[certificate\] ?eps 0.1 \[added by Mallory\]", text)


def test_a_file_written_before_the_run_is_taken_with_the_run_too(tmp_path):
    own = small().certificate(1.0, 10.0)
    said = read(tmp_path, 'said_by = "Ada"\n[nist]\nrandomness = "From the kernel."\n')
    before = items(with_answers(review_of(own), said))["nist.randomness"]
    after = items(with_answers(review_of(run_of(own)), said))["nist.randomness"]
    assert (before.text, before.basis) == ("From the kernel.", "answers")
    assert after.basis == "run record"
    assert after.remark == "From the kernel."


def test_base_model_and_measurements_answer_their_questions(plain, tmp_path):
    said = read(
        tmp_path,
        """
        said_by = "Ada"
        [base_model]
        name = "small-lm, revision 3"
        trained_on = "public text"
        trained_part = "LoRA of rank 8"
        [[measurements]]
        kind = "utility"
        name = "accuracy"
        value = 0.87
        data = "public test set"
        cost = "public"
        [[measurements]]
        kind = "fairness"
        name = "accuracy"
        value = 0.81
        data = "public test set"
        cost = "public"
        group = "people above 60"
        """,
    )
    found = items(with_answers(plain, said))
    assert "small-lm, revision 3; trained on: public text" in found["nist.pretraining"].text
    assert found["nist.utility"].text == ("accuracy: 0.87, on public test set; privacy of these data: public")
    assert found["nist.bias"].text.startswith("accuracy of people above 60: 0.81, on public test set")
    text = " ".join("".join(Page(as_html(with_answers(plain, said), made=MADE)).text).split())
    assert "measured fairness" in text
    assert "LoRA of rank 8 (said by Ada)" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('said_by = "A"\n[dpfy]\ntunning = "x"\n', "tuning"),
        ('said_by = "A"\n[dfpy]\ntuning = "x"\n', "did you mean dpfy?"),
        ('[dpfy]\ntuning = "x"\n', "said_by must be the name of the person who answers dpfy.tuning"),
        ('said_by = "A"\n[dpfy]\ntuning = ["x"]\n', "dpfy.tuning must be text"),
        ('said_by = "A"\n[dpfy]\ntuning = true\n', "dpfy.tuning must be text"),
        ('said_by = "A"\n[dpfy]\ntuning = "not stated"\n', "left out where there is none"),
        ("said_by = 3\n", "said_by must be text"),
        ('said_on = "yesterday"\n', "said_on must be a date, such as 2026-11-29, got 'yesterday'"),
        ("said_on = 7\n", "said_on must be a date"),
        (
            'said_by = "A"\n[deployment]\nprivacy_units = "many"\n',
            "deployment.privacy_units must be an integer",
        ),
        ('said_by = "A"\n[[measurements]]\nkind = "utility"\nname = "x"\n', "measurement 1: value must be"),
        ('said_by = "A"\n[[measurements]]\nkind = "speed"\nname = "x"\n', "one of utility, fairness"),
        ('said_by = "A"\n[measurements]\nkind = "utility"\n', "tables: each below [[measurements]]"),
        ("[dpfy\n", "a readable TOML file"),
    ],
)
def test_what_is_wrong_is_named(text, words, tmp_path):
    with pytest.raises(InvalidParameterError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert "answers.toml" in str(refused.value)


def test_hostile_answers_are_shown_and_make_no_element(plain, tmp_path):
    def page(text):
        keys = questions()
        lines = [f"said_by = {json.dumps(text)}"]
        for section in dict.fromkeys(key.split(".")[0] for key in keys):
            lines.append(f"[{section}]")
            names = (key.split(".")[1] for key in keys if key.startswith(f"{section}."))
            lines += [f"{name} = {json.dumps(text)}" for name in names]
        said = read(tmp_path, "\n".join(lines))
        return with_answers(plain, said)

    good, bad = page("plain"), page(HOSTILE)
    one, other = (Page(as_html(review, made=MADE)) for review in (good, bad))
    assert one.elements == other.elements
    assert "\x1b" not in "".join(other.text)
    assert len(as_markdown(good).splitlines()) == len(as_markdown(bad).splitlines())


def test_the_command_writes_the_template_and_takes_it_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = small().certificate(1.0, 10.0)
    save_all(own)
    done("report", "certificate.json", "--format", "answers", "--out", "answers.toml")
    text = (tmp_path / "answers.toml").read_text()
    (tmp_path / "answers.toml").write_text(
        text.replace('said_by = ""', 'said_by = "Ada"').replace('tuning = ""', 'tuning = "None."')
    )
    card = done(
        "report", "certificate.json", "--format", "markdown", "--claim-only", "--answers", "answers.toml"
    ).stdout
    assert "None. [said by Ada]" in card.replace("\\", "")
    (tmp_path / "answers.toml").write_text("[dpfy]\ntunning = 1\n")
    refused = run("report", "certificate.json", "--format", "markdown", "--answers", "answers.toml")
    assert refused.exit_code == 2
    assert "answers.toml" in refused.stderr


def test_one_answer_of_a_person_is_one_line():
    assert Answers({"dpfy.tuning": Said("x", "A")}).about("dpfy.tuning") == Said("x", "A")
    assert Answers().about("nist.bias") is None
