#!/usr/bin/env python3
"""Judges JSON texts by the schemas of tests/grammar/schemas.jsonl, with the package `jsonschema`.

    validate.py              the texts of the set itself: the valid ones are, the invalid ones are not
    validate.py FILE         lines {"name": SCHEMA, "text": JSON}: fails when one is not valid

The package is installed into target/jsonschema; where it cannot be had, that is said and nothing fails.
"""

import json
import sys
from pathlib import Path

from peer import installed

ROOT = Path(__file__).resolve().parent.parent
SET = ROOT / "tests" / "grammar" / "schemas.jsonl"
PACKAGE = "jsonschema[format-nongpl]==4.26.0"


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    if not installed("jsonschema", PACKAGE):
        return 0
    import jsonschema

    kind = jsonschema.Draft202012Validator
    cases = {case["name"]: case for case in lines(SET)}
    validators = {}
    for name, case in cases.items():
        kind.check_schema(case["schema"])
        validators[name] = kind(case["schema"], format_checker=kind.FORMAT_CHECKER)

    def problem(name, text):
        try:
            value = json.loads(text)
        except ValueError as error:
            return f"not JSON: {error}"
        error = next(validators[name].iter_errors(value), None)
        return error and f"{error.json_path}: {error.message[:200]}"

    if len(sys.argv) > 1:
        judged = [(one["name"], one["text"], True) for one in lines(sys.argv[1])]
    else:
        judged = [(name, text, valid) for name, case in cases.items() for valid in (True, False)
                  for text in case["valid" if valid else "invalid"]]
    wrong = 0
    for name, text, valid in judged:
        found = problem(name, text)
        if (found is None) != valid:
            wrong += 1
            print(f"{name}: {found or 'valid, but should not be'}: {text[:400]!r}")
    print(f"{len(judged)} texts of {len(cases)} schemas judged by jsonschema, {wrong} not as they should be")
    return 1 if wrong else 0


sys.exit(main())
