#!/usr/bin/env python3
"""An agent's plan, an action with its parameters, by one grammar of all actions: this program and llama.cpp.

    bench_planner.py [--reps N] [--threads N] [--actions N ...] [--most N] [--json FILE] [NAME ...]

NAME is SHAPE:TYPE, a shape of tools/make_model.rs and a type of `eliza-inference quantize`. The grammar is the strict union that elizaOS's
planner makes: a rule for each action, `{"action":"NAME","parameters":{…},"thought":"…"}`, in which the name decides the parameters:
texts, a choice, a number, a flag. Both sides get the same GBNF, the same prompts and choose greedily. The model has the habit of writing
such plans (`make_model --habits`): its tokens are those of an example of each action, with texts of 5 to 12 words, and what does not fit is
ruled out by the grammar, so that both sides write plans of the same kind. Its vocabulary is a real one where `ELIZA_SHARED` or ../shared has it.
Timed is an answer from its evaluated prompt to its last token, in which this program knows nothing yet of the grammar's masks: each
answer is made by a process of its own. llama.cpp's figure is that of the better of its two ways (mask everything first; try, check, mask
everything when refused). What came out is checked: by our grammar for our texts, as JSON for all.
"""
import argparse
import json
import os
import statistics
import tempfile

from peer import ROOT, Made, Ours, Skip, Timed, run, table

VOCABULARIES = {"qwen3-0.6b": "qwen2", "gemma3-270m": "gemma-4"}
MODELS = ("qwen3-0.6b:q4_0", "gemma3-270m:q4_0")
ACTIONS = os.path.join(ROOT, "models", "demo_actions.txt")
PROMPTS = [f"{what}. The plan as JSON: " for what in (
    "A friend writes that the meeting is moved to three", "The market closes early because of the rain", "Somebody asks for the weather")]
STRING = r'''jsonstring ::= "\"" ( [^"\\\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] ) )* "\""'''
NUMBER = r'''jsonnumber ::= "-"? ( [0-9] | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )?'''


def literal(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def names(count):
    """So many names of actions: those of the demo, then those joined with others."""
    with open(ACTIONS, encoding="utf-8") as file:
        known = [line.strip().upper() for line in file if line.strip()]
    joined = (f"{name}_{what}" for what in ("ALL", "LATER", "QUIETLY") for name in known)
    return sorted([*known, *joined][:count])


def shapes_of(actions):
    """The parameters of each action, with the rules of their values."""
    shapes = ([("to", "jsonstring"), ("text", "jsonstring")],
              [("unit", f'( {literal(json.dumps("metric"))} | {literal(json.dumps("imperial"))} )'), ("days", "jsonnumber")],
              [("urgent", "jsonbool")], [], [("place", "jsonstring"), ("urgent", "jsonbool")])
    return [shapes[index % len(shapes)] for index in range(len(actions))]


def grammar(actions):
    """The strict union of these actions, with parameters of five shapes in turn."""
    branches, rules = [], [STRING, NUMBER, 'jsonbool ::= "true" | "false"']
    for action, keys in zip(actions, shapes_of(actions)):
        rule, parts = action.replace("_", "-"), []
        for key, value in keys:
            rules.append(f"paramsofaction-{rule}-p-{key} ::= {literal(json.dumps(key) + ':')} {value}")
            parts.append(f"paramsofaction-{rule}-p-{key}")
        between = f" {literal(',')} "
        body = literal("{}") if not keys else f"{literal('{')} {between.join(parts)} {literal('}')}"
        rules.append(f"paramsofaction-{rule} ::= {body}")
        head = literal('{"action":' + json.dumps(action))
        rules.append(f"callofaction-{rule} ::= {head} {literal(',' + json.dumps('parameters') + ':')} paramsofaction-{rule} "
                     f"{literal(',' + json.dumps('thought') + ':')} jsonstring {literal('}')}")
        branches.append(f"callofaction-{rule}")
    return "\n".join([f"root ::= {' | '.join(branches)}", *rules]) + "\n"


def plans(actions):
    """An example of each action, as a model would write it."""
    texts = ["The weather in Paris will be sunny tomorrow", "Please remind me to call Anna about the garden", "a list of seven books",
             "Meeting moved to three because the train is late this afternoon, tell everybody else"]
    values = {"unit": lambda i: ["metric", "imperial"][i % 2], "days": lambda i: [7, 42, 365][i % 3], "urgent": lambda i: i % 2 == 0}
    for index, (action, keys) in enumerate(zip(actions, shapes_of(actions))):
        text = texts[index % len(texts)]
        parameters = {key: values[key](index) if key in values else text for key, _ in keys}
        yield json.dumps({"action": action, "parameters": parameters, "thought": text}, separators=(",", ":"))


def planner(ours, models, name):
    """The model with the habit of writing such plans."""
    shared = os.environ.get("ELIZA_SHARED") or os.path.join(ROOT, os.pardir, "shared")
    vocab = os.path.join(shared, "models", "vocab", f"ggml-vocab-{VOCABULARIES.get(name.split(':')[0])}.gguf")
    with tempfile.TemporaryDirectory() as scratch:
        def options():
            known = vocab if os.path.exists(vocab) else models.get(name)
            tokens = lambda text: json.loads(run([ours.program, "tokenize", "--model", known, "--no-bos", text]))
            # A list ends before a name and a choice: they are not what a text begins with.
            starts = {tokens(text)[0] for text in [*names(200), "metric", "imperial"]}
            lists = []
            for plan in plans(names(200)):
                lists.append([])
                for token in tokens(plan):
                    if token in starts:
                        lists.append([])
                    lists[-1].append(token)
            habits = os.path.join(scratch, "habits.json")
            with open(habits, "w", encoding="utf-8") as file:
                json.dump(lists, file)
            return ["--habits", habits, *(["--vocab", vocab] if known == vocab else [])]

        return models.made(name, "-planner", options)


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def answer(ours, model, prompt, rules, args):
    got = ours.json("generate", "--model", model, "--prompt-file", prompt, "--grammar", rules, "--chain", "greedy", "--max-tokens",
                    args.most, "--threads", args.threads)
    usage = got["usage"]
    return {"ms": usage["decode_us"] / 1e3, "tokens": usage["completion_tokens"], "passes": usage["sampled_tokens"],
            "forced": usage["forced_tokens"], "text": got["text"], "ended": usage["finish_reason"] == "stop"}


def compare(args, ours, peer, model, count, scratch):
    rules = os.path.join(scratch, "rules.gbnf")
    with open(rules, "w", encoding="utf-8") as file:
        file.write(grammar(names(count)))
    prompts = []
    for index, text in enumerate(PROMPTS):
        prompts.append(os.path.join(scratch, f"prompt{index}"))
        with open(prompts[-1], "w", encoding="utf-8") as file:
            file.write(text)
    theirs = peer.json("guided", model, args.threads, args.reps, rules, args.most, *prompts)
    best = min((theirs["mask_first"], theirs["check_then_mask"]), key=lambda way: way["ms_per_answer"])
    mine = [answer(ours, model, prompt, rules, args) for prompt in prompts for _ in range(args.reps)]
    for one in mine:
        text = os.path.join(scratch, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write(one["text"])
        verdict = ours.json("grammar", "check", "--model", model, "--grammar", rules, "--text", text)
        one["accepted"] = verdict["accepted"] == len(one["text"].encode()) and verdict["may_end"] == one["ended"]
        if one["ended"] and not is_json(one["text"]):
            raise RuntimeError(f"not JSON: {one['text']}")
    ms = statistics.median(one["ms"] for one in mine)
    mean = lambda key: statistics.mean(one[key] for one in mine)
    return {"model": os.path.basename(model), "actions": count, "ms": ms, "peer_ms": best["ms_per_answer"],
            "ratio": best["ms_per_answer"] / ms, "tokens": mean("tokens"), "passes": mean("passes"), "forced": mean("forced"),
            "peer_tokens": best["tokens"], "ended": mean("ended"), "peer_ended": best["ended"], "accepted": mean("accepted"),
            "answers": mine, "peer": theirs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--folder", help="the models' folder, target/bench unless told")
    parser.add_argument("--actions", nargs="*", type=int, default=[8, 30, 200], help="numbers of actions")
    parser.add_argument("--reps", type=int, default=3, help="answers to each prompt")
    parser.add_argument("--most", type=int, default=256, help="the most tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="a file for all results")
    args = parser.parse_args()
    peer, ours, results = Timed(), Ours(), []
    models = Made(ours, args.folder)
    for name in args.models:
        model = planner(ours, models, name)
        for count in args.actions:
            with tempfile.TemporaryDirectory() as scratch:
                results.append(compare(args, ours, peer, model, count, scratch))
            print(f"{name}, {count} actions: {results[-1]['ratio']:.1f} times as fast", flush=True)
    table(("model", "actions", "ours ms", "llama.cpp ms", "ratio", "tokens: ours, theirs", "sampled", "forced", "ended", "accepted"),
          [(row["model"], row["actions"], f"{row['ms']:.1f}", f"{row['peer_ms']:.1f}", f"{row['ratio']:.1f}",
            f"{row['tokens']:.1f}, {row['peer_tokens']:.1f}", f"{row['passes']:.1f}", f"{row['forced']:.1f}",
            f"{100 * row['ended']:.0f}, {100 * row['peer_ended']:.0f} %", f"{100 * row['accepted']:.0f} %") for row in results])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except Skip as reason:
        print("skipped:", reason)
