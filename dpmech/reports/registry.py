"""The record of a registry of deployments: its fields, filled from a review.

Names, nesting and accepted values follow the data of the registry of differential privacy deployments
(registry.opendp.org; github.com/opendp/deployments-registry-data, `schemas/deployments-schema.yaml`, in the
version of 2026 that has `administrative`). What neither the files nor the answers state is left empty.

References:
    Nanayakkara, Ghazi and Vadhan 2025 (arXiv:2509.13509), for the three tiers.
"""

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

from dpmech.mechanism import Unit
from dpmech.reports.checklists import PERSON, Answer, checklists
from dpmech.reports.review import Review

# Fields that no item of a checklist is about: words for those who fill them in, and the values that the
# registry's schema lists.
DEPLOYMENT: dict[str, tuple[str, tuple[str, ...]]] = {
    "url_slug": ("Name of the record in addresses", ()),
    "name": ("Name of the data product", ()),
    "curator_type": ("Kind of curator", ("Government", "Industry", "Nonprofit")),
    "product_type": (
        "Kind of data product",
        (
            "Summary statistics",
            "Machine learning model",
            "Dataset",
            "Synthetic data",
            "Interactive API",
            "SQL queries",
        ),
    ),
    "region": ("Which region do the data describe, or whose law applies?", ()),
    "sector": (
        "Sector that the data are about",
        ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
    ),
    "privacy_units": ("Number of units, such as users; an approximate number if it is not public", ()),
    "release_type": ("One release, or many over time?", ("One release", "Many releases")),
    "data_source_type": ("Do new data come in?", ("Static", "Dynamic")),
    "record_authors": ("Who writes this record", ()),
    "additional_information": ("Links to papers and to the product", ()),
}
# What has to be there for a record of the first tier, and of the others.
_TIERS = (
    (
        "basic.name", "basic.data_curators", "basic.description", "basic.intended_use",
        "basic.data_product_type", "basic.data_product_region", "basic.publication_date",
        "administrative.registry_authors",
    ),
    (
        "dp_variant.variant_name", "privacy_loss.privacy_unit", "privacy_loss.privacy_parameters",
        "deployment_model.model_name", "deployment_model.release_type", "deployment_model.data_source_type",
        "deployment_model.access_type",
    ),
    (
        "dp_variant.data_domain", "dp_variant.unprotected_quantities", "privacy_loss.privacy_unit_details",
        "privacy_loss.number_of_privacy_units", "deployment_model.trust_assumptions",
        "implementation.preprocessing_and_hyperparameter_tuning", "implementation.mechanisms",
        "implementation.composition", "implementation.post_processing", "implementation.justification",
    ),
)  # fmt: skip


def registry_record(review: Review) -> dict[str, Any]:
    """The record as plain data, with empty text where nothing is stated."""
    found = {answer.key: answer for one in checklists(review) for answer in one.answers}
    given = {name: said.text for name, said in review.said.deployment.items()}
    own = review.certificate
    items = {key: _text(answer) for key, answer in found.items()}
    # Fields of several answers: those of people with their names.
    several = {key: _with_name(answer) for key, answer in found.items()}
    mechanisms = [
        several[key]
        for key in ("registry.mechanism", "registry.implementation", "nist.randomness", "registry.security")
    ]
    basic: dict[str, Any] = {
        "name": given.get("name", ""),
        "data_curators": [
            {
                "data_curator_name": items["registry.curator"],
                "data_curator_type": given.get("curator_type", ""),
            }
        ],
        "description": items["registry.product"],
        "intended_use": items["registry.use"],
        "data_product_type": given.get("product_type", "Machine learning model"),
        "data_product_region": given.get("region", ""),
        "data_product_sector": given.get("sector", ""),
        "publication_date": items["registry.date"],
    }
    declared = own.dataset_size if own.unit is Unit.EXAMPLE else None
    units = given.get("privacy_units", "") if declared is None else str(declared)
    deployment: dict[str, Any] = {
        "basic": basic,
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": items["registry.domain"],
            "unprotected_quantities": items["registry.unprotected"],
        },
        "privacy_loss": {
            "privacy_unit": f"One {own.unit.value}",
            "privacy_unit_details": f"{several['nist.neighbours']} {several['registry.unit']}",
            "number_of_privacy_units": int(units) if units else "",
            # Rounded up, as everywhere in a report.
            "privacy_parameters": {"epsilon": float(review.cost), "delta": own.budget.delta},
            "privacy_parameters_details": (
                f"{review.headline}. {review.answers[0][1]}. Fingerprint of the claim: {own.fingerprint()}."
            ),
        },
        "deployment_model": {
            "model_name": "Central",
            "trust_assumptions": items["nist.trust"],
            "release_type": given.get("release_type", ""),
            "data_source_type": given.get("data_source_type", ""),
            "access_type": "Non-interactive",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": items["dpfy.tuning"],
            "mechanisms": " ".join(filter(None, mechanisms)),
            "composition": items["registry.composition"],
            "post_processing": items["registry.postprocessing"],
            "justification": items["registry.rationale"],
            "utility": items["nist.utility"],
            "additional_information": given.get("additional_information", ""),
        },
        "administrative": {
            "status": "Draft",
            "registry_authors": [given.get("record_authors", "")],
        },
    }
    deployment["administrative"]["tier"] = _tier(deployment)
    slug = given.get("url_slug") or re.sub(r"[^a-z0-9]+", "-", basic["name"].lower()).strip("-")
    return {"url_slug": slug, "deployment": _without_empty_options(deployment)}


def missing(record: dict[str, Any]) -> list[str]:
    """What a record of the first tier needs and this one lacks; and a date that the schema refuses."""
    deployment = record["deployment"]
    found = [name for name in _TIERS[0] if not _stated(deployment, name)]
    date = deployment["basic"]["publication_date"]
    if date and not _is_date(date):
        found.append(f"basic.publication_date as YYYY-MM-DD, not {date}")
    if not deployment["basic"]["data_curators"][0]["data_curator_type"]:
        found.append("basic.data_curators: data_curator_type")
    return found


def as_registry_json(review: Review) -> str:
    """The record as JSON, which is YAML as well."""
    return json.dumps(registry_record(review), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def as_registry_yaml(review: Review) -> str:
    """The record as YAML, one field a line, all texts quoted."""
    return "\n".join(_yaml(registry_record(review), "")) + "\n"


def _text(answer: Answer) -> str:
    """An answer, with what a person adds to it; empty if nothing is stated."""
    if not answer.stated:
        return ""
    return f"{answer.text} {answer.said_by} adds: {answer.remark}" if answer.remark else answer.text


def _with_name(answer: Answer) -> str:
    """As `_text`, with the name of the person whose answer it is."""
    return f"{answer.said_by} says: {answer.text}" if answer.basis == PERSON else _text(answer)


def _tier(deployment: dict[str, Any]) -> int:
    """The highest tier whose fields, and those of all before, are stated; 1 at least, as the schema asks."""
    tier = 1
    for number, names in enumerate(_TIERS, start=1):
        if not all(_stated(deployment, name) for name in names):
            break
        tier = number
    return tier


def _stated(deployment: dict[str, Any], name: str) -> bool:
    section, field = name.split(".")
    value = deployment.get(section, {}).get(field, "")
    if isinstance(value, list):
        first = value[0]
        value = first["data_curator_name"] if isinstance(first, dict) else first
    return bool(value != "")


# Where the schema accepts a number or one of several values only, and does not ask for the field.
_OPTIONS = (
    ("basic", "data_product_sector"),
    ("privacy_loss", "number_of_privacy_units"),
    ("deployment_model", "release_type"),
    ("deployment_model", "data_source_type"),
)


def _without_empty_options(deployment: dict[str, Any]) -> dict[str, Any]:
    for section, field in _OPTIONS:
        if deployment[section][field] == "":
            del deployment[section][field]
    return deployment


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _yaml(value: dict[str, Any], indent: str) -> Iterator[str]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield f"{indent}{name}:"
            yield from _yaml(one, f"{indent}  ")
        elif isinstance(one, list):
            yield f"{indent}{name}:"
            for entry in one:
                if isinstance(entry, dict):
                    first, *others = _yaml(entry, "")
                    yield f"{indent}  - {first}"
                    yield from (f"{indent}    {line}" for line in others)
                else:
                    yield f"{indent}  - {_scalar(entry)}"
        else:
            yield f"{indent}{name}: {_scalar(one)}"


def _scalar(value: str | float) -> str:
    """A scalar of YAML: texts as in JSON, which YAML reads too; numbers with a point, as YAML 1.1 asks."""
    if isinstance(value, str):
        # Of the characters that YAML does not take as they are, JSON leaves these.
        return re.sub(
            "[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]",
            lambda one: f"\\u{ord(one[0]):04x}",
            json.dumps(value, ensure_ascii=False),
        )
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text
