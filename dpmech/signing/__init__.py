"""Signatures that say who issued a document: Ed25519 over an in-toto statement in a DSSE envelope."""

from dpmech.signing.envelope import Envelope, Signature, pre_authentication_encoding
from dpmech.signing.keys import PrivateKey, PublicKey, new_key
from dpmech.signing.signatures import ENDING, check_signature, envelope_of, envelope_path, sign
from dpmech.signing.statement import PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE, Statement

__all__ = [
    "ENDING",
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "Envelope",
    "PrivateKey",
    "PublicKey",
    "Signature",
    "Statement",
    "check_signature",
    "envelope_of",
    "envelope_path",
    "new_key",
    "pre_authentication_encoding",
    "sign",
]
