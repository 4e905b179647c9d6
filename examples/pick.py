#!/usr/bin/env python3
"""Prints parts of the JSON on standard input; a small replacement for jq in the examples.

    … | pick.py data.run_id                 the bare value
    … | pick.py data.status data.tasks.*    one `path value` line each; `*` is every member
"""

import json
import sys


def walk(value, keys, at=()):
    if not keys:
        yield ".".join(at), value
        return
    key, rest = keys[0], keys[1:]
    if isinstance(value, dict):
        names = list(value) if key == "*" else [key] if key in value else []
    elif isinstance(value, list):
        names = [str(i) for i in range(len(value))] if key == "*" else [key] if key.lstrip("-").isdigit() else []
    else:
        names = []
    for name in names:
        inner = value[name] if isinstance(value, dict) else value[int(name)]
        yield from walk(inner, rest, at + (name,))


def text(value):
    return value if isinstance(value, str) else json.dumps(value)


def main():
    document = json.load(sys.stdin)
    paths = sys.argv[1:]
    for path in paths:
        found = list(walk(document, path.split(".")))
        if not found:
            print(f"there is no {path} in {json.dumps(document)[:300]}", file=sys.stderr)
            return 1
        bare = len(paths) == 1 and "*" not in path
        for where, value in found:
            print(text(value) if bare else f"{where} {text(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
