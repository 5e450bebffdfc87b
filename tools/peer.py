"""What the parity and the speed tools share: our program, the peer (llama.cpp), and the models both read.

Nothing here needs more than Python's standard library. For speed, models come from tools/make_model.rs and the peer from its npm
package. For parity both come from the shared folder; its maker of models needs numpy and gguf, which are installed into a
virtual environment under target/.

`peer.py SHARED` prints what a shell must export for the tests of `cargo test` that compare with the peer.
"""
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from array import array

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(ROOT, "target")


class Skip(Exception):
    """Something this machine cannot offer."""


def run(command, **kwargs):
    """Runs a command and returns its stdout; its stderr goes into the error."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          **kwargs)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


class Ours:
    """The release build of the command line program, with options that every run of a model gets."""

    def __init__(self, *options):
        self.options = [str(option) for option in options]
        self.program = os.environ.get("ELIZA_CLI")
        if not self.program:
            subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
            self.program = os.path.join(TARGET, "release", "eliza-inference")

    def json(self, *args):
        return json.loads(run([self.program, *map(str, args), *self.options, "--json"]))

    def logits(self, model, texts, kv_type, threads, *options):
        """One row of logits for every token of texts, each evaluated by itself."""
        return self.rows_of_logits(sum(map(len, texts)), model, texts, kv_type, threads, "--all", *options)

    def answers(self, model, texts, answered, kv_type, threads, *options):
        """Rows of logits of an encoder-decoder: of every text before the first of its last `answered` tokens and after each of them."""
        return self.rows_of_logits(len(texts) * (1 + answered), model, texts, kv_type, threads, "--decode", answered, *options)

    def rows_of_logits(self, count, model, texts, kv_type, threads, *options):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "logits")
            run([self.program, "logits", "--model", model, *prompts(texts), "--out", out, "--kv-type", kv_type,
                 "--threads", str(threads), *self.options, *map(str, options)])
            return rows(out, count)


def prompts(texts):
    """Texts, each a list of tokens, as our program takes them."""
    return [part for tokens in texts for part in ("--prompt-tokens", ",".join(map(str, tokens)))]


class Timed:
    """The peer's times: tools/llama_bench.c, linked with the libraries of an npm package, or those in the folder `given`."""

    def __init__(self, package="linux-x64", given=os.environ.get("PEER_LLAMA_DIR"), cpu=None, compiler=os.environ.get("CC", "cc")):
        """With `cpu`, only the library of its CPU backend that has this name, such as `haswell`, is there to be chosen."""
        out = os.path.join(TARGET, "llama")
        fetched = os.path.join(out, package)
        self.folder = given or os.path.join(fetched, "node_modules", "@node-llama-cpp", package, "bins", package)
        try:
            os.makedirs(out, exist_ok=True)
            if not os.path.isdir(self.folder):
                print(f"fetching llama.cpp as npm has it into {fetched}", flush=True)
                # By force, as it may be another processor's.
                run(["npm", "install", "--no-save", "--force", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", fetched,
                     f"@node-llama-cpp/{package}@3.22.1"])
            if cpu:
                self.folder = with_one_cpu(self.folder, os.path.join(out, f"cpu-{cpu}"), f"libggml-cpu-{cpu}.so")
            wanted = ("libllama.", "libggml.", "libggml-base.")
            libraries = [os.path.join(self.folder, f) for f in sorted(os.listdir(self.folder)) if f.startswith(wanted)]
            self.program = os.path.join(out, f"llama_bench-{package}")
            run([compiler, "-std=c99", "-O2", "-Iinclude", "tools/llama_bench.c", "-o", self.program, *libraries,
                 f"-Wl,-rpath,{self.folder}", f"-Wl,-rpath-link,{self.folder}", "-lm"], cwd=ROOT)
        except (RuntimeError, OSError) as problem:
            raise Skip(f"llama.cpp could not be had:\n{problem}") from problem

    def json(self, what, *args):
        return json.loads(run([self.program, self.folder, what, *map(str, args)]))


def with_one_cpu(folder, copy, library):
    """A folder of links to the libraries in `folder`, but of those of the CPU only to `library`."""
    if not os.path.exists(os.path.join(folder, library)):
        raise Skip(f"{folder} has no {library}")
    os.makedirs(copy, exist_ok=True)
    for name in os.listdir(copy):
        os.remove(os.path.join(copy, name))
    for name in os.listdir(folder):
        if name == library or not name.startswith("libggml-cpu-"):
            os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
    return copy


class Made:
    """Models of random weights, made where they are not there yet: SHAPE:TYPE, a shape of tools/make_model.rs and a type of
    `eliza-inference quantize`."""

    def __init__(self, ours, folder=None):
        self.ours, self.folder = ours, os.path.abspath(folder or os.path.join(TARGET, "bench"))

    def get(self, name):
        return self.made(name, "", list)

    def made(self, name, suffix, options):
        """One whose file has a suffix in its name, made with what `options` returns for `make_model`."""
        shape, kind = name.split(":")
        path = os.path.join(self.folder, f"{shape}-{kind}{suffix}.gguf")
        if not os.path.exists(path):
            print(f"making {path}", flush=True)
            os.makedirs(self.folder, exist_ok=True)
            plain, partial = path + ".f16", path + ".partial"
            maker = ["cargo", "run", "--quiet", "--release", "--locked", "--example", "make_model", "--", shape, plain]
            run([*maker, *options()], cwd=ROOT)
            run([self.ours.program, "quantize", plain, partial, "--type", kind])
            os.remove(plain)
            os.replace(partial, path)
        return path


def installed(name, *packages):
    """Whether packages of pip are in target/NAME, which is put on the path; where they cannot be had, that is said."""
    folder = os.path.join(TARGET, name)
    if not os.path.exists(folder):
        partial = folder + ".partial"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", partial]
        done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"skipped: {', '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
            return False
        os.replace(partial, folder)
    sys.path.insert(0, folder)
    return True


class Peer:
    """The peer's program for parity: `ELIZA_PEER`, or built into target/peer from the shared folder."""

    def __init__(self, shared):
        self.program = os.environ.get("ELIZA_PEER")
        self.env = dict(os.environ)
        if self.program:
            return
        source = os.path.join(shared, "tools", "peer")
        out = os.path.join(TARGET, "peer")
        self.program = os.path.join(out, "build", "peer_llama")
        if not os.path.exists(self.program):
            print("building the peer's program into target/peer", flush=True)
            os.makedirs(out, exist_ok=True)
            try:
                run(["make", "-C", source, f"OUT={out}", "libs", self.program])
            except (RuntimeError, OSError) as problem:
                raise Skip(f"the peer's program could not be built:\n{problem}") from problem
        libraries = [d for d, _, files in os.walk(os.path.join(out, "vendor")) if any(f.startswith("libllama.") for f in files)]
        if not libraries:
            raise Skip("the peer's libraries are not in target/peer/vendor")
        self.env.setdefault("PEER_LLAMA_DIR", libraries[0])

    def json(self, *args):
        return json.loads(run([self.program, *map(str, args)], env=self.env))

    def logits(self, model, tokens, *flags):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "logits")
            self.json("logits", "--model", model, "--tokens", ",".join(map(str, tokens)), "--out", out, *flags)
            return rows(out, len(tokens))


def rows(path, count):
    """The rows of a raw little-endian f32 file."""
    values = array("f")
    size = os.path.getsize(path)
    if size == 0 or size % (4 * count):
        raise RuntimeError(f"{size} bytes are not {count} rows of logits")
    with open(path, "rb") as file:
        values.fromfile(file, size // 4)
    if sys.byteorder != "little":
        values.byteswap()
    width = len(values) // count
    return [values[i * width:(i + 1) * width] for i in range(count)]


class Models:
    """Synthetic models: from `ELIZA_MODELS` where they are there, else made into target/models."""

    def __init__(self, shared):
        self.maker = os.path.join(shared, "tools", "make_models.py")
        self.folders = [os.environ["ELIZA_MODELS"]] if os.environ.get("ELIZA_MODELS") else []
        self.own = os.path.join(TARGET, "models")
        self.python = None

    def get(self, shape, kind, as_f32=False):
        name = f"{shape}-{kind}{'-as-f32' if as_f32 else ''}.gguf"
        for folder in [*self.folders, self.own]:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                return path
        print(f"making {name}", flush=True)
        partial = os.path.join(self.own, "partial")
        os.makedirs(partial, exist_ok=True)
        run([self.interpreter(), self.maker, "synth", "--shape", shape, "--type", kind, "--out", partial,
             *(["--as-f32"] if as_f32 else [])])
        os.replace(os.path.join(partial, name), os.path.join(self.own, name))
        return os.path.join(self.own, name)

    def interpreter(self):
        """A Python that has numpy and gguf."""
        if self.python:
            return self.python
        folder = os.path.join(TARGET, "venv")
        self.python = os.path.join(folder, "bin", "python")
        try:
            if not os.path.exists(self.python):
                run([sys.executable, "-m", "venv", folder])
            if subprocess.run([self.python, "-c", "import numpy, gguf"], capture_output=True, check=False).returncode:
                print("installing numpy and gguf into target/venv", flush=True)
                run([self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "gguf"])
        except (RuntimeError, OSError) as problem:
            raise Skip(f"numpy and gguf could not be installed:\n{problem}") from problem
        return self.python


def random_tokens(count, n_vocab, seed):
    """Token ids from a 64-bit mixer: the same on every machine and version."""
    mask, out = (1 << 64) - 1, []
    for i in range(count):
        x = (seed * 0x9E3779B97F4A7C15 + (i + 1) * 0xD1B54A32D192ED03) & mask
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = ((x ^ (x >> shift)) * factor) & mask
        out.append((x ^ (x >> 31)) % n_vocab)
    return out


def table(head, body):
    """Prints rows in columns."""
    widths = [max(len(str(row[i])) for row in [head, *body]) for i in range(len(head))]
    for row in [head, ["-" * w for w in widths], *body]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())


def environment(shared):
    """Lines for a shell: what the tests of `cargo test` that compare with the peer look for, made where it is missing."""
    peer, models = Peer(shared), Models(shared)
    for shape in ("llama-tiny", "llama-tiny-bpe", "qwen3-tiny", "gemma3-tiny"):
        models.get(shape, "f32")
    for name, value in (("ELIZA_PEER", peer.program), ("PEER_LLAMA_DIR", peer.env.get("PEER_LLAMA_DIR")),
                        ("PATH", os.path.dirname(models.interpreter()) + os.pathsep + os.environ.get("PATH", ""))):
        if value:
            yield f"export {name}={shlex.quote(value)}"


if __name__ == "__main__":
    try:
        with contextlib.redirect_stdout(sys.stderr):
            lines = list(environment(os.path.abspath(sys.argv[1])))
        print("\n".join(lines))
    except Skip as reason:
        print("skipped:", reason, file=sys.stderr)
