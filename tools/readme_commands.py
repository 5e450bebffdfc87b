#!/usr/bin/env python3
"""Runs the `cargo run` commands of README.md as they stand there, so that the first thing a reader types works.

A command line is one in a fenced block that begins with ```sh or ```console (there after `$ `); lines that end in a
backslash are joined.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def commands(text):
    """The `cargo run` command lines of the fenced blocks."""
    found = []
    for kind, body in re.findall(r"^```(sh|console)\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", " ", body).splitlines():
            if kind == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            if line.startswith("cargo run"):
                found.append(line)
    return found


def main():
    path = os.path.join(ROOT, "README.md")
    if not os.path.exists(path):
        print("skipped: README.md is not there")
        return 0
    lines = commands(open(path, encoding="utf-8").read())
    if not lines:
        print("README.md holds no `cargo run` command in a fenced sh or console block", file=sys.stderr)
        return 1
    for line in lines:
        print("$", line, flush=True)
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, stdin=subprocess.DEVNULL, timeout=900)
        print()
        if done.returncode != 0:
            print(f"this command of README.md failed with exit code {done.returncode}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
