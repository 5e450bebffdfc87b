#!/usr/bin/env python3
"""Lays out what npm publishes: the package `eliza-inference`, and for each platform one with its binaries.

    npm_packages.py main OUT                     writes OUT/package.json, with the platforms as optional dependencies
    npm_packages.py platform NAME OUT ADDON LIBRARY   writes the package of one platform, with the addon and the library

npm installs those optional dependencies whose `os`, `cpu` and `libc` are the machine's. The platforms are those of
`bindings/platforms.json`; all packages have the version of `bindings/package.json`.
"""

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINDINGS = ROOT / "bindings"
LIBC = {"gnu": "glibc", "musl": "musl"}
LIBRARY = {"win32": "elizainference.dll", "darwin": "libelizainference.dylib"}


def package() -> dict:
    return json.loads((BINDINGS / "package.json").read_text())


def platforms() -> list[str]:
    return json.loads((BINDINGS / "platforms.json").read_text())


def write(folder: Path, content: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps(content, indent=2) + "\n")


def main_package(folder: Path) -> None:
    content = package()
    del content["devDependencies"]
    content["optionalDependencies"] = {f"{content['name']}-{name}": content["version"] for name in platforms()}
    write(folder, content)


def platform_package(name: str, folder: Path, addon: Path, library: Path) -> None:
    if name not in platforms():
        sys.exit(f"{name} is none of the platforms: {', '.join(platforms())}")
    os, cpu, *libc = name.split("-")
    files = {"elizainference.node": addon, LIBRARY.get(os, "libelizainference.so"): library}
    common = package()
    content = {
        "name": f"{common['name']}-{name}",
        "version": common["version"],
        "description": f"The binaries of {common['name']} for {name}",
        "license": common["license"],
        "files": list(files),
        "os": [os],
        "cpu": [cpu],
    }
    if libc:
        content["libc"] = [LIBC[libc[0]]]
    write(folder, content)
    for file, source in files.items():
        shutil.copy(source, folder / file)
    for text in ROOT.glob("LICENSE-*"):
        shutil.copy(text, folder)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["main", out]:
            main_package(Path(out))
        case ["platform", name, out, addon, library]:
            platform_package(name, Path(out), Path(addon), Path(library))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
