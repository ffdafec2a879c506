#!/usr/bin/env python3
"""Cuts a log made by reproduce.py for committing: neutral paths, no host name, long lines and repeated lines
shortened. `python trim.py IN > OUT`."""

import re
import socket
import sys
from pathlib import Path

LINE_LIMIT = 400
REPLACED = (
    (re.compile(re.escape(str(Path(__file__).parent))), "/home/user"),
    (re.compile(re.escape(str(Path(__file__).resolve().parents[3] / "scripts"))), "/home/user/scripts"),
    (re.compile(r"/\S+?/lib/python3\.\d+/site-packages"), "/opt/venv/lib/python3.11/site-packages"),
    (re.compile(r"/\S+?/lib/python3\.11/(?!site-packages)"), "/usr/lib/python3.11/"),
    (re.compile(r"/tmp/tmp\w+"), "/tmp/run"),
    (re.compile(r"/\S*?/small(?=/)"), "/mnt/small"),
    (re.compile(r"/\S+?/bin/python\S*"), "/opt/venv/bin/python"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}\b"), "host"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+:\d+"), "127.0.0.1:29500"),
)


def trim(text: str) -> str:
    lines = []
    for line in text.splitlines():
        for pattern, neutral in REPLACED:
            line = pattern.sub(neutral, line)
        if len(line) > LINE_LIMIT:
            line = line[:LINE_LIMIT] + " ..."
        if not (lines and lines[-1] == line):
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(trim(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")))
