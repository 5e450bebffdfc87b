#!/usr/bin/env python3
"""Compiles the Java package and its tests and runs them on this machine's Java, with every JNI call checked.

    tools/jvm_tests.py LIBRARY MODEL [--bench]

LIBRARY is libelizainference_jni with the feature `testing`, MODEL a GGUF file. The suite runs in one process, every way to end
one in a process of its own; what the library says of machine, file and model is compared with the program beside it; then the examples of README.md and android/README.md are compiled and run as they stand there
(those in Kotlin where there is a kotlinc), on models/demo.gguf. Whatever a process writes besides its own lines is a failure:
that is how the JNI checks, and a library that is not quiet, are seen. --bench runs android/bench instead.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "target", "jvm")
ANDROID = os.path.join(ROOT, "android")

# How a process ends, its exit code, and what it says on stderr.
EXITS = [
    ("return", 0, ""),
    ("exit", 7, ""),
    ("halt", 7, ""),
    ("throw", 1, "thrown in main"),
    ("thread_throws", 0, "thrown in a thread"),
    ("thread_is_interrupted", 0, ""),
    ("thread_is_stopped", 0, ""),
    ("close_and_return", 0, ""),
]

DEMO = os.path.join(ROOT, "models", "demo.gguf")
IMPORTS = "import ai.eliza.inference.*;\nimport java.util.*;\nimport java.util.concurrent.*;\n"


def fail(message):
    sys.exit(f"jvm: {message}")


def sources(folder):
    found = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    return sorted(name for name in found if name.endswith(".java"))


def javac(out, files, classes=()):
    """Compiles; every warning is an error. The language is that of the oldest Android that the package is for."""
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    path = ["-cp", os.pathsep.join(classes)] if classes else []
    done = subprocess.run(["javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-d", out, *path, *files])
    if done.returncode != 0:
        fail(f"javac failed on {files[0]} …")


def java(library, classes, arguments, seconds, *properties):
    command = ["java", "-Xcheck:jni", "-Xms96m", "-Xmx96m", f"-Dai.eliza.inference.library={library}", *properties,
               "-cp", os.pathsep.join(classes)]
    try:
        return subprocess.run(command + arguments, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        fail(f"{arguments} had not ended after {seconds} s")


def suite(library, model, classes):
    done = java(library, classes, ["ai.eliza.inference.HostTest", model], 300)
    strange = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    if done.returncode != 0 or strange or done.stderr:
        print(done.stdout, done.stderr, sep="\n")
        fail(f"the suite ended with {done.returncode}")
    print(f"{len(done.stdout.splitlines())} cases passed")


def without(value, names):
    """JSON without the members of these names, at any depth."""
    if isinstance(value, dict):
        return {name: without(part, names) for name, part in value.items() if name not in names}
    return [without(part, names) for part in value] if isinstance(value, list) else value


def answers(library, model, classes):
    """What Java is told is what the command line says."""
    program = os.path.join(os.path.dirname(library), "eliza-inference")
    if not os.path.exists(program):
        print("skipped: no command line program beside the library to compare answers with")
        return
    done = java(library, classes, ["ai.eliza.inference.AskingTest", model], 60)
    if done.returncode != 0 or done.stderr:
        print(done.stdout, done.stderr, sep="\n")
        fail(f"the answers ended with {done.returncode}")
    told = {question: json.loads(text) for question, text in (line.split(" ", 1) for line in done.stdout.splitlines())}

    def says(*arguments):
        return json.loads(subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout)

    def same(question, found, expected):
        if found != expected:
            fail(f"{question}: Java is told {found}, the command line says {expected}")

    # Memory comes and goes between two questions.
    memory = ["available_bytes", "largest_context", "largest_gpu_layers"]
    same("devices", without(told["devices"], memory), without(says("devices", "--json"), memory))
    plan = says("plan", "--model", model, "--ctx", "256", "--slots", "1", "--kv-type", "q8_0", "--json")
    same("plan", without(told["plan"], memory), without(plan, memory))
    file = says("inspect", model, "--keys", "--json")
    same("metadata", set(told["metadata"]), set(file["keys"]))
    for name in ("architecture", "name", "parameters", "bytes"):
        same(name, told["model"][name], file[name])
    rows = os.path.join(OUT, "logits")
    subprocess.run([program, "logits", "--model", model, "--prompt", "Once upon a time", "--all", "--out", rows],
                   capture_output=True, check=True)
    with open(rows, "rb") as raw:
        bits = [number for number, in struct.iter_unpack("<i", raw.read())]
    same("logits", told["logits"], bits[-len(told["logits"]):])
    print(f"{len(told)} answers are the command line's")


def exits(library, model, classes):
    for way, code, says in EXITS:
        begin = time.monotonic()
        done = java(library, classes, ["ai.eliza.inference.ExitTest", way, model], 60)
        expected = says in done.stderr if says else not done.stderr
        if done.returncode != code or not expected or done.stdout:
            print(done.stdout, done.stderr, sep="\n")
            fail(f"a process that ends by `{way}` ended with {done.returncode}, expected {code}")
        print(f"ended by {way} while two generations ran: exit code {code} after {time.monotonic() - begin:.1f} s")


def examples(language):
    """The examples of both README.md in a language."""
    found = []
    for folder in (ANDROID, ROOT):
        with open(os.path.join(folder, "README.md"), encoding="utf-8") as text:
            found += re.findall(rf"^```{language}\n(.*?)^```", text.read(), re.M | re.S)
    return found


def readme(library, model, classes):
    found = examples("java")
    if not found:
        fail("there is no example")
    folder = os.path.join(OUT, "readme")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "java"))
    files = []
    for number, body in enumerate(found, 1):
        files.append(os.path.join(folder, "java", f"Example{number}.java"))
        with open(files[-1], "w", encoding="utf-8") as file:
            file.write(f"{IMPORTS}\npublic class Example{number} {{\n"
                       f"public static void main(String[] arguments) throws Exception {{\n"
                       f"String modelPath = arguments[0];\n{body}}}\n}}\n")
    compiled = os.path.join(folder, "classes")
    javac(compiled, files, classes)
    for number in range(1, len(found) + 1):
        done = java(library, [*classes, compiled], [f"Example{number}", model], 60)
        if done.returncode != 0 or done.stderr:
            print(done.stdout, done.stderr, sep="\n")
            fail(f"example {number} of the README.md files ended with {done.returncode}")
        if not done.stdout.strip():
            fail(f"example {number} of the README.md files prints nothing")
    print(f"{len(found)} examples of the README.md files ran")


def kotlin(library, model, classes):
    """The README's examples in Kotlin."""
    if shutil.which("kotlinc") is None:
        print("skipped: no kotlinc for the example in Kotlin")
        return
    # Older compilers keep `use` for Java's AutoCloseable in a library of its own.
    home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("kotlinc"))))
    jdk7 = os.path.join(home, "lib", "kotlin-stdlib-jdk7.jar")
    classes = [*classes, jdk7] if os.path.exists(jdk7) else classes
    found = examples("kotlin")
    for number, body in enumerate(found, 1):
        source, jar = (os.path.join(OUT, "readme", f"Example{number}.{end}") for end in ("kt", "jar"))
        with open(source, "w", encoding="utf-8") as file:
            file.write(f"import ai.eliza.inference.*\n\n{body}")
        compiled = subprocess.run(["kotlinc", "-include-runtime", "-cp", os.pathsep.join(classes), "-d", jar, source],
                                  capture_output=True, text=True)
        if compiled.returncode != 0:
            fail(f"kotlinc failed on example {number} of android/README.md\n{compiled.stderr}")
        done = java(library, [*classes, jar], [f"Example{number}Kt", model], 60)
        if done.returncode != 0 or done.stderr or not done.stdout.strip():
            print(done.stdout, done.stderr, sep="\n")
            fail(f"example {number} in Kotlin of android/README.md ended with {done.returncode}")
    print(f"{len(found)} examples in Kotlin of android/README.md ran")


def activity(library, model, classes):
    """The example of an Android activity, over stand-ins for Android's classes."""
    folder, example = os.path.join(OUT, "activity"), os.path.join(ROOT, "examples", "android")
    files = os.path.join(folder, "files")
    compiled = os.path.join(folder, "classes")
    javac(compiled, sources(example), classes)
    os.makedirs(files, exist_ok=True)
    shutil.copy(model, os.path.join(files, "model.gguf"))
    done = java(library, [*classes, compiled], ["android.app.Phone", "ai.eliza.example.ChatActivity"], 60, f"-Dfiles={files}")
    if done.returncode != 0 or done.stderr or not re.fullmatch(
            r"User: Who are you\?\nAssistant:.+\nUser: Tell me a long story\nAssistant:.*\n", done.stdout, re.S):
        print(done.stdout, done.stderr, sep="\n")
        fail(f"the activity ended with {done.returncode}")
    print("the example of an activity had two questions answered")


CONSUMER = """cmake_minimum_required(VERSION 3.18)
project(app LANGUAGES C)
add_subdirectory("{android}" elizainference)
add_executable(app app.c)
target_link_libraries(app PRIVATE elizainference::elizainference)
"""
APP = """#include "eliza_inference.h"
#include <stdio.h>
int main(void) {
    return puts(eliza_inference_abi_version()) < 0;
}
"""


def cmake(library):
    """C code of an app builds and runs against the same library."""
    folder = os.path.join(OUT, "cmake")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, text in (("CMakeLists.txt", CONSUMER.replace("{android}", ANDROID)), ("app.c", APP)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    build = os.path.join(folder, "build")
    for command in (["cmake", "-S", folder, "-B", build, f"-DELIZA_JNI_LIBRARY={library}"], ["cmake", "--build", build],
                    [os.path.join(build, "app")]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if not done.stdout.startswith("eliza-stream/"):
        fail(f"a C program on {library} says {done.stdout!r}")
    print("a C program built with android/CMakeLists.txt ran")


def main():
    library, model = (os.path.abspath(name) for name in sys.argv[1:3])
    package, tests, bench = (os.path.join(OUT, name) for name in ("package", "tests", "bench"))
    javac(package, sources(os.path.join(ANDROID, "src")))
    javac(tests, sources(os.path.join(ANDROID, "tests")), [package])
    if sys.argv[3:] == ["--bench"]:
        javac(bench, sources(os.path.join(ANDROID, "bench")), [package, tests])
        subprocess.run(["java", f"-Dai.eliza.inference.library={library}", "-cp", os.pathsep.join([package, tests, bench]),
                        "ai.eliza.inference.OverheadBench", model], check=True)
        return
    suite(library, model, [package, tests])
    answers(library, model, [package, tests])
    exits(library, model, [package, tests])
    readme(library, DEMO, [package])
    kotlin(library, DEMO, [package])
    activity(library, DEMO, [package])
    cmake(library)


if __name__ == "__main__":
    main()
