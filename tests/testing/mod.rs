//! What the integration tests share: fixture models, the slow forward pass they are judged by, and the folders and
//! programs a machine may have beside the project.
//!
//! Every test binary compiles this module and uses its share of it.
#![allow(dead_code, clippy::unwrap_used)]

pub mod allocator;
pub mod assistant;
pub mod decoders;
pub mod encoders;
pub mod families;
pub mod fixtures;
pub mod gguf_keys;
pub mod judge;
pub mod long_texts;
pub mod peer;
pub mod process;
pub mod random_text;
pub mod real_vocabularies;
pub mod reference;
pub mod rng;
pub mod schemas;
pub mod script;
pub mod split;
pub mod stats;
pub mod t5;
pub mod vocabulary;

use elizainference::engine::{self, DeviceKind};
use fixtures::{Kind, Weights};
use std::path::{Path, PathBuf};

/// Whether this machine has a GPU that can be used. A test without one says so and passes, unless `ELIZA_REQUIRE_GPU`
/// is set to something.
pub fn has_gpu() -> bool {
    let devices = engine::devices().unwrap();
    let usable = devices.iter().any(|(d, _)| d.kind == DeviceKind::Gpu && d.score > 0);
    let required = std::env::var_os("ELIZA_REQUIRE_GPU").is_some_and(|v| !v.is_empty());
    assert!(usable || !required, "no usable GPU adapter: {devices:?}");
    if !usable {
        eprintln!("skipped: no usable GPU adapter");
    }
    usable
}

/// A fixture model on disk, written on first use into this build's scratch folder.
pub fn fixture(kind: Kind, weights: Weights) -> PathBuf {
    fixtures::write(&fixture_folder(), kind, weights)
}

/// This build's folder of fixture models.
pub fn fixture_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures")
}

/// The folder of extra models and tools beside the project: `ELIZA_SHARED`, or `../shared`. `None` where it is absent.
pub fn shared() -> Option<PathBuf> {
    let path = match std::env::var_os("ELIZA_SHARED") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"),
    };
    path.is_dir().then_some(path)
}

/// The folder of the demo model and what belongs to it.
pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

/// The demo model: a trained one that is always there.
pub fn demo() -> PathBuf {
    models().join("demo.gguf")
}

/// The trained 260K-parameter model of the shared folder, or a plain word that it is not there.
pub fn stories260k() -> Option<PathBuf> {
    let path = shared().map(|dir| dir.join("models/stories260k.gguf")).filter(|path| path.is_file());
    if path.is_none() {
        eprintln!(
            "skipped: stories260k.gguf is not on this machine (set ELIZA_SHARED to the folder that holds models/)"
        );
    }
    path
}

/// The small synthetic models of this machine (`ELIZA_MODELS`, or `target/models` where the parity run makes them)
/// whose file is present among `names`.
pub fn synthetic(names: &[&str]) -> Vec<PathBuf> {
    let dir = match std::env::var_os("ELIZA_MODELS") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models"),
    };
    let mut found = Vec::new();
    for name in names {
        let path = dir.join(name);
        if path.is_file() {
            found.push(path);
        } else {
            eprintln!("skipped: {name} is not on this machine (`make deep` makes it, or set ELIZA_MODELS)");
        }
    }
    found
}
