"""`dpmech verify`: the independent checker decides whether certificates, run records and ledgers are true."""

import click

from dpmech.certificates import LARGEST_FILE
from dpmech.cli.commands import Command, Refusal, told
from dpmech.cli.formats import Verdicts, exit_code, github, junit, sarif
from dpmech.cli.options import key_options, output_options, policy_option, trusted_keys
from dpmech.cli.parameters import POSITIVE, OneOf
from dpmech.cli.printing import document, emit
from dpmech.cli.running import Run, runs
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.files import on_one_line
from dpmech.plans import read_policy
from dpmech.verifying import MAX_MEMORY, MAX_SECONDS, Verification, check_noise_of_each
from dpmech.verifying import verify as verify_certificate

_FORMATS = {"junit": junit, "sarif": sarif, "github": github}


@click.command(
    cls=Command,
    short_help="Decide whether certificates, runs and ledgers are true.",
    examples=[
        "dpmech verify certificate.json",
        "dpmech verify --rigorous run.json ledger.json --details",
        "dpmech verify certificate.json --policy policy.toml --format sarif",
        "dpmech verify certificate.json --key reviewer.pem.pub --require-signature",
    ],
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--rigorous",
    is_flag=True,
    help="Refuse estimates, sampling errors outside delta, and runs that the caller seeded.",
)
@policy_option
@key_options
@click.option(
    "--max-seconds",
    type=POSITIVE,
    default=MAX_SECONDS,
    show_default=True,
    help="CPU seconds that the checker may take for each direction of a claim.",
)
@click.option(
    "--max-memory",
    type=POSITIVE,
    default=MAX_MEMORY / 1e9,
    show_default=True,
    help="Largest memory in GB for reading a file, by a conservative estimate.",
)
@click.option(
    "--max-file-size",
    type=POSITIVE,
    default=LARGEST_FILE / 1e6,
    show_default=True,
    help="Larger files, in MB, are not read.",
)
@click.option("--details", is_flag=True, help="Print every check, not only the verdict.")
@click.option(
    "--format",
    "form",
    type=OneOf(("text", "json", *_FORMATS)),
    help="What to print [text]; --json is --format json.",
)
@output_options
@click.pass_context
@runs("verify")
def verify(
    ctx: click.Context,
    *,
    run: Run,
    files: tuple[str, ...],
    rigorous: bool,
    policy: str | None,
    keys: tuple[str, ...],
    require_signature: bool,
    max_seconds: float,
    max_memory: float,
    max_file_size: float,
    details: bool,
    form: str | None,
) -> None:
    """Decide with the independent checker whether claims are true; then run the other checks of each file.

    A run record states that the run followed its claim. This is printed as a statement: no file can prove it.
    Exit code 0 if every file passes; 1 if one is refused (one line for every failure); 2 if a file is
    missing, cannot be read, is too large, or would exceed the work limit; 3 if nothing was found wrong, but a
    claim was NOT CHECKED. The verdicts on the other files are printed in any case. Every violated rule of a
    policy is a separate failure. Two run records with the same noise are refused.
    """
    if run.as_json and form not in (None, "json"):
        raise InvalidParameterError("format", form, "left out, or json, with --json")
    form = "json" if run.as_json else form or "text"
    if details and form != "text":
        raise InvalidParameterError("details", None, "left out: formats other than text contain every check")
    rules = None if policy is None else read_policy(policy)
    signers = trusted_keys(keys, needed=require_signature or (rules is not None and rules.needs_key))
    found: list[Verification] = []
    unread: dict[str, DpmechError] = {}
    with run.progress("verifying", len(files)) as report:
        for file in files:
            try:
                verification = verify_certificate(
                    file,
                    rigorous=rigorous,
                    progress=report,
                    max_seconds=max_seconds,
                    max_memory=1e9 * max_memory,
                    max_file_size=round(1e6 * max_file_size),
                    keys=signers,
                    require_signature=require_signature,
                    policy=rules,
                )
            except DpmechError as error:
                unread[file] = error
            else:
                found.append(verification)
            report("")
    found = check_noise_of_each(found)
    messages = {file: told(error, ctx) for file, error in unread.items()}
    if form in _FORMATS:
        emit(_FORMATS[form](Verdicts(found, messages)), commands=form == "github")
    elif form == "json":
        records = [verification.to_dict() for verification in found]
        failures = [{"source": file, "reason": message} for file, message in messages.items()]
        if found:
            emit(document("verify", {"files": records, "unread": failures}))
    else:
        for verification in found:
            emit(str(verification))
            if details:
                for check in verification.checks:
                    mark = "ok  " if check.ok else "open" if check.undecided else "FAIL"
                    emit(f"  {mark} {on_one_line(str(check))}")
                for part in verification.left_out:
                    emit(f"  not checked: {on_one_line(part)}")
    for message in messages.values():
        Refusal(message, ctx).show()
    ctx.exit(2 if unread else exit_code(found))
