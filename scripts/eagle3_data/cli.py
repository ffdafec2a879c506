"""What every script shares: readable errors, an exit code. Standard library only."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from eagle3_data.errors import NO_ROOM, Eagle3DataError, StorageError, causes_of, errno_of, headline
from eagle3_data.places import UNUSABLE, explain_unusable


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0, 1 for an error (explained on stderr), 130 for Ctrl-C.

    An error of this package is shown by its message alone, since the message says what to do; any other error
    is a fault of ours or of a library and is shown with its traceback.
    """
    faulthandler.enable()
    try:
        main()
    except Eagle3DataError as error:
        print(headline(error), file=sys.stderr)
        for cause in causes_of(error):
            print(f"  caused by {headline(cause)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  the last place where it can be explained
        if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
            print(f"{StorageError.__name__}: {explain_unusable(error)}", file=sys.stderr)
            sys.exit(1)
        traceback.print_exc()
        if errno_of(error) in NO_ROOM:
            print(
                f"{StorageError.__name__}: the disk is full ({headline(error)}); make room and run the same"
                " command again",
                file=sys.stderr,
            )
            sys.exit(1)
        print(
            f"{os.path.basename(sys.argv[0])} met an error it does not know: {headline(error)}",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(0)


def say(message: str) -> None:
    """A line for the rule's log. One that finds no room on the disk is lost: the work goes on."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
