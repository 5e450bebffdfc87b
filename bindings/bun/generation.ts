/**
 * Generations, by callback or by polling.
 *
 * Where it is safe the library calls back from its own thread. Bun queues such a call and runs it later, on the thread of
 * JavaScript: the text is then read from the library's arena, where it stays until the next prefill or generate. One
 * callback serves all generations of the process and is never closed, so the library cannot call a closed one.
 *
 * Bun before 1.4 can crash when a foreign thread calls, and a Worker may be ended at any moment with calls on their way;
 * there a timer asks the library for tokens, and no callback exists at all.
 */

import { JSCallback, type Pointer, toArrayBuffer } from "bun:ffi";
import { InferenceError, STATUS } from "../js/errors.js";
import { type Delivery, FINISH_REASONS, type FfiLlmHandle, type FinishReason, type GenerateOptions, type Step } from "../js/native.js";
import { type Library, Out, Struct, decoder, raw } from "./library.js";

/** What this process can do. */
export function delivery(): Delivery {
  const [major = 0, minor = 0] = Bun.version.split(".").map(Number);
  return Bun.isMainThread && (major > 1 || (major === 1 && minor >= 4)) ? "callback" : "poll";
}

interface Generation {
  library: Library;
  handle: FfiLlmHandle;
  onStep: (step: Step) => void;
  settle: (end: FinishReason | InferenceError) => void;
}

const running = new Map<number, Generation>();
let issued = 0;
let callback: JSCallback | undefined;
let keepAlive: ReturnType<typeof setInterval> | undefined;

/**
 * Starts a generation; the rules of its events and its promise are those of `Native.generate`. Where it could not be
 * started this is the code, and the text waits in the library.
 */
export function generate(
  library: Library,
  handle: FfiLlmHandle,
  { maxTokens, temperature, topP }: GenerateOptions,
  onStep: (step: Step) => void,
  how: Delivery,
): Promise<FinishReason> | number {
  const id = ++issued;
  const [h, served] = [raw(handle), how === "callback" ? sharedCallback() : null];
  const status = library.call.llm_stream_generate_ex(h, maxTokens, temperature, topP, served, id, null) as number;
  if (status !== 0) return status;
  return new Promise((resolve, reject) => {
    const settle = (end: FinishReason | InferenceError) => {
      release(id);
      if (end instanceof InferenceError) reject(end);
      else resolve(end);
    };
    const generation = { library, handle, onStep, settle };
    hold(id, generation); // no event can have come: they run on this thread
    if (how === "poll") setImmediate(poll, generation, new PollBuffers());
  });
}

/** Nothing of bun:ffi keeps the process alive, so a timer does while a generation runs. */
function hold(id: number, generation: Generation): void {
  running.set(id, generation);
  keepAlive ??= setInterval(() => {}, 0x7fffffff);
}

function release(id: number): void {
  running.delete(id);
  if (running.size > 0) return;
  clearInterval(keepAlive);
  keepAlive = undefined;
}

/** The address of the one callback. The length is a size_t below 2^32 in a register, read without making a BigInt. */
function sharedCallback(): number {
  callback ??= new JSCallback(onEvent, { args: ["i32", "ptr", "u32", "bool", "ptr"], returns: "void", threadsafe: true });
  return callback.ptr as unknown as number;
}

function onEvent(token: number, address: Pointer, length: number, done: boolean, id: number): void {
  const generation = running.get(id);
  if (generation === undefined) return;
  const text = length === 0 ? "" : decoder.decode(toArrayBuffer(address, 0, length));
  generation.onStep({ token, text, done });
  if (done) generation.settle(outcome(generation));
}

/** How a generation ended whose last event is out. A handle that was closed meanwhile has no more to tell. */
function outcome({ library, handle }: Generation): FinishReason | InferenceError {
  const status = Number(library.call.llm_stream_status(raw(handle)));
  if (status === -1) {
    library.lastError();
    return "cancelled";
  }
  if (status < 0 && status !== STATUS.ELIZA_ERR_CANCELLED) return library.failure(handle);
  return finishReason(library, handle);
}

/** Field `finish_reason` of `eliza_llm_usage_t`, and no more of it. */
function finishReason(library: Library, handle: FfiLlmHandle): FinishReason {
  const usage = new Struct(8);
  const status = library.call.llm_stream_usage(raw(handle), usage.data);
  if (status !== 0) library.lastError();
  return (status === 0 && FINISH_REASONS[usage.view.getInt32(4, true)]) || "cancelled";
}

/** More than any token's text, so that a step never cuts one. */
const TEXT_BYTES = 65_536;
/** Tokens taken before other work of the event loop has its turn. */
const BURST = 64;

class PollBuffers {
  readonly token = new Int32Array(1);
  readonly count = new Out();
  readonly text = new Uint8Array(TEXT_BYTES);
  readonly error = new Out();

  /** The text of the last step: what stands before the terminator. */
  read(): string {
    const { text } = this;
    return text[0] === 0 ? "" : decoder.decode(text.subarray(0, text.indexOf(0)));
  }
}

function poll(generation: Generation, buffers: PollBuffers): void {
  const { library, handle, onStep, settle } = generation;
  const { token, count, text, error } = buffers;
  for (let taken = 0; taken < BURST; taken++) {
    const h = raw(handle);
    const status = library.call.llm_stream_poll(h, 0, token, 1, count, text, TEXT_BYTES, error) as number;
    const got = Number(count[0]);
    const piece = buffers.read();
    if (got > 0) onStep({ token: token[0] as number, text: piece, done: false });
    if (status === 0 && got > 0) continue;
    if (status === 0) {
      setTimeout(poll, 1, generation, buffers); // nothing there yet: neither spin nor block
      return;
    }
    onStep({ token: -1, text: got > 0 ? "" : piece, done: true });
    settle(pollOutcome(generation, status, error));
    return;
  }
  setImmediate(poll, generation, buffers);
}

function pollOutcome({ library, handle }: Generation, status: number, error: Out): FinishReason | InferenceError {
  if (status > 0) return finishReason(library, handle);
  const text = library.take(error.address);
  if (status === -1) library.lastError();
  else library.forget(handle);
  if (status === -1 || status === STATUS.ELIZA_ERR_CANCELLED) return "cancelled";
  return new InferenceError(status, text ?? "The generation failed");
}
