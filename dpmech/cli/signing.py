"""`dpmech sign`: sign a certificate, a run record or a ledger as its issuer or reviewer."""

import shlex

import click

from dpmech.certificates import DECISIONS, PrivateKey, PublicKey, new_key
from dpmech.cli.commands import Command, Refusal, exit_after
from dpmech.cli.files import named
from dpmech.cli.options import output_options
from dpmech.cli.running import Run, runs
from dpmech.exceptions import CertificateError, DpmechError
from dpmech.files import on_one_line
from dpmech.verifying import sign as sign_file


@click.command(
    cls=Command,
    short_help="State who issued or approved certificates, runs and ledgers.",
    examples=[
        "dpmech sign --new-key team.pem",
        "dpmech sign run.json --add --key reviewer.pem --issuer 'privacy review' --decision approved",
        "dpmech verify certificate.json --key reviewer.pem.pub --require-signature",
    ],
)
@click.argument("files", nargs=-1, type=click.Path(), metavar="FILE...")
@click.option("--key", type=click.Path(), metavar="FILE", help="Private key, Ed25519 in PEM. [required]")
@click.option("--issuer", help="Name of the issuer, in one line. [required]")
@click.option(
    "--decision",
    type=click.Choice(DECISIONS),
    help="Your decision as a reviewer. `dpmech verify` refuses a file that a trusted key rejected.",
)
@click.option("--add", is_flag=True, help="Keep existing signatures, which must be by other keys.")
@click.option("--replace", is_flag=True, help="Replace existing signatures.")
@click.option(
    "--new-key",
    "new_key_path",
    type=click.Path(),
    metavar="FILE",
    help="Write a new private key, readable by its owner only, and the public key FILE.pub.",
)
@output_options
@click.pass_context
@runs("sign")
def sign(
    ctx: click.Context,
    *,
    run: Run,
    files: tuple[str, ...],
    key: str | None,
    issuer: str | None,
    decision: str | None,
    add: bool,
    replace: bool,
    new_key_path: str | None,
) -> None:
    """Sign files with an Ed25519 key: FILE.dsse next to each states issuer, time and decision.

    Files are checked for consistency; `dpmech verify` decides whether a claim is true. Exit code 1 if a file
    is inconsistent or none of these documents, 2 on bad input; the others are signed in any case.
    """
    if new_key_path is not None:
        _make_key(ctx, new_key_path, files, {"key": key, "issuer": issuer, "decision": decision}, run)
        return
    absent = [name for name, value in (("key", key), ("issuer", issuer)) if value is None]
    if key is None or issuer is None or not files:
        missing = [*([] if files else ["FILE..."]), *(f"--{name}" for name in absent)]
        raise Refusal(
            f"missing: {', '.join(missing)}; to create a key: dpmech sign --new-key reviewer.pem", ctx
        )
    if add and replace:
        raise Refusal("--add and --replace exclude each other", ctx)
    private = PrivateKey.load(key)
    signed: list[dict[str, str]] = []
    refused: list[DpmechError] = []
    for file in files:
        try:
            target = sign_file(file, private, issuer, decision=decision, replace=replace, add=add)
        except CertificateError as error:
            refused.append(named(file, error))
        except DpmechError as error:
            refused.append(error)
        else:
            signed.append({"source": file, "envelope": str(target)})
    key_id = private.public.key_id
    if signed:
        run.answer(
            lambda: {"key": key_id, "issuer": issuer, "files": signed, "new": None},
            lambda: [
                on_one_line(
                    f"{one['source']}: {decision or 'signed'} by key {key_id[:16]}: {one['envelope']}"
                )
                for one in signed
            ],
        )
        run.note(f"signed, not verified: dpmech verify {shlex.join(one['source'] for one in signed)}")
    exit_after(ctx, refused)


def _make_key(
    ctx: click.Context,
    path: str,
    files: tuple[str, ...],
    settings: dict[str, str | None],
    run: Run,
) -> None:
    superfluous = [*files, *(f"--{name}" for name, value in settings.items() if value)]
    if superfluous:
        raise Refusal(f"--new-key writes a key and signs nothing: leave out {', '.join(superfluous)}", ctx)
    public = new_key(path)
    key_id = PublicKey.load(public).key_id
    made = {"private": path, "public": str(public)}
    run.answer(
        lambda: {"key": key_id, "issuer": None, "files": [], "new": made},
        lambda: [
            on_one_line(f"{path}: private key {key_id[:16]}, readable by its owner only"),
            on_one_line(f"{public}: public key, to give away"),
        ],
    )
