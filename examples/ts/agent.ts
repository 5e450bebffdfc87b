/**
 * agent.ts MODEL [MESSAGE...]: an agent's turn, as elizaOS plans one: from a message to contexts, an action and its
 * parameters, in one structured answer. Without messages it reads lines from standard input.
 *
 * The answer is held to a schema, so whatever the model is, the action exists and its parameters are there, with the right
 * types; names and punctuation that can only be what they are cost no decision of the model.
 */
import { createInterface } from "node:readline";
import { type Model, load } from "eliza-inference";

/** What the agent can do. */
const ACTIONS = {
  REPLY: {
    description: "say something to the user",
    parameters: { text: { type: "string", minLength: 1, maxLength: 60 } },
    run: ({ text }: Arguments) => `says: ${text}`,
  },
  REMIND: {
    description: "remind the user of something later",
    parameters: { what: { type: "string", minLength: 1, maxLength: 40 }, minutes: { type: "integer", minimum: 1, maximum: 1440 } },
    run: ({ what, minutes }: Arguments) => `will remind of "${what}" in ${minutes} minutes`,
  },
  SET_LIGHT: {
    description: "switch a light on or off",
    parameters: { room: { enum: ["kitchen", "bedroom", "garden"] }, on: { type: "boolean" } },
    run: ({ room, on }: Arguments) => `switches the light in the ${room} ${on ? "on" : "off"}`,
  },
  IGNORE: { description: "the message is not for the agent", parameters: {}, run: () => "does nothing" },
} as const;

const CONTEXTS = ["general", "home", "calendar"] as const;

type Action = keyof typeof ACTIONS;
type Arguments = Record<string, unknown>;
interface Plan {
  contexts: (typeof CONTEXTS)[number][];
  action: Action;
  parameters: Arguments;
}

/** One of the actions, each with its own parameters. */
const PLAN = {
  anyOf: Object.entries(ACTIONS).map(([action, { parameters }]) => ({
    type: "object",
    properties: {
      contexts: { type: "array", items: { enum: CONTEXTS }, minItems: 1, maxItems: 2 },
      action: { const: action },
      parameters: { type: "object", properties: parameters, required: Object.keys(parameters), additionalProperties: false },
    },
    required: ["contexts", "action", "parameters"],
    additionalProperties: false,
  })),
};

const SYSTEM = `You decide what an agent does with a message.
Actions:
${Object.entries(ACTIONS).map(([name, { description }]) => `- ${name}: ${description}`).join("\n")}
Contexts: ${CONTEXTS.join(", ")}
Answer in JSON with "contexts", "action" and "parameters".
`;

async function turn(model: Model, message: string): Promise<void> {
  const prompt = `${SYSTEM}\nMessage: ${message}\nAnswer: `;
  const { contexts, action, parameters } = (await model.json(prompt, PLAN, { temperature: 0, compact: true })) as Plan;
  console.log(`[${contexts.join(", ")}] ${action} ${ACTIONS[action].run(parameters)}`);
  const { promptTokens, promptTokensReused, completionTokens, forcedTokens } = model.usage();
  console.error(`${promptTokens} tokens of prompt, ${promptTokensReused} reused; ${completionTokens} answered, ${forcedTokens} forced`);
}

const [path, ...messages] = process.argv.slice(2);
if (path === undefined) {
  console.error("usage: agent.ts MODEL [MESSAGE...]");
  process.exit(2);
}
const model = await load(path);
// What all turns begin with is read while the user types.
model.prewarm(SYSTEM);
if (messages.length > 0) for (const message of messages) await turn(model, message);
else for await (const line of createInterface({ input: process.stdin })) await turn(model, line);
model.close();
