/** Long lives and sudden ends, each in a process of its own. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { IN_BUN, WAYS, random } from "./support.js";

/** Generations in a row and as many eight at once; and ends of a process of each kind. The long run asks for more. */
const GENERATIONS = Number(process.env["ELIZA_TEST_GENERATIONS"] ?? 200);
const ENDS = Number(process.env["ELIZA_TEST_ENDS"] ?? 4);

function run(script: string, ...args: string[]): { status: number | null; signal: string | null; out: string } {
  const flags = IN_BUN ? [] : ["--expose-gc"];
  const file = join(import.meta.dirname, script);
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [...flags, file, ...args], {
    encoding: "utf8",
    timeout: 240_000,
  });
  return { status, signal, out: stdout + stderr };
}

for (const delivery of WAYS) {
  test(`${delivery}: ${GENERATIONS} generations in a row, and eight at once`, { timeout: 900_000 }, () => {
    const { status, signal, out } = run("soak.js", String(GENERATIONS), delivery);
    console.log(`${delivery}: ${out.trim()}`);
    assert.deepEqual([status, signal], [0, null]);
  });

  test(`${delivery}: a process lives until its generation is over`, () => {
    const { status, signal, out } = run("life.js", "finish", "0", delivery);
    assert.deepEqual([status, signal, out], [0, null, "finished\n"]);
  });

  for (const [how, code] of [["exit", 0], ["throw", 1], ["reject", 1]] as const) {
    test(`${delivery}: a process that ends by ${how} while a generation runs`, { timeout: 600_000 }, () => {
      const draw = random(code + 1);
      for (let i = 0; i < ENDS; i++) {
        const { status, signal, out } = run("life.js", how, String(Math.floor(draw() * 40)), delivery);
        assert.deepEqual([status, signal], [code, null], out);
      }
    });
  }
}

for (const how of ["worker", "worker-exit", "worker-throw"]) {
  test(`a worker that ends (${how}) while a generation runs`, { timeout: 600_000 }, () => {
    const draw = random(7);
    for (let i = 0; i < ENDS; i++) {
      const { status, signal, out } = run("life.js", how, String(Math.floor(draw() * 40)));
      assert.deepEqual([status, signal, out], [0, null, "ended\n"]);
    }
  });
}
