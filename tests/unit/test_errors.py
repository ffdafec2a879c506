"""No failure is ever empty."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from eagle3_data.errors import message_of
from eagle3_data.records.failures import Failure, describe_exception


def failed() -> Failure:
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
    assert failure.kind == "AssertionError"
    assert failure.causes == ["OSError: [Errno 28] No space left on device: '/data/x'"]
    assert failure.notes == ["while writing"]
    assert failure.errno == errno.ENOSPC
    assert "raise AssertionError from error" in failure.traceback
    assert Failure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


def test_the_rendered_text_starts_with_the_headline() -> None:
    lines = failed().render().splitlines()
    assert lines[0] == "AssertionError: AssertionError()"
    assert "caused by OSError: [Errno 28]" in lines[1]


def test_an_error_of_the_system_has_its_errno_also_where_a_library_tells_it_only_in_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(SafetensorError) as caught:
        save_file({"x": np.zeros(1000, np.float32)}, tmp_path / "no such folder" / "x")
    assert describe_exception(caught.value).errno == errno.ENOENT
