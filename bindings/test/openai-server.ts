/** A server with OpenAI's completions, in a process of its own: `openai-server.js KEY`. It prints its port. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

const key = process.argv[2] ?? "";

const server = createServer((request, response) => {
  let text = "";
  request.on("data", (part: Buffer) => (text += part.toString()));
  request.on("end", () => {
    const json = (status: number, body: object): void => {
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    };
    if (request.headers.authorization !== `Bearer ${key}`) {
      json(401, { error: "who are you?" });
    } else if (request.url !== "/v1/completions") {
      json(200, { data: [{ id: "org/model" }] });
    } else if ((JSON.parse(text) as { max_tokens: number }).max_tokens === 4) {
      // An answer of 4 tokens is refused, with a text that has the key.
      json(401, { error: { message: `${key} is not a key` } });
    } else {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const event = (text: string, finish_reason: string | null): string =>
        `data: ${JSON.stringify({ choices: [{ text, finish_reason }] })}\n\n`;
      for (const part of [" there", " was", " é😀"]) response.write(event(part, null));
      response.end(`${event("", "stop")}data: [DONE]\n\n`);
    }
  });
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
