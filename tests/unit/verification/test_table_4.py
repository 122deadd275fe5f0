"""Table 4, amplified: every row has a strategy that Balls-in-Bins accounts for, and every cell is shown."""

import pytest

import dpmech as dm
from verification.lambda_cgd import amplified
from verification.lambda_cgd.printed_table import BINS, TABLE, N
from verification.oracles import lambda_cgd as oracle


@pytest.mark.slow
def test_balls_in_bins_takes_the_strategy_of_every_row():
    assert all(amplified.strategy(*row).nonnegative for row in TABLE)


@pytest.mark.slow
def test_without_a_floor_the_widest_banded_inverse_would_be_refused():
    starts = oracle.bandinv_start(BINS)
    found = oracle.fit(BINS, oracle.Plan(), inverse=True, starts=starts, weight=1e3, steps=100)
    assert not dm.BandedInverse(N, found.inverse[:BINS]).nonnegative


def test_every_cell_stands_in_the_note_beside_its_print():
    note = amplified.table_4_amplified_banded(rmse=amplified.off_in_one_cell).note
    assert note.count("(") == 30
    assert "in parentheses. p = 2: 37.67 (37.67), 49.08 (49.08)" in note
    assert "p = 16: 15.00 (15.00), 21.20 (21.20), 29.54 (28.13), " in note
    note = amplified.table_4_amplified_full_bands(rmse=amplified.agreeing_rmse).note
    assert "in parentheses. BISR: 6.34 (6.34), " in note
    assert note.endswith(
        "; BSR: 5.49 (5.49), 9.31 (9.31), 17.06 (17.06), 31.95 (31.95), 60.43 (60.43), 114.52 (114.52)."
    )
