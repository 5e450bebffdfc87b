#!/usr/bin/env python3
"""Makes docs/demo.html: the speed of the demo model on this machine, and of its choices among all actions.

    page.py [--spans N] [--out FILE]

The prompts are the first held-out requests.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
PROGRAM = ROOT / "target" / "release" / "eliza-inference"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "demo.html")
    args = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        prompts, payload = [], pathlib.Path(folder, "payload.json")
        for line in (MODELS / "demo_held_out.jsonl").read_text(encoding="utf-8").splitlines()[:args.spans]:
            prompt = pathlib.Path(folder, f"prompt {len(prompts)}")
            prompt.write_text(f"User: {json.loads(line)['request']}\nAction:\n", encoding="utf-8")
            prompts.append(f"--prompt-file={prompt}")
        trie = [PROGRAM, "trie", "--model", "models/demo.gguf", "--path", "action", "--names", "models/demo_actions.txt",
                "--before", "Action:\n", "--json"]
        payload.write_bytes(subprocess.run(trie, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        subprocess.run([PROGRAM, "bench", "--model", "models/demo.gguf", "--threads", "1", "--pp", "256", *prompts,
                        "--token-tree-descriptor", payload, "--html", args.out.resolve()], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
