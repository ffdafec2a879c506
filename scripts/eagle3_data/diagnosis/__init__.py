"""Finds the first real cause of a failure in an engine's log, and what to do about it. Standard library only.

A failing vLLM prints many tracebacks: the worker's, then the engine core's that only repeats the worker's
words, then the parent's that says to look above; before them, ERROR lines that never hurt anybody. `diagnose`
tells these apart.
"""

from eagle3_data.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
