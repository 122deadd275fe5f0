"""`python -m verification.tables`: every cell of a table is there, and ours is computed."""

import functools
import importlib.util
import json
import math
import pathlib
import re

import pytest

from dpmech.numerics import up
from verification import tables, text_numbers
from verification.harness.headlines import headlines
from verification.harness.registry import PAPERS, registry
from verification.lambda_cgd.printed_table import TABLE
from verification.spectral.tables import LONE, QQP, TABLE_1


def test_every_cell_of_table_4_is_there_with_its_printed_value():
    cells = list(tables.cells_of("lambda_cgd_4"))
    assert len(cells) == 7 * len(TABLE) == 175
    printed = [one.args[3] for one in cells]
    assert printed == [value for row in TABLE.values() for value in row]
    chosen = [one.args for one in tables.cells_of("lambda_cgd_4", [8.0], ["BISR"])]
    assert [args[3] for args in chosen] == [
        value for (name, _), row in TABLE.items() if name == "BISR" for value in row[:2]
    ]


def test_cells_are_computed():
    by_place = [one for one in tables.cells_of("lambda_cgd_4", [8.0], ["CGD", "DP-SGD"])]
    unsampled, poisson = by_place[4](), by_place[7]()
    assert (unsampled.name, unsampled.printed, unsampled.guarantee) == ("CGD 0.9, eps 8", 19.72, "exact")
    assert unsampled.ours == pytest.approx(19.72, rel=1e-3)
    assert poisson.name == "DP-SGD, eps 8, amplified"
    assert poisson.ours == pytest.approx(21.82, rel=2e-3)


def test_savings_follow_from_the_speed_ups():
    cells = list(tables.cells_of("spectral_1"))
    rows = [*(row for _, _, rows in TABLE_1.values() for row in rows), *QQP[2], LONE]
    assert sorted(one.args[3:6] for one in cells) == sorted(rows)
    (muon,) = (one for one in cells if one.args[0] == "QNLI" and one.args[3:6] == (400, 0.407, 1.17))
    assert muon().ours == pytest.approx(1.17, abs=0.008)


def test_a_refused_claim_has_no_number(monkeypatch):
    def refused(claims):
        return [type("Finding", (), {"certified": None, "reason": "no theorem"})()]

    monkeypatch.setattr(tables, "audit", refused)
    cell = next(iter(tables.cells_of("muon_3")))()
    assert math.isnan(cell.ours)
    assert tables._record(cell) == {
        "name": cell.name,
        "printed": 8.0,
        "ours": None,
        "guarantee": "no theorem",
        "note": "",
    }
    assert "no theorem" in [*tables._table("muon_3", [cell]).columns[-1].cells]


def test_the_command_prints_the_table(capsys):
    assert tables.main(["noise_share_3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["printed"] for cell in found] == [7.446, 6.404]
    assert [round(cell["ours"], 3) for cell in found] == [7.435, 6.393]
    assert tables.main(["noise_share_3"]) == 0
    shown = capsys.readouterr().out
    assert "7.446" in shown
    assert "exact" in shown
    with pytest.raises(SystemExit):
        tables.main(["lambda_cgd_6"])


@functools.cache
def computed(table):
    return {cell.name: cell for cell in (one() for one in tables.cells_of(table))}


def test_every_cell_that_is_far_from_print_says_why():
    """Of the tables that take seconds; 5 % and more."""
    names = ("lambda_cgd_text", "muon_bias", "noise_share_phi", "noise_share_3", "muon_3", "sde_1")
    found = [cell for name in names for cell in computed(name).values()]
    far = [one for one in found if not math.isnan(one.ours) and abs(one.ours / one.printed - 1.0) > 0.05]
    assert len(far) == 11
    assert [one.name for one in far if not one.note] == []


def test_the_misprint_of_table_4_says_so():
    assert TABLE["BISR", 16][4] == 20.25
    assert tables._different("BISR", 16, 1.0).startswith("misprint of 30.25")
    assert tables._different("BISR", 16, 2.0) == ""
    assert "cgd.tab4_amp_bandinv" in tables._different("BandInvMF", 64, 0.5)
    assert "cgd.tab4_bandinv_b" in tables._different("BandInvMF", 390, 8.0, sampled=False)
    assert tables._different("BandInvMF", 64, 8.0, sampled=False) == ""


def test_notes_stand_below_the_table_once_each():
    cells = [tables.Cell("a", 1.0, 2.0, "exact", "why"), tables.Cell("b", 1.0, 1.0, "exact")]
    cells.append(tables.Cell("c", 3.0, 2.0, "exact", "why"))
    table = tables._table("muon_3", cells)
    assert table.caption == "1: why"
    assert [*table.columns[-1].cells] == ["1", "", "1"]
    assert tables._table("muon_3", cells[1:2]).caption is None


def test_options_of_another_table_are_refused(capsys):
    with pytest.raises(SystemExit):
        tables.main(["spectral_1", "--eps", "8"])
    assert "leave them out for spectral_1" in capsys.readouterr().err


def test_the_noise_of_a_step_is_timed():
    pytest.importorskip("torch")
    (first, *_) = text_numbers.noise_costs(size=1000, steps=4)
    cell = first()
    assert cell.printed == 2.0
    assert cell.ours > 0.0


HEADLINES, REGISTRY = headlines(), registry()
SLOW = {"CGD 0.9, eps 8, amplified"}


# Of tables whose cells take long: where a cell stands.
PLACES = {
    "CGD 0.9, eps 8": 4,
    "IMDB B=64 (C.2), sigma 1": 1,
    "QNLI, step 400, 40.7 % faster": 9,
    "SST-2, step 200, 62.5 % faster": 3,
}


@pytest.mark.parametrize(
    "one", [one for one in HEADLINES if one.cell not in {"", *SLOW}], ids=lambda one: one.cell
)
def test_a_headline_is_what_its_command_prints(one):
    if one.cell in PLACES:
        chosen = ([8.0], ["CGD"]) if one.table == "lambda_cgd_4" else ()
        cell = list(tables.cells_of(one.table, *chosen))[PLACES[one.cell]]()
        assert cell.name == one.cell
    else:
        cell = computed(one.table)[one.cell]
    digits = len(one.here.partition("e")[0].replace(".", "").lstrip("0"))
    assert float(up(cell.ours, digits)) == float(one.here)
    said = [float(word) for word in re.findall(r"[0-9.]+(?:e-?[0-9]+)?", one.printed)]
    assert cell.printed in said or "%" in one.printed


def test_every_command_of_a_headline_is_one_that_runs():
    for one in HEADLINES:
        words = one.command.split()
        if not words:
            continue
        if words[1].startswith("docs/examples/"):
            assert words[0] == "python"
            assert (pathlib.Path(__file__).parents[1] / words[1]).is_file()
            continue
        assert words[:2] == ["python", "-m"]
        assert one.command.startswith(f"python -m verification.tables {one.table}") if one.table else True
        if words[2] == "verification":
            assert words[3] == "--id"
            assert words[4] in REGISTRY
        else:
            assert importlib.util.find_spec(words[2]) is not None
            assert words[2] != "verification.tables" or words[3] in tables.TABLES
    assert [one.see for one in HEADLINES if one.see and one.see not in REGISTRY] == []
    assert {one.paper for one in HEADLINES} == set(PAPERS)
    assert all(
        one.command and one.takes
        for one, before in zip(HEADLINES, [None, *HEADLINES], strict=False)
        if before is None or before.paper != one.paper
    )
