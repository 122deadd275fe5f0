"""`python -m verification.tables`: every cell of a table is there, and ours is computed."""

import json
import math

import pytest

from verification import tables
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
    assert sorted(one.args[3:] for one in cells) == sorted(rows)
    (muon,) = (one for one in cells if one.args[0] == "QNLI" and one.args[3:] == (400, 0.407, 1.17))
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
        tables.main(["lambda_cgd_5"])
