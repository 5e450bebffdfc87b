/** The library's log lines. The library calls no JavaScript from its threads for them: they wait there, and a timer asks. */

import type { Native } from "./native.js";

export type LogLevel = "error" | "warn" | "info" | "debug";

/** Receives a log line. None holds text of a prompt or of what was generated. */
export type LogSink = (level: LogLevel, message: string) => void;

/** By the numbers of `ELIZA_LOG_*`, of which the first is 1. */
const LEVELS: readonly LogLevel[] = ["error", "warn", "info", "debug"];
const EVERY_MS = 50;

let stop = () => {};

/** Sends log lines to a sink, or to none; the process has one. A runtime's `setLogSink` calls this with its own library. */
export function listen(native: Native, sink: LogSink | null): void {
  stop();
  stop = () => {};
  if (sink === null) return;
  const take = () => {
    for (let line = native.nextLogLine(); line !== null; line = native.nextLogLine()) {
      sink(LEVELS[line.level - 1] ?? "debug", line.message);
    }
  };
  take(); // from now on they wait
  const timer = setInterval(take, EVERY_MS);
  timer.unref(); // it keeps no process alive
  process.on("exit", take);
  stop = () => {
    clearInterval(timer);
    process.off("exit", take);
    try {
      take();
    } finally {
      native.endLog();
    }
  };
}
