//! `chat`: a conversation in the terminal. Lines are edited and kept by rustyline; Ctrl-C ends an answer, not the
//! program; what the slot holds of a conversation is not evaluated again.

mod conversation;
mod screen;

use crate::args::{ModelArgs, ServerArgs, read_input};
use crate::output::{
    Failure, Outcome, catch_interrupts, error, fail, forget_interrupts, interrupted, printable, usage,
};
use crate::parameters::{self, Parameters};
use clap::ValueEnum;
use conversation::Conversation;
use elizainference::sampling::Chain;
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, SpanEnd};
use elizainference::trie::Surroundings;
use rustyline::DefaultEditor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use screen::Screen;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A small GGUF model, best of the same vocabulary, whose guesses may save passes; the answers are the same. The
    /// model itself where its file has a block that predicts further tokens (NextN, MTP)
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Context in tokens, rounded up to a power of two; 0 is the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    /// Tokens of an answer at most; -1 goes on to the end of the context
    #[arg(short, long = "max-tokens", default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    n: i32,
    /// What the model is told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Whether the model thinks before it answers; else what its template says
    #[arg(long, value_name = "on|off")]
    thinking: Option<Thinking>,
    /// A file with the functions that the model may call, a JSON array as in OpenAI's API
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Answers are one of these texts: A,B,C; may be given several times
    #[arg(long, value_name = "TEXTS", value_delimiter = ',')]
    choices: Vec<String>,
    /// The text that every answer begins with; special tokens in it are tokens
    #[arg(long, value_name = "TEXT")]
    answer_start: Option<String>,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    reasoning: parameters::Thinking,
    /// The whole sampler chain, such as top_k=40;top_p=0.95;min_p=0.05;temp=0.8
    #[arg(long, conflicts_with = "parameters")]
    chain: Option<Chain>,
    /// Seed of the draws; without one every run is different
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A text that ends an answer; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Thinking {
    On,
    Off,
}

const HELP: &str = "\
/help              this list
/reset             begin a new conversation
/system TEXT       what the model is told first; without a text nothing. Begins a new conversation
/thinking on|off   whether the model thinks before it answers
/result TEXT       what the function gave that the model called last
/quit              end, as Ctrl-D does
Ctrl-C ends an answer. Two slashes begin a message that begins with one.";

/// The slot of the conversation.
const SLOT: i32 = 0;

pub fn run(args: Args) -> Outcome {
    let tools = args.tools.as_deref().map(tools).transpose()?;
    if args.choices.iter().any(String::is_empty) {
        return usage("--choices has an empty text");
    }
    let place: Arc<OnceLock<Weak<Session>>> = Arc::default();
    let to_cancel = place.clone();
    catch_interrupts(move || {
        if let Some(session) = to_cancel.get().and_then(Weak::upgrade) {
            session.cancel();
        }
    });
    let engine = args.model.engine(args.ctx)?;
    let session = Arc::new(Session::open(OpenOptions {
        draft: args.draft.clone(),
        ..args.server.options(&args.model.model, engine)
    })?);
    // The place is empty: it is filled here alone.
    let _ = place.set(Arc::downgrade(&session));
    session.chat_template()?;
    let settings = session.settings();
    session.configure(Settings {
        params: args.parameters.over(settings.params.clone(), args.seed),
        stop: args.stop.iter().map(|text| text.clone().into_bytes()).collect(),
        on_span_end: SpanEnd::Stop,
        special_text: true,
        reasoning: args.reasoning.budget(),
        ..settings
    })?;
    session.set_chain(SLOT, args.chain.clone())?;

    let thinking = args.thinking.map(|thinking| thinking == Thinking::On);
    let mut chat = Chat { session, conversation: Conversation::new(args.system.clone(), thinking, tools), args };
    let config = Config::builder().auto_add_history(true).build();
    let mut editor = DefaultEditor::with_config(config).map_err(terminal)?;
    if io::stdin().is_terminal() {
        let name = chat.session.info().ids.first().cloned().unwrap_or_default();
        eprintln!("{}: /help lists commands, Ctrl-D ends", printable(name));
    }
    loop {
        chat.prewarm();
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                if !chat.line(line.trim())? {
                    return Ok(());
                }
            }
            Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D or /quit ends"),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(problem) => return Err(terminal(problem)),
        }
    }
}

fn terminal(problem: ReadlineError) -> Failure {
    Failure::Error(format!("Terminal: {problem}"))
}

/// The text of a file of tools.
fn tools(path: &Path) -> Result<String, Failure> {
    let named = |problem: String| Failure::Error(format!("{}: {problem}", path.display()));
    let text = String::from_utf8(read_input(path)?).map_err(|e| named(format!("not UTF-8: {e}")))?;
    let tools: Vec<serde_json::Value> =
        serde_json::from_str(&text).map_err(|e| named(format!("no JSON array: {e}")))?;
    if tools.is_empty() {
        return Err(named("no tools".into()));
    }
    Ok(text)
}

struct Chat {
    session: Arc<Session>,
    conversation: Conversation,
    args: Args,
}

impl Chat {
    /// Does what a line asks for; whether the conversation goes on.
    fn line(&mut self, line: &str) -> Result<bool, Failure> {
        let Some(command) = line.strip_prefix('/') else { return self.say(line) };
        if command.starts_with('/') {
            return self.say(command);
        }
        let (command, text) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let text = text.trim();
        match (command, text) {
            ("help", _) => println!("{HELP}"),
            ("quit" | "exit", _) => return Ok(false),
            ("reset", _) => self.conversation.reset(),
            ("system", _) => self.conversation.set_system(text),
            ("thinking", "on") => self.conversation.thinking = Some(true),
            ("thinking", "off") => self.conversation.thinking = Some(false),
            ("thinking", _) => error("/thinking is `on` or `off`"),
            ("result", _) => match self.conversation.result(text) {
                true => return self.turn(),
                false => error("There is no call that a result belongs to"),
            },
            _ => error(&format!("/{} is no command; /help lists them", printable(command))),
        }
        Ok(true)
    }

    fn say(&mut self, text: &str) -> Result<bool, Failure> {
        self.conversation.ask(text);
        self.turn()
    }

    /// Has what was said evaluated while the next line is typed. What the template cannot tell without that line waits.
    fn prewarm(&self) {
        let session = &self.session;
        let prompt = || {
            let inputs = elizainference::chat::Inputs::from_json(&self.conversation.inputs(false, None))?;
            session.chat_template()?.prompt(&inputs)?.tokens(session.vocab(), &interrupted)
        };
        if let Ok(tokens) = prompt()
            && !tokens.is_empty()
            && let Err(problem) = session.prewarm(&tokens, SLOT)
        {
            log::debug!("Nothing is warmed up: {problem}");
        }
    }

    /// Answers. What fails is told, and the conversation is as before the question.
    fn turn(&mut self) -> Result<bool, Failure> {
        forget_interrupts();
        match self.answer() {
            Ok(()) => {}
            Err(Failure::Interrupted) => {
                self.conversation.take_back();
                eprintln!("[interrupted]");
            }
            Err(Failure::Error(problem)) => {
                self.conversation.take_back();
                error(&problem);
            }
            Err(other) => return Err(other),
        }
        Ok(true)
    }

    fn answer(&mut self) -> Outcome {
        let session = &self.session;
        let choosing = !self.args.choices.is_empty();
        // A choice is the answer itself: nothing is thought before it.
        let start = self.args.answer_start.as_deref().or(choosing.then_some(""));
        let inputs = self.conversation.inputs(true, start);
        let prompt = session.chat_template()?.prompt(&elizainference::chat::Inputs::from_json(&inputs)?)?;
        if choosing {
            let text = prompt.text();
            let around =
                Surroundings { before: text.rsplit('\n').next().unwrap_or_default(), after: "", parse_special: true };
            let names: Vec<&str> = self.args.choices.iter().map(String::as_str).collect();
            let built = session.build_trie("choice", &names, around)?;
            session.set_trie(built.json.as_bytes(), Mode::ScoreLeaves)?;
        }
        session.prefill(&prompt.tokens(session.vocab(), &interrupted)?, SLOT)?;
        let mut parts = session.chat_parts(Some(&inputs), &[], false)?;

        let (events, received) = mpsc::channel();
        let send = move |event: Event<'_>| {
            // A closed channel means that printing failed; the session was cancelled then.
            let _ = events.send((event.text.to_string(), event.done));
        };
        session.generate(self.args.n, None, None, Sink::Callback(Box::new(send)))?;
        let mut screen = Screen::new();
        let mut all = Vec::new();
        loop {
            let (text, done) = match received.recv_timeout(Duration::from_millis(100)) {
                Ok(event) => event,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if interrupted() {
                        session.cancel();
                    }
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            };
            parts.extend(session.chat_parts(None, text.as_bytes(), done)?);
            for part in parts.drain(..) {
                screen.show(&part).inspect_err(|_| session.cancel())?;
                all.push(part);
            }
            if done {
                break;
            }
        }
        screen.end()?;
        let status = session.status();
        match (status.finish_reason, status.error) {
            (FinishReason::Error, Some(problem)) => return Err(problem.into()),
            (FinishReason::Error, None) => return fail("The generation failed"),
            (FinishReason::Cancelled, _) => eprintln!("[interrupted]"),
            _ => {}
        }
        self.conversation.answered(start.unwrap_or_default(), all);
        if io::stderr().is_terminal() {
            self.told();
        }
        Ok(())
    }

    /// How it went, on standard error.
    fn told(&self) {
        let usage = self.session.usage();
        let per_second = usage.completion_tokens as f64 * 1e6 / usage.decode_us.max(1) as f64;
        let _ = writeln!(
            io::stderr(),
            "[{}: {} prompt tokens, {} of them kept; {} tokens at {per_second:.1} tok/s]",
            serde_json::json!(usage.finish_reason).as_str().unwrap_or_default(),
            usage.prompt_tokens,
            usage.prompt_tokens_reused,
            usage.completion_tokens,
        );
    }
}
