"""docs/proofs.md says what tests/mutations.py has."""

from mutations import MUTATIONS, PAGE, page


def test_the_table_of_proofs_is_that_of_the_tests() -> None:
    assert len(MUTATIONS) >= 25
    assert PAGE.read_text() == page(), "run `PYTHONPATH=scripts:tests python tests/mutations.py`"
