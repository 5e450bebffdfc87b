import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { InferenceError, load, type OpenOptions } from "eliza-inference";
import { MODEL, PROMPT, WAYS, open, whole } from "./support.js";

const KEY = "sk-0123456789-secret";

/** With the address of a server that is there meanwhile, in another process: Bun's `load` stands still until it is done. */
async function serving(use: (address: string) => Promise<void>): Promise<void> {
  const program = fileURLToPath(new URL("./openai-server.js", import.meta.url));
  const server = spawn(process.execPath, [program, KEY], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [port] = (await once(server.stdout, "data")) as [Buffer];
    await use(`openai:http://127.0.0.1:${port.toString().trim()}/v1#org/model`);
  } finally {
    server.kill("SIGKILL");
    await once(server, "exit");
  }
}

for (const delivery of WAYS) {
  const options = (): OpenOptions & { delivery: typeof delivery } => ({
    delivery,
    threads: 1,
    server: { vocab: MODEL, apiKey: KEY, timeoutMs: 5000 },
  });

  test(`${delivery}: a model on a server streams its text`, async () => {
    await serving(async (address) => {
      using model = await load(address, options());
      const got = await whole(model, PROMPT, { maxTokens: 40, temperature: 0 });
      assert.deepEqual([got.text, got.reason, got.ends], [" there was é😀", "stop", 1]);
      const usage = model.usage();
      assert.deepEqual([usage.servedBy, usage.serverRequests, usage.forwardPasses], [address, 1, 0]);
      assert.equal(model.info.server?.model, "org/model");
      await assert.rejects(load(address, { delivery, server: { vocab: MODEL } }), { code: "ELIZA_ERR_REMOTE" });
      // Without a vocabulary the server tokenizes.
      using texts = await load(address, { delivery, server: { apiKey: KEY } });
      assert.equal((await whole(texts, PROMPT, { maxTokens: 40, temperature: 0 })).text, " there was é😀");
    });
  });

  test(`${delivery}: a server's refusal is an error with its text and without the key`, async () => {
    await serving(async (address) => {
      const how = { temperature: 0, ignoreEos: true };
      using model = await load(address, options());
      await assert.rejects(whole(model, PROMPT, { ...how, maxTokens: 4 }), (error: InferenceError) => {
        assert.equal(error.code, "ELIZA_ERR_REMOTE");
        assert.match(error.message, /refused the key.*\(401\): \[key\] is not a key/);
        return !error.message.includes(KEY);
      });
      using either = await load(address, { ...options(), fallback: [MODEL] });
      using alone = await open({ delivery });
      assert.deepEqual(await whole(either, PROMPT, { ...how, maxTokens: 4 }), await whole(alone, PROMPT, { ...how, maxTokens: 4 }));
      assert.equal(either.usage().servedBy, MODEL);
    });
    await assert.rejects(load("vllm:http://127.0.0.1:9", options()), { code: "ELIZA_ERR_REMOTE" });
    await assert.rejects(load("vllm:http://me:pw@127.0.0.1:9", { delivery }), { code: "ELIZA_ERR_INVALID_ARG" });
  });
}
