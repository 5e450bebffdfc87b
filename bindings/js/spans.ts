/** Spans of a generation: what a host hears of them while they are written. */

/** What a span holds. */
export type SpanKind = "literal" | "choice" | "repeat" | "number" | "boolean" | "string" | "json" | "free";

/** A span that has begun or, with `end` and `text`, ended. */
export interface SpanEvent {
  /** Its number: spans are numbered as they are written, from 0. */
  span: number;
  kind: SpanKind;
  /** The key that the host gave it, or that comes before it in a grammar. */
  key: string | null;
  /** The repeat that it is a part of, as the index of that event's beginning among all beginnings. */
  parent: number | null;
  /** Where it begins, in bytes of the generated text as UTF-8. */
  begin: number;
  /** Where it ends; `null` while it is written. */
  end: number | null;
  /** All of it, once it has ended. */
  text?: string;
}

/** Tells a host of spans, each when it begins and when it has ended, never before their text. */
export class SpanReports {
  readonly #tell: (event: SpanEvent) => void;
  #bytes = new Uint8Array(1024);
  #length = 0;
  /** Spans whose beginning was told, and the open ones among them. */
  #begun = 0;
  #open: number[] = [];

  constructor(tell: (event: SpanEvent) => void) {
    this.#tell = tell;
  }

  /** Takes the text of a step, and the library's report after it; `last` where no more text comes. */
  step(text: string, report: unknown, last: boolean): void {
    this.#append(new TextEncoder().encode(text));
    const events = ((report as { spans?: SpanEvent[] }).spans ?? []) as readonly SpanEvent[];
    for (;;) {
      // In the order of the text: what ended before something began is told before it.
      const ended = [...this.#open].reverse().find((index) => this.#has(events[index]?.end, last));
      const next = events[this.#begun];
      const begins = next !== undefined && (last || next.begin < this.#length);
      const end = ended === undefined ? undefined : events[ended];
      if (end !== undefined && (!begins || (end.end ?? 0) <= next.begin)) {
        this.#open = this.#open.filter((index) => index !== ended);
        this.#tell({ ...end, text: new TextDecoder().decode(this.#bytes.subarray(end.begin, end.end ?? this.#length)) });
      } else if (begins) {
        this.#open.push(this.#begun++);
        this.#tell({ ...next, end: null });
      } else {
        return;
      }
    }
  }

  #has(end: number | null | undefined, last: boolean): boolean {
    return end !== null && end !== undefined && (last || end <= this.#length);
  }

  #append(bytes: Uint8Array): void {
    while (this.#length + bytes.length > this.#bytes.length) {
      const larger = new Uint8Array(2 * this.#bytes.length);
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }
}
