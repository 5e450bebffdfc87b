//! Streams that share an engine on a GPU.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::tokens;
use crate::testing::{fixture, has_gpu};
use elizainference::Token;
use elizainference::session::{EngineOptions, Event, Mode, OpenOptions, Session, Settings, Sink, Usage};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

const STREAMS: usize = 4;
const TRIE: &str = r#"{"modelId":"","descriptors":[{"path":"p","leaves":[
    {"name":"a","tokens":[300,301,302]},{"name":"b","tokens":[300,301,77]},{"name":"c","tokens":[42]}]}]}"#;

fn session(path: &Path, parallel: u32) -> Arc<Session> {
    let engine =
        EngineOptions { context: 256, slots: 1, threads: 1, gpu_layers: -1, parallel, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path: path.into(), engine, ..OpenOptions::default() }).unwrap();
    session.configure(Settings { ignore_eos: true, ..session.settings() }).unwrap();
    Arc::new(session)
}

/// Chain, seed and prompt of a stream.
fn prepare(session: &Session, stream: usize) {
    let mut settings = session.settings();
    settings.params.seed = Some(stream as u64);
    session.configure(settings).unwrap();
    // Of the last chain the device runs a part.
    let chains = ["top_k=40;top_p=0.95;temp=0.9", "greedy", "temp=1.3", "top_k=30;penalties=2000,1.3,0.1,0.2;temp=0.9"];
    session.set_chain(-1, Some(chains[stream].parse().unwrap())).unwrap();
    session.prefill(&tokens(6 + 3 * stream, &format!("stream {stream}")), -1).unwrap();
}

/// The tokens of a stream, and what was used after its 10th and its 40th.
fn said(session: &Arc<Session>) -> (Vec<Token>, [Usage; 2]) {
    let (sender, receiver) = channel();
    let about = Arc::downgrade(session);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if let Some(session) = about.upgrade().filter(|_| !event.done) {
            let _ = sender.send((event.token, session.usage()));
        }
    }));
    session.generate(40, None, None, sink).unwrap();
    let (tokens, usages): (Vec<Token>, Vec<Usage>) = receiver.iter().unzip();
    assert_eq!(session.take_error(), None);
    (tokens, [usages[9], usages[39]])
}

/// A pass of the next tokens of several streams, each with its own chain on the device, is one submission and one wait,
/// and the streams are what they are alone.
#[test]
fn streams_that_share_a_gpu_are_themselves_in_one_submission_a_step() {
    if !has_gpu() {
        return;
    }
    for kind in [Kind::Qwen3, Kind::Gemma3] {
        let path = fixture(kind, Weights::F32);
        let alone = session(&path, 1);
        let sessions: Vec<_> = (0..STREAMS).map(|_| session(&path, STREAMS as u32)).collect();
        // One of them is in a span first.
        sessions[0].set_trie(TRIE.as_bytes(), Mode::Sampled).unwrap();
        alone.set_trie(TRIE.as_bytes(), Mode::Sampled).unwrap();
        let mut expected = Vec::new();
        for (stream, shared) in sessions.iter().enumerate() {
            prepare(&alone, stream);
            expected.push(said(&alone).0);
            alone.clear_trie().unwrap();
            prepare(shared, stream);
        }
        let got: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = sessions.iter().map(|session| scope.spawn(|| said(session))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (stream, (tokens, usage)) in got.iter().enumerate() {
            assert_eq!(tokens, &expected[stream], "{kind:?}, stream {stream}");
            let more = |what: fn(&Usage) -> u64| what(&usage[1]) - what(&usage[0]);
            let counts = [more(|of| of.forward_passes), more(|of| of.gpu_submissions), more(|of| of.gpu_waits)];
            assert_eq!(counts, [30; 3], "{kind:?}, stream {stream}");
        }
    }
}
