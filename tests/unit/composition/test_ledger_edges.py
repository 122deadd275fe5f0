import pytest

import dpmech as dm


@pytest.mark.parametrize("budget", [None, dm.PrivacyBudget(4.0, 1e-5)])
def test_a_closed_ledger_may_be_written_again_as_it_is(tmp_path, budget):
    ledger = dm.Ledger(budget=budget)
    ledger.add("one", dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6))
    if budget is None:
        ledger.close()
    path = tmp_path / "ledger.json"
    ledger.save(path)
    if budget is not None:
        ledger.close()
        ledger.save(path)
    text = path.read_text(encoding="utf-8")
    ledger.save(path)
    assert path.read_text(encoding="utf-8") == text
    loaded = dm.Ledger.load(path)
    assert loaded.closed
    loaded.save(path)
    assert path.read_text(encoding="utf-8") == text
