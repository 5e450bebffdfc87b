//! The program with a model on a server: what it prints, what it never prints, and a proxy between.

use crate::fake::{Fake, Reply, Seen};
use crate::model::{self, Model, local};
use crate::say;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const KEY: &str = "sk-0123456789-secret";
const PROMPT: &str = "wake me at seven";

fn generate(address: &str, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let vocab = model::path().to_str().unwrap();
    Command::new(env!("CARGO_BIN_EXE_eliza-inference"))
        .args(["generate", "--model", address, "--vocab", vocab, "--prompt", PROMPT, "--temp", "0", "-n", "16"])
        .args(more)
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn expected() -> String {
    let here = local();
    say(&here, &here.tokenize(PROMPT.as_bytes(), true, true).unwrap(), 16, 0.0).unwrap().text
}

fn words(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// A vLLM that wants the key, and says it in every refusal.
fn guarded() -> Fake {
    let model = Model::new("vllm");
    let wanted = format!("Bearer {KEY}");
    Fake::new(move |seen: &Seen, reply: &mut Reply<'_>| match seen.header("authorization") == Some(&wanted) {
        true => model.answer(seen, reply),
        false => reply.json(401, &json!({ "error": format!("{:?} is not {KEY}", seen.header("authorization")) })),
    })
}

#[test]
fn it_prints_the_text_and_never_the_key() {
    let fake = guarded();
    let address = fake.of_kind("vllm");
    let output = generate(&address, &["--verbose"], &[("ELIZA_REMOTE_KEY", KEY)]);
    let [text, log] = words(&output);
    assert_eq!(
        (text.trim_end_matches('\n'), output.status.code()),
        (expected().trim_end_matches('\n'), Some(0)),
        "{log}"
    );
    assert!(log.contains("Connected to vllm:http://localhost:") && !log.contains(KEY), "{log}");

    let output = generate(&address, &["--json"], &[("ELIZA_REMOTE_KEY", KEY)]);
    let [text, _] = words(&output);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((report["text"].as_str(), report["served_by"].as_str()), (Some(&expected()[..]), Some(&address[..])));
    assert_eq!(report["usage"]["server_requests"], 1);
    assert!(!text.contains(KEY));

    let wrong = "sk-wrong-987654321";
    let output = generate(&address, &["--verbose"], &[("ELIZA_REMOTE_KEY", wrong)]);
    let [text, log] = words(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains("refused the key") && log.contains("Bearer [key]"), "{log}");
    assert!(!log.contains(wrong) && text.is_empty());

    let output = generate(&address, &["--fallback", model::path().to_str().unwrap()], &[]);
    let [text, log] = words(&output);
    assert_eq!(
        (text.trim_end_matches('\n'), output.status.code()),
        (expected().trim_end_matches('\n'), Some(0)),
        "{log}"
    );
    assert!(log.contains("cannot be used") && log.contains("(401)"), "{log}");
}

/// A proxy that connects every host to one port here; the hosts that were asked for, and how many.
fn proxy(port: u16) -> (u16, Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let (hosts, passed) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicUsize>::default());
    let (seen, count) = (hosts.clone(), passed.clone());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (seen, count) = (seen.clone(), count.clone());
            thread::spawn(move || {
                // A client that goes away ends its connection.
                let _: Result<()> = (|| {
                    let mut stream = BufReader::new(stream?);
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if stream.read_line(&mut head)? == 0 {
                            return Ok(());
                        }
                    }
                    seen.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
                    let mut client = stream.into_inner();
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                    let mut server = TcpStream::connect(("127.0.0.1", port))?;
                    count.fetch_add(1, Ordering::AcqRel);
                    let (mut back, mut to) = (client.try_clone()?, server.try_clone()?);
                    thread::spawn(move || std::io::copy(&mut client, &mut to));
                    std::io::copy(&mut server, &mut back).map(drop)
                })();
            });
        }
    });
    (own, hosts, passed)
}

#[test]
fn a_proxy_of_the_environment_is_used_but_not_to_this_machine() {
    let model = Model::new("vllm");
    let fake = Fake::new(move |seen, reply| model.answer(seen, reply));
    let (port, hosts, passed) = proxy(fake.port());
    let proxy = format!("http://127.0.0.1:{port}");
    let variables = [("HTTP_PROXY", proxy.as_str()), ("ALL_PROXY", &proxy), ("HTTPS_PROXY", &proxy)];
    let output = generate("vllm:http://models.example.org:8000", &[], &variables);
    let [text, log] = words(&output);
    assert_eq!(text.trim_end_matches('\n'), expected().trim_end_matches('\n'), "{log}");
    assert!(log.contains("not encrypted"), "{log}");
    assert!(passed.load(Ordering::Acquire) > 0);
    let asked = hosts.lock().unwrap().clone();
    assert!(asked.iter().all(|line| line.starts_with("CONNECT models.example.org:8000 ")), "{asked:?}");
    let before = asked.len();
    let output = generate(&fake.of_kind("vllm"), &[], &variables);
    assert!(output.status.success());
    assert_eq!(hosts.lock().unwrap().len(), before, "this machine is reached directly");
}
