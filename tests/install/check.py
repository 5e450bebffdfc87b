#!/usr/bin/env python3
"""check.py CASE: one test of the installed library; see CMakeLists.txt. Runs in the build folder, ends with 77 when skipped."""
import ctypes
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = os.environ["ELIZA_PREFIX"]
MODEL = os.environ["ELIZA_TEST_MODEL"]
DEMO = os.path.join(ROOT, "models", "demo.gguf")
PEER = os.environ.get("PEER_LLAMA_DIR")
EXAMPLES = os.path.join(ROOT, "examples")
# The installed folder moved to another place, with a space in its name: the examples are built against that.
MOVED = os.path.join(os.getcwd(), "moved prefix")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
C99, CXX17 = ["-std=c99"], ["-std=c++17"]


class Skip(Exception):
    """Something this machine cannot offer."""


def run(command, stdin="", expect=0, **kwargs):
    """Runs a command and returns its stdout and stderr."""
    done = subprocess.run(command, input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **kwargs)
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.returncode != expect:
        sys.exit(f"{shlex.join(command)}\nexit code {done.returncode}, not {expect}\n{out}\n{err}")
    return out, err


def same(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: {found!r}\n  instead of {expected!r}")


def header_version():
    text = open(os.path.join(PREFIX, "include", "eliza_inference.h"), encoding="utf-8").read()
    return [re.search(rf"#define ELIZA_STREAM_ABI_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]


def cli(*args):
    return json.loads(run([os.path.join(PREFIX, "bin", "eliza-inference"), *args, "--json"])[0])


def under(folder):
    """All files and links below a folder."""
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)


def move():
    """The installed folder at its other place."""
    if not os.path.isdir(MOVED):
        shutil.copytree(PREFIX, MOVED + ".part", symlinks=True)
        os.rename(MOVED + ".part", MOVED)
    return MOVED


def pkg_config(prefix, *options, libdir="lib"):
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(prefix, libdir, "pkgconfig"))
    return shlex.split(run(["pkg-config", *options, "elizainference"], env=env)[0])


def write(path, text=""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def target(package, *settings):
    """The properties of the target that the CMake package in this folder makes; None where it is not found."""
    names = ("IMPORTED_LOCATION", "IMPORTED_SONAME", "IMPORTED_IMPLIB", "INTERFACE_INCLUDE_DIRECTORIES")
    lines = ["cmake_minimum_required(VERSION 3.19)", "project(target C)", *settings, "find_package(elizainference QUIET CONFIG)",
             "if(elizainference_FOUND)"]
    for name in names:
        lines += [f"get_target_property(value elizainference::elizainference {name})", f'message(STATUS "property {name} [${{value}}]")']
    write("target/CMakeLists.txt", "\n".join([*lines, "endif()", ""]))
    out, _ = run(["cmake", "-S", "target", "-B", "target/build", f"-Delizainference_DIR={package}"])
    return dict(re.findall(r"property (\w+) \[(.*)\]", out)) or None


def compile_with_pkg_config(source, out, *options):
    compiler = os.environ.get("CC", "cc") if source.endswith(".c") else os.environ.get("CXX", "c++")
    standard = C99 if source.endswith(".c") else CXX17
    run([compiler, *standard, *WARNINGS, *options, source, "-o", out, *pkg_config(move(), "--cflags", "--libs")])


def peer():
    """The folder of a libllama of version 0.5."""
    if not PEER or not glob.glob(os.path.join(PEER, "libllama.*")):
        raise Skip("no libllama (PEER_LLAMA_DIR)")
    library = ctypes.CDLL(glob.glob(os.path.join(PEER, "libllama.*"))[0])
    library.llama_version.restype = ctypes.c_char_p
    if not library.llama_version().startswith(b"0.5."):
        raise Skip("this libllama is not laid out as version 0.5")
    return PEER


# ------------------------------------------------------------------------------------------------------------ the package


def files():
    """What is installed, and that no file knows where."""
    if sys.platform != "linux":
        raise Skip("the list is that of Linux")
    major, *rest = header_version()
    version = ".".join([major, *rest])
    library = os.path.join(PREFIX, "lib", "libelizainference.so")
    same("installed", under(PREFIX), sorted([
        "bin/eliza-inference", "include/eliza_inference.h", "include/eliza_inference.hpp",
        "lib/cmake/elizainference/elizainferenceConfig.cmake", "lib/cmake/elizainference/elizainferenceConfigVersion.cmake",
        "lib/libelizainference.so", f"lib/libelizainference.so.{major}", f"lib/libelizainference.so.{version}",
        "lib/pkgconfig/elizainference.pc"]))
    same("link", os.readlink(library), f"libelizainference.so.{major}")
    same("link", os.readlink(f"{library}.{major}"), f"libelizainference.so.{version}")
    soname = re.search(r"SONAME.*\[(.*)\]", run(["readelf", "-d", library])[0])
    same("soname", soname and soname[1], f"libelizainference.so.{major}")
    if re.search(r"R(UN)?PATH", run(["readelf", "-d", library])[0]):
        sys.exit("the library has a run path")
    if "eliza_testing_" in run(["nm", "-D", library])[0]:
        sys.exit("the library has the exports that only tests call")
    # The program has the demo model in it, hosts have models of their own.
    for name, inside in ((library, False), (os.path.join(PREFIX, "bin", "eliza-inference"), True)):
        with open(name, "rb") as file:
            same(f"the demo model is in {name}", b"libelizainference demo" in file.read(), inside)
    for name in under(PREFIX):
        if name.startswith("lib/") and name.endswith((".pc", ".cmake")):
            text = open(os.path.join(PREFIX, name), encoding="utf-8").read()
            left = re.search(rf"{re.escape(PREFIX)}|{re.escape(ROOT)}|@[A-Z]+@", text)
            if left:
                sys.exit(f"{name} holds {left[0]}")
    # A host that opens the library itself finds it under each of its names.
    for name in (library, f"{library}.{major}"):
        loaded = ctypes.CDLL(name)
        loaded.eliza_inference_abi_version.restype = ctypes.c_char_p
        same("version", loaded.eliza_inference_abi_version().decode(), f"eliza-stream/{version}")


def uninstall():
    """Another prefix and another folder of libraries, behind a DESTDIR; then nothing of it is left."""
    stage = os.path.join(os.getcwd(), "stage")
    shutil.rmtree(stage, ignore_errors=True)
    places = dict(os.environ, DESTDIR=stage, PREFIX="/opt/eliza", LIBDIR="lib/some-triplet")
    run([os.path.join(ROOT, "tools", "package.sh"), "install"], env=places)
    prefix = stage + "/opt/eliza"
    same("as many files", len(under(stage)), len(under(PREFIX)))
    for kind, name in (("includedir", "eliza_inference.h"), ("libdir", "libelizainference.so")):
        folder = pkg_config(prefix, f"--variable={kind}", libdir="lib/some-triplet")[0]
        same(kind, os.path.realpath(os.path.join(folder, name)).startswith(os.path.realpath(prefix)), True)
        same(kind, os.path.exists(os.path.join(folder, name)), True)
    same("location", target(prefix + "/lib/some-triplet/cmake/elizainference")["IMPORTED_LOCATION"],
         f"{os.path.realpath(prefix)}/lib/some-triplet/libelizainference.so.{'.'.join(header_version())}")
    write(os.path.join(prefix, "include", "other.h"))
    run([os.path.join(ROOT, "tools", "package.sh"), "uninstall"], env=places)
    same("left", under(stage), ["opt/eliza/include/other.h"])
    same("removed", os.path.exists(f"{prefix}/lib/some-triplet/cmake/elizainference"), False)


def systems():
    """The target as macOS and Windows would have it, from files that only have their names."""
    major, *rest = header_version()
    version = ".".join([major, *rest])
    shutil.rmtree("systems", ignore_errors=True)
    prefix = os.path.realpath("systems")
    package = shutil.copytree(PREFIX + "/lib/cmake/elizainference", prefix + "/lib/cmake/elizainference")
    same("nothing is found without the library", target(package), None)

    write(f"{prefix}/lib/libelizainference.{version}.dylib")
    found = target(package, "set(APPLE 1)")
    same("macOS", (found["IMPORTED_LOCATION"], found["IMPORTED_SONAME"]),
         (f"{prefix}/lib/libelizainference.{version}.dylib", f"@rpath/libelizainference.{major}.dylib"))
    write(f"{prefix}/bin/elizainference.dll")
    for name in ("libelizainference.dll.a", "elizainference.dll.lib"):
        write(f"{prefix}/lib/{name}")
        found = target(package, "set(WIN32 1)")
        same("Windows", (found["IMPORTED_LOCATION"], found["IMPORTED_IMPLIB"]), (f"{prefix}/bin/elizainference.dll", f"{prefix}/lib/{name}"))


def versions():
    """Which versions a program may ask for."""
    major, minor, patch = header_version()
    expected = {f"{major}": 1, f"{major}.{minor}": 1, f"{major}.{minor}.{patch}": 1, f"{major}.{int(minor) + 1}": 0,
                f"{int(major) + 1}": 0, f"{int(major) - 1}.9": 0, f"{major}.0...{major}.9": 1, f"{major}.{minor}.{patch};EXACT": 1,
                f"{int(major) - 1}.5...<{major}.{minor}.{patch}": 0, f"{int(major) + 1}...{int(major) + 2}": 0}
    asked = "".join(f"unset(elizainference_DIR CACHE)\nfind_package(elizainference {version.replace(';', ' ')} QUIET CONFIG)\n"
                    f'message(STATUS "asked [{version}] ${{elizainference_FOUND}}")\n' for version in expected)
    write("versions/CMakeLists.txt", "cmake_minimum_required(VERSION 3.19)\nproject(versions C)\n" + asked)
    out, _ = run(["cmake", "-S", "versions", "-B", "versions/build", f"-DCMAKE_PREFIX_PATH={PREFIX}"])
    found = {version: int(answer == "1") for version, answer in re.findall(r"asked \[(.*)\] (.*)", out)}
    same("versions", found, expected)
    same("pkg-config", pkg_config(PREFIX, "--modversion"), [".".join(header_version())])


def header():
    """The C++ header by itself, twice in one program; then by every compiler there is, with and without exceptions."""
    write("header/one.cpp", '#include "eliza_inference.hpp"\nint one() { return static_cast<int>(sizeof(eliza::Stream)); }\n')
    # Templates are only looked at where they are used.
    write("header/two.cpp", '#include "eliza_inference.hpp"\nint one();\nint main() {\n'
          '  eliza::Stream stream({"m"});\n  for (const auto & step : stream.generate(1)) (void)step;\n'
          "  stream.generate([](eliza::Token, std::string_view) {}, 1);\n  (void)stream.score_trie();\n"
          "  stream.configure(stream.sampling());\n  (void)stream.sampled();\n"
          '  eliza::Sampler sampler("{}", eliza::TrieMode::greedy);\n  (void)sampler.clone();\n  return one();\n}\n')
    compilers = [name for name in ("g++", "clang++") if shutil.which(name)]
    for compiler in compilers:
        for more in ([], ["-fno-exceptions", "-fno-rtti"], ["-std=c++20"]):
            run([compiler, *CXX17, *more, *WARNINGS, f"-I{PREFIX}/include", "-fsyntax-only", "header/two.cpp"])
    run([os.environ.get("CXX", "c++"), *CXX17, *WARNINGS, f"-I{PREFIX}/include", "header/one.cpp", "header/two.cpp", "-o", "header/program",
         f"-L{PREFIX}/lib", "-lelizainference", "-pthread"])
    print("compilers:", *compilers)


def documents():
    """Every C and C++ program in the documents, built and run beside a model and a payload."""
    shutil.rmtree("documents", ignore_errors=True)
    os.makedirs("documents")
    os.symlink(MODEL, "documents/model.gguf")
    os.symlink(os.path.dirname(DEMO), "documents/models")
    found = 0
    names = ["README.md", "docs/c.md", *(os.path.relpath(p, ROOT) for p in glob.glob(EXAMPLES + "/**/*.md", recursive=True))]
    sources = [(name, kind, body) for name in names
               for kind, body in re.findall(r"^```(c|cpp)\n(.*?)^```", open(os.path.join(ROOT, name), encoding="utf-8").read(), re.M | re.S)]
    tutorial = open(os.path.join(PREFIX, "include", "eliza_inference.hpp"), encoding="utf-8").read()
    lines = re.search(r"^ \*     #include.*?^ \*     }\n", tutorial, re.M | re.S)[0].splitlines()
    sources.append(("eliza_inference.hpp", "cpp", "\n".join(line[3:] for line in lines) + "\n"))
    for name, kind, body in sources:
        found += 1
        source = f"documents/{found}.{kind}"
        write(source, body)
        compile_with_pkg_config(source, f"documents/{found}")
        out, _ = run([f"./{found}"], cwd="documents", env=dict(os.environ, LD_LIBRARY_PATH=MOVED + "/lib"))
        if not out.strip():
            sys.exit(f"program {found} ({name}) printed nothing")
        print(f"{name}: a {kind} program printed {len(out)} characters")
    if found < 5:
        sys.exit("the documents hold fewer programs than they should")


def commands():
    """The shell commands of the examples' documents, and those of README.md and docs/c.md that install, as they stand there."""
    home = os.path.join(os.getcwd(), "home")
    shutil.rmtree(home, ignore_errors=True)
    # Nothing is compiled anew, whatever make above was asked for is not asked for again.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PREFIX", "DESTDIR", "LIBDIR")}
    env.update(HOME=home, CARGO="true")
    for name in ("README.md", "docs/c.md", "examples/README.md", "examples/c/README.md", "examples/cpp/README.md"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            blocks = re.findall(r"^```sh\n(.*?)^```", file.read(), re.M | re.S)
        blocks = [block for block in blocks if not block.startswith(("cargo ", "make test"))]
        if not blocks:
            sys.exit(f"{name} holds no command")
        for block in blocks:
            print(f"{name}:\n{block}", end="", flush=True)
            run(["bash", "-euc", block], cwd=ROOT, env=env)
    same("installed in the home", [name for name in under(PREFIX) if name not in under(os.path.join(home, ".local"))], [])
    for program in ("target/examples/chat_c", "target/examples/choice_cpp", "target/chat_c", "target/chat_cpp"):
        run([os.path.join(ROOT, program)], expect=2, env=dict(os.environ, LD_LIBRARY_PATH=PREFIX + "/lib"))


# ----------------------------------------------------------------------------------------------------------- the examples


def build_cmake():
    """As a host builds: find_package, and the prefix at another place than it was installed to."""
    shutil.rmtree("cmake", ignore_errors=True)
    options = [f"-DCMAKE_PREFIX_PATH={move()}", "-DCMAKE_C_FLAGS=" + " ".join(WARNINGS), "-DCMAKE_CXX_FLAGS=" + " ".join(WARNINGS)]
    try:
        llama, ggml = (glob.glob(os.path.join(peer(), pattern))[0] for pattern in ("libllama.*", "libggml.*"))
        options += [f"-DLLAMA_LIBRARY={llama}", f"-DGGML_LIBRARY={ggml}", f"-DLLAMA_INCLUDE_DIR={ROOT}/tests/install/llama"]
    except Skip as reason:
        print("skipped: the examples llama_chain:", reason)
    run(["cmake", "-S", EXAMPLES, "-B", "cmake", *options])
    run(["cmake", "--build", "cmake", "--parallel", "2"])
    if sys.platform == "linux":
        needed = run(["readelf", "-d", "cmake/chat_c"])[0]
        same("needs the library by its soname", f"[libelizainference.so.{header_version()[0]}]" in needed, True)


def build_pkgconfig():
    os.makedirs("pkgconfig", exist_ok=True)
    for name in ("chat", "choice"):
        compile_with_pkg_config(f"{EXAMPLES}/c/{name}.c", f"pkgconfig/{name}_c")
        compile_with_pkg_config(f"{EXAMPLES}/cpp/{name}.cpp", f"pkgconfig/{name}_cpp")
    compile_with_pkg_config(f"{EXAMPLES}/cpp/tools.cpp", "pkgconfig/tools_cpp")


def programs(name):
    """An example in C and C++, as CMake and as pkg-config built it, with what each needs to find the library."""
    for language in ("c", "cpp"):
        yield f"cmake/{name}_{language}", dict(os.environ)
        yield f"pkgconfig/{name}_{language}", dict(os.environ, LD_LIBRARY_PATH=MOVED + "/lib")


def chat():
    """Two turns with a seed: each answer is what the command line generates behind the transcript so far."""
    turns = ["Who are you?", "Tell me more."]
    transcript, expected = "", ""
    for turn in turns:
        transcript += ("" if not transcript else "\nUser: ") + ("User: " if not transcript else "") + turn + "\nAssistant:"
        answer = cli("generate", "--model", MODEL, "--prompt", transcript, "-n", "24", "--temp", "0.8", "--top-p", "1", "--seed", "7",
                     "--stop", "\nUser:")["text"].replace("\0", "\ufffd")
        transcript += answer
        expected += answer + "\n"
    for program, env in programs("chat"):
        out, err = run([program, MODEL, "24", "0.8", "7"], stdin="".join(turn + "\n" for turn in turns), env=env)
        same(program, out, expected)
        kept = re.findall(r"(\d+) of them kept", err)
        same(f"{program}: turns that kept something", [int(n) > 0 for n in kept], [False, True])


def choice():
    """The name that the command line scores best, and probabilities that are one distribution."""
    prompt, names = "The letter is", [" alpha", " alpine", " beta", " gamma", " delta", ' "q\\u\u00e9"']
    write("choice/trie.json", json.dumps(cli("trie", "--model", MODEL, "--path", "choice", "--before", prompt, *names)))
    expected = cli("generate", "--model", MODEL, "--prompt", prompt, "-n", "-1", "--temp", "0", "--trie", "choice/trie.json",
                   "--trie-mode", "score", "--on-span-end", "stop")["text"]
    same("the command line chose a name", expected in names, True)
    in_c = None
    for program, env in programs("choice"):
        lines = run([program, MODEL, prompt, *names], env=env)[0].splitlines()
        same(program, lines[-1], expected)
        if program.endswith("_c"):
            in_c = json.loads(lines[0])
            same("path", in_c["path"], "choice")
            same("names", {leaf["name"] for leaf in in_c["leaves"]}, set(names))
            same("the best is first", in_c["leaves"][0]["name"], expected)
    # C++ reads the same answer.
    for program, env in programs("choice"):
        if program.endswith("_cpp"):
            scored = [line.split("  ", 1) for line in run([program, MODEL, prompt, *names], env=env)[0].splitlines()[:-1]]
            same("names", [name for _, name in scored], [leaf["name"] for leaf in in_c["leaves"]])
            for (probability, name), leaf in zip(scored, in_c["leaves"]):
                same(name, probability, f"{2.718281828459045 ** leaf['logprob']:.6f}")


def tools():
    """Calls of tools that exist, with arguments by their rules, and the tools' answers."""
    requests = ["What is 3 and 4?", "Will it rain in Rome?", "Wake me in ten minutes"]
    for program, env in programs("tools"):
        if not program.endswith("_cpp"):
            continue
        lines = run([program, DEMO, *requests], env=env)[0].splitlines()
        same(f"{program}: lines", len(lines), len(requests))
        for line in lines:
            number = r"(0|[1-9]\d{0,5})"
            added = re.fullmatch(rf"add\({number}, {number}\) = (\d+)", line)
            if added:
                same(line, int(added[3]), int(added[1]) + int(added[2]))
            elif not re.fullmatch(r"weather\(([A-Z][a-z]{2,14}), ([1-9])\) = no idea about \1 in \2 days"
                                  r"|timer\(([1-9]\d?)\) = rings in \3 minutes", line):
                sys.exit(f"{program}: {line!r} is no call")


def failures():
    """What is wrong is said on stderr, with an exit code, and nothing is printed."""
    for name, args in (("chat", ["absent.gguf"]), ("choice", ["absent.gguf", "x", "y"]), ("choice", [__file__, "x", "y"]),
                       ("choice", [MODEL, "x", ""])):
        for program, env in programs(name):
            out, err = run([program, *args], env=env, expect=1)
            same(f"{program} {args}", (out, bool(err.strip())), ("", True))
    for program, env in programs("chat"):
        same(program, run([program], env=env, expect=2)[0], "")


def llama_chain():
    """The name comes out of a chain of the real libllama as out of ours, and the text goes on behind it."""
    folder = peer()
    prompt, trie = "One morning", os.path.join(ROOT, "docs", "examples", "names.json")
    ours = cli("generate", "--model", DEMO, "--prompt", prompt, "-n", "12", "--temp", "0", "--trie", trie, "--on-span-end", "stop")
    for language in ("c", "cpp"):
        # libggml looks for the parts that suit the processor in the working folder.
        out, _ = run([os.path.abspath(f"cmake/llama_chain_{language}"), DEMO, trie, prompt, "12"], cwd=folder)
        same("begins with the name", out.startswith(ours["text"]), True)
        same("goes on", len(out.strip()) > len(ours["text"]) + 10, True)
        print(out)


CASES = [files, uninstall, systems, versions, header, documents, commands, build_cmake, build_pkgconfig, chat, choice, tools, failures, llama_chain]

if __name__ == "__main__":
    try:
        {case.__name__: case for case in CASES}[sys.argv[1]]()
    except Skip as reason:
        print("skipped:", reason)
        sys.exit(77)
