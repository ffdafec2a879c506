"""No failure is ever empty."""

import errno
import json

from eagle3_data.errors import describe_exception, message_of, render_failure


def failed() -> dict:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/data/x")
        except OSError as error:
            error.add_note("while writing")
            raise AssertionError from error
    except AssertionError as error:
        return describe_exception(error)


def test_an_empty_message_is_replaced_by_the_repr() -> None:
    assert message_of(AssertionError()) == "AssertionError()"
    assert message_of(ValueError("  ")) != ""


def test_a_description_holds_causes_notes_errno_and_traceback() -> None:
    failure = failed()
    assert failure["class"] == "AssertionError"
    assert failure["causes"] == ["OSError: [Errno 28] No space left on device: '/data/x'"]
    assert failure["notes"] == ["while writing"]
    assert failure["errno"] == errno.ENOSPC
    assert "raise AssertionError from error" in failure["traceback"]
    assert json.loads(json.dumps(failure)) == failure


def test_the_rendered_text_starts_with_the_headline() -> None:
    lines = render_failure(failed()).splitlines()
    assert lines[0] == "AssertionError: AssertionError()"
    assert "caused by OSError: [Errno 28]" in lines[1]
