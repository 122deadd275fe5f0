"""Policy files: what they may say, and how what they may not is answered."""

import pytest

import dpmech as dm
from dpmech.certificates import PublicKey
from dpmech.plans import read_policy

WHOLE = """
max_eps = 8
max_delta = 1e-5
max_delta_times_dataset_size = 0.5
dataset_size = 50_000
forbidden_guarantees = ["estimate", "probable"]
allowed_adjacencies = ["add_remove", "zero_out"]
allowed_units = ["example"]
max_age_days = 365
require_signature = true
require_cryptographic_generator = true
require_decided = true
trusted_keys = ["key.pem.pub"]
"""


def test_every_rule_is_read(tmp_path):
    public = dm.certificates.new_key(tmp_path / "key.pem")
    (tmp_path / "policy.toml").write_text(WHOLE)
    policy = read_policy(tmp_path / "policy.toml")
    assert [key.key_id for key in policy.trusted_keys] == [PublicKey.load(public).key_id]
    assert policy == dm.Policy(
        max_eps=8.0,
        max_delta=1e-5,
        max_delta_times_dataset_size=0.5,
        dataset_size=50_000,
        forbidden_guarantees=(dm.Kind.ESTIMATE, dm.Kind.PROBABLE),
        allowed_adjacencies=(dm.Adjacency.ADD_REMOVE, dm.Adjacency.ZERO_OUT),
        allowed_units=(dm.Unit.EXAMPLE,),
        max_age_days=365.0,
        require_signature=True,
        require_cryptographic_generator=True,
        require_decided=True,
        trusted_keys=policy.trusted_keys,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_epsilon = 3", "policy.toml: entry max_epsilon must be one of .*did you mean max_eps"),
        ("[policy]\nmax_eps = 3", "policy.toml: entry policy must be one of max_eps"),
        ("max_eps = 0", r"max_eps must be a finite number in \(0, inf\), got 0"),
        ("max_eps = true", "max_eps must be a finite number"),
        ("max_eps = nan", "max_eps must be a finite number"),
        ("max_delta = 1", r"max_delta must be a finite number in \(0, 1\)"),
        ("dataset_size = 1.5", "dataset_size must be an integer in"),
        ("max_age_days = -1", "max_age_days must be a finite number"),
        ('require_signature = "yes"', "require_signature must be True or False"),
        ("require_cryptographic_generator = 1", "require_cryptographic_generator must be True or False"),
        ("require_decided = 0", "require_decided must be True or False"),
        ('forbidden_guarantees = "estimate"', "forbidden_guarantees must be a list of names"),
        ('forbidden_guarantees = ["estimates"]', "did you mean estimate"),
        ('allowed_adjacencies = ["add-remove"]', "did you mean add_remove"),
        ("allowed_units = [3]", "allowed_units must be a list of names"),
        ('trusted_keys = ["missing.pub"]', "trusted_keys must be a readable file"),
        ("trusted_keys = 3", "trusted_keys must be a list of names"),
        ("", "a file with one rule at least"),
        ("max_eps", "a readable TOML file"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(text, words, tmp_path):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(dm.InvalidParameterError, match=words):
        read_policy(tmp_path / "policy.toml")


def test_a_policy_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match="a readable TOML file"):
        read_policy(tmp_path / "policy.toml")
