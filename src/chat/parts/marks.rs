//! The marks with which models set off reasoning and tool calls from an answer, and whose they are.
//!
//! The forms are those of the models' own templates and documents. Which of them a model writes, its template says,
//! and its vocabulary: a mark that is one token was made for the purpose.

/// A mark and what it begins.
pub(super) struct Mark {
    /// What has to be known of the model; where there is nothing, `open`.
    signs: &'static [&'static str],
    pub(super) open: &'static str,
    /// Empty: calls end with their JSON, or with the text.
    pub(super) close: &'static str,
    pub(super) begins: Begins,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    Reasoning,
    Calls,
    /// The answer, or nothing: the mark is dropped.
    Nothing,
}

const fn reasoning(open: &'static str, close: &'static str) -> Mark {
    Mark { signs: &[], open, close, begins: Begins::Reasoning }
}

const fn calls(open: &'static str, close: &'static str) -> Mark {
    Mark { signs: &[], open, close, begins: Begins::Calls }
}

/// DeepSeek's marks, which its templates put together of a token.
const fn dsml(open: &'static str, close: &'static str) -> Mark {
    Mark { signs: &["｜DSML｜"], open, close, begins: Begins::Calls }
}

const fn nothing(signs: &'static [&'static str], open: &'static str) -> Mark {
    Mark { signs, open, close: "", begins: Begins::Nothing }
}

static MARKS: [Mark; 34] = [
    // Qwen, DeepSeek, GLM, Granite, SmolLM, Nemotron, MiniMax and most others.
    reasoning("<think>", "</think>"),
    // Seed-OSS.
    reasoning("<seed:think>", "</seed:think>"),
    // Magistral, Ministral.
    reasoning("[THINK]", "[/THINK]"),
    // Gemma 4.
    reasoning("<|channel>thought", "<channel|>"),
    // Command R7B and A.
    reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apertus.
    reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    // MiniCPM 3.
    reasoning("<|thought_start|>", "<|thought_end|>"),
    // Granite 3 sets off its answer too; MiniMax has a mark of the same name in what it reads.
    nothing(&["<|start_of_role|>"], "<response>"),
    nothing(&["<|start_of_role|>", "<response>"], "</response>"),
    nothing(&[], "<|START_RESPONSE|>"),
    nothing(&[], "<|END_RESPONSE|>"),
    nothing(&[], "<|START_TEXT|>"),
    nothing(&[], "<|END_TEXT|>"),
    // JSON in Qwen, Hermes, Granite 4; functions in Qwen3-Coder; keys and values in GLM.
    calls("<tool_call>", "</tool_call>"),
    calls("<tool_calls>", "</tool_calls>"),
    calls("<TOOLCALL>", "</TOOLCALL>"),
    calls("<seed:tool_call>", "</seed:tool_call>"),
    calls("<minimax:tool_call>", "</minimax:tool_call>"),
    // Functionary.
    calls("<function=", "</function>"),
    // Llama 3, for its own tools.
    calls("<|python_tag|>", ""),
    // Mistral, all versions.
    calls("[TOOL_CALLS]", ""),
    // Gemma 4.
    calls("<|tool_call>", "<tool_call|>"),
    // Granite 3, Phi-4.
    calls("<|tool_call|>", ""),
    nothing(&["<|tool_call|>"], "<|/tool_call|>"),
    // DeepSeek R1 to V3.1, then V3.2 and V4.
    calls("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    dsml("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    dsml("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    // Kimi K2.
    calls("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    // Command R7B, and R+.
    calls("<|START_ACTION|>", "<|END_ACTION|>"),
    Mark { signs: &["Action:", "tool_name"], open: "Action: ```json", close: "```", begins: Begins::Calls },
    Mark { signs: &["Action:", "tool_name"], open: "Action:```json", close: "```", begins: Begins::Calls },
    // LFM2, MiniCPM 3.
    calls("<|tool_call_start|>", "<|tool_call_end|>"),
    // Apertus.
    calls("<|tools_prefix|>", "<|tools_suffix|>"),
    // Ministral 3 and others close what is closed already.
    nothing(&["[TOOL_CALLS]"], "[/TOOL_CALLS]"),
];

/// What a family's answers are made of.
pub(crate) struct Family {
    pub(super) marks: Vec<&'static Mark>,
    /// gpt-oss: every message has a channel.
    pub(super) harmony: bool,
    /// Llama 3: a JSON object that is the whole answer is a call.
    pub(super) bare_calls: bool,
}

impl Family {
    /// The family of a model. `mentions` says whether its templates have a text, `is_token` whether a text is one of
    /// its tokens.
    pub(crate) fn of(mentions: &dyn Fn(&str) -> bool, is_token: &dyn Fn(&str) -> bool) -> Self {
        let known = |text: &str| mentions(text) || is_token(text);
        let writes = |mark: &&Mark| match mark.signs {
            // Gemma's mark is a token and a word; the opening of a function is no token.
            [] => mentions(mark.open) || is_token(mark.open.trim_end_matches("thought")),
            signs => signs.iter().all(|sign| known(sign)),
        };
        Family {
            harmony: mentions("<|channel|>") && mentions("<|message|>"),
            bare_calls: mentions("\"parameters\"") && known("<|start_header_id|>") && !mentions("<tool_call>"),
            marks: MARKS.iter().filter(writes).collect(),
        }
    }

    /// The mark whose reasoning a prompt's end has opened.
    pub(super) fn open_reasoning(&self, prompt: &str) -> Option<&'static Mark> {
        let end = prompt.trim_end();
        let opens = |mark: &&&'static Mark| mark.begins == Begins::Reasoning && end.ends_with(mark.open);
        self.marks.iter().find(opens).copied()
    }

    /// What a template has to write before an answer whose text is given begins: the end of a thought that the prompt
    /// has opened, or the channel of answers.
    pub(crate) fn before_answer(&self, prompt: &str, answer: &str) -> String {
        if self.harmony && prompt.ends_with("<|start|>assistant") && !answer.starts_with("<|") {
            return "<|channel|>final<|message|>".into();
        }
        match self.open_reasoning(prompt) {
            Some(mark) if !answer.contains(mark.close) && prompt.ends_with('\n') => format!("\n{}\n\n", mark.close),
            Some(mark) if !answer.contains(mark.close) => mark.close.into(),
            _ => String::new(),
        }
    }
}
