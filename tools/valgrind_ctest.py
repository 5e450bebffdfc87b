#!/usr/bin/env python3
"""Runs every test of a CMake build folder under valgrind: `valgrind_ctest.py BUILD_DIR`.

The tests' commands and environments come from ctest itself, so the CMake file needs no second list. A test fails when it
fails, when valgrind sees an error, or when memory is definitely or indirectly lost.
"""
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def properties(test):
    return {p["name"]: p["value"] for p in test.get("properties", [])}


def run(test, suppressions):
    """What became of a test, and what it printed."""
    props = properties(test)
    if "novalgrind" in props.get("LABELS", []):
        return "not meant for valgrind", ""
    env = dict(os.environ, **dict(pair.split("=", 1) for pair in props.get("ENVIRONMENT", [])))
    # Memory of libc is not freed at the end: that is no error, and what is freed then takes with it what points to the rest.
    command = ["valgrind", "--quiet", "--run-libc-freeres=no", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect",
               "--show-leak-kinds=definite,indirect", "--error-exitcode=99", "--num-callers=30",
               f"--suppressions={suppressions}", *test["command"]]
    done = subprocess.run(command, env=env, cwd=props.get("WORKING_DIRECTORY"), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    # A skipped test says so by ctest's own number.
    skip = done.returncode == props.get("SKIP_RETURN_CODE", -1)
    return "skipped" if skip else "ok" if done.returncode == 0 else "FAILED", done.stdout


def main():
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return 0
    build = sys.argv[1]
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    tests = json.loads(listing.stdout)["tests"]
    if not tests:
        print(f"{build} holds no test", file=sys.stderr)
        return 1
    suppressions = os.path.join(os.path.dirname(os.path.abspath(__file__)), "valgrind.supp")
    failed = []
    # A test's threads take turns under valgrind, so each core can have a test of its own.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for test, (outcome, output) in zip(tests, pool.map(lambda test: run(test, suppressions), tests)):
            print(f"{test['name']}: {outcome}", flush=True)
            if outcome == "FAILED":
                print(output)
                failed.append(test["name"])
    if failed:
        print("failed under valgrind:", ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
