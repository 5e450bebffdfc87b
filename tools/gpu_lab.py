#!/usr/bin/env python3
"""What compilers of real GPUs make of the shaders, on a machine without such a GPU.

    gpu_lab.py texts                      writes the shaders of the fixture models and of usual products into target/gpu-lab
    gpu_lab.py report [DEVICE...]         compiles them with the drivers of these devices (all), and prints what came of it
    gpu_lab.py report --before FILE       prints the rows that differ from a report's figures (target/gpu-lab/figures.tsv, kept)
    gpu_lab.py matrices                   tests what is done by matrix instructions on a software driver that has them
    gpu_lab.py check                      as report; fails where a driver refuses a text or spills more than is allowed

The compilers are Mesa's: ACO (AMD), NAK (NVIDIA), ir3 (Adreno), Bifrost and Valhall (Mali). They run without hardware; packages that
are not installed are unpacked into target/gpu-lab/roots from Debian's mirror. `cargo`, `apt-get`, and for the last two `qemu-aarch64`
and `aarch64-linux-gnu-gcc` are needed (`tools/install.sh --deep`); a device whose compiler cannot be had is skipped in plain words.

A driver's statistics are facts about the code. The shares of the memory's time are a model's prediction: no cache misses, no
other work, full clocks. They rank two versions of a kernel and show what cannot be fast. The model is at `Card`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "target" / "gpu-lab"
# Texts for most GPUs, and for those whose threads have fewer registers, by what makes them.
TEXTS = {LAB / "texts": "dots=on", LAB / "texts-medium": "dots=on,registers=medium", LAB / "texts-few": "registers=few"}
MANY, MEDIUM, FEW = TEXTS
# What is done by matrix instructions: no driver here asks for them, so only usual products and attentions are written.
MATRICES = {LAB / "texts-matrices": "dots=on,matrices=16"}
ROOTS = LAB / "roots"
FIGURES = LAB / "figures.tsv"
ARM = "aarch64-unknown-linux-gnu"
# Texts of Mali that may spill: its compiler has 64 registers a thread.
MALI_SPILLS = 5


@dataclass
class Card:
    """What a GPU can do in a second, for the model.

    A SIMD has 32 lanes and issues a vector instruction of 64 lanes in two cycles. A compute unit has two, moves 64 bytes a
    cycle from its cache into registers, every lane counted, and 128 from workgroup memory.
    """

    bandwidth: float
    units: int
    clock: float

    def bytes_per_cycle(self) -> float:
        """The bytes of memory that a compute unit's share is, a cycle."""
        return self.bandwidth / self.clock / self.units


CARDS = {"navi31": ("RX 7900 XTX", Card(960e9, 96, 2.5e9)), "phoenix": ("780M", Card(90e9, 12, 2.7e9))}

AMD = ["navi31", "phoenix", "navi21", "vega10", "gfx1201"]
DEVICES = [*AMD, "nvidia-ampere", "adreno-730", "mali-g610"]
# Without an instruction for dot products of bytes, so that no program has such kernels there.
NO_DOTS = ["vega10"]
# With matrix instructions for blocks of 16 by 16 halves.
WITH_MATRICES = ["navi31", "phoenix", "gfx1201", "nvidia-ampere"]
# Cycles of a SIMD for one of them.
WMMA = 32

# ------------------------------------------------------------------------------------------------------------- compilers


def run(command, **more):
    return subprocess.run([str(part) for part in command], text=True, **more)


def unpack(name: str, arch: str, suites: list[str], packages: list[str]) -> Path:
    """A folder with Debian packages and all that they depend on; nothing is installed."""
    root = ROOTS / name
    if (root / "done").exists():
        return root
    state = ROOTS / f"{name}.apt"
    for folder in [state / "lists" / "partial", state / "archives" / "partial", root / "usr"]:
        folder.mkdir(parents=True, exist_ok=True)
    for link in ["bin", "sbin", "lib", "lib64"]:
        (root / "usr" / link).mkdir(exist_ok=True)
        if not (root / link).exists():
            (root / link).symlink_to(f"usr/{link}")
    suite = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.M).group(1)
    targets = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {suite}"], capture_output=True, check=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    lines = [f"deb [arch={arch} signed-by={key}] {targets.stdout.split()[0]} {suite} main\n" for suite in suites]
    (state / "sources.list").write_text("".join(lines))
    (state / "status").touch()
    options = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache::archives": state / "archives",
        "Dir::Cache": state,
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    run([*apt, "update"], check=True, capture_output=True)
    run([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *packages], check=True, capture_output=True)
    for package in sorted((state / "archives").glob("*.deb")):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", root, "--keep-directory-symlink", "--no-same-owner"], stdin=files.stdout, check=True)
        if files.wait() != 0:
            raise RuntimeError(f"{package} cannot be unpacked")
    (root / "done").touch()
    return root


def bare_root() -> Path:
    """A root with the C library, a shell and Mesa's software driver, and nothing else."""
    later = "bookworm-backports"
    mesa = [f"{name}/{later}" for name in ["mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1"]]
    return unpack("software", "amd64", ["bookworm", later], ["libc6", "libgcc-s1", "tar", "gzip", "dash", *mesa])


def newer_mesa() -> Path:
    """Mesa whose drivers for NVIDIA and for the CPU have matrix instructions, with its C library."""
    return unpack("newer", "amd64", ["forky"], ["mesa-vulkan-drivers", "mesa-drm-shim", "libvulkan1"])


def compiler(target: str | None = None) -> Path:
    """The program that drives a Vulkan driver's compiler."""
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--manifest-path", ROOT / "tools" / "gpu_lab" / "Cargo.toml"]
    command += ["--target-dir", LAB / "build"]
    environment = dict(os.environ)
    if target:
        run(["rustup", "target", "add", target], check=True, capture_output=True)
        command += ["--target", target]
        environment["CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER"] = "aarch64-linux-gnu-gcc"
    run(command, check=True, env=environment)
    return LAB / "build" / (target or "") / "release" / "gpu-lab"


def driver_file(root: Path, libraries: Path, name: str) -> Path:
    """The description of an unpacked driver, with the whole path of its library."""
    text = next((root / "usr/share/vulkan/icd.d").glob(f"{name}_icd*.json")).read_text()
    out = ROOTS / f"{name}.json"
    out.write_text(re.sub(r'("library_path": )"[^"]*"', rf'\1"{libraries}/libvulkan_{name}.so"', text))
    return out


def prepared(device: str) -> tuple[list, dict]:
    """The command and the environment that compile with a device's driver."""
    environment = {**os.environ, "MESA_SHADER_CACHE_DISABLE": "1"}
    if device in AMD:
        files = sorted(Path("/usr/share/vulkan/icd.d").glob("radeon_icd*.json"))
        if not files:
            raise FileNotFoundError("Mesa's driver for AMD is not installed")
        return [compiler()], {**environment, "VK_DRIVER_FILES": str(files[0]), "RADV_FORCE_FAMILY": device}
    if device == "nvidia-ampere":
        root = newer_mesa()
        libraries = root / "usr/lib/x86_64-linux-gnu"
        loader = [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries]
        loader += ["--preload", libraries / "libnouveau_noop_drm_shim.so"]
        environment["VK_DRIVER_FILES"] = str(driver_file(root, libraries, "nouveau"))
        return [*loader, compiler()], {**environment, "NOUVEAU_CHIPSET": "0x174", "NVK_I_WANT_A_BROKEN_VULKAN_DRIVER": "1"}
    later = "bookworm-backports"
    packages = ["libvulkan1", "libc6", *(f"{name}/{later}" for name in [
        "mesa-vulkan-drivers", "mesa-drm-shim", "libdrm2", "libdrm-amdgpu1"])]
    root = unpack("arm", "arm64", ["bookworm", later], packages)
    libraries = root / "usr/lib/aarch64-linux-gnu"
    name = "freedreno" if device.startswith("adreno") else "panfrost"
    inside = {"LD_LIBRARY_PATH": libraries, "LD_PRELOAD": libraries / f"lib{name}_noop_drm_shim.so"}
    inside |= {"VK_DRIVER_FILES": driver_file(root, libraries, name), "MESA_SHADER_CACHE_DISABLE": "1"}
    if name == "freedreno":
        inside["FD_GPU_ID"] = device.split("-")[1]
    else:
        inside |= {"PAN_GPU_ID": "a867", "PAN_I_WANT_A_BROKEN_VULKAN_DRIVER": "1", "BIFROST_MESA_DEBUG": "shaderdb"}
    command = ["qemu-aarch64", "-L", root, *(part for key, value in inside.items() for part in ("-E", f"{key}={value}"))]
    return [*command, compiler(ARM)], environment


def compiled(device: str, files: list[Path]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The statistics of each file's program by the file's stem, and what was refused."""
    command, environment = prepared(device)
    assembly = ["--assembly", LAB / "assembly" / device] if device in CARDS else []
    ran = run([*command, *assembly, *files], env=environment, capture_output=True)
    if ran.returncode not in (0, 1):
        raise RuntimeError((ran.stderr.strip() or f"status {ran.returncode}").splitlines()[-1])
    figures: dict[str, dict[str, float]] = {}
    for line in ran.stdout.splitlines():
        stem, _, subgroup, *values = line.split("\t")
        figures[stem] = {"subgroup": float(subgroup)} | {name: float(value) for name, value in (v.split("=") for v in values)}
    refused, stem = [], ""
    for line in ran.stderr.splitlines():
        if line.startswith("file "):
            stem = Path(line[5:]).stem
        elif line.startswith("refused "):
            refused.append(line[8:])
        # Bifrost's compiler says its figures here.
        elif found := re.search(r"(\d+):(\d+) spills:fills", line):
            figures.setdefault(stem, {})["spills"] = float(found.group(1)) + float(found.group(2))
            if count := re.search(r"(\d+) inst", line):
                figures[stem]["Instructions"] = float(count.group(1))
    return figures, refused


def spills(figures: dict[str, float]) -> float:
    """Registers that are kept in memory for want of room, by the names that the drivers have for that. AMD's scalar registers go to
    lanes of vector registers instead, which is cheap, and are not counted."""
    names = ["spills", "Spilled VGPRs", "STP Count", "LDP Count", "Spills to memory", "Fills from memory"]
    return sum(figures.get(name, 0.0) for name in names)


# ------------------------------------------------------------------------------------------------------------------ texts


# Flags that follow from others.
UNSAID = {"BLOCKS", "WORDS", "HALVES", "BLOCK_HALVES", "NARROW", "AHEAD", "TABLE", "SIXES", "OFFSET", "ACTIVATED", "CODES",
          "TWO_SCALES"}


@dataclass
class Text:
    """A shader's text: its flags and constants tell which kernel it is."""

    path: Path

    def __post_init__(self):
        self.source = self.path.read_text()
        self.kernel = self.path.stem.rsplit("-", 1)[0]
        self.flags = self.source.splitlines()[0].removeprefix("//").split()
        self.constants = {name: int(value) for name, value in re.findall(r"^const (\w+): u32 = (\d+)u;", self.source, re.M)}

    def is_decode_product(self) -> bool:
        """Whether it multiplies one row with a matrix of 1,024 rows or more; what is smaller is no matter of speed."""
        of_one = self.kernel == "matvec" and self.constants.get("COLUMNS") == 1
        return of_one and self.constants["K_LANES"] >= 16 and ("GATED" in self.flags or self.constants["OUT_TILES"] > 1)

    def is_prompt_product(self) -> bool:
        """Whether it multiplies the rows of a prompt, in the largest tiles."""
        if self.kernel == "matmul_halves":
            return True
        return self.kernel in ("matmul", "matmul_int8") and self.constants["ROWS_IN"] >= 32 and "HEADS" not in self.flags

    def label(self) -> str:
        """A name for the eyes: what distinguishes kernels of one source, without what is always there."""
        plain = [flag for flag in self.flags if flag not in UNSAID]
        names = ["COLUMNS", "K_LANES", "OUT_TILES", "SIDES", "ROWS_IN", "ROWS_OUT", "DK4", "DV4", "LINES", "PACK", "PACKS", "THREADS"]
        numbers = [f"{name.lower()} {self.constants[name]}" for name in names if name in self.constants]
        return " ".join([self.kernel, *plain, *numbers])


# Bytes of 32 weights by the flag of the layout: those of the file, but for AFFINE, in which types without a layout of their own are.
GROUP_BYTES = {"F32": 128, "F16": 64, "BF16": 64, "Q8_0": 34, "Q6_K": 26.25, "Q5_K": 22, "Q4_K": 18, "Q4_0": 18}
GROUP_BYTES |= {"IQ4_NL": 18, "MXFP4": 17, "AFFINE": 48}

# ------------------------------------------------------------------------------------------------------------------ model


def blocks_of(assembly: str) -> list[tuple[str, list[str]]]:
    """The basic blocks of a program in ACO's assembly."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in assembly.splitlines():
        text = line.split(";")[0].strip()
        if head := re.fullmatch(r"(BB\d+):", text):
            blocks.append((head.group(1), []))
        elif again := re.match(r"\(then repeated (\d+) times\)", text):
            blocks[-1][1].extend([blocks[-1][1][-1]] * int(again.group(1)))
        elif text:
            blocks[-1][1].append(text)
    return blocks


def loops_of(blocks) -> list[tuple[int, int]]:
    """First and last block of each loop: of the branches back."""
    places = {name: i for i, (name, _) in enumerate(blocks)}
    ends: dict[int, int] = {}
    for i, (_, instructions) in enumerate(blocks):
        for text in instructions:
            target = re.match(r"s_c?branch\S*\s+(BB\d+)", text)
            if target and places.get(target.group(1), i + 1) <= i:
                head = places[target.group(1)]
                ends[head] = max(ends.get(head, 0), i)
    return sorted(ends.items())


@dataclass
class Work:
    """What a wave of 64 does, by the parts of a compute unit: cycles."""

    arithmetic: float = 0.0
    loads: float = 0.0
    shared: float = 0.0
    bytes: float = 0.0
    stores: int = 0

    @staticmethod
    def of(instructions) -> "Work":
        work = Work()
        for text in instructions:
            name = text.split()[0]
            wide = {"b128": 4, "x4": 4, "b96": 3, "x3": 3, "b64": 2, "x2": 2}
            words = next((n for ending, n in wide.items() if name.endswith(ending)), 1) * (2 if "2addr" in name else 1)
            if name.startswith("v_wmma"):
                work.arithmetic += WMMA
            elif name.startswith("v_"):
                work.arithmetic += 2
            elif name.startswith(("buffer_load", "global_load")):
                work.loads += 4 * words
                work.bytes += 64 * 4 * words
            elif name.startswith(("buffer_store", "global_store")):
                work.stores += 1
            elif name.startswith("ds_"):
                work.shared += 2 * words
        return work

    def plus(self, other: "Work", times: float) -> None:
        self.arithmetic += times * other.arithmetic
        self.loads += times * other.loads
        self.shared += times * other.shared


def product_work(text: Text, assembly: str, n_in: int) -> Work:
    """The work of a wave of a product of one row with a matrix of so many columns."""
    blocks = blocks_of(assembly)
    loops = loops_of(blocks)
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    of_loop = {loop: Work.of(t for _, block in blocks[loop[0] : loop[1] + 1] for t in block) for loop in inner}
    main = max((loop for loop in inner if of_loop[loop].loads), key=lambda loop: of_loop[loop].arithmetic)
    inside = {i for first, last in inner for i in range(first, last + 1)}
    total = Work.of(t for i, (_, block) in enumerate(blocks) if i not in inside for t in block)
    total.loads = total.bytes = 0.0
    lanes, threads = text.constants["K_LANES"], text.constants["THREADS"]
    for loop, work in of_loop.items():
        if loop == main:
            total.plus(work, n_in / 32 / lanes)
        elif work.stores:
            continue  # The sum, which one workgroup of all stores.
        elif work.loads:
            total.plus(work, n_in / 4 / threads)  # A vec4 of the row for each thread.
        else:
            total.plus(work, 64 / threads)  # Adding up lanes: one wave does it.
    return total


def product_row(text: Text, device: str, figures: dict[str, float], n_in: int = 4096) -> str:
    """A row of the table of products: the shares of the memory's time."""
    assembly = (LAB / "assembly" / device / f"{text.path.stem}.Assembly.txt").read_text()
    _, card = CARDS[device]
    work, constants = product_work(text, assembly, n_in), text.constants
    layout = next(flag for flag in text.flags if flag in GROUP_BYTES)
    rows = 8 * constants["SIDES"]
    weights = rows * n_in / 32 * GROUP_BYTES[layout]
    waves = constants["THREADS"] / 64
    memory = weights / card.bytes_per_cycle()
    # Two SIMDs share the arithmetic of a unit, all waves its other parts.
    shares = [work.arithmetic * waves / 2 / memory, work.loads * waves / memory, work.shared * waves / memory]
    # What the smallest matrix of this spread has under way: as many workgroups as tiles, a group of each row and lane.
    matrix_rows = 1024 if constants["K_LANES"] > 16 else 4096
    gated = "GATED" in text.flags
    groups = matrix_rows / (rows / (2 if gated else 1))
    resident = min(groups * waves / (2 * card.units), figures["Subgroups per SIMD"] / 2)
    under_way = resident * 64 * constants["SIDES"] * GROUP_BYTES[layout]
    cells = [f"{100 * share:.0f}" for share in shares]
    return f"| {text.label()} | {', '.join(cells)} | {resident:.1f} | {under_way / 1024:.1f} |"


def prompt_row(text: Text, device: str, figures: dict[str, float]) -> str:
    """A row of the table of prompts' products: the loop along K, where all the multiplying is."""
    assembly = (LAB / "assembly" / device / f"{text.path.stem}.Assembly.txt").read_text()
    blocks = blocks_of(assembly)
    kinds = {"matmul_halves": "v_wmma", "matmul_int8": "v_dot4"}
    multiplies = re.compile(kinds.get(text.kernel, "v_(fma|fmac|mac|mad|pk_fma)"))

    def multiply_adds(first: int, last: int) -> int:
        names = (t.split() for _, block in blocks[first : last + 1] for t in block)
        # A dual instruction is two, one after the other in a line.
        return sum(len([part for part in words if multiplies.match(part)]) for words in names)

    loops = loops_of(blocks)
    most = max(multiply_adds(*loop) for loop in loops)
    # The innermost that has all of them, which a step along K goes through several times or once.
    inner = min((loop for loop in loops if multiply_adds(*loop) == most), key=lambda loop: loop[1] - loop[0])
    constants = text.constants
    columns = 32 * constants.get("STEP", 1)
    if text.kernel == "matmul_halves":
        # Blocks of sums of each of four waves.
        count = (constants["ROWS"] // 2 // constants["BLOCK"]) ** 2 * columns / constants["BLOCK"]
        peak = count * WMMA / 2
    else:
        sums = constants["ROWS_OUT"] * constants["SIDES"] * constants["ROWS_IN"] / constants["THREADS"]
        peak = count = sums * columns / (4 if text.kernel == "matmul_int8" else 1)
    around = [loop for loop in loops if loop != inner and loop[0] <= inner[0] and inner[1] <= loop[1]]
    step = min(around, key=lambda loop: loop[1] - loop[0]) if around else inner
    inside = range(inner[0], inner[1] + 1)
    work = Work.of(t for i in range(step[0], step[1] + 1) if i not in inside for t in blocks[i][1])
    work.plus(Work.of(t for i in inside for t in blocks[i][1]), count / most)
    # Two SIMDs share a unit's loads and workgroup memory.
    parts = [work.arithmetic / 2, work.loads, work.shared]
    cells = [f"{100 * peak / part:.0f}" for part in parts]
    share = f"{100 * peak / max(parts):.0f}"
    return f"| {text.label()} | {share} | {', '.join(cells)} | {figures['Subgroups per SIMD'] / 2:.0f} |"


def attention_halves_row(text: Text, device: str, figures: dict[str, float]) -> str:
    """A row of the table of attention by matrix instructions: a step over cells that all rows see."""
    assembly = (LAB / "assembly" / device / f"{text.path.stem}.Assembly.txt").read_text()
    blocks, constants = blocks_of(assembly), text.constants

    def matrices(first: int, last: int) -> int:
        return sum(t.startswith("v_wmma") for _, block in blocks[first : last + 1] for t in block)

    loops = loops_of(blocks)
    most = max(matrices(*loop) for loop in loops)
    step = min((loop for loop in loops if matrices(*loop) == most), key=lambda loop: loop[1] - loop[0])
    within = [loop for loop in loops if loop != step and step[0] <= loop[0] and loop[1] <= step[1]]
    looped = {i for first, last in within for i in range(first, last + 1)}
    # Where not all rows see all, each cell is looked at: the other part of a branch that all threads take alike.
    names = [name for name, _ in blocks]
    for i in range(step[0], step[1] + 1):
        branch = re.match(r"s_cbranch_scc\d (BB\d+)", " ".join(blocks[i][1][-1:]))
        other = names.index(branch.group(1)) if branch else 0
        around = re.match(r"s_branch (BB\d+)", " ".join(blocks[other - 1][1][-1:])) if other > i and i not in looped else None
        if around and any(t.startswith("buffer_load") for _, block in blocks[other : names.index(around.group(1))] for t in block):
            looped |= set(range(other, names.index(around.group(1))))
    work = Work.of(t for i in range(step[0], step[1] + 1) if i not in looped for t in blocks[i][1])
    for first, last in within:
        loop = Work.of(t for _, block in blocks[first : last + 1] for t in block)
        if loop.bytes:  # Keys or values; the others bring sums to another power of two, which is rare.
            work.plus(loop, 2 * constants["SIDE"] * constants["DK4"] / constants["THREADS"])
    peak = most * WMMA / 2
    parts = [work.arithmetic / 2, work.loads, work.shared]
    cells = [f"{100 * peak / part:.0f}" for part in parts]
    share = f"{100 * peak / max(parts):.0f}"
    return f"| {text.label()} | {share} | {', '.join(cells)} | {figures['Subgroups per SIMD'] / 2:.0f} |"


def attention_row(text: Text, device: str) -> str:
    """A row of the table of attentions: the loop whose arithmetic is the largest share of its own loads' time."""
    assembly = (LAB / "assembly" / device / f"{text.path.stem}.Assembly.txt").read_text()
    _, card = CARDS[device]
    blocks = blocks_of(assembly)
    loops = loops_of(blocks)
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    worst = (0.0, 0.0)
    for first, last in inner:
        work = Work.of(t for _, block in blocks[first : last + 1] for t in block)
        if work.bytes >= 512 and not work.stores:
            memory = work.bytes / card.bytes_per_cycle()
            worst = max(worst, (work.arithmetic / 2 / memory, work.loads / memory))
    return f"| {text.label()} | {100 * worst[0]:.0f}, {100 * worst[1]:.0f} |"


# ---------------------------------------------------------------------------------------------------------------- commands


# What is tested where there are matrix instructions: kernels, then whole models. Tests that start themselves once more are not here:
# what they would start is the loader.
TESTS = {
    "--lib": ["matrix_instructions", "rows_become_halves", "narrow_rows"],
    "--test=gpu": ["quantised_weights", "prompts_by", "smallest_device", "every_kernel_in_use", "a_decode_step", "every_split"],
}


def test_matrices() -> int:
    """Tests on a software driver that has matrix instructions, which is newer than most systems: it comes with a C library."""
    try:
        root = newer_mesa()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"skipped: no driver with matrix instructions: {error}")
        return 0
    libraries = root / "usr/lib/x86_64-linux-gnu"
    loader = f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries}"
    environment = {**os.environ, "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": loader, "ELIZA_REQUIRE_GPU": "1"}
    # With narrower vectors it has none.
    environment |= {"VK_DRIVER_FILES": str(driver_file(root, libraries, "lvp")), "LP_NATIVE_VECTOR_WIDTH": "256"}
    for target, names in TESTS.items():
        test = ["cargo", "test", "--quiet", "--locked", "--features", "testing", target, "--", "--nocapture", *names]
        ran = run(test, env=environment, stdout=subprocess.PIPE)
        print(ran.stdout)
        if ran.returncode or "skipped:" in ran.stdout:
            return 1
    return 0


def write_texts() -> None:
    test = ["cargo", "test", "--quiet", "--locked", "--features", "testing"]
    every = "every_shader_of_the_fixtures_can_be_translated"
    for folder, restriction in (TEXTS | MATRICES).items():
        shutil.rmtree(folder, ignore_errors=True)
        environment = {**os.environ, "ELIZA_DUMP_SHADERS": str(folder), "ELIZA_GPU_RESTRICT": restriction, "GALLIVM_PERF": "nopt"}
        run([*test, "--lib", "--", "--ignored", "texts_for_the_lab"], env=environment, check=True)
        if folder in TEXTS:
            run([*test, "--test", "gpu", "--", "--ignored", every], env=environment, check=True)
        print(f"{len(list(folder.glob('*.wgsl')))} texts in {folder}")


def report(devices: list[str], before: Path | None) -> int:
    all_texts = {folder: [Text(path) for path in sorted(folder.glob("*.wgsl"))] for folder in TEXTS | MATRICES}
    if not all(all_texts.values()):
        print(f"no texts in {LAB}: gpu_lab.py texts", file=sys.stderr)
        return 1
    earlier = {}
    if before:
        for line in before.read_text().splitlines():
            device, label, instructions, spilled = line.split("\t")
            earlier[device, label] = (instructions, spilled)
    failures, lines = [], []
    for device in devices:
        texts = all_texts[FEW if device.startswith("mali") else MEDIUM if device.startswith("adreno") else MANY]
        texts = [text for text in texts if text.kernel != "matmul_int8" or device not in NO_DOTS]
        if device in WITH_MATRICES:
            own = [text for folder in MATRICES for text in all_texts[folder]]
            texts += [text for text in own if text.kernel in ("halve", "matmul_halves", "attention_halves")]
        try:
            figures, refused = compiled(device, [text.path for text in texts])
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"\nskipped: {device}: {error}")
            continue
        spilling = [text for text in texts if spills(figures.get(text.path.stem, {}))]
        print(f"\n{device}: {len(figures)} of {len(texts)} texts compiled, {len(spilling)} with spills")
        for text in spilling:
            print(f"    {text.label()}: {spills(figures[text.path.stem]):.0f}")
        failures += [f"{device}: {why}" for why in refused]
        if len(spilling) > (MALI_SPILLS if device.startswith("mali") else 0):
            failures.append(f"{device}: {len(spilling)} texts spill")
        for text in texts:
            have = figures.get(text.path.stem, {})
            count = have.get("Instructions", have.get("Instruction count", 0.0))
            row = (f"{count:.0f}", f"{spills(have):.0f}")
            was = earlier.get((device, text.label()))
            if before and was != row:
                print(f"    {text.label()}: instructions {was[0] if was else '-'} -> {row[0]}, spills {was[1] if was else '-'} -> {row[1]}")
            lines.append("\t".join([device, text.label(), *row]))
        if device in CARDS:
            print(f"\n{CARDS[device][0]}: products of one row, 4096 columns; % of the memory's time")
            print("| kernel | arithmetic, loads, workgroup memory | waves a SIMD | KiB under way |\n|---|---|---|---|")
            rows = {product_row(text, device, figures[text.path.stem]) for text in texts if text.is_decode_product()}
            print("\n".join(sorted(rows)))
            print("\nproducts of many rows: % of the peak of multiply-adds")
            print("(halves: of matrix instructions; int8: of dot products; else of f32 without dual issue)")
            print("| kernel | of the peak | were there only arithmetic, loads, workgroup memory | waves a SIMD |\n|---|---|---|---|")
            rows = {prompt_row(text, device, figures[text.path.stem]) for text in texts if text.is_prompt_product()}
            print("\n".join(sorted(rows)))
            print("\nattention by matrix instructions, as above")
            print("| kernel | of the peak | were there only arithmetic, loads, workgroup memory | waves a SIMD |\n|---|---|---|---|")
            rows = {attention_halves_row(text, device, figures[text.path.stem]) for text in texts if text.kernel == "attention_halves"}
            print("\n".join(sorted(rows)))
            print("\nattention: the worst loop, % of its loads' time in memory\n| kernel | arithmetic, loads |\n|---|---|")
            rows = {attention_row(text, device) for text in texts if text.kernel == "attention"}
            print("\n".join(sorted(rows)))
    FIGURES.write_text("\n".join(sorted(set(lines))) + "\n")
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def main() -> int:
    parser = argparse.ArgumentParser(description="What compilers of real GPUs make of the shaders.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("texts", help="write the shaders of the fixture models and of usual products")
    shown = commands.add_parser("report", help="compile them and print what came of it")
    shown.add_argument("devices", nargs="*", metavar="DEVICE", help=", ".join(DEVICES))
    shown.add_argument("--before", type=Path, help="figures of an earlier report: print what differs")
    commands.add_parser("root", help="print a folder that holds a system with a software driver and little else")
    commands.add_parser("matrices", help="run the tests of matrix instructions on a software driver that has them")
    commands.add_parser("check", help="all of it; fails on refused texts and on new spills")
    options = parser.parse_args()
    if options.command == "root":
        print(bare_root())
        return 0
    if options.command == "matrices":
        return test_matrices()
    if options.command != "report":
        write_texts()
    if options.command == "texts":
        return 0
    devices = getattr(options, "devices", None) or DEVICES
    if unknown := set(devices) - set(DEVICES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(DEVICES)}")
    failed = report(devices, getattr(options, "before", None))
    return failed if options.command == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
