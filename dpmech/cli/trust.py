"""Options that name the public keys a reader trusts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from dpmech.cli.words import MissingOptionsError
from dpmech.signing import PublicKey

__all__ = ["key_options", "trusted_keys"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def key_options(command: _Command) -> _Command:
    """`--key` and `--require-signature`."""
    key = click.option(
        "--key",
        "keys",
        multiple=True,
        type=click.Path(),
        metavar="FILE",
        help="Public key that is trusted; FILE.dsse beside a file has to be signed by one. Repeatable.",
    )
    required = click.option(
        "--require-signature", is_flag=True, help="Refuse files that no trusted key signed."
    )
    return key(required(command))


def trusted_keys(files: Sequence[str], *, needed: bool) -> tuple[PublicKey, ...]:
    """The keys of these files.

    Raises:
        MissingOptionsError: where one is needed and none is named.
        InvalidParameterError: if one cannot be read.
    """
    keys = tuple(PublicKey.load(file) for file in files)
    if needed and not keys:
        raise MissingOptionsError(["--key (a public key that is trusted)"])
    return keys
