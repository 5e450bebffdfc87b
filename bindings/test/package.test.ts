/** The package as npm packs it, in a project that installed it: its exports, its types, and the examples of both README.md. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { IN_BUN, MODEL, ROOT } from "./support.js";

const PACKAGE = join(import.meta.dirname, "../..");
const MODULES = join(PACKAGE, "../node_modules");
const runtime = IN_BUN ? "bun" : "node";

function run(command: string, args: string[], cwd: string): string {
  const { status, stdout, stderr } = spawnSync(command, args, { cwd, encoding: "utf8", timeout: 120_000 });
  assert.equal(status, 0, `${command} ${args.join(" ")}\n${stdout}\n${stderr}`);
  return stdout;
}

/** A project with the packed package in it, and the examples as files. */
const project = mkdtempSync(join(tmpdir(), "eliza-"));
const tarball = run("npm", ["pack", "--silent", "--pack-destination", project, PACKAGE], project).trim();
mkdirSync(join(project, "node_modules/eliza-inference"), { recursive: true });
run("tar", ["-xzf", tarball, "-C", "node_modules/eliza-inference", "--strip-components=1"], project);
symlinkSync(join(ROOT, "models/demo.gguf"), join(project, "model.gguf"));
symlinkSync(MODEL, join(project, "chat.gguf")); // has a chat template
symlinkSync(join(ROOT, "models"), join(project, "models"));
writeFileSync(join(project, "package.json"), '{"type": "module"}');
const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
const examples = [...(readme + readFileSync(join(ROOT, "README.md"), "utf8")).matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = ""], index) => {
  const name = `example-${index + 1}.ts`;
  writeFileSync(join(project, name), code);
  return name;
});

test("only what a user needs is packed", () => {
  const files = run("tar", ["-tzf", tarball], project).trim().split("\n");
  assert.ok(files.includes(`package/dist/${runtime}/index.js`) && files.includes(`package/dist/${runtime}/index.d.ts`));
  assert.deepEqual(files.filter((file) => /test|bench|\.c$/.test(file)), []);
  const { dependencies } = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as { dependencies?: object };
  assert.equal(dependencies, undefined);
});

function compile(
  target: string,
  module: string,
  moduleResolution: string,
  customConditions: readonly string[],
  noEmit = true,
): void {
  const compilerOptions = {
    target,
    lib: [target],
    module,
    moduleResolution,
    customConditions,
    strict: true,
    skipLibCheck: false,
    noEmit,
    types: ["node"],
    typeRoots: [join(MODULES, "@types")],
  };
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions, include: ["*.ts"] }));
  run(process.env["ELIZA_TEST_NODE"] ?? "node", [join(MODULES, "typescript/bin/tsc"), "-p", "."], project);
}

for (const [target, module, moduleResolution, customConditions] of [
  ["es2022", "nodenext", "nodenext", [runtime]],
  ["esnext", "esnext", "bundler", [runtime]],
  ["es2022", "esnext", "bundler", []],
] as const) {
  test(`the examples type-check strictly (${moduleResolution}, conditions ${customConditions.join()})`, () => {
    assert.ok(examples.length >= 7);
    compile(target, module, moduleResolution, customConditions);
  });
}

test("the example in JavaScript runs", () => {
  const [, code = ""] = /^```js\n(.*?)^```$/ms.exec(readme) ?? [];
  writeFileSync(join(project, "example.mjs"), code);
  assert.notEqual(run(process.execPath, ["example.mjs"], project), "");
});

test("the examples run", () => {
  if (!IN_BUN) compile("es2022", "nodenext", "nodenext", ["node"], false); // Node runs JavaScript alone
  for (const example of examples) {
    const out = run(process.execPath, [IN_BUN ? example : example.replace(/ts$/, "js")], project);
    assert.notEqual(out, "", `${example} prints nothing`);
  }
});
