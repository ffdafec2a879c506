"""Shared by all scripts: readable errors and exit codes. Standard library only."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from eagle3_data.errors import NO_ROOM, Eagle3DataError, StorageError, causes_of, errno_of, headline
from eagle3_data.log import LOG
from eagle3_data.system.places import UNUSABLE, explain_unusable


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0, 1 for an error (explained on stderr), 130 for Ctrl-C.

    An error of this package is shown by its message alone, since the message says what to do; any other error
    is a fault of ours or of a library and is shown with its traceback.
    """
    faulthandler.enable()
    try:
        main()
    except Eagle3DataError as error:
        LOG.error(
            "\n".join([headline(error), *(f"  caused by {headline(cause)}" for cause in causes_of(error))])
        )
        sys.exit(1)
    except KeyboardInterrupt:
        LOG.error("interrupted; run the same command again to continue")
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  the last place where it can be explained
        if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
            LOG.error(f"{StorageError.__name__}: {explain_unusable(error)}")
            sys.exit(1)
        traceback.print_exc()
        if errno_of(error) in NO_ROOM:
            LOG.error(
                f"{StorageError.__name__}: the disk is full ({headline(error)}); make room and run the same"
                " command again"
            )
            sys.exit(1)
        LOG.error(f"{os.path.basename(sys.argv[0])} met an unexpected error: {headline(error)}")
        sys.exit(1)
    sys.exit(0)


def end_with_reader() -> None:
    """For programs that only print: `| head` ends them silently, as it does any other."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
