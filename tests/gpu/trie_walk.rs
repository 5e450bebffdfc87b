//! Spans that the device walks by itself: the tokens, the counters and the slot that the host's own turn-by-turn way
//! gives.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::rng::Stream;
use crate::testing::{fixture, has_gpu};
use elizainference::Token;
use elizainference::backend::{Legal, WALK_PASSES, WALK_ROWS};
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId, Speculation};
use elizainference::sampling::{Chain, Sampler};
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, SpanEnd, Usage};
use elizainference::trie::{Accept, Trie, TrieState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;

const CHAINS: [&str; 4] = [
    "greedy",
    "temp=0.9",
    "penalties=12,1.3,0.1,0.1;dry=0.8,1.5,1,30,none;top_k=20;temp=1.2",
    "logit_bias=300:3;top_p=0.9;temp=0.8",
];

/// Numbers one after the other.
struct Dice(Stream, u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        self.0.below(self.1, n)
    }
}

/// Leaves that share beginnings, with forced runs now and then longer than a pass's rows, and some that begin others.
fn leaves(dice: &mut Dice) -> Vec<Vec<Token>> {
    let mut all: BTreeSet<Vec<Token>> = BTreeSet::new();
    let mut stems = vec![Vec::new()];
    for _ in 0..4 + dice.below(30) {
        let mut leaf: Vec<Token> = stems[dice.below(stems.len() as u64) as usize].clone();
        for _ in 0..1 + dice.below(3) {
            // A fork, then tokens of its own.
            leaf.push(259 + dice.below(6) as Token);
            let run = [0, 0, 1, 3, 7, 8, 17][dice.below(7) as usize];
            leaf.extend((0..run).map(|_| 270 + dice.below(200) as Token));
            stems.push(leaf.clone());
        }
        leaf.push(265 + dice.below(4) as Token);
        all.insert(leaf);
    }
    all.into_iter().collect()
}

fn payload(leaves: &[Vec<Token>]) -> String {
    let leaf = |(i, tokens): (usize, &Vec<Token>)| serde_json::json!({"name": format!("{i}"), "tokens": tokens});
    let leaves: Vec<_> = leaves.iter().enumerate().map(leaf).collect();
    serde_json::json!({"modelId": "", "descriptors": [{"path": "p", "leaves": leaves}]}).to_string()
}

fn session(kind: Kind, gpu_layers: i32) -> Session {
    let engine = EngineOptions { kv_type: KvType::F32, slots: 2, threads: 1, gpu_layers, ..EngineOptions::default() };
    let path = fixture(kind, Weights::F32);
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    // Guesses, which a host alone makes, would save other passes.
    session.configure(Settings { ignore_eos: true, no_guessing: true, ..session.settings() }).unwrap();
    session
}

/// Generates; `on_token` hears how many there were.
fn generate(
    session: &Session,
    prompt: &[Token],
    most: i32,
    mut on_token: impl FnMut(usize) + Send + 'static,
) -> Vec<Token> {
    session.prefill(prompt, 0).unwrap();
    let (sender, receiver) = channel();
    let mut count = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            count += 1;
            on_token(count);
            let _ = sender.send(event.token);
        }
    }));
    session.generate(most, None, None, sink).unwrap();
    let tokens = receiver.iter().collect();
    assert_eq!(session.take_error(), None);
    tokens
}

/// What both ways count alike.
fn counted(usage: &Usage) -> [u64; 5] {
    let Usage { completion_tokens, forced_tokens, branching_steps, whole_row_steps, forward_passes_saved, .. } = *usage;
    [completion_tokens, forced_tokens, branching_steps, whole_row_steps, forward_passes_saved]
}

/// Tokens that are compared after a span.
const AFTER: usize = 6;

/// Streams of both sides over random tries.
fn check(kind: Kind, rounds: u64) {
    let (cpu, gpu) = (session(kind, 0), session(kind, -1));
    let mut dice = Dice(Stream::new(5, "walks"), 0);
    for round in 0..rounds {
        let leaves = leaves(&mut dice);
        let (payload, deepest) = (payload(&leaves), leaves.iter().map(Vec::len).max().unwrap() as i32);
        let prompt = tokens(1 + dice.below(9) as usize, &format!("walk {round}"));
        let chain = CHAINS[dice.below(4) as usize];
        let mode = [Mode::Greedy, Mode::Sampled][dice.below(2) as usize];
        let on_span_end = [SpanEnd::Continue, SpanEnd::Stop][dice.below(2) as usize];
        let whole = if on_span_end == SpanEnd::Continue { deepest + AFTER as i32 } else { -1 };
        let most = [whole, whole, 1, 2, 5, 11][dice.below(6) as usize];
        let run = |session: &Session| {
            let mut settings = Settings { on_span_end, ..session.settings() };
            settings.params.seed = Some(round);
            session.configure(settings).unwrap();
            session.set_chain(0, Some(chain.parse().unwrap())).unwrap();
            session.set_trie(payload.as_bytes(), mode).unwrap();
            let mut tokens = generate(session, &prompt, most, |_| ());
            let usage = session.usage();
            // Where a leaf is short more follow: enough for a draw between two tokens to fall on the bound of both.
            tokens.truncate(usage.span_tokens as usize + AFTER);
            (tokens, usage.finish_reason, counted(&usage))
        };
        let how = format!("{kind:?} round {round}: {chain}, {mode:?}, {on_span_end:?}, {most} of {payload}");
        assert_eq!(run(&gpu), run(&cpu), "{how}");
    }
}

#[test]
fn spans_walked_on_the_device_are_the_cpu_s() {
    if has_gpu() {
        check(Kind::Llama, 60);
    }
}

#[test]
#[ignore = "long: every architecture"]
fn many_spans_walked_on_the_device_are_the_cpu_s() {
    if has_gpu() {
        for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3, Kind::Gemma3Capped] {
            check(kind, 600);
        }
    }
}

/// Choices one after the other, with forced tokens in between: the device is waited for twice, whatever their number.
#[test]
fn a_span_is_waited_for_twice() {
    if !has_gpu() {
        return;
    }
    let gpu = session(Kind::Llama, -1);
    gpu.configure(Settings { on_span_end: SpanEnd::Stop, ..gpu.settings() }).unwrap();
    for choices in [1, 2, 4, WALK_PASSES + 1] {
        // Every choice is between two tokens, of which each goes on over a third.
        let leaf = |bits: usize| -> Vec<Token> {
            (0..choices).flat_map(|at| [270 + (bits >> at & 1) as Token, 300 + at as Token]).collect()
        };
        let leaves: Vec<_> = (0..1 << choices).map(leaf).collect();
        gpu.set_trie(payload(&leaves).as_bytes(), Mode::Greedy).unwrap();
        let prompt = tokens(7, "waits");
        // Where the prompt stands in its slot already, all that is waited for is the last position and the span.
        generate(&gpu, &prompt, -1, |_| ());
        generate(&gpu, &prompt, -1, |_| ());
        let usage = gpu.usage();
        assert_eq!(usage.finish_reason, FinishReason::Span);
        assert_eq!((usage.branching_steps, usage.forced_tokens), (choices as u64, choices as u64));
        let waits = if choices == 1 { 2 } else { 3 };
        assert_eq!(usage.gpu_waits, waits, "{choices} choices: {usage:?}");
        // One pass for the prompt's last position, and one from each choice to the next.
        assert_eq!(usage.forward_passes, choices as u64, "{usage:?}");
    }
}

/// Whatever the token of a span that a cancel comes at, the next generation is as if nothing had been there.
#[test]
fn a_cancel_inside_a_walk_leaves_nothing_behind() {
    if !has_gpu() {
        return;
    }
    let gpu = Arc::new(session(Kind::Llama, -1));
    let mut dice = Dice(Stream::new(6, "cancels"), 0);
    gpu.set_chain(0, Some(CHAINS[2].parse().unwrap())).unwrap();
    let prompt = tokens(8, "cancels");
    for round in 0..5 {
        gpu.set_trie(payload(&leaves(&mut dice)).as_bytes(), Mode::Sampled).unwrap();
        let mut settings = gpu.settings();
        settings.params.seed = Some(round);
        gpu.configure(settings).unwrap();
        let whole = generate(&gpu, &prompt, 24, |_| ());
        for at in [1, 2, 3, 5, 9] {
            let canceller = gpu.clone();
            let said = generate(&gpu, &prompt, 24, move |count| {
                if count == at {
                    canceller.cancel();
                }
            });
            assert_eq!(said, whole[..at], "round {round}");
            assert_eq!(gpu.usage().finish_reason, FinishReason::Cancelled);
            // The slot holds what was said and nothing else: the rest of the prompt is reused, and what follows is the
            // same.
            let longer = [prompt.as_slice(), &said].concat();
            assert!(gpu.prefill(&longer, 0).unwrap() >= prompt.len(), "round {round}");
        }
        assert_eq!(generate(&gpu, &prompt, 24, |_| ()), whole, "round {round}");
    }
}

/// One engine of two that make the same steps, one of them with walks.
struct Side {
    engine: Engine,
    slot: SlotId,
    walks: bool,
}

impl Side {
    fn sample(&mut self, tokens: &[Token], state: &TrieState, greedy: bool) -> Token {
        let children = state.mask().map(|tokens| Legal::list(tokens, greedy));
        let following = match state.node().filter(|_| self.walks && children.is_some()) {
            Some(node) => Speculation::Walk(state.trie(), node, usize::MAX),
            None => Speculation::Nothing,
        };
        self.engine.sample(self.slot, tokens, children, following, &NEVER).unwrap().result.token
    }
}

/// The host may turn away from what the device sampled, at any choice: to another child, another place of the trie, or
/// out of it. What the walk did beyond is taken back, the history of the penalties with it.
#[test]
fn a_host_that_turns_away_gets_what_it_asks_for() {
    if !has_gpu() {
        return;
    }
    let options = EngineOptions { kv_type: KvType::F32, threads: 1, gpu_layers: -1, ..EngineOptions::default() };
    let model = engine::open_model(&fixture(Kind::Llama, Weights::F32), &options, None).unwrap();
    let mut sides = [true, false].map(|walks| {
        let mut engine = Engine::new(model.clone(), &options).unwrap();
        let slot = engine.take_slot(0).unwrap();
        Side { engine, slot, walks }
    });
    let mut dice = Dice(Stream::new(7, "turns"), 0);
    let mut turned = 0;
    for round in 0..40 {
        let trie = Arc::new(Trie::parse(payload(&leaves(&mut dice)).as_bytes()).unwrap());
        let greedy = dice.below(2) == 0;
        let prompt = tokens(1 + dice.below(9) as usize, &format!("turn {round}"));
        let chain: Chain = "penalties=12,1.4,0.2,0.1;temp=1.1".parse().unwrap();
        let spec = Sampler::new(&chain, model.n_vocab(), round).unwrap().spec(&[]);
        for side in &mut sides {
            side.engine.prefill(side.slot, &prompt, &NEVER).unwrap();
            side.engine.start_sampling(side.slot, &spec).unwrap();
            side.engine.hold_trie(&trie).unwrap();
        }
        let mut state = TrieState::new(trie.clone(), Mode::Greedy);
        let mut pending = Vec::new();
        for step in 0..10 {
            while let Some(token) = state.forced() {
                state.accept(token);
                pending.push(token);
            }
            let [walked, asked] = sides.each_mut().map(|side| side.sample(&pending, &state, greedy));
            assert_eq!(walked, asked, "round {round} step {step}");
            pending.clear();
            let children = state.mask().unwrap_or_default();
            let turns = dice.below(3) == 0;
            let other = dice.below(1 + children.len() as u64) as usize;
            let token = if turns { children.get(other).copied().unwrap_or(77) } else { walked };
            turned += usize::from(token != walked);
            if matches!(state.accept(token), Accept::Leaf | Accept::EndedAtLeaf) && dice.below(2) == 0 {
                state.rearm();
            }
            pending.push(token);
            if dice.below(8) == 0 {
                let kept = sides.each_ref().map(|side| side.engine.tokens(side.slot).to_vec());
                assert_eq!(kept[0], kept[1], "round {round} step {step}");
                sides.iter_mut().for_each(|side| side.engine.rollback().unwrap());
            }
        }
        let [walked, asked] = sides.each_ref().map(|side| side.engine.stats());
        assert!(walked.traffic.waits <= asked.traffic.waits + 40, "{walked:?} {asked:?}");
    }
    assert!(turned > 40, "{turned}");
}

#[test]
fn a_run_longer_than_a_pass_takes_several() {
    if !has_gpu() {
        return;
    }
    let (cpu, gpu) = (session(Kind::Llama, 0), session(Kind::Llama, -1));
    for run in [1, 2, 3, 4, 5, WALK_ROWS - 2, WALK_ROWS - 1, WALK_ROWS, 2 * WALK_ROWS, WALK_PASSES * WALK_ROWS + 3] {
        let forced = |way: Token| (0..run as Token).map(move |at| 280 + (way + 3 * at) % 200);
        let leaf = |way: Token, end: Token| [260 + way].into_iter().chain(forced(way)).chain([260 + end]).collect();
        let leaves: Vec<Vec<Token>> = [(0, 0), (0, 1), (1, 2), (1, 3)].map(|(way, end)| leaf(way, end)).into();
        for (mode, chain) in [(Mode::Greedy, "greedy"), (Mode::Sampled, "penalties=12,1.4,0.2,0.1")] {
            let said = [&cpu, &gpu].map(|session| {
                let mut settings = session.settings();
                settings.params.seed = Some(run as u64);
                session.configure(settings).unwrap();
                session.set_chain(0, Some(chain.parse().unwrap())).unwrap();
                session.set_trie(payload(&leaves).as_bytes(), mode).unwrap();
                generate(session, &tokens(4, "runs"), run as i32 + 5, |_| ())
            });
            assert_eq!(said[0], said[1], "a run of {run}, {mode:?}");
        }
    }
}
