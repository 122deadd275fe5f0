"""Certificates: what is claimed, on what it rests, and sealed files that say so.

A Calibration and a Certificate are Claims; a RunRecord says what was executed under one.
"""

from dpmech.certificates.adaptive_clip import AdaptiveClip, clip_norm_stated
from dpmech.certificates.certificate import Certificate
from dpmech.certificates.claim import Claim, Evidence, check_unedited, with_checksum
from dpmech.certificates.continuity import Continuity, Kept, Uniqueness
from dpmech.certificates.document import (
    LARGEST_FILE,
    SCHEMA_VERSION,
    Document,
    differences,
    from_plain,
    parse,
    read_text,
    seal_of,
    to_plain,
)
from dpmech.certificates.duties import trainer_duties
from dpmech.certificates.profile_nodes import ProfileNodes
from dpmech.certificates.run_record import NO_GENERATOR, Randomness, RunRecord, is_run_record

__all__ = [
    "LARGEST_FILE",
    "NO_GENERATOR",
    "SCHEMA_VERSION",
    "AdaptiveClip",
    "Certificate",
    "Claim",
    "Continuity",
    "Document",
    "Evidence",
    "Kept",
    "ProfileNodes",
    "Randomness",
    "RunRecord",
    "Uniqueness",
    "check_unedited",
    "clip_norm_stated",
    "differences",
    "from_plain",
    "is_run_record",
    "parse",
    "read_text",
    "seal_of",
    "to_plain",
    "trainer_duties",
    "with_checksum",
]
