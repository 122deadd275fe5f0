"""Claims and their evidence in files with a checksum; policies, keys and signatures."""

from dpmech.certificates.adaptive_clip import AdaptiveClip, clip_norm_stated
from dpmech.certificates.certificate import Certificate, ProfileNodes, training_requirements
from dpmech.certificates.claim import Claim, Evidence, check_unedited, with_checksum
from dpmech.certificates.document import (
    SCHEMA_VERSION,
    Document,
    checksum_of_document,
    differences,
    from_plain,
    parse,
    read_text,
    to_plain,
)
from dpmech.certificates.keys import PrivateKey, PublicKey, new_key
from dpmech.certificates.policy import Policy
from dpmech.certificates.run_record import (
    NO_GENERATOR,
    CheckpointHistory,
    CheckpointMatch,
    NoiseCheck,
    Randomness,
    RunRecord,
    Uniqueness,
    is_run_record,
)
from dpmech.certificates.signatures import (
    DECISIONS,
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    Statement,
    check_signatures,
    digest_of,
    envelope_path,
    envelopes_of,
)
from dpmech.files import LARGEST_FILE

__all__ = [
    "DECISIONS",
    "LARGEST_FILE",
    "NO_GENERATOR",
    "PAYLOAD_TYPE",
    "SCHEMA_VERSION",
    "AdaptiveClip",
    "Certificate",
    "CheckpointHistory",
    "CheckpointMatch",
    "Claim",
    "Document",
    "Envelope",
    "Evidence",
    "NoiseCheck",
    "Policy",
    "PrivateKey",
    "ProfileNodes",
    "PublicKey",
    "Randomness",
    "RunRecord",
    "Signature",
    "Statement",
    "Uniqueness",
    "check_signatures",
    "check_unedited",
    "checksum_of_document",
    "clip_norm_stated",
    "differences",
    "digest_of",
    "envelope_path",
    "envelopes_of",
    "from_plain",
    "is_run_record",
    "new_key",
    "parse",
    "read_text",
    "to_plain",
    "training_requirements",
    "with_checksum",
]
