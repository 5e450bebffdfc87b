/** The package as npm packs it, in a project that installed it: its exports, its types, and the examples of both README.md. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { IN_BUN, MODEL, ROOT } from "./support.js";

const PACKAGE = join(import.meta.dirname, "../..");
const MODULES = join(PACKAGE, "../node_modules");
const runtime = IN_BUN ? "bun" : "node";

function run(command: string, args: string[], cwd: string, env: NodeJS.ProcessEnv = process.env): string {
  const { status, stdout, stderr } = spawnSync(command, args, { cwd, env, encoding: "utf8", timeout: 120_000 });
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
  { noEmit = true, types = "node", include = "*.ts" } = {},
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
    types: [types],
    typeRoots: [join(MODULES, "@types")],
  };
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions, include: [include] }));
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
  if (!IN_BUN) compile("es2022", "nodenext", "nodenext", ["node"], { noEmit: false }); // Node runs JavaScript alone
  for (const example of examples) {
    const out = run(process.execPath, [IN_BUN ? example : example.replace(/ts$/, "js")], project);
    assert.notEqual(out, "", `${example} prints nothing`);
  }
});

test("npm installs the packages of face and platform, and they need nothing else", { skip: process.platform !== "linux" }, () => {
  const [libraries, empty] = [dirname(process.env["ELIZA_INFERENCE_LIBRARY"] ?? ""), join(project, "empty")];
  const [addon, library] = ["libelizainference_node.so", "libelizainference.so"].map((file) => join(libraries, file));
  const platform = join(project, "platform");
  const name = `linux-${process.arch}-gnu`;
  run("python3", [join(ROOT, "tools/npm_packages.py"), "platform", name, platform, addon ?? "", library ?? ""], project);
  mkdirSync(empty);
  writeFileSync(join(empty, "package.json"), '{"type": "module"}');
  const binaries = run("npm", ["pack", "--silent", "--pack-destination", project, platform], project).trim();
  const tarballs = [tarball, binaries].map((file) => join(project, file));
  // Other platforms' packages are in no registry yet.
  run("npm", ["install", "--offline", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", ...tarballs], empty);
  symlinkSync(join(ROOT, "models/demo.gguf"), join(empty, "model.gguf"));
  copyFileSync(join(project, "example.mjs"), join(empty, "example.mjs"));
  const { ELIZA_INFERENCE_LIBRARY: _, ...env } = process.env;
  assert.notEqual(run(process.execPath, ["example.mjs"], empty, env), "");
});

/** The programs of examples/ts, in a folder of the project. */
const programs = join(project, "examples");
mkdirSync(programs);
for (const name of ["agent", "notes"]) copyFileSync(join(ROOT, "examples/ts", `${name}.ts`), join(programs, `${name}.ts`));

test("the example of an agent plans actions that exist, with their parameters", () => {
  const types = IN_BUN ? { types: "bun", include: "examples/*.ts" } : { noEmit: false, include: "examples/agent.ts" };
  compile("es2022", "nodenext", "nodenext", [runtime], types);
  const agent = join(programs, IN_BUN ? "agent.ts" : "agent.js");
  const lines = run(process.execPath, [agent, "model.gguf", "Remind me of the bread", "Lights off"], project).trim().split("\n");
  assert.equal(lines.length, 2);
  const [does, contexts] = ["says: .+|will remind of .+ in \\d+ minutes|switches the light in the \\w+ o(n|ff)|does nothing", "(general|home|calendar)"];
  for (const line of lines) assert.match(line, new RegExp(`^\\[${contexts}(, ${contexts})?\\] [A-Z_]+ (${does})$`));
});

test("the example of notes finds a paragraph by its own words, and embeds only what changed", { skip: !IN_BUN }, () => {
  const notes = join(project, "notes");
  mkdirSync(join(notes, "home"), { recursive: true });
  writeFileSync(join(notes, "home/keys.md"), "The spare key is under the blue pot.\n\nThe neighbour has another one.");
  writeFileSync(join(notes, "bread.txt"), "Flour, water and salt.");
  const ask = (question: string) => {
    const args = [join(programs, "notes.ts"), join(dirname(MODEL), "bert.gguf"), notes, question];
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: project, encoding: "utf8" });
    assert.equal(status, 0, stderr);
    return { found: stdout.trim().split("\n"), embedded: stderr.trim() };
  };
  const first = ask("The neighbour has another one.");
  assert.match(first.found[0] ?? "", /^1\.000 {2}home\/keys\.md: The neighbour/);
  assert.deepEqual([first.found.length, first.embedded], [3, "3 paragraphs embedded"]);
  writeFileSync(join(notes, "bread.txt"), "Flour, water, salt.\n\nAn hour in the oven.");
  const second = ask("An hour in the oven.");
  assert.match(second.found[0] ?? "", /^1\.000 {2}bread\.txt: An hour/);
  assert.equal(second.embedded, "2 paragraphs embedded");
});
