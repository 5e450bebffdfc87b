#!/usr/bin/env python3
"""Makes docs/demo.html: the speed of the demo model on this machine, and of its choices among all actions, as one page that needs
nothing beside it. The bars are made from what the program prints, which is in the page too, as JSON.

    page.py [--spans N] [--out FILE]

The prompts are the first held-out requests.
"""
import argparse
import html
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = ROOT / "models"
PROGRAM = ROOT / "target" / "release" / "eliza-inference"
MODEL = ["--model", "models/demo.gguf"]
MODES = {"strict-trie-ffi": "token trie", "strict-mask": "mask", "unconstrained": "unconstrained"}


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def count(n):
    """A count such as `1.24 B` (billions)."""
    for unit, digits, size in (("B", 2, 1e9), ("M", 1, 1e6), ("K", 1, 1e3)):
        if n >= size:
            return f"{n / size:.{digits}f} {unit}"
    return str(round(n))


def size(n):
    """Bytes in units of 1024."""
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min((max(n, 1).bit_length() - 1) // 10, len(units))
    return f"{n / 1024 ** power:.1f} {units[power - 1]}" if power else f"{n} B"


def section(title, note, bars):
    """A heading and a bar for each (label, parts, value); of two parts the second is hatched. All bars have one scale."""
    longest = max((sum(parts) for _, parts, _ in bars), default=1) or 1
    lines = [f"<h2>{html.escape(title)}</h2>", *([f"<p>{html.escape(note)}</p>"] if note else []), "<dl>"]
    for label, parts, value in bars:
        spans = "".join(f'<i style="width:{100 * part / longest:.2f}%"></i>' for part in parts if part > 0)
        lines.append(f'<dt>{html.escape(label)}</dt><dd><span class="bar">{spans}</span><b>{html.escape(value)}</b></dd>')
    return "\n".join([*lines, "</dl>\n"])


def page(report):
    """The page of a report: `speed` as `bench --json` prints it, `memory` as `plan --json` does, and a list of `choices`."""
    speed, memory, choices = report["speed"], report["memory"], report["choices"]
    name, threads, spans = pathlib.PurePath(speed["model"]).name, speed["threads"], choices[0]["spans"]
    ways = [(MODES[choice["mode"]], choice) for choice in choices]
    body = f"<h1>libelizainference {html.escape(report['version'])}</h1>\n<p>" + html.escape(
        f"{name} on {speed['device']}, {threads} thread{'s' if threads != 1 else ''}") + "</p>\n"
    body += section(
        "One choice among names",
        f"median of {spans} prompts, from the prompt's end to the last token; unconstrained: as many tokens as the longest name has",
        [(way, [choice["ms_per_span"]], f"{choice['ms_per_span']:.2f} ms") for way, choice in ways])
    passes = []
    for way, choice in ways:
        # Each prompt is a pass of its own.
        made, saved = max(choice["forward_passes_total"] - spans, 0), choice["forward_passes_saved"]
        passes.append((way, [made, saved], f"{made}, {saved} saved" if saved else str(made)))
    body += section("Forward passes", "after the prompts of all choices; hatched: what one pass for each token would add", passes)
    rates = [(f"reading a prompt of {speed['pp']}", speed["prompt_tok_s"]), ("writing", speed["decode_tok_s"])]
    rates += [(f"choosing: {way}", choice["tokens_per_second"]) for way, choice in ways]
    body += section("Tokens per second", "", [(label, [rate], count(rate)) for label, rate in rates])
    parts = [(part.replace("_", " "), n) for device in memory["devices"] for part, n in device["bytes"].items() if n]
    if speed["peak_rss_bytes"]:
        parts.append(("the whole process", speed["peak_rss_bytes"]))
    body += section("Memory", f"with a context of {memory['context']} tokens", [(part, [n], size(n)) for part, n in parts])
    data = json.dumps(report).replace("</", "<\\/")  # `</` would end the element.
    style = (HERE / "page.css").read_text(encoding="utf-8")
    return (f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
            f"<title>{html.escape(name)}</title>\n<style>\n{style}</style>\n<main>\n{body}</main>\n"
            f'<script type="application/json" id="report">{data}</script>\n</html>\n')


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
        payload.write_bytes(run("trie", *MODEL, "--path", "action", "--names", "models/demo_actions.txt", "--before", "Action:\n",
                                "--json"))
        bench = ["bench", *MODEL, "--threads", "1", "--json"]
        choices = [run(*bench, "--mode", mode, "--token-tree-descriptor", payload, *prompts) for mode in MODES]
        report = {
            "version": run("--version").decode().split()[-1],
            "speed": json.loads(run(*bench, "--pp", "256")),
            "memory": json.loads(run("plan", *MODEL, "--threads", "1", "--json")),
            "choices": [json.loads(choice) for choice in choices],
        }
        args.out.write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main()
