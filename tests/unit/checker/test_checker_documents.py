import hashlib
import json
import os

import pytest

from dpmech.checker.claims import claim_of
from dpmech.checker.documents import DEEPEST, LARGEST_FILE, BadDocument, decode, parse, read_bytes, shown
from dpmech.checker.strategies import NotChecked
from tests.support.checker_files import certificate, with_checksum

IDENTITY, EVERY = {"type": "Identity", "n": 4}, {"type": "EveryStep"}
HONEST = certificate(IDENTITY, EVERY, 1.0, 1e-5, 20.0)


def text_of(document):
    return json.dumps(document).encode()


def test_an_honest_document_is_read():
    document = decode(parse(text_of(HONEST)))
    assert document["claim"]["eps"] == 1.0
    claim = claim_of(document)
    assert (claim.eps, claim.delta, claim.strategy.n, float(claim.sigma)) == (1.0, 1e-5, 4, 20.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "out of the range"),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' occurs twice"),
        (b'{"a": ' + b"1" * 30 + b"}", "30 digits"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
        (b'{"a": ' + b"[" * (DEEPEST + 5) + b"]" * (DEEPEST + 5) + b"}", "levels deep"),
        (b'{"a": 1}', "checksum"),
    ],
)
def test_what_is_no_document_is_refused_in_one_sentence(content, words):
    with pytest.raises(BadDocument, match=words) as caught:
        parse(content)
    assert len(str(caught.value)) <= 400
    assert "\n" not in str(caught.value)


def test_an_edited_document_is_refused():
    edited = json.loads(text_of(HONEST))
    edited["claim"]["n"] = 5
    with pytest.raises(BadDocument, match="checksum"):
        parse(text_of(edited))


def test_the_checksum_is_of_everything_else():
    content = {key: value for key, value in HONEST.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert HONEST["checksum"] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "number",
    [
        0.5,
        {"decimal": 0.5, "hex": "0x1.1p-1"},
        {"decimal": 0.5, "hex": 0.5},
        {"decimal": True, "hex": "0x1p+0"},
        {"decimal": "0.5", "hex": "0x1p-1"},
        {"decimal": 1.0, "hex": "nan"},
        {"decimal": 1.0, "hex": "0x1p+9999"},
        {"decimal": 1.0, "hex": "no"},
        {"decimal": [0.5, 1.0], "hex": ["0x1p-1"]},
        {"decimal": [0.5], "hex": "0x1p-1"},
    ],
)
def test_numbers_in_two_spellings_that_differ_are_refused(number):
    with pytest.raises(BadDocument):
        decode({"a": number})


def test_numbers_and_lists_of_them_are_decoded():
    given = {"a": {"decimal": [[1, 0.5]], "hex": [["0x1p+0", "0x1p-1"]]}, "b": [{"c": None}], "d": "text"}
    assert decode(given) == {"a": [[1.0, 0.5]], "b": [{"c": None}], "d": "text"}


def test_only_regular_files_of_moderate_size_are_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    link, loop = tmp_path / "link", tmp_path / "loop"
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    for path in (pipe, link, tmp_path, loop, tmp_path / "missing", "/dev/zero", "a\0b"):
        with pytest.raises(BadDocument, match=r"regular|cannot be read"):
            read_bytes(path)
    with pytest.raises(BadDocument, match="larger than"):
        read_bytes(large)
    small = tmp_path / "small"
    small.write_bytes(b"{}")
    link.unlink()
    link.symlink_to(small)
    assert read_bytes(link) == b"{}"


def test_values_in_messages_are_short_and_printable():
    assert shown("\x1b[31m\ud800") == r"'\x1b[31m\ud800'"
    assert len(shown("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eps": -1.0}, "eps"),
        ({"eps": 1}, "eps of the claim is 1, not float"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": "big"}, "sigma"),
        ({"adjacency": "other"}, "adjacency"),
        ({"unit": "family"}, "unit"),
        ({"n": 5}, "n is 5"),
        ({"n": 4.0}, "n of the claim is 4.0, not int"),
        ({"participation": []}, "participation"),
        ({"participation": {"type": 3}}, "participation"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": {"type": "Other"}}, "clip_norm"),
        ({"more": 1}, "other entries"),
    ],
)
def test_claims_that_are_none_are_refused(change, words):
    with pytest.raises(BadDocument, match=words):
        claim_of(decode(certificate(IDENTITY, EVERY, 1.0, 1e-5, 2.0, **change)))


@pytest.mark.parametrize("change", [{"schema_version": 2}, {"schema_version": True}, {"more": 1}])
def test_documents_of_other_versions_are_refused(change):
    with pytest.raises(BadDocument, match="schema version"):
        claim_of(decode(with_checksum(HONEST | change)))


@pytest.mark.parametrize("change", [{"eps": 1.1e9}, {"delta": 1e-305}])
def test_claims_beyond_the_limits_are_too_large(change):
    with pytest.raises(NotChecked):
        claim_of(decode(certificate(IDENTITY, EVERY, 1.0, 1e-5, 2.0, **change)))


def coefficients(of, values):
    return {"of": of, "columns_scaled": False, "total": 4, "leading": values}


def test_stated_coefficients_are_those_of_the_strategy():
    every, strategy = EVERY, {"type": "LambdaCGD", "n": 4, "lam": 0.5}

    def read(stated):
        return claim_of(decode(certificate(strategy, every, 1.0, 1e-5, 2.0, coefficients=stated)))

    for stated in (coefficients("C", [1.0, 0.5, 0.25]), coefficients("C^-1", [1.0, -0.5, 0.0, 0.0])):
        assert read(stated).strategy.n == 4
    assert read(coefficients("the matrix entries of the strategy", [])).strategy.n == 4
    for stated in (
        coefficients("C", [1.0, 0.5, 0.2500001]),
        coefficients("C", [1.0, -0.5]),
        coefficients("C^-1", [1.0, 0.5]),
        coefficients("C", [1.0, 0.5, 0.25, 0.125, 0.0625]),
        coefficients("C", []),
        coefficients("C", [[1.0]]),
        coefficients("C", 3),
    ):
        with pytest.raises(BadDocument, match="coefficient"):
            read(stated)
    # A reader who takes all that is stated for all there is would not correlate the noise.
    for stated in (coefficients("C^-1", [1.0]) | {"total": 1}, coefficients("C", [1.0, 0.5]) | {"total": 2}):
        with pytest.raises(BadDocument, match=r"more than the \d coefficients"):
            read(stated)
    assert read(coefficients("C^-1", [1.0, -0.5]) | {"total": 2}).strategy.n == 4
    for total in (None, 1, 5, 2.0):
        with pytest.raises(BadDocument, match="the coefficients are"):
            read(coefficients("C^-1", [1.0, -0.5]) | {"total": total})
    with pytest.raises(BadDocument, match="scaled"):
        read(coefficients("C", [1.0, 0.5]) | {"columns_scaled": True})
    dense = {"type": "Dense", "matrix": [[1.0]]}
    with pytest.raises(BadDocument, match="coefficients"):
        claim_of(decode(certificate(dense, every, 1.0, 1e-5, 2.0, coefficients=coefficients("C", [1.0]))))


def test_coefficients_are_compared_at_their_own_scale():
    """What is next to nothing beside the largest one may be left out, at any scale."""
    for scale in (1e4, 1e-4):
        coefs = [scale, scale / 2.0, scale * 0.9e-9, scale * 0.9e-9]
        strategy = {"type": "BandedToeplitz", "n": 4, "coefs": coefs}
        for leading, total, right in (
            (coefs, 4, True),
            (coefs[:2], 2, True),
            ([scale, scale / 2.0 * (1 + 1e-9)], 4, True),
            ([scale, scale / 2.0 * (1 + 1e-8)], 4, False),
        ):
            stated = coefficients("C", leading) | {"total": total}
            document = decode(certificate(strategy, EVERY, 1.0, 1e-5, 2.0, coefficients=stated))
            if right:
                assert claim_of(document).strategy.n == 4
            else:
                with pytest.raises(BadDocument, match="coefficient 1"):
                    claim_of(document)


def test_no_more_coefficients_are_stated_than_are_compared():
    n = 100_001
    for count in (n - 1, n):
        stated = {"of": "C", "columns_scaled": False, "total": n, "leading": [1.0, *[0.0] * (count - 1)]}
        document = decode(certificate({"type": "Identity", "n": n}, EVERY, 1.0, 1e-5, 2.0))
        document["claim"]["coefficients"] = stated
        if count < n:
            assert claim_of(document).strategy.n == n
        else:
            with pytest.raises(BadDocument, match="the coefficients are"):
                claim_of(document)


def adaptive(gradient, count, zero=0.0):
    settings = {"initial": 1.0, "quantile": 0.5, "rate": 0.2, "count_share": 0.01, "count_of_zero": zero}
    return {"type": "AdaptiveClip", **settings, "gradient_sigma": gradient, "count_stddev": count}


def noise_of(clip, sigma=1.0):
    return float(claim_of(decode(certificate(IDENTITY, EVERY, 1.0, 1e-5, sigma, clip_norm=clip))).sigma)


def test_an_adaptive_clip_norm_shares_the_noise():
    assert noise_of(adaptive(1.25, 5.0 / 6.0)) == pytest.approx(1.0, rel=1e-15)  # 0.64 + 0.36
    assert noise_of(adaptive(10.0, 10.0)) == 1.0  # never more than is stated
    for gradient, count in ((1.25, 5.0 / 6.0), (2.0, 3.0), (0.3, 0.1)):
        shared = (gradient**-2 + (2.0 * count) ** -2) ** -0.5
        assert noise_of(adaptive(gradient, count), sigma=50.0) == pytest.approx(shared, rel=1e-14)
    assert noise_of(adaptive(1.0, 0.5)) == pytest.approx(0.5**0.5)
    assert noise_of(2.5) == 1.0
    for clip in (adaptive(0.0, 1.0), adaptive(1.0, -1.0)):
        with pytest.raises(BadDocument, match="AdaptiveClip"):
            noise_of(clip)
    # A zeroed example that counted 1/2 would move the count by 1 under zero_out.
    for clip in (adaptive(1.25, 5.0 / 6.0, zero=0.5), adaptive(1.25, 5.0 / 6.0, zero=-0.5)):
        with pytest.raises(BadDocument, match="count a gradient of zero as 0"):
            noise_of(clip)
    silent = {name: one for name, one in adaptive(1.25, 5.0 / 6.0).items() if name != "count_of_zero"}
    with pytest.raises(BadDocument, match="AdaptiveClip"):
        noise_of(silent)


def test_a_declared_size_is_an_integer_and_that_of_the_participation():
    def read(size, participation=EVERY):
        return claim_of(decode(certificate(IDENTITY, participation, 1.0, 1e-5, 1.0, dataset_size=size)))

    assert read(50_000).sigma == read(1).sigma == 1
    for size in (0, 1.0, True, 2**60, "40"):
        with pytest.raises(BadDocument, match="dataset_size"):
            read(size)
    sized = {"type": "FixedSizeBatches", "dataset_size": 40, "batch_size": 4}
    assert read(40, sized).participation == sized
    with pytest.raises(BadDocument, match="not that of its participation"):
        read(41, sized)


def test_the_entry_that_occurs_twice_is_found_among_many():
    entries = ", ".join(f'"a{i}": 0' for i in range(200_000))  # comparing each with all others would not end
    with pytest.raises(BadDocument, match="'a199999' occurs twice"):
        parse(("{" + entries + ', "a199999": 0}').encode())


def test_of_coefficients_that_grow_the_first_ones_are_compared_too():
    strategy, once = (
        {"type": "BandedToeplitz", "n": 40, "coefs": [1.0, 10.0]},
        {"type": "SingleParticipation"},
    )
    own = [(-10.0) ** t for t in range(40)]
    for leading in (own, [5.0, *own[1:]]):
        stated = coefficients("C^-1", leading) | {"total": 40}
        document = decode(certificate(strategy, once, 1.0, 1e-5, 1e3, coefficients=stated))
        if leading is own:
            assert claim_of(document).strategy.n == 40
        else:
            with pytest.raises(BadDocument, match="coefficient 0"):
                claim_of(document)
