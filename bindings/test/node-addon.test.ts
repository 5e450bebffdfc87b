/** What only Node does: the addon's files and packages, its errors, its threads, and the exports of the feature `testing`. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import {
  InferenceError,
  STATUS,
  load,
  native,
  streamingAbi,
  type FfiLlmHandle,
  type Step,
} from "eliza-inference";
import { platformPackages } from "../js/locate.js";
import { type Addon, addon, failure } from "../node/addon.js";
import { MODEL, PROMPT, collect, open, sleep, whole } from "./support.js";

const ADDON = process.env["ELIZA_INFERENCE_LIBRARY"] ?? "";
const ROOT = process.env["ELIZA_ROOT"] ?? "";
const PACKAGE = join(import.meta.dirname, "../..");

/** What the feature `testing` exports. */
interface Testing extends Addon {
  testingFail(code: number, message: string): void;
  testingPanic(message: string): void;
  testingEcho(text: string): string;
}
const testing = addon(ADDON) as Testing;

function refused(body: () => unknown): InferenceError {
  try {
    body();
  } catch (error) {
    assert.ok(error instanceof InferenceError, String(error));
    return error;
  }
  return assert.fail("it was not refused");
}

test("Bun and Node offer the same", async () => {
  type Entry = typeof import("../bun/index.js");
  const entry: Entry = await import("../node/index.js");
  const back: typeof import("../node/index.js") = entry;
  assert.equal(back.load, load);
});

test("every status has its name", () => {
  for (const [name, status] of Object.entries(STATUS)) {
    if (status === STATUS.ELIZA_ERR_ABI_MISMATCH) continue; // the library itself never says that
    const error = (() => {
      try {
        testing.testingFail(status, "why, in\ntwo lines");
      } catch (thrown) {
        return failure(thrown);
      }
      return assert.fail(name);
    })();
    assert.deepEqual([error.code, error.status], [name, status]);
    const texts = { ELIZA_ERR_CANCELLED: /^Cancelled$/, ELIZA_ERR_NAN: /row 3/ } as Record<string, RegExp>;
    assert.match(error.message, texts[name] ?? /why, in\ntwo lines$/);
  }
});

test("text crosses both ways unchanged", () => {
  for (const text of ["", "a", "żółć 😀 日本", "\ufeff byte order mark", "x".repeat(100_000), "line\nline\t\u0007\0"]) {
    assert.equal(testing.testingEcho(text), text);
  }
  assert.equal(testing.testingEcho("\ud800"), "\ufffd");
});

test("a panic is an error with its text, and the process goes on", async () => {
  const error = (() => {
    try {
      testing.testingPanic("at midnight");
    } catch (thrown) {
      return failure(thrown);
    }
    return assert.fail("no panic");
  })();
  assert.deepEqual([error.code, /at midnight/.test(error.message)], ["ELIZA_ERR_FFI_FAULT", true]);
  using model = await open();
  assert.equal((await whole(model, PROMPT, { maxTokens: 2, ignoreEos: true })).tokens.length, 2);
});

test("what is no addon is refused with a reason", async () => {
  assert.equal(refused(() => native({ library: "/nonexistent/addon.node" })).code, "ELIZA_ERR_IO");
  const text = join(mkdtempSync(join(tmpdir(), "eliza-")), "addon.node");
  writeFileSync(text, "no library");
  assert.equal(refused(() => native({ library: text })).code, "ELIZA_ERR_ABI_MISMATCH");
  const library = join(dirname(ADDON), process.platform === "darwin" ? "libelizainference.dylib" : "libelizainference.so");
  assert.equal(refused(() => native({ library })).code, "ELIZA_ERR_ABI_MISMATCH");
  await assert.rejects(load(MODEL, { library: text }), { code: "ELIZA_ERR_ABI_MISMATCH" });
});

test("what is no handle and arguments of a wrong type are errors", async () => {
  const functions = native();
  for (const none of [7, null, {}, Object.create(testing.Handle.prototype as object)] as unknown as FfiLlmHandle[]) {
    assert.throws(() => functions.tokenize(none, "a", true, false), InferenceError);
    await assert.rejects(functions.prefill(none, Int32Array.of(1), 0), InferenceError);
    await assert.rejects(functions.saveSlot(none, 0, "a"), InferenceError);
    await assert.rejects(functions.restoreSlot(none, 0, "a"), InferenceError);
    await assert.rejects(functions.generate(none, { maxTokens: 1, temperature: 0, topP: 1 }, () => {}), InferenceError);
  }
  await assert.rejects(functions.open(3 as unknown as string, {}), { code: "ELIZA_ERR_INVALID_ARG" });
  await assert.rejects(functions.open("a\0b", {}), { code: "ELIZA_ERR_INVALID_ARG", message: /modelPath holds a NUL/ });
  await assert.rejects(functions.open(MODEL, { threads: -1 }), { code: "ELIZA_ERR_INVALID_ARG", message: /threads is -1/ });
});

test("JavaScript goes on while a model is loaded, a prompt is evaluated, a slot is saved and restored", async () => {
  const functions = native();
  let ticks = 0;
  const ticking = setInterval(() => ticks++, 1);
  const handle = await functions.open(MODEL, { contextSize: 4096, threads: 1 });
  const prompt = Int32Array.from({ length: 4000 }, (_, i) => 5 + (i % 400));
  const before = ticks;
  assert.equal(await functions.prefill(handle, prompt, 0), prompt.length);
  clearInterval(ticking);
  assert.ok(ticks - before > 5, `${ticks - before} ticks`);
  const file = join(mkdtempSync(join(tmpdir(), "eliza-")), "slot");
  for (const call of ["saveSlot", "restoreSlot"] as const) {
    let [turns, over] = [0, false];
    const turn = () => void (++turns, over || setImmediate(turn));
    setImmediate(turn);
    await functions[call](handle, 0, file);
    over = true;
    assert.ok(turns > 5, `${turns} turns`);
  }
  functions.close(handle);
});

test("while JavaScript is busy the model waits, and no event is lost", async () => {
  const functions = native();
  const handle = await functions.open(MODEL, { contextSize: 2048, threads: 1 });
  functions.configure(handle, { ignoreEos: true });
  await functions.prefill(handle, functions.tokenize(handle, PROMPT, true, false), 0);
  const steps: Step[] = [];
  const emitted = () => (functions.usage(handle) as { usage: { completion_tokens: number } }).usage.completion_tokens;
  const ended = functions.generate(handle, { maxTokens: 1000, temperature: 0, topP: 1 }, (step) => steps.push(step));
  let [before, now, quiet] = [0, 0, 0];
  while (quiet < 20) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
    [before, now] = [now, emitted()];
    quiet = now === before && now > 0 ? quiet + 1 : 0;
    if (now === 1000) break;
  }
  assert.ok(now >= 64 && now <= 70, `${now} tokens while nothing was taken`);
  assert.equal(steps.length, 0);
  assert.equal(await ended, "length");
  assert.deepEqual([steps.length, steps.filter((step) => step.done).length, steps.at(-1)?.done], [1001, 1, true]);
  functions.close(handle);
});

test("a handle that nobody keeps is not collected while it works", { skip: collect === undefined }, async () => {
  const functions = native();
  const opened = () => functions.open(MODEL, { contextSize: 4096, threads: 1 });
  const prompt = Int32Array.from({ length: 4000 }, (_, i) => 5 + (i % 400));
  const prefill = async () => ({ ended: functions.prefill(await opened(), prompt, 0) });
  const generate = async () => {
    const handle = await opened();
    functions.configure(handle, { ignoreEos: true });
    await functions.prefill(handle, prompt.subarray(0, 2), 0);
    return { ended: functions.generate(handle, { maxTokens: 1000, temperature: 0, topP: 1 }, () => {}) };
  };
  const collecting = setInterval(() => collect?.(), 1);
  assert.equal(await (await prefill()).ended, prompt.length);
  assert.equal(await (await generate()).ended, "length");
  clearInterval(collecting);
});

test("no call waits for the session while the end of a generation is on its way", async () => {
  const ffi = streamingAbi();
  const functions = native();
  const handle = ffi.eliza_inference_llm_stream_open(MODEL, 512, 1, 0);
  assert.ok(handle);
  const prompt = functions.tokenize(handle, PROMPT, true, false);
  assert.equal(ffi.eliza_inference_llm_stream_prefill(handle, prompt, 0), prompt.length);
  functions.configure(handle, { ignoreEos: true });
  const seen: boolean[] = [];
  assert.equal(ffi.eliza_inference_llm_stream_generate(handle, 200, 0, 1, (_token, _text, done) => void seen.push(done)), 0);
  ffi.eliza_inference_llm_stream_cancel(handle);
  for (let i = 0; i < 20; i++) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
    assert.equal(ffi.eliza_inference_llm_stream_prefill(handle, prompt, 0), -1);
    assert.equal(ffi.eliza_inference_llm_stream_status(handle), 2);
    assert.match(ffi.eliza_inference_llm_stream_take_error(handle) ?? "", /^Busy/);
  }
  await assert.rejects(functions.prefill(handle, prompt, 0), { code: "ELIZA_ERR_BUSY" });
  while (seen.at(-1) !== true) await sleep(1);
  assert.equal(seen.filter(Boolean).length, 1);
  assert.equal(ffi.eliza_inference_llm_stream_prefill(handle, prompt, 0), prompt.length);
  ffi.eliza_inference_llm_stream_close(handle);
  assert.equal(ffi.eliza_inference_llm_stream_prefill(handle, prompt, 0), -1);
  assert.equal(ffi.eliza_inference_llm_stream_status(handle), -1);
  assert.match(ffi.eliza_inference_take_last_error() ?? "", /not open/);
});

const environment = join(import.meta.dirname, "environment.js");

test("several environments of one process say the same", { timeout: 120_000 }, async () => {
  using model = await open();
  const options = { maxTokens: 30, temperature: 0, ignoreEos: true };
  const expected = await whole(model, PROMPT, options);
  const all = [1, 2, 3, 4].map(
    () =>
      new Promise<unknown[]>((resolve, reject) => {
        const got: unknown[] = [];
        const worker = new Worker(environment, { workerData: "whole" });
        worker.on("message", (message) => got.push(message));
        worker.on("error", reject);
        worker.on("exit", () => resolve(got));
      }),
  );
  for (let i = 0; i < 3; i++) assert.deepEqual(await whole(model, PROMPT, options), expected);
  for (const got of await Promise.all(all)) assert.deepEqual(got, [expected, expected, expected]);
});

test("an environment that ends while it loads or evaluates a prompt takes nothing down", { timeout: 120_000 }, async () => {
  for (const wait of [0, 1, 5, 20, 60]) {
    const worker = new Worker(environment, { workerData: "busy" });
    await new Promise((resolve) => worker.once("message", resolve));
    await sleep(wait);
    await worker.terminate();
    const { status, signal, stderr } = spawnSync(process.execPath, [environment, String(wait)], { encoding: "utf8" });
    assert.deepEqual([status, signal, stderr], [0, null, ""]);
  }
  using model = await open();
  assert.equal((await whole(model, PROMPT, { maxTokens: 1 })).ends, 1);
});

const platforms = JSON.parse(readFileSync(join(ROOT, "bindings/platforms.json"), "utf8")) as string[];

function layOut(...args: string[]): void {
  const { status, stderr } = spawnSync("python3", [join(ROOT, "tools/npm_packages.py"), ...args], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
}

/** A script in a project that has the package and no word in the environment of where the addon is. */
function inProject(project: string, script: string): { status: number | null; out: string } {
  const { ELIZA_INFERENCE_LIBRARY: _, ELIZA_INFERENCE_LIB_DIR: __, ...env } = process.env;
  writeFileSync(join(project, "script.mjs"), script);
  const { status, stdout, stderr } = spawnSync(process.execPath, ["script.mjs"], { cwd: project, encoding: "utf8", env });
  return { status, out: stdout + stderr };
}

test("every platform has a package, and the loader asks for packages that there are", () => {
  const folder = mkdtempSync(join(tmpdir(), "eliza-"));
  layOut("main", folder);
  const main = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
    version: string;
    optionalDependencies: Record<string, string>;
  };
  const names = platforms.map((name) => `eliza-inference-${name}`);
  assert.deepEqual(main.optionalDependencies, Object.fromEntries(names.map((name) => [name, main.version])));
  const asked = ["linux", "darwin", "win32"].flatMap((os) => ["x64", "arm64"].map((cpu) => platformPackages(os, cpu)));
  assert.deepEqual([...asked.flat(), ...platformPackages("android", "arm64")].sort(), names.sort());
  for (const name of platforms) {
    layOut("platform", name, join(folder, name), ADDON, ADDON);
    const one = JSON.parse(readFileSync(join(folder, name, "package.json"), "utf8")) as Record<string, string[]>;
    const [os, cpu, libc] = name.split("-");
    assert.deepEqual([one["os"], one["cpu"]], [[os], [cpu]]);
    assert.deepEqual(one["libc"], libc === undefined ? undefined : [libc === "gnu" ? "glibc" : "musl"]);
    rmSync(join(folder, name), { recursive: true });
  }
});

test("the addon comes from the platform's package; without it the error names package and platform", () => {
  const project = mkdtempSync(join(tmpdir(), "eliza-"));
  const modules = join(project, "node_modules");
  for (const part of ["dist/js", "dist/node"]) {
    cpSync(join(PACKAGE, part), join(modules, "eliza-inference", part), { recursive: true });
  }
  layOut("main", join(modules, "eliza-inference"));
  const script = `import { native } from "eliza-inference"; console.log(native().version);`;
  const [platform = ""] = platformPackages(process.platform, process.arch);
  const without = inProject(project, script);
  assert.equal(without.status, 1);
  assert.match(without.out, new RegExp(`for ${process.platform} ${process.arch}: install ${platform}`));
  layOut("platform", platform.replace("eliza-inference-", ""), join(modules, platform), ADDON, ADDON);
  assert.deepEqual(inProject(project, script), { status: 0, out: `${native().version}\n` });
  rmSync(join(modules, platform, "elizainference.node"));
  assert.match(inProject(project, script).out, new RegExp(`${platform} has no elizainference.node`));
  const folder = mkdtempSync(join(tmpdir(), "eliza-"));
  copyFileSync(ADDON, join(folder, "elizainference.node"));
  const env = `process.env.ELIZA_INFERENCE_LIB_DIR = ${JSON.stringify(folder)};`;
  assert.deepEqual(inProject(project, `${env}\n${script}`), { status: 0, out: `${native().version}\n` });
});

