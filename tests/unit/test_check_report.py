"""The report of a check on a terminal, in a log and as a page."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios

from checked_targets import SCRIPT, run, write_llama
from compatibility_trees import write_tree
from rich.console import Console

from eagle3_data.compatibility.run import report
from eagle3_data.findings import Finding, Findings


def on_terminal(*arguments):
    """What the script shows on a terminal of 100 columns."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)], stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while part := os.read(main, 65536):
            shown += part
    os.close(main)
    return process.wait(), shown.decode()


def test_on_a_terminal_the_report_is_a_coloured_table_and_in_a_file_plain_text(tmp_path):
    write_tree(tmp_path / "tree")
    arguments = (
        "static",
        "--vllm",
        tmp_path / "tree",
        "--model",
        write_llama(tmp_path),
        "--layers",
        4,
        4,
        "--json",
        tmp_path / "report.json",
    )
    code, shown = on_terminal(*arguments)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 1 and "\x1b[" in shown and "─" in plain
    assert max(map(len, plain.splitlines())) <= 100
    in_file = run(*arguments).stderr
    assert "\x1b" not in in_file and "─" not in in_file
    for words in ("duplicate-layer", "last-layer-missing", "FAIL in", "9.8.7"):
        assert words in plain and words in in_file


def test_what_a_report_quotes_is_no_markup_of_the_terminal(capsys):
    console = Console(width=100, force_terminal=True, no_color=True)
    report.print_table(
        console,
        Findings(
            (Finding("x", "fail", "no [bold]such[/nothing] thing", remedy="[link]"),), {"model": "[red]"}, 1.0
        ),
        "a [title]",
    )
    shown = capsys.readouterr().out
    for words in ("no [bold]such[/nothing] thing", "[link]", "[red]", "a [title]"):
        assert words in shown


def test_no_path_is_broken_in_the_text_of_a_log():
    path = "/very-long/" + "some-directory-name/" * 12 + "model.safetensors"
    assert path in report.render(
        Findings((Finding("x", "fail", f"the file {path} is torn", path, remedy=f"mend {path}"),)), "title"
    )


def test_the_page_shows_what_it_quotes_as_text():
    hostile = Findings(
        (Finding("x", "fail", "<script>alert(1)</script>", remedy="<b>"),), {"model": "<script>"}, 1.0
    )
    page = report.render_html(hostile, "a & b")
    assert "<script" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)" in page and "a &amp; b" in page and 'class="fail"' in page
