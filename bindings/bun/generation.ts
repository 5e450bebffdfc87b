/**
 * Generations, by callback or by polling.
 *
 * Where it is safe the library calls back from its own thread. Bun queues such a call and runs it later, on the thread of
 * JavaScript: the text is then read from the library's arena, where it stays until the next prefill, generate or close. Of a
 * handle that was closed no text is read any more, and of the events on their way only the last is handed out. One callback
 * serves all generations of the process and is never closed, so the library cannot call a closed one.
 *
 * Bun before 1.4 can crash when a foreign thread calls, and a Worker may be ended at any moment with calls on their way;
 * there a timer asks the library for tokens, and no callback exists at all.
 */

import { JSCallback, type Pointer, toArrayBuffer } from "bun:ffi";
import { InferenceError, STATUS } from "../js/errors.js";
import {
  type Delivery,
  FINISH_REASONS,
  type FfiLlmHandle,
  type FinishReason,
  type GenerateOptions,
  type Step,
} from "../js/native.js";
import { type Library, Out, Struct, decoder, raw } from "./library.js";

/** What this process can do. */
export function delivery(): Delivery {
  const [major = 0, minor = 0] = Bun.version.split(".").map(Number);
  return Bun.isMainThread && (major > 1 || (major === 1 && minor >= 4)) ? "callback" : "poll";
}

interface Generation {
  id: number;
  library: Library;
  handle: FfiLlmHandle;
  onStep: (step: Step) => void;
  /** The handle was closed: the library may have freed the texts of events that are on their way. */
  closed: boolean;
}

const running = new Map<number, Generation>();
let issued = 0;
let callback: JSCallback | undefined;
let keepAlive: ReturnType<typeof setInterval> | undefined;

/**
 * Starts a generation; the rules of its events are those of `Native.generate`. Gives the code of the C function: where it is
 * not 0 there is no event, and the text waits in the library.
 */
export function generate(
  library: Library,
  handle: FfiLlmHandle,
  { maxTokens, temperature, topP }: GenerateOptions,
  onStep: (step: Step) => void,
  how: Delivery,
): number {
  const id = ++issued;
  const [h, served] = [raw(handle), how === "callback" ? sharedCallback() : null];
  const status = library.call.llm_stream_generate_ex(h, maxTokens, temperature, topP, served, id, null) as number;
  if (status !== 0) return status;
  const generation = { id, library, handle, onStep, closed: false };
  running.set(id, generation); // no event can have come: they run on this thread
  // Nothing of bun:ffi keeps the process alive, so a timer does while a generation runs.
  keepAlive ??= setInterval(() => {}, 0x7fffffff);
  if (how === "poll") setImmediate(poll, generation, new PollBuffers());
  return status;
}

/** Hands out the last event. */
function end({ id, onStep }: Generation, text: string): void {
  running.delete(id);
  if (running.size === 0) {
    clearInterval(keepAlive);
    keepAlive = undefined;
  }
  onStep({ token: -1, text, done: true });
}

/** The generations of an open handle whose last event was not handed out. */
function underWay(library: Library, handle: FfiLlmHandle): Generation[] {
  return [...running.values()].filter((one) => one.library === library && one.handle === handle && !one.closed);
}

/** Has to be called before a handle is closed. */
export function closing(library: Library, handle: FfiLlmHandle): void {
  for (const generation of underWay(library, handle)) generation.closed = true;
}

/** Whether texts are on their way, which would be lost with the next prefill or generate. */
export function delivering(library: Library, handle: FfiLlmHandle): boolean {
  return underWay(library, handle).length > 0;
}

/** The address of the one callback. The length is a size_t below 2^32 in a register, read without making a BigInt. */
function sharedCallback(): number {
  callback ??= new JSCallback(onEvent, { args: ["i32", "ptr", "u32", "bool", "ptr"], returns: "void", threadsafe: true });
  return callback.ptr as unknown as number;
}

function onEvent(token: number, address: Pointer, length: number, done: boolean, id: number): void {
  const generation = running.get(id);
  if (generation === undefined) return;
  const text = length === 0 || generation.closed ? "" : decoder.decode(toArrayBuffer(address, 0, length));
  if (done) end(generation, text);
  else if (!generation.closed) generation.onStep({ token, text, done });
}

/** How the last generation on a handle ended. A handle that was closed meanwhile has no status. */
export function outcome(library: Library, handle: FfiLlmHandle): FinishReason | InferenceError {
  const usage = new Struct(8); // no more of it than `finish_reason`
  if (library.call.llm_stream_usage(raw(handle), usage.data) !== 0) {
    library.lastError();
    return "cancelled";
  }
  const reason = FINISH_REASONS[usage.view.getInt32(4, true)] ?? "none";
  return reason === "error" ? library.failure(handle) : reason;
}

/** More than the text of nearly every token. A longer one comes in several steps, the first with the token. */
const TEXT_BYTES = 65_536;
/** Of a text that is spread over steps each but the last leaves less room than this, since no character is cut. */
const LONGEST_CHARACTER = 4;
/** Tokens taken before other work of the event loop has its turn. */
const BURST = 64;

class PollBuffers {
  readonly token = new Int32Array(1);
  readonly count = new Out();
  readonly text = new Uint8Array(TEXT_BYTES);
  /** The last text filled the buffer, so the next step may go on with it. */
  full = false;
  /** The token whose text may go on. */
  held: Step | undefined;
  /** Text of no token, for the last event. */
  rest = "";

  /** The text of the last step: the bytes before the terminator. */
  read(): string {
    const { text } = this;
    const length = text[0] === 0 ? 0 : text.indexOf(0);
    this.full = length + 1 + LONGEST_CHARACTER > TEXT_BYTES;
    return length === 0 ? "" : decoder.decode(text.subarray(0, length));
  }
}

function poll(generation: Generation, buffers: PollBuffers): void {
  const { library, handle, onStep } = generation;
  const { token, count, text } = buffers;
  const handOut = () => {
    const { held } = buffers;
    buffers.held = undefined;
    if (held !== undefined) onStep(held);
  };
  for (let taken = 0; taken < BURST; taken++) {
    const status = library.call.llm_stream_poll(raw(handle), 0, token, 1, count, text, TEXT_BYTES, null) as number;
    const got = Number(count[0]);
    const piece = buffers.read();
    if (got > 0) {
      handOut();
      buffers.held = { token: token[0] as number, text: piece, done: false };
    } else if (buffers.held !== undefined) {
      buffers.held.text += piece;
    } else {
      buffers.rest += piece;
    }
    if (!buffers.full || status !== 0) handOut();
    if (status === 0 && (got > 0 || piece !== "")) continue;
    if (status === 0) {
      setTimeout(poll, 1, generation, buffers); // nothing there yet: neither spin nor block
      return;
    }
    if (status === STATUS.ELIZA_ERR_CANCELLED) library.forget(handle);
    if (status === -1) library.lastError();
    end(generation, buffers.rest);
    return;
  }
  setImmediate(poll, generation, buffers);
}
