//! `vllm:https://host:8000/v1#model` taken apart.

use super::dialect::{self, Dialect};
use crate::gguf::shown;
use crate::{Error, Result};
use std::net::IpAddr;
use std::path::Path;

/// Where a server is.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub dialect: &'static Dialect,
    /// Scheme, host, port and the path above `/v1`, without a slash at its end.
    pub root: String,
    /// The model that is asked for; `None` is the first that the server has.
    pub model: Option<String>,
    /// The whole address but the model, for messages.
    pub shown: String,
    /// Whether it is this machine.
    pub loopback: bool,
    /// Whether nothing that is sent can be read on its way.
    pub private: bool,
}

impl Address {
    /// Of the text in the place of a model's path.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that says what is wrong with it. A password in it is not repeated.
    pub fn parse(path: &Path) -> Result<Address> {
        let refused = |problem: String| Error::InvalidArgument(format!("The address of the server {problem}"));
        let text = path.to_str().ok_or_else(|| refused("is not UTF-8".into()))?;
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let dialect = dialect::of(kind).ok_or_else(|| refused(format!("begins with \"{}\"", shown(kind))))?;
        let (url, model) = rest.split_once('#').map_or((rest, None), |(url, model)| (url, Some(model)));
        let (scheme, after) = url.split_once("://").ok_or_else(|| refused("has no http:// or https://".into()))?;
        let (authority, path) = after.find('/').map_or((after, ""), |at| after.split_at(at));
        if authority.contains('@') {
            return Err(refused("has a name or password in it; a key is an option of its own".into()));
        }
        if url.contains('?') || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(refused("has a query, a space or a control character in it".into()));
        }
        let host = host(authority).ok_or_else(|| refused(format!("has no usable host: \"{}\"", shown(authority))))?;
        let path = path.trim_end_matches('/');
        let root = format!("{scheme}://{authority}{}", path.strip_suffix("/v1").unwrap_or(path));
        let loopback = is_loopback(host);
        Ok(Address {
            dialect,
            shown: format!("{kind}:{root}"),
            root,
            model: model.filter(|model| !model.is_empty()).map(str::to_owned),
            loopback,
            private: scheme == "https" || loopback,
        })
    }
}

/// The host of `host:port`, if both can be.
fn host(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(six) => {
            let (host, rest) = six.split_once(']')?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("80"))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "80")),
    };
    (!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address> {
        Address::parse(Path::new(text))
    }

    #[test]
    fn addresses_have_their_parts() {
        let cases = [
            ("vllm:https://host:8000/v1#org/model", "https://host:8000", Some("org/model"), true),
            ("vllm:http://host:8000", "http://host:8000", None, false),
            ("sglang:http://127.0.0.1:30000/", "http://127.0.0.1:30000", None, true),
            ("llama-server:http://[::1]:8080/v1/", "http://[::1]:8080", None, true),
            ("openai:https://host/api/v1#", "https://host/api", None, true),
            ("openai:http://localhost/v1#m", "http://localhost", Some("m"), true),
        ];
        for (text, root, model, private) in cases {
            let address = parse(text).unwrap();
            assert_eq!(
                (&address.root[..], address.model.as_deref(), address.private),
                (root, model, private),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_is_refused_without_a_secret() {
        for text in
            ["vllm:http://", "vllm:http://:80", "vllm:http://host:99999", "vllm:http://[::1", "vllm:http://h/a?k=1"]
        {
            assert!(matches!(parse(text), Err(Error::InvalidArgument(_))), "{text}");
        }
        let error = parse("vllm:https://me:hunter2@host/v1").unwrap_err().to_string();
        assert!(error.contains("an option of its own") && !error.contains("hunter2"), "{error}");
    }
}
