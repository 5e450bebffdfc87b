//! Connections: encryption, reuse, many at once.

use crate::fake::Fake;
use crate::model::{Model, local};
use crate::{open, options, problem, say};
use elizainference::session::{RemoteOptions, Session};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

/// A certificate for `localhost` and the PEM of who signed it.
fn certificate() -> (Arc<ServerConfig>, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (Arc::new(config), authority.pem())
}

fn place(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn an_encrypted_server_answers_who_trusts_its_certificate_and_nobody_else() {
    let (config, authority) = certificate();
    let (_, another) = certificate();
    let model = Model::new("vllm");
    let fake = Fake::start(Some(config), move |seen, reply| model.answer(seen, reply));
    let folder = tempfile::tempdir().unwrap();
    let with = |certificates: Option<PathBuf>| {
        let mut options = options(&fake.of_kind("vllm"), Some("sk-over-tls"));
        options.remote = RemoteOptions { certificates, ..options.remote };
        Session::open(options)
    };
    let session = with(Some(place(&folder, "authority.pem", &authority))).unwrap();
    let here = local();
    let prompt = here.tokenize(b"wake me at seven", true, true).unwrap();
    assert_eq!(say(&session, &prompt, 20, 0.0).unwrap(), say(&here, &prompt, 20, 0.0).unwrap());
    assert_eq!(fake.connections(), 1, "one connection for all requests");
    assert!(fake.seen().iter().all(|seen| seen.header("authorization") == Some("Bearer sk-over-tls")));

    let seen = fake.seen().len();
    for certificates in [None, Some(place(&folder, "another.pem", &another))] {
        let error = problem(with(certificates));
        assert!(error.contains("certificate") && !error.contains("sk-over-tls"), "{error}");
    }
    assert_eq!(fake.seen().len(), seen, "nothing was asked of a server that is not trusted");
    for text in ["", "no PEM at all", "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n"] {
        assert!(with(Some(place(&folder, "broken.pem", text))).is_err());
    }
    assert!(with(Some(folder.path().join("missing.pem"))).is_err());
}

#[test]
fn a_connection_is_used_again_and_sixty_four_sessions_answer_at_once() {
    let model = Arc::new(Model::new("llama-server"));
    let fake = Fake::new(move |seen, reply| model.answer(seen, reply));
    let here = local();
    let prompt = here.tokenize(b"add milk to the list", true, true).unwrap();
    let expected = say(&here, &prompt, 8, 0.0).unwrap();
    let session = open(&fake.of_kind("llama-server"));
    for _ in 0..5 {
        assert_eq!(say(&session, &prompt, 8, 0.0).unwrap(), expected);
    }
    assert_eq!(fake.connections(), 1);
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let session = open(&fake.of_kind("llama-server"));
                assert_eq!(say(&session, &prompt, 8, 0.0).unwrap(), expected);
            });
        }
    });
}
