//! A server of HTTP/1.1 for tests: real sockets, encrypted or not, and a function that answers each request as it
//! likes, in pieces of any size.

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub head: String,
    pub body: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let of_name = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        self.head.lines().find(of_name).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

/// The way back.
pub struct Reply<'a> {
    out: &'a mut dyn Write,
    /// The bytes of one write; what is longer is split.
    pub piece: usize,
    /// Whether the connection is closed after this answer.
    pub close: bool,
    chunked: bool,
}

impl Reply<'_> {
    pub fn json(&mut self, status: u16, body: &Value) -> Result<()> {
        self.text(status, "", &body.to_string())
    }

    /// `headers` with their line ends.
    pub fn text(&mut self, status: u16, headers: &str, body: &str) -> Result<()> {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} Some\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
        self.raw(format!("{head}{headers}\r\n{body}").as_bytes())
    }

    pub fn begin_events(&mut self) -> Result<()> {
        self.chunked = true;
        self.out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    }

    pub fn event(&mut self, event: &Value) -> Result<()> {
        self.chunks(format!(": a comment\ndata: {event}\n\n").as_bytes())
    }

    /// Bytes of the event stream as they are.
    pub fn chunks(&mut self, bytes: &[u8]) -> Result<()> {
        for part in bytes.chunks(self.piece) {
            write!(self.out, "{:x}\r\n", part.len())?;
            self.out.write_all(part)?;
            self.out.write_all(b"\r\n")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// The end of the event stream.
    pub fn end_events(&mut self) -> Result<()> {
        self.chunked = false;
        self.out.write_all(b"0\r\n\r\n")?;
        self.out.flush()
    }

    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        for part in bytes.chunks(self.piece.max(64)) {
            self.out.write_all(part)?;
        }
        self.out.flush()
    }
}

type Answers = dyn Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync;

/// A running server; it ends with its value.
pub struct Fake {
    address: SocketAddr,
    scheme: &'static str,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Fake {
    pub fn new(answers: impl Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static) -> Fake {
        Fake::start(None, answers)
    }

    /// With encryption.
    pub fn start(
        tls: Option<Arc<ServerConfig>>,
        answers: impl Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake {
            address: listener.local_addr().unwrap(),
            scheme: if tls.is_some() { "https" } else { "http" },
            seen: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
            over: Arc::default(),
        };
        let (seen, connections, open, over) =
            (fake.seen.clone(), fake.connections.clone(), fake.open.clone(), fake.over.clone());
        let answers: Arc<Answers> = Arc::new(answers);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                connections.fetch_add(1, Ordering::AcqRel);
                open.fetch_add(1, Ordering::AcqRel);
                let (seen, answers, open, tls) = (seen.clone(), answers.clone(), open.clone(), tls.clone());
                thread::spawn(move || {
                    // A client that goes away ends its connection.
                    let _ = match tls {
                        Some(config) => ServerConnection::new(config)
                            .map_err(std::io::Error::other)
                            .and_then(|session| serve(StreamOwned::new(session, stream), &seen, &*answers)),
                        None => serve(stream, &seen, &*answers),
                    };
                    open.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        fake
    }

    /// The address of a model here, such as `vllm:http://127.0.0.1:40000/v1`.
    pub fn of_kind(&self, kind: &str) -> String {
        format!("{kind}:{}://localhost:{}/v1", self.scheme, self.address.port())
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Those to this path.
    pub fn seen_at(&self, path: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == path).collect()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: impl Read + Write, seen: &Mutex<Vec<Seen>>, answers: &Answers) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let path = head.split_ascii_whitespace().nth(1).unwrap_or_default().to_owned();
        let mut request = Seen { path, head, body: Value::Null };
        let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        request.body = serde_json::from_slice(&body).unwrap_or_default();
        seen.lock().unwrap().push(request.clone());
        let mut reply = Reply { out: stream.get_mut(), piece: usize::MAX, close: false, chunked: false };
        answers(&request, &mut reply)?;
        if reply.close || reply.chunked {
            return Ok(());
        }
    }
}
