//! Requests to one server: retries, errors with the server's text, and no secret in any of them.

use super::address::Address;
use super::errors::{CONNECT, Errors, code, message};
use super::events::Events;
use super::watch::Watch;
use super::{DEFAULT_TIMEOUT, RemoteOptions};
use crate::{Error, Result};
use serde_json::Value;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector, RustlsConnector, TcpConnector};
use ureq::{Agent, Body, Proxy};

/// The longest answer that is no stream, in bytes.
const MAX_BODY: u64 = 256 << 20;
/// The longest error text that is read.
const MAX_ERROR: u64 = 64 << 10;
/// How often a request is sent again.
const RETRIES: u32 = 3;
/// Before the first time; each time after takes twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest that a server's `Retry-After` is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The way to one server, with a connection that is kept between requests.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    address: Address,
    errors: Errors,
    requests: AtomicU64,
}

impl Client {
    /// # Errors
    /// [`Error::InvalidArgument`] for a key that would be sent readable to another machine, or that no header can have;
    /// [`Error::Io`] and [`Error::Remote`] for certificates that cannot be read.
    pub fn new(address: Address, options: RemoteOptions) -> Result<Client> {
        let key = options.key.or_environment();
        if let Some(secret) = key.secret() {
            if !address.private {
                let problem = format!("{}: a key is sent over https:// only, or to this machine", address.shown);
                return Err(Error::InvalidArgument(problem));
            }
            if secret.bytes().any(|byte| !(0x21..0x7f).contains(&byte)) {
                let problem = format!("{}: the key has a character that no HTTP header can have", address.shown);
                return Err(Error::InvalidArgument(problem));
            }
        } else if !address.private {
            log::warn!("{}: prompts and answers are not encrypted on their way", address.shown);
        }
        let roots = match &options.certificates {
            Some(path) => RootCerts::from(certificates(path)?),
            None if cfg!(target_os = "android") => RootCerts::WebPki,
            None => RootCerts::PlatformVerifier,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(Proxy::try_from_env().filter(|_| !address.loopback))
            .no_delay(true)
            .timeout_connect(Some(CONNECT))
            .user_agent(concat!("eliza-inference/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        let watch = Watch::new(options.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let connector =
            ().chain(ConnectProxyConnector::default())
                .chain(TcpConnector::default())
                .chain(watch.clone())
                .chain(RustlsConnector::default());
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        let errors = Errors::new(address.shown.clone(), key, watch);
        Ok(Client { agent, address, errors, requests: AtomicU64::new(0) })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What its errors say.
    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    /// From now on this flag ends requests; returns the one before.
    pub fn watch(&self, flag: &Arc<AtomicBool>) -> Arc<AtomicBool> {
        self.errors.watch().set(flag)
    }

    /// How many requests were sent.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The answer to a GET.
    ///
    /// # Errors
    /// [`Error::Remote`]; [`Error::Cancelled`].
    pub fn get(&self, path: &str) -> Result<Value> {
        self.json(path, self.send(path, None)?)
    }

    /// The answer to a POST.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(path, self.send(path, Some(body))?)
    }

    /// The events with which a POST is answered. Dropping them ends the request.
    ///
    /// # Errors
    /// As [`Client::get`]. A server that refuses with the first event is asked again, as with a status.
    pub fn events(&self, path: &str, body: &Value) -> Result<Events> {
        let mut tries = Tries::default();
        loop {
            let mut events = Events::new(self.send(path, Some(body))?.into_body().into_reader());
            match events.first_code(&self.errors)? {
                Some(code) if self.again(&mut tries, code, None)? => {}
                _ => return Ok(events),
            }
        }
    }

    fn send(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>> {
        let mut tries = Tries::default();
        loop {
            if self.errors.watch().is_cancelled() {
                return Err(Error::Cancelled);
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            match self.send_once(path, body) {
                Ok(response) => {
                    let code = response.status().as_u16();
                    let asked = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
                    let asked = asked.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
                    if code < 300 {
                        return Ok(response);
                    }
                    if !self.again(&mut tries, code, asked)? {
                        return Err(self.errors.refusal(code, &self.error_text(response)));
                    }
                }
                // The server may have closed the connection that was kept.
                Err(error) if is_transient(&error) && tries.made == 0 && !is_refused(&error) => tries.made = 1,
                Err(error) if is_transient(&error) && !self.errors.watch().is_cancelled() => {
                    if !self.again(&mut tries, 503, None)? {
                        return Err(self.errors.broken(&error));
                    }
                }
                Err(error) => return Err(self.errors.broken(&error)),
            }
        }
    }

    fn send_once(&self, path: &str, body: Option<&Value>) -> std::result::Result<Response<Body>, ureq::Error> {
        let url = format!("{}{path}", self.address.root);
        let bearer = self.errors.key().secret().map(|secret| format!("Bearer {secret}"));
        match body {
            None => {
                let request = self.agent.get(&url);
                match &bearer {
                    Some(bearer) => request.header("authorization", bearer).call(),
                    None => request.call(),
                }
            }
            Some(body) => {
                let request = self.agent.post(&url).header("content-type", "application/json");
                let text = body.to_string();
                match &bearer {
                    Some(bearer) => request.header("authorization", bearer).send(&text),
                    None => request.send(&text),
                }
            }
        }
    }

    /// Whether a request that got this status is sent again; waits before.
    fn again(&self, tries: &mut Tries, code: u16, asked: Option<Duration>) -> Result<bool> {
        if !matches!(code, 429 | 502 | 503 | 504) || tries.made == RETRIES {
            return Ok(false);
        }
        // Between half and all of the time, so that clients that failed together do not come back together.
        let most = FIRST_WAIT * (1 << tries.made);
        let share = RandomState::new().hash_one(tries.made) % 1024;
        let own = most / 2 + most / 2 * share as u32 / 1024;
        tries.made += 1;
        let wait = asked.map_or(own, |asked| asked.max(own));
        if wait > LONGEST_WAIT {
            return Ok(false);
        }
        log::debug!("{}: answered {code}, asked again in {wait:?}", self.address.shown);
        self.errors.watch().wait(wait).map(|()| true)
    }

    fn error_text(&self, response: Response<Body>) -> String {
        let mut text = Vec::new();
        // What can be read of it is what there is to say.
        let _ = response.into_body().into_reader().take(MAX_ERROR).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        serde_json::from_str(&text).map_or_else(|_| text.clone().into_owned(), |value: Value| message(&value))
    }

    fn json(&self, path: &str, response: Response<Body>) -> Result<Value> {
        let mut body = response.into_body();
        let text = body.with_config().limit(MAX_BODY).read_to_vec().map_err(|error| self.errors.broken(&error))?;
        let malformed = |error| self.errors.problem(format!("{path} was answered with malformed JSON: {error}"));
        let value: Value = serde_json::from_slice(&text).map_err(malformed)?;
        match value.get("error").filter(|error| !error.is_null()) {
            Some(_) => Err(self.errors.refusal(code(&value).unwrap_or(200), &message(&value))),
            None => Ok(value),
        }
    }
}

#[derive(Default)]
struct Tries {
    made: u32,
}

/// Whether the same request may work now: nothing of the answer had come.
fn is_transient(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Io(error) => {
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof)
        }
        ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}

fn is_refused(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn certificates(path: &Path) -> Result<Vec<ureq::tls::Certificate<'static>>> {
    let text = std::fs::read(path).map_err(|error| Error::io(path, &error))?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => {
                return Err(Error::InvalidArgument(format!("{}: not a PEM file: {error}", path.display())));
            }
        }
    }
    match found.is_empty() {
        true => Err(Error::InvalidArgument(format!("{}: there is no certificate in it", path.display()))),
        false => Ok(found),
    }
}
