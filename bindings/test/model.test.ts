import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { InferenceError, Model, STATUS, load, native, type FfiLlmHandle, type Native } from "eliza-inference";
import { MODEL, PROMPT, WAYS, collect, open, sleep, whole } from "./support.js";

/** What an error of the library looks like. */
function fails(code: string, part: RegExp | string = ""): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof InferenceError, String(error));
    assert.equal(error.code, code, error.message);
    assert.equal(error.status, STATUS[code as keyof typeof STATUS]);
    assert.match(error.message, new RegExp(part));
    return true;
  };
}

for (const delivery of WAYS) {
  test(`${delivery}: a stream is the text of its tokens, with one end`, async () => {
    using model = await open({ delivery });
    const prompt = model.tokenize(PROMPT);
    for (const temperature of [0, 1]) {
      const got = await whole(model, PROMPT, { maxTokens: 40, temperature, seed: 7, ignoreEos: true });
      assert.deepEqual([got.tokens.length, got.ends, got.reason], [40, 1, "length"]);
      const all = model.detokenize([...prompt, ...got.tokens]);
      assert.ok(all.endsWith(got.text) || got.text.includes("\ufffd") || all.includes("\ufffd"), all);
      const usage = model.usage();
      assert.deepEqual(
        [usage.promptTokens, usage.completionTokens, usage.finishReason],
        [prompt.length, 40, "length"],
      );
      assert.deepEqual(await whole(model, prompt, { maxTokens: 40, temperature, seed: 7, ignoreEos: true }), got);
    }
  });

  test(`${delivery}: streams of many callers run at the same time where the model was opened for that`, async () => {
    using alone = await open({ delivery });
    using model = await open({ delivery, parallel: 3 });
    const prompts = ["Once upon a time", "Once upon a hill", "Twice", "Once upon a time there", "Never"];
    const how = { maxTokens: 60, temperature: 0.8, seed: 3, ignoreEos: true };
    const expected: unknown[] = [];
    for (const prompt of prompts) expected.push(await whole(alone, prompt, how));
    assert.deepEqual(await Promise.all(prompts.map((prompt) => whole(model, prompt, how))), expected);

    // One that stands still in its loop holds up nobody else.
    const still = model.stream(prompts[0]!, how);
    await still.next();
    assert.deepEqual(await whole(model, prompts[1]!, how), expected[1]);
    const names = ["one", "two"] as const;
    assert.deepEqual(await model.choose("I count: ", names), await alone.choose("I count: ", names));
    await still.return("none");
  });

  test(`${delivery}: slots of one model work at the same time where it was opened for that`, async () => {
    using alone = await open({ delivery });
    await assert.rejects(alone.openSlot(), fails("ELIZA_ERR_NOT_IMPLEMENTED", "take turns"));
    const model = await open({ delivery, slots: 3, concurrentSlots: true });
    using one = await model.openSlot(1);
    using other = await model.openSlot();
    await assert.rejects(model.openSlot(1), fails("ELIZA_ERR_INVALID_ARG", "Slot 1 is that of another handle"));
    await assert.rejects(model.openSlot(), fails("ELIZA_ERR_INVALID_ARG", "the last"));
    const prompts = ["Once upon a time", "Once upon a hill", "Twice"];
    const how = { maxTokens: 60, temperature: 0.8, seed: 3, ignoreEos: true };
    const expected: unknown[] = [];
    for (const prompt of prompts) expected.push(await whole(alone, prompt, how));
    const models = [one, model, other];
    assert.deepEqual(await Promise.all(models.map((each, i) => whole(each, prompts[i]!, how))), expected);

    // One that stands still in its loop holds up nobody else, and the first may be closed.
    const still = one.stream(prompts[0]!, how);
    await still.next();
    model.close();
    assert.deepEqual(await whole(other, prompts[1]!, how), expected[1]);
    await still.return("none");
  });

  test(`${delivery}: an abort ends a stream with its reason, within two tokens`, async () => {
    using model = await open({ delivery });
    const reason = new Error("enough");
    const abort = new AbortController();
    let seen = 0;
    let atAbort = 0;
    await assert.rejects(async () => {
      for await (const { done } of model.stream(PROMPT, { signal: abort.signal, ignoreEos: true })) {
        assert.equal(done, false);
        if (++seen === 5) {
          abort.abort(reason);
          atAbort = model.usage().completionTokens;
        }
      }
    }, reason);
    assert.equal(seen, 5, "nothing is handed out after an abort");
    const { completionTokens, finishReason } = model.usage();
    assert.ok(completionTokens - atAbort <= 2, `${completionTokens - atAbort} tokens after the abort`);
    assert.ok(finishReason === "cancelled" || finishReason === "context", finishReason);
    assert.equal((await whole(model, PROMPT, { maxTokens: 3 })).ends, 1);
  });

  test(`${delivery}: an abort by a timer reaches a loop that never waits for anything else`, async () => {
    using model = await open({ delivery, contextSize: 2048 });
    const signal = AbortSignal.timeout(15);
    await assert.rejects(
      async () => {
        while (true) await whole(model, PROMPT, { signal, ignoreEos: true });
      },
      { name: "TimeoutError" },
    );
  });

  test(`${delivery}: leaving the loop ends the generation`, async () => {
    using model = await open({ delivery });
    for await (const { token } of model.stream(PROMPT, { ignoreEos: true })) {
      if (token >= 0) break;
    }
    const got = await whole(model, PROMPT, { maxTokens: 4, temperature: 0 });
    assert.deepEqual(got, await whole(model, PROMPT, { maxTokens: 4, temperature: 0 }));
  });

  test(`${delivery}: calls on one model take turns, models work side by side`, async () => {
    using model = await open({ delivery });
    const options = { maxTokens: 12, temperature: 0, ignoreEos: true };
    const alone = await whole(model, PROMPT, options);
    const turns = await Promise.all([1, 2, 3].map(() => whole(model, PROMPT, options)));
    assert.deepEqual(turns, [alone, alone, alone]);
    const models = await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(() => open({ delivery })));
    const all = await Promise.all(models.map((one) => whole(one, PROMPT, options)));
    for (const got of all) assert.deepEqual(got, alone);
    for (const one of models) one.close();
  });

  test(`${delivery}: closing while a stream runs ends it`, async () => {
    const model = await open({ delivery });
    let ends = 0;
    for await (const { done } of model.stream(PROMPT, { ignoreEos: true })) {
      model.close();
      if (done) ends++;
    }
    assert.equal(ends, 1);
    model.close();
    assert.throws(() => model.usage(), fails("ELIZA_ERR_INVALID_ARG", "is closed"));
    assert.throws(() => model.tokenize(""), fails("ELIZA_ERR_INVALID_ARG", "is closed"));
    await assert.rejects(whole(model, PROMPT), fails("ELIZA_ERR_INVALID_ARG", "is closed"));
  });

  test(`${delivery}: a trie leaves only its names`, async () => {
    using model = await open({ delivery });
    const names = ["REPLY", "STOP", "IGNORE"];
    const { payload, warnings } = model.tokenTrie(names, { path: "action", before: "Action:", after: "\n" });
    assert.deepEqual([payload.descriptors[0]?.path, warnings], ["action", []]);
    assert.deepEqual(payload.descriptors[0]?.leaves.map(({ name }) => name), names);
    for (const trieMode of ["greedy", "sampled", "score"] as const) {
      const { text, reason, ends } = await whole(model, "Action:", {
        trie: payload,
        trieMode,
        triePath: "action",
        temperature: 1,
        onSpanEnd: "stop",
      });
      assert.ok(names.includes(text.trim()), `${trieMode}: ${JSON.stringify(text)}`);
      assert.deepEqual([reason, ends], ["span", 1]);
    }
    const free = await whole(model, "Action:", { maxTokens: 30, temperature: 0, ignoreEos: true });
    assert.equal(model.usage().spanTokens, 0, "the constraint is gone");
    assert.equal(free.tokens.length, 30);
  });
}

for (const delivery of WAYS) {
  test(`${delivery}: a stream that was saved goes on in another model as if it had not stopped`, async () => {
    const file = join(mkdtempSync(join(tmpdir(), "eliza-")), "żółć.slot");
    for (const how of [{ temperature: 0 }, { temperature: 1, seed: 7 }, { chain: "top_k=40;temp=1.5", seed: 3 }]) {
      const options = { ...how, ignoreEos: true };
      using uninterrupted = await open({ delivery });
      const expected = await whole(uninterrupted, PROMPT, { ...options, maxTokens: 30 });
      using first = await open({ delivery });
      const begun = whole(first, PROMPT, { ...options, maxTokens: 11, slot: 2 });
      await first.saveSlot(file); // waits for its turn
      const before = (await begun).tokens;
      using second = await open({ delivery, contextSize: 256, slots: 4 });
      const restored = second.restoreSlot(file, { slot: 3 });
      const after = (await whole(second, null, { ...options, maxTokens: 19 })).tokens; // so does this
      assert.deepEqual([...before, ...after], expected.tokens);
      const prompt = [...second.tokenize(PROMPT), ...before];
      assert.equal(await restored, prompt.length);
      // As a prompt it is not evaluated again, and says the same.
      assert.equal(await second.restoreSlot(file), prompt.length);
      assert.deepEqual((await whole(second, prompt, { ...options, maxTokens: 19, slot: 3 })).tokens, after);
      assert.ok(second.usage().promptTokensReused >= prompt.length - 1);
    }
  });

  test(`${delivery}: conversations are kept in a folder, and prompts are evaluated before they are asked for`, async () => {
    const directory = join(mkdtempSync(join(tmpdir(), "eliza-")), "store");
    const options = { temperature: 0, ignoreEos: true };
    using model = await open({ delivery, slots: 3, store: { directory, maxBytes: 1 << 24 }, snapshots: 8 });
    model.prewarm(PROMPT, { slot: 1 });
    const prompt = model.tokenize(PROMPT);
    for (;;) {
      await sleep(1);
      await model.pinSlot(1);
      await whole(model, prompt, { maxTokens: 0, slot: 0 });
      const { promptTokensReused: reused, evaluatedTokens: evaluated } = model.usage();
      assert.equal(reused + evaluated, prompt.length);
      if (evaluated === 1) break;
    }
    const expected = await whole(model, PROMPT, { ...options, maxTokens: 20 });
    const begun = await whole(model, PROMPT, { ...options, maxTokens: 8, slot: 0 });
    await model.persist("tom/żółć", { slot: 0 });
    using other = await open({ delivery, slots: 2, store: { directory } });
    assert.equal(await other.resume("nobody"), 0);
    assert.equal(await other.resume("tom/żółć"), prompt.length + 8);
    assert.equal(other.usage().promptTokensRestored, prompt.length + 7);
    const rest = await whole(other, null, { ...options, maxTokens: 12 });
    assert.deepEqual([...begun.tokens, ...rest.tokens], expected.tokens);
    assert.deepEqual([other.forget("tom/żółć"), other.forget("tom/żółć")], [true, false]);
    await assert.rejects(other.persist(""), fails("ELIZA_ERR_INVALID_ARG", "key"));
    await assert.rejects(other.pinSlot(-1), fails("ELIZA_ERR_INVALID_ARG", "-1"));
    assert.throws(() => other.prewarm([]), fails("ELIZA_ERR_INVALID_ARG", "no tokens"));
    using without = await open({ delivery });
    await assert.rejects(without.persist("a"), fails("ELIZA_ERR_INVALID_ARG", "without a store"));
    await assert.rejects(open({ store: { directory: MODEL } }), fails("ELIZA_ERR_IO", MODEL));
  });

  test(`${delivery}: what cannot be restored or saved is refused, and nothing is lost`, async () => {
    const folder = mkdtempSync(join(tmpdir(), "eliza-"));
    const [file, damaged, held] = [join(folder, "good"), join(folder, "damaged"), join(folder, "held")];
    const options = { temperature: 0, ignoreEos: true };
    using model = await open({ delivery, slots: 2 });
    const expected = await whole(model, PROMPT, { ...options, maxTokens: 20 });
    await assert.rejects(model.saveSlot(file, { slot: 1 }), fails("ELIZA_ERR_INVALID_ARG", "empty"));
    await whole(model, PROMPT, { ...options, maxTokens: 8 });
    const unwritable = join(folder, "nowhere", "slot");
    await assert.rejects(model.saveSlot(unwritable), fails("ELIZA_ERR_IO", unwritable));
    await model.saveSlot(file);
    await assert.rejects(whole(model, null), fails("ELIZA_ERR_BUSY", "restoreSlot"));
    const tokens = await model.restoreSlot(file);

    const bytes = readFileSync(file);
    const flipped = Uint8Array.from(bytes, (byte, at) => (at === bytes.length - 1 ? byte ^ 1 : byte));
    for (const [content, why] of [[flipped, "checksum"], [bytes.subarray(0, -1), ""], ["GGUF", "header"], ["", "header"]] as const) {
      writeFileSync(damaged, content);
      await assert.rejects(model.restoreSlot(damaged), fails("ELIZA_ERR_SAVED_SLOT", `${damaged}.*${why}`));
    }
    await assert.rejects(model.restoreSlot(unwritable), fails("ELIZA_ERR_IO", unwritable));
    for (const call of ["saveSlot", "restoreSlot"] as const) {
      await assert.rejects(model[call]("a\0b"), fails("ELIZA_ERR_INVALID_ARG", "path holds a NUL"));
      await assert.rejects(model[call](file, { slot: 2 }), fails("ELIZA_ERR_INVALID_ARG", "slot 2"));
    }
    // Saved by a host that does not end a constraint with its stream.
    const functions = native({ delivery });
    const handle = await functions.open(MODEL, { contextSize: 256 });
    functions.setTrie(handle, JSON.stringify(model.tokenTrie(["REPLY", "STOP"]).payload), 0);
    await functions.prefill(handle, functions.tokenize(handle, PROMPT, true, false), 0);
    await functions.saveSlot(handle, -1, held);
    functions.close(handle);
    await assert.rejects(functions.saveSlot(handle, -1, held), fails("ELIZA_ERR_NOT_IMPLEMENTED", "not open"));
    await assert.rejects(functions.restoreSlot(handle, -1, held), fails("ELIZA_ERR_NOT_IMPLEMENTED", "not open"));
    await assert.rejects(model.restoreSlot(held), fails("ELIZA_ERR_SAVED_SLOT", "trie"));
    using other = await open({ delivery, kvType: "f32" });
    await assert.rejects(other.restoreSlot(file), fails("ELIZA_ERR_SAVED_SLOT", "F16"));

    assert.equal(tokens, model.tokenize(PROMPT).length + 8);
    const rest = await whole(model, null, { ...options, maxTokens: 12 });
    assert.deepEqual(rest.tokens, expected.tokens.slice(8));
    await assert.rejects(whole(model, null), fails("ELIZA_ERR_BUSY", "of its own"));
    await model.restoreSlot(file);
    await model.choose(PROMPT, ["a", "b"]);
    await assert.rejects(whole(model, null), fails("ELIZA_ERR_BUSY", "restoreSlot"));
    model.close();
    await assert.rejects(model.saveSlot(file), fails("ELIZA_ERR_INVALID_ARG", "is closed"));
    await assert.rejects(model.restoreSlot(file), fails("ELIZA_ERR_INVALID_ARG", "is closed"));
  });
}

test("what was opened", async () => {
  using model = await open();
  const { info } = model;
  assert.equal(info.path, MODEL);
  assert.deepEqual([info.context, info.threads, info.nVocab], [512, 1, 512]);
});

test("text becomes tokens and text again", async () => {
  using model = await open();
  for (const text of ["", "Once upon a time", "żółć 😀 \u0000 日本"]) {
    const tokens = model.tokenize(text, { addSpecial: false });
    assert.ok(tokens instanceof Int32Array);
    assert.equal(model.detokenize(tokens).trimStart(), text);
  }
  assert.equal(model.tokenize("a").length, model.tokenize("a", { addSpecial: false }).length + 1);
  assert.throws(() => model.detokenize([512]), fails("ELIZA_ERR_INVALID_ARG", "512"));
});

test("a choice has the log-probability of every name", async () => {
  using model = await open();
  const prompt = 'What next?\n{"action": "';
  const names = ["REPLY", "STOP", "CONTINUE"] as const;
  const { choice, logprob, logprobPerToken, scores, warnings } = await model.choose(prompt, names, { after: '"' });
  assert.deepEqual(warnings, []);
  assert.deepEqual(scores.map(({ name }) => name).sort(), [...names].sort());
  assert.deepEqual([choice, logprob, logprobPerToken], [scores[0]?.name, scores[0]?.logprob, scores[0]?.logprobPerToken]);
  const sorted = [...scores].sort((a, b) => b.logprob - a.logprob);
  assert.deepEqual(scores, sorted);
  const total = scores.reduce((sum, one) => sum + Math.exp(one.logprob), 0);
  assert.ok(total > 0 && total <= 1 + 1e-6, `${total}`);
  assert.ok(scores.every((one) => Math.abs(one.logprob / one.tokens - one.logprobPerToken) < 1e-4));
  // The generation that scores whole names takes the same one.
  const { payload } = model.tokenTrie(names, { before: '{"action": "', after: '"' });
  const got = await whole(model, prompt, { trie: payload, trieMode: "score", onSpanEnd: "stop" });
  assert.equal(got.text, `${choice}"`);
  const tied = await model.choose(model.tokenize(prompt), ["YES", "YES", "YESTERDAY"], { before: "" });
  assert.match(tied.warnings.join("\n"), /"YES" is given more than once/);
});

test("a draft model changes nothing of what is said", async () => {
  const how = { maxTokens: 40, temperature: 0.8, seed: 7, ignoreEos: true };
  using alone = await open();
  using model = await open({ draft: MODEL });
  assert.deepEqual(await whole(model, PROMPT, how), await whole(alone, PROMPT, how));
  await assert.rejects(open({ draft: "/nonexistent/draft.gguf" }), fails("ELIZA_ERR_IO", "draft.gguf"));
  await assert.rejects(open({ draft: MODEL, parallel: 2 }), fails("ELIZA_ERR_INVALID_ARG", "parallel is 2"));
});

test("options of sampling take effect for one call", async () => {
  using model = await open();
  const greedy = { maxTokens: 20, temperature: 0, ignoreEos: true };
  const plain = await whole(model, PROMPT, greedy);
  const first = plain.tokens[0] ?? 0;
  const banned = await whole(model, PROMPT, { ...greedy, logitBias: new Map([[first, -Infinity]]) });
  assert.ok(!banned.tokens.includes(first));
  const wide = { ...greedy, temperature: 2, topP: 1 };
  const drawn = await whole(model, PROMPT, { ...wide, seed: 1 });
  assert.deepEqual(await whole(model, PROMPT, { ...wide, seed: 1 }), drawn);
  assert.notDeepEqual(await whole(model, PROMPT, { ...wide, seed: 2 }), drawn);
  assert.deepEqual(await whole(model, PROMPT, { ...wide, topK: 1 }), plain);
  const chained = await whole(model, PROMPT, { maxTokens: 20, ignoreEos: true, chain: "top_k=1;temp=2" });
  assert.deepEqual(chained, plain);
  const stop = plain.text.slice(5, 8);
  const stopped = await whole(model, PROMPT, { ...greedy, stop: [stop] });
  assert.deepEqual([stopped.reason, stopped.text], ["stop", plain.text.slice(0, plain.text.indexOf(stop))]);
  assert.deepEqual(await whole(model, PROMPT, greedy), plain);
});

test("a pinned conversation is not evaluated again", async () => {
  using model = await open();
  await whole(model, `${PROMPT} there was`, { slot: 3, maxTokens: 2 });
  await whole(model, `${PROMPT} there was a girl`, { slot: 3, maxTokens: 2 });
  assert.ok(model.usage().promptTokensReused > 3);
});

test("errors have a code and a text that names the thing", async () => {
  const folder = mkdtempSync(join(tmpdir(), "eliza-"));
  const broken = join(folder, "broken.gguf");
  writeFileSync(broken, "GGUF");
  await assert.rejects(load("/nonexistent/model.gguf"), fails("ELIZA_ERR_IO", "/nonexistent/model.gguf"));
  await assert.rejects(load(broken), fails("ELIZA_ERR_BUNDLE_INVALID", "GGUF"));
  await assert.rejects(load("a\0b"), fails("ELIZA_ERR_INVALID_ARG", "NUL"));
  await assert.rejects(open({ threads: -2 }), fails("ELIZA_ERR_INVALID_ARG", "threads is -2"));
  using model = await open({ slots: 2 });
  const run = (options: object, prompt: string | number[] = PROMPT) => whole(model, prompt, { maxTokens: 2, ...options });
  await assert.rejects(run({ slot: 2 }), fails("ELIZA_ERR_INVALID_ARG", "slot 2"));
  await assert.rejects(run({}, []), fails("ELIZA_ERR_INVALID_ARG", "no tokens"));
  await assert.rejects(run({}, [1, 99999]), fails("ELIZA_ERR_INVALID_ARG", "99999"));
  await assert.rejects(run({}, new Array(600).fill(5)), fails("ELIZA_ERR_OOM", "600"));
  await assert.rejects(run({ chain: "nonsense=1" }), fails("ELIZA_ERR_INVALID_ARG", "nonsense"));
  await assert.rejects(run({ stop: [""] }), fails("ELIZA_ERR_INVALID_ARG"));
  await assert.rejects(run({ stop: ["a\0"] }), fails("ELIZA_ERR_INVALID_ARG", "stop\\[0\\]"));
  const trie = (tokens: unknown[]) => ({ modelId: "", descriptors: [{ path: "a", leaves: [{ name: "x", tokens }] }] });
  await assert.rejects(run({ trie: trie([1 << 30]) }), fails("ELIZA_ERR_TRIE", `${1 << 30}`));
  await assert.rejects(run({ trie: trie(["1"]) }), fails("ELIZA_ERR_TRIE"));
  await assert.rejects(run({ trie: trie([5]), triePath: "b" }), fails("ELIZA_ERR_INVALID_ARG", 'path "b"'));
  assert.throws(() => model.tokenTrie([]), fails("ELIZA_ERR_INVALID_ARG", "no names"));
  assert.throws(() => model.tokenTrie(["a\0b"]), fails("ELIZA_ERR_INVALID_ARG", "names\\[0\\]"));
  await assert.rejects(model.choose(PROMPT, [""]), fails("ELIZA_ERR_INVALID_ARG", "empty"));
  assert.equal((await run({})).ends, 1, "nothing of it is left behind");
});

test("an abort before the start evaluates nothing; one while a prompt is evaluated ends it", async () => {
  using model = await open({ contextSize: 8192 });
  await whole(model, PROMPT, { maxTokens: 1 });
  const before = model.usage();
  await assert.rejects(whole(model, "Another prompt", { signal: AbortSignal.abort("why") }), (why) => why === "why");
  assert.deepEqual(model.usage(), before);
  const prompt = Int32Array.from({ length: model.info.context - 10 }, (_, i) => 5 + (i * 7) % 400);
  const abort = new AbortController();
  void sleep(2).then(() => abort.abort("stop"));
  const began = performance.now();
  await assert.rejects(whole(model, prompt, { signal: abort.signal }), (why) => why === "stop");
  const aborted = performance.now() - began;
  // Another prompt, of which nothing was evaluated before.
  const other = prompt.map((token) => token + 1);
  await assert.rejects(model.choose(other, ["a"], { signal: AbortSignal.timeout(2), before: "" }), { name: "TimeoutError" });
  const again = performance.now();
  await whole(model, prompt, { maxTokens: 1 });
  assert.ok(aborted < 5_000 && performance.now() > again);
});

test("a model that was forgotten is closed", { skip: collect === undefined }, async () => {
  const closed: FfiLlmHandle[] = [];
  const inner = native();
  const watched = new Proxy(inner, {
    get(target, name: keyof Native) {
      const value = target[name];
      if (typeof value !== "function") return value;
      return name === "close" ? (handle: FfiLlmHandle) => (closed.push(handle), target.close(handle)) : value.bind(target);
    },
  });
  const forget = async () => {
    for (let i = 0; i < 20; i++) await whole(await Model.load(watched, MODEL, { contextSize: 64 }), "a", { maxTokens: 1 });
  };
  await forget();
  for (let i = 0; i < 100 && closed.length < 10; i++) {
    collect?.();
    await sleep(5);
  }
  assert.ok(closed.length >= 10, `${closed.length} of 20 are closed`);
});
