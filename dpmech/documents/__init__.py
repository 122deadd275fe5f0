"""Documents: what is claimed and its basis, in files with a checksum; policies, keys and signatures."""

from dpmech.documents.adaptive_clip import AdaptiveClip, clip_norm_stated
from dpmech.documents.certificate import Certificate, ProfileNodes, trainer_duties
from dpmech.documents.claim import Claim, Evidence, check_unedited, with_checksum
from dpmech.documents.document import (
    SCHEMA_VERSION,
    Document,
    differences,
    from_plain,
    parse,
    read_text,
    seal_of,
    to_plain,
)
from dpmech.documents.keys import PrivateKey, PublicKey, new_key
from dpmech.documents.policy import Policy
from dpmech.documents.run_record import (
    NO_GENERATOR,
    Continuity,
    Kept,
    Randomness,
    RunRecord,
    Uniqueness,
    is_run_record,
)
from dpmech.documents.signatures import (
    ENDING,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Envelope,
    Signature,
    Statement,
    check_signature,
    digest_of,
    envelope_of,
    envelope_path,
    pre_authentication_encoding,
)
from dpmech.files import LARGEST_FILE

__all__ = [
    "ENDING",
    "LARGEST_FILE",
    "NO_GENERATOR",
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "SCHEMA_VERSION",
    "STATEMENT_TYPE",
    "AdaptiveClip",
    "Certificate",
    "Claim",
    "Continuity",
    "Document",
    "Envelope",
    "Evidence",
    "Kept",
    "Policy",
    "PrivateKey",
    "ProfileNodes",
    "PublicKey",
    "Randomness",
    "RunRecord",
    "Signature",
    "Statement",
    "Uniqueness",
    "check_signature",
    "check_unedited",
    "clip_norm_stated",
    "differences",
    "digest_of",
    "envelope_of",
    "envelope_path",
    "from_plain",
    "is_run_record",
    "new_key",
    "parse",
    "pre_authentication_encoding",
    "read_text",
    "seal_of",
    "to_plain",
    "trainer_duties",
    "with_checksum",
]
