"""`dpmech report`: a certificate, its run and its ledger, verified and explained for reviewers."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from dpmech.certificates import Certificate, Document, PublicKey, read_text
from dpmech.cli.commands import Command, MissingOptionsError
from dpmech.cli.files import check_no_document, page_force_option, read_document, write_text
from dpmech.cli.formats import exit_code
from dpmech.cli.options import key_options, output_options, policy_option, seed_option, trusted_keys
from dpmech.cli.parameters import POSITIVE, OneOf, Target
from dpmech.cli.printing import in_a_log
from dpmech.cli.results import attempted
from dpmech.cli.risk import DRAWN
from dpmech.cli.running import Run, runs, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.files import on_one_line
from dpmech.numerics import Kind, metered
from dpmech.plans import read_policy
from dpmech.reports import (
    Answers,
    Review,
    Subject,
    answers_template,
    as_html,
    as_markdown,
    as_registry_json,
    as_registry_yaml,
    attacks_of,
    missing,
    read_answers,
    registry_record,
)
from dpmech.reports import as_json as as_data
from dpmech.verifying import MAX_MEMORY, MAX_SECONDS, Verification, signature_check
from dpmech.verifying import verify as verify_document

# Work limit for attack rates, as a multiple of the CPU seconds per direction of the claim.
_ATTACKS = 5.0
_ENDINGS = {
    "html": (".html", ".htm"),
    "markdown": (".md", ".markdown"),
    "json": (".json",),
    "registry": (".yaml", ".yml", ".json"),
    "answers": (".toml",),
}
# Formats that no rate of an attack stands in.
_WITHOUT_ATTACKS = ("registry", "answers")


@click.command(
    cls=Command,
    short_help="Write a page for reviewers of a claim.",
    examples=[
        "dpmech report certificate.json --out review.html",
        "dpmech report certificate.json run.json ledger.json --out review.html",
        "dpmech report certificate.json --format answers --out answers.toml",
        "dpmech report certificate.json --answers answers.toml --out review.html",
        "dpmech report certificate.json --format markdown",
        "dpmech report certificate.json --key reviewer.pem.pub --require-signature --out review.html",
    ],
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--out",
    type=Target(),
    help="Write the report to this file. Without --out, all formats except HTML are printed.",
)
@page_force_option
@click.option(
    "--format",
    "form",
    type=OneOf(_ENDINGS),
    default="html",
    show_default=True,
    help="A page, a section for a model card, the filled checklists as data, the record of a registry of "
    "deployments (YAML, or JSON), or a template for --answers.",
)
@click.option(
    "--answers",
    type=click.Path(),
    help="A TOML file with answers that the files do not contain; the report states who gave them.",
)
@click.option(
    "--claim-only",
    is_flag=True,
    help="Bound attack rates from (eps, delta) only: faster under Balls-in-Bins, but looser.",
)
@click.option("--rigorous", is_flag=True, help="Refuse what `dpmech verify --rigorous` refuses.")
@policy_option
@key_options
@seed_option
@click.option(
    "--max-seconds",
    type=POSITIVE,
    default=MAX_SECONDS,
    show_default=True,
    help="CPU seconds of the checker for each direction of a claim; five times as many for attack rates.",
)
@click.option(
    "--max-memory",
    type=POSITIVE,
    default=MAX_MEMORY / 1e9,
    show_default=True,
    help="Largest memory in GB for reading a file, and for a profile.",
)
@worker_options
@output_options
@click.pass_context
@runs("report")
def report(
    ctx: click.Context,
    *,
    run: Run,
    files: tuple[str, ...],
    out: Path | None,
    force: bool,
    form: str,
    answers: str | None,
    claim_only: bool,
    rigorous: bool,
    policy: str | None,
    keys: tuple[str, ...],
    require_signature: bool,
    seed: int | None,
    max_seconds: float,
    max_memory: float,
) -> None:
    """Verify a certificate, and write a report on its claim, its meaning, and what it does not cover.

    FILES are a certificate or a run record, and a ledger that contains it, in any order. The page needs no
    network access and no script. Under Balls-in-Bins, the attack rates take a minute or more; see
    --claim-only. Exit code 1 if a check fails, as stated on the page; 2 if a file cannot be read, or would
    exceed the work limit; 3 if nothing was found wrong, but the claim was NOT CHECKED.
    """
    _check_target(out, form)
    check_no_document(out, force=force)
    for number, file in enumerate(files):
        if file in files[:number]:
            raise InvalidParameterError("certificate", file, "named once")
    said = Answers() if answers is None else read_answers(answers)
    rules = None if policy is None else read_policy(policy)
    signers = trusted_keys(keys, needed=require_signature or (rules is not None and rules.needs_key))
    documents = {file: read_document(file) for file in files}
    subject = Subject.of(documents)
    with run.working("report", len(subject.to_verify) + 4) as (executor, progress):
        found = []
        for file in subject.to_verify:
            found.append(
                verify_document(
                    file,
                    rigorous=rigorous,
                    progress=progress,
                    max_seconds=max_seconds,
                    max_memory=1e9 * max_memory,
                    keys=signers,
                    require_signature=require_signature,
                    policy=rules,
                )
            )
            progress("")
        found[0] = _with_signatures(found[0], documents, signers, required=require_signature)
        attacks = None
        if all(found):
            # A separate work limit: if it does not suffice, the rates follow from the claim alone.
            with metered(_ATTACKS * max_seconds, 1e9 * max_memory):
                attacks = attacks_of(
                    subject.certificate,
                    claim_only=claim_only or form in _WITHOUT_ATTACKS,
                    stored=not found[0].profile_open,
                    rng=seed,
                    executor=executor,
                    progress=progress,
                )
        review = Review(subject, tuple(found), attacks, said)
    # A registry takes a record for a fact: there is none of a claim that was refused, or not checked.
    text = "" if form == "registry" and not review.ok else _text(review, form, out)
    written = None if not text else out
    failed = None if written is None else attempted(lambda: write_text(written, text))

    def printed() -> Iterator[str]:
        if out is None and text:
            yield (in_a_log(text) if form == "json" else text).rstrip("\n")
            return
        yield from map(str, review.verifications)
        if {"certificate", "run record"} <= subject.names.keys():
            own, recorded = subject.names["certificate"], subject.names["run record"]
            yield on_one_line(f"{own}: has the claim of {recorded}, whose verdict is above")
        if attacks is not None and attacks.basis == "claim" and form not in _WITHOUT_ATTACKS:
            yield on_one_line(f"attack rates from (eps, delta) only, no privacy profile: {attacks.reason}")
        if not text:
            yield "no record for a registry: the claim did not pass"
        elif failed is None:
            yield on_one_line(f"report: {out}")

    run.answer(lambda: _record(review, form, None if failed else written), printed, failed=failed)
    drawn = attacks is not None and attacks.basis == "profile" and attacks.guarantee.kind is Kind.PROBABLE
    if drawn and (subject.certificate.curve is None or found[0].profile_open):
        run.note(DRAWN)
    if subject.fixed:
        run.note(f"{'; '.join(subject.fixed)}: the run record alone states it, which anyone can edit")
    if form == "registry" and text and (open_fields := missing(registry_record(review))):
        run.note(f"a record of the first tier needs {', '.join(open_fields)}; --format answers asks for them")
    ctx.exit(exit_code(review.verifications))


def _with_signatures(
    first: Verification,
    documents: Mapping[str, Document],
    signers: tuple[PublicKey, ...],
    *,
    required: bool,
) -> Verification:
    """The verification of a run, with the signature of the certificate given with it.

    The run contains the same claim, so the certificate is not verified again.
    """
    certificates = {file: one for file, one in documents.items() if isinstance(one, Certificate)}
    for file, certificate in certificates.items():
        if file == first.source:
            continue
        text = read_text(file)
        if Certificate.from_json(text) != certificate:
            raise InvalidParameterError("files", file, "left as it is while it is read and verified")
        check, _ = signature_check(text, file, signers, required=required)
        if check is not None:
            check = dataclasses.replace(check, detail=f"{file}: {check.detail}")
            first = dataclasses.replace(first, checks=(*first.checks, check))
    return first


def _check_target(out: Path | None, form: str) -> None:
    """Refuse a format that does not match the file name, before anything is verified."""
    if out is None:
        if form == "html":
            raise MissingOptionsError(["out"])
    elif out.suffix.lower() not in _ENDINGS[form]:
        raise InvalidParameterError(
            "out", str(out), f"a file that ends in {' or '.join(_ENDINGS[form])} with --format {form}"
        )


def _text(review: Review, form: str, out: Path | None) -> str:
    if form == "html":
        return as_html(review, made=datetime.datetime.now(datetime.UTC).date())
    if form == "registry" and out is not None and out.suffix.lower() == ".json":
        return as_registry_json(review)
    writers = {
        "markdown": as_markdown,
        "json": as_data,
        "registry": as_registry_yaml,
        "answers": answers_template,
    }
    return writers[form](review)


def _record(review: Review, form: str, out: Path | None) -> dict[str, Any]:
    attacks = review.attacks
    return {
        "files": dict(review.subject.names),
        "out": None if out is None else str(out),
        "format": form,
        "ok": review.ok,
        "answers": dict(review.answers),
        "failures": [line for one in review.verifications for line in one.failures],
        "attack_rates": None if attacks is None else attacks.basis,
        "reason": None if attacks is None or attacks.basis == "profile" else attacks.reason,
    }
