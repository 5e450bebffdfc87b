use super::part::{Part, ToolCall};
use super::{Family, Parts};
use minijinja::Value;
use proptest::prelude::*;

/// The parts with neighbours of one type joined.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut out: Vec<Part> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(Part::Answer { text }), Part::Answer { text: more })
            | (Some(Part::Reasoning { text }), Part::Reasoning { text: more }) => text.push_str(&more),
            (_, part) => out.push(part),
        }
    }
    out
}

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
    {"k": {"type": "string"}, "n": {"type": "integer"}}}}}, {"name": "g"}]"#;

fn parts(template: &str, prompt: &str) -> Parts {
    let tools: Value = serde_json::from_str(TOOLS).unwrap();
    Parts::new(&Family::of(&|text| template.contains(text), &|_| false), Some(&tools), prompt, "")
}

fn read(template: &str, prompt: &str, pieces: &[&[u8]]) -> Vec<Part> {
    let mut reader = parts(template, prompt);
    let mut all: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    all.extend(reader.finish());
    joined(all)
}

fn answer(text: &str) -> Part {
    Part::Answer { text: text.into() }
}

fn reasoning(text: &str) -> Part {
    Part::Reasoning { text: text.into() }
}

fn call(name: &str, arguments: &str) -> Part {
    with_id(None, name, arguments)
}

fn with_id(id: Option<&str>, name: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.map(String::from), name: name.into(), arguments: arguments.into() })
}

/// What a template mentions, the end of the prompt, an answer, and its parts.
type Case = (&'static str, &'static str, &'static str, Vec<Part>);

const LLAMA: &str = "<|start_header_id|> \"parameters\" <|python_tag|>";
const HARMONY: &str = "<|channel|> <|message|>";

fn cases() -> Vec<Case> {
    let xml = "<tool_call>\n<function=f>\n<parameter=k>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n\
               <parameter=o>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>";
    vec![
        ("", "", " hello <think> x\n", vec![answer(" hello <think> x\n")]),
        ("<think>", "", "<think>\nhm\n\nwell\n</think>\n\nYes. ", vec![reasoning("hm\n\nwell"), answer("Yes. ")]),
        ("<think>", "<|Assistant|><think>\n", "hm</think>Yes", vec![reasoning("hm"), answer("Yes")]),
        ("<think>", "<think>\n\n</think>\n\n", "Yes</think>", vec![answer("Yes</think>")]),
        ("<think>", "", "<think>never ends ", vec![reasoning("never ends ")]),
        ("<think>", "", "a <thin", vec![answer("a <thin")]),
        ("[THINK]", "", "[THINK]hm[/THINK]Yes", vec![reasoning("hm"), answer("Yes")]),
        ("<seed:think>", "", "<seed:think>hm</seed:think>Yes", vec![reasoning("hm"), answer("Yes")]),
        (
            "<|channel>",
            "",
            "<|channel>thought\nhm\n<channel|>Yes",
            vec![answer("<|channel>thought\nhm\n<channel|>Yes")],
        ),
        ("<|channel>thought", "", "<|channel>thought\nhm\n<channel|>Yes", vec![reasoning("hm"), answer("Yes")]),
        (
            "<think> <response> <|start_of_role|>",
            "",
            "<think>hm</think><response>Yes</response>",
            vec![reasoning("hm"), answer("Yes")],
        ),
        (
            "<tool_call>",
            "",
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1, \"a\": \"</tool_call>\"}}\n\
             </tool_call>\n\
             <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
            vec![answer("I look."), call("f", "{\"n\": 1, \"a\": \"</tool_call>\"}"), call("g", "{}")],
        ),
        (
            "<tool_call>",
            "",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}\n</tool_call>\n\
             <tool_call>{\"name\": \"g\"}</tool_call>",
            vec![answer("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}\n</tool_call>"), call("g", "{}")],
        ),
        ("<tool_call>", "", "<tool_call>{\"name\": \"g\"}", vec![call("g", "{}")]),
        ("<tool_call>", "", "<tool_call>{\"name\": ", vec![answer("<tool_call>{\"name\": ")]),
        (
            "<tool_call>",
            "",
            "<tool_call>{\"name\": 5}</tool_call>",
            vec![answer("<tool_call>{\"name\": 5}</tool_call>")],
        ),
        ("<tool_call> <function=", "", xml, vec![call("f", "{\"k\": \"5\", \"n\": 5, \"o\": {\"a\": [1]}}")]),
        ("<function=", "", "<function=f>{\"k\": \"x\"}</function>", vec![call("f", "{\"k\": \"x\"}")]),
        (
            "<tool_call> <arg_key>",
            "",
            "<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>1</arg_value>\n\
             <arg_key>n</arg_key>\n<arg_value>1</arg_value>\n\
             </tool_call><tool_call>g</tool_call>",
            vec![call("f", "{\"k\": \"1\", \"n\": 1}"), call("g", "{}")],
        ),
        (
            LLAMA,
            "",
            "{\"name\": \"f\", \"parameters\": {\"k\": \"}\"}}; {\"name\": \"g\", \"parameters\": {}}",
            vec![call("f", "{\"k\": \"}\"}"), call("g", "{}")],
        ),
        (LLAMA, "", " {\"name\": \"other\"} ", vec![answer(" {\"name\": \"other\"} ")]),
        (LLAMA, "", "{\"name\"", vec![answer("{\"name\"")]),
        (LLAMA, "", "So: {\"name\": \"f\"}", vec![answer("So: {\"name\": \"f\"}")]),
        (
            LLAMA,
            "",
            "<|python_tag|>brave.call(query=\"a (b)\", n=2)",
            vec![call("brave", "{\"query\": \"a (b)\", \"n\": 2}")],
        ),
        (LLAMA, "", "<|python_tag|>print(1)", vec![answer("<|python_tag|>print(1)")]),
        (
            "[TOOL_CALLS]",
            "",
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"k\": \"]\"}, \"id\": \"abcdefghi\"}]",
            vec![with_id(Some("abcdefghi"), "f", "{\"k\": \"]\"}")],
        ),
        (
            "[TOOL_CALLS]",
            "",
            "Well[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"k\": \"a\"}[TOOL_CALLS]g[ARGS]{}",
            vec![answer("Well"), with_id(Some("123456789"), "f", "{\"k\": \"a\"}"), call("g", "{}")],
        ),
        (
            "<|tool_call>",
            "",
            "<|tool_call>call:f{k:<|\"|>a \"b\"<|\"|>,n:2,o:{x:[true,null]}}<tool_call|>",
            vec![call("f", "{\"k\":\"a \\\"b\\\"\",\"n\":2,\"o\":{\"x\":[true,null]}}")],
        ),
        ("<|tool_call|>", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", vec![call("f", "{}")]),
        (
            "<｜tool▁calls▁begin｜>",
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![call("f", "{\"n\": 1}"), call("g", "{}")],
        ),
        (
            "<｜DSML｜function_calls>",
            "",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n\
             <｜DSML｜parameter name=\"k\" string=\"true\">5</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"n\" string=\"false\">5</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜function_calls>",
            vec![call("f", "{\"k\": \"5\", \"n\": 5}")],
        ),
        (
            "<|tool_calls_section_begin|>",
            "",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}\
             <|tool_call_end|><|tool_calls_section_end|>",
            vec![with_id(Some("functions.f:0"), "f", "{\"n\": 1}")],
        ),
        (
            "<minimax:tool_call>",
            "",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"k\">v</parameter>\n</invoke>\n\
             </minimax:tool_call>",
            vec![call("f", "{\"k\": \"v\"}")],
        ),
        (
            "<|START_THINKING|> <|START_ACTION|>",
            "",
            "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n  {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \
             \"parameters\": {\"k\": \"v\"}}\n]<|END_ACTION|>",
            vec![reasoning("hm"), with_id(Some("0"), "f", "{\"k\": \"v\"}")],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>[f(k=\"it's\", n=-1.5), g()]<|tool_call_end|>Done",
            vec![call("f", "{\"k\": \"it's\", \"n\": -1.5}"), call("g", "{}"), answer("Done")],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>\n```python\nf(k='v', l=[True, None], d={'a': 1})\ng()\n```\n<|tool_call_end|>",
            vec![call("f", "{\"k\": \"v\", \"l\": [true,null], \"d\": {\"a\":1}}"), call("g", "{}")],
        ),
        ("<|tools_prefix|>", "", "<|tools_prefix|>[{\"f\": {\"k\": \"v\"}}]", vec![call("f", "{\"k\": \"v\"}")]),
        ("<TOOLCALL>", "", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": \"{}\"}]</TOOLCALL>", vec![call("f", "{}")]),
        (
            HARMONY,
            "<|start|>user<|message|>x<|end|><|start|>assistant",
            "<|channel|>analysis<|message|>hm <<|end|><|start|>assistant<|channel|>analysis<|message|>well<|end|>\
             <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"k\": \"<\"}",
            vec![reasoning("hm <\n\nwell"), call("f", "{\"k\": \"<\"}")],
        ),
        (
            HARMONY,
            "<|start|>assistant",
            " to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}<|call|>",
            vec![call("f", "{\"n\": 1}")],
        ),
        (HARMONY, "<|start|>assistant", "<|channel|>final<|message|>Yes <b>.", vec![answer("Yes <b>.")]),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>", "Yes", vec![answer("Yes")]),
        (HARMONY, "<|start|>assistant", "No channel.<|end|>", vec![answer("No channel.")]),
        (
            HARMONY,
            "<|start|>assistant",
            "<|channel|>commentary to=functions.f<|message|>{\"n\": ",
            vec![answer("<|channel|>commentary to=functions.f<|message|>{\"n\": ")],
        ),
    ]
}

#[test]
fn every_family_s_answers_come_apart() {
    for (template, prompt, text, wanted) in cases() {
        assert_eq!(read(template, prompt, &[text.as_bytes()]), wanted, "{template:?} {text:?}");
    }
}

#[test]
fn bytes_one_by_one_make_the_same_parts() {
    for (template, prompt, text, wanted) in cases() {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(read(template, prompt, &pieces), wanted, "{template:?} {text:?}");
    }
}

#[test]
fn text_comes_as_soon_as_it_is_no_mark() {
    let mut reader = parts("<think> <tool_call>", "");
    assert_eq!(reader.push(b"a <tool"), [answer("a")]);
    assert_eq!(reader.push(b"ing"), [answer(" <tooling")]);
    assert_eq!(reader.push(b"<tool_call>{\"name\": \"g\"}</tool_call>"), [call("g", "{}")], "when it is closed");
    let mut reader = parts("[TOOL_CALLS]", "");
    assert_eq!(reader.push(b"[TOOL_CALLS]g[ARGS]{}"), [call("g", "{}")], "when its JSON ends");
}

#[test]
fn of_a_given_start_only_the_call_that_it_begins_is_told() {
    let family = Family::of(&|text| "<think> <tool_call>".contains(text), &|_| false);
    let mut reader = Parts::new(&family, None, "<think>\n", "\n</think>\n\nSure. <tool_call>{\"name\": \"");
    assert_eq!(reader.push(b"f\"}</tool_call>!"), [call("f", "{}"), answer("!")]);
    assert_eq!(family.before_answer("x<think>\n", "Sure"), "\n</think>\n\n");
    assert_eq!(family.before_answer("x<think>", "Sure"), "</think>");
    assert_eq!(family.before_answer("x<think>\n", "hm</think>"), "");
    assert_eq!(family.before_answer("x", "Sure"), "");
    let harmony = Family::of(&|text| HARMONY.contains(text), &|_| false);
    assert_eq!(harmony.before_answer("<|start|>assistant", "Sure"), "<|channel|>final<|message|>");
}

#[test]
fn a_tokens_text_is_a_mark_where_the_template_is_silent() {
    let family = Family::of(&|_| false, &|text| text == "<tool_call>");
    let mut reader = Parts::new(&family, None, "", "");
    assert_eq!(reader.push(b"<tool_call>{\"name\": \"f\"}</tool_call>"), [call("f", "{}")]);
}

proptest! {
    /// Marks, their pieces and other things in any order.
    #[test]
    fn random_pieces_make_the_parts_of_the_whole(
        picks in prop::collection::vec(0usize..1000, 0..20),
        cuts in prop::collection::vec(0usize..400, 0..12),
        n in 0usize..100,
    ) {
        let cases = cases();
        let (template, prompt, ..) = cases[n % cases.len()];
        let others = ["<", "|", ">", "x", " ", "\n", "{", "}", "\"", "[", "é", "\u{2581}", "ok"];
        let mut text = String::new();
        for pick in picks {
            match (pick % 3, &cases[pick % cases.len()]) {
                (0, _) => text.push_str(others[pick % others.len()]),
                (_, (.., whole, _)) if pick % 2 == 0 => text.push_str(whole),
                (_, (.., whole, _)) => text.extend(whole.chars().skip(pick % 7).take(pick % 60)),
            }
        }
        let bytes = text.as_bytes();
        let cuts = cuts.into_iter().map(|cut| cut % (bytes.len() + 1));
        let mut places: Vec<usize> = cuts.chain([0, bytes.len()]).collect();
        places.sort_unstable();
        let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(template, prompt, &pieces), read(template, prompt, &[bytes]));
    }
}
