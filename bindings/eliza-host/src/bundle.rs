//! A bundle: a folder with a manifest, which may be left out, and the models in folders of their own.

use elizainference::gguf::File;
use elizainference::model::{Facts, architectures};
use elizainference::session::{OpenOptions, Session};
use elizainference::{Error, Result};
use std::path::{Component, Path, PathBuf};

const MANIFEST: &str = "eliza-1.manifest.json";
/// The most bytes of a manifest that are read.
const MAX_MANIFEST: u64 = 4 << 20;

/// The files of a bundle that this library uses.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    /// The text model: the manifest's first, else the first by name in `text/`.
    pub(crate) model: PathBuf,
}

impl Bundle {
    /// Reads the folder, not the model.
    ///
    /// # Errors
    /// [`Error::Model`] for a folder that is none or has no text model, and for a manifest that cannot be read.
    pub(crate) fn open(folder: &Path) -> Result<Bundle> {
        if !folder.is_dir() {
            return Err(unusable(folder, "no folder is there"));
        }
        let model = text_model(folder, &manifest(&folder.join(MANIFEST))?)?;
        Ok(Bundle { model: model.ok_or_else(|| unusable(&folder.join("text"), "there is no .gguf file"))? })
    }

    /// The text model without its weights: vocabulary and header.
    ///
    /// # Errors
    /// The reader's.
    pub(crate) fn vocabulary(&self) -> Result<Session> {
        Session::open(OpenOptions { path: self.model.clone(), vocab_only: true, ..Default::default() })
    }
}

/// Fails for a file that cannot be the draft model of `model`.
///
/// # Errors
/// The reader's; [`Error::Unsupported`] for the model itself where it has no block that predicts further tokens, and
/// for an architecture that cannot be run.
pub(crate) fn check_draft(draft: &Path, model: &Path) -> Result<()> {
    let refused = |problem: String| Err(Error::Unsupported(format!("{}: {problem}", draft.display())));
    let facts = Facts::of(&File::open(draft)?);
    let itself = draft.canonicalize().is_ok_and(|draft| model.canonicalize().is_ok_and(|model| draft == model));
    if itself && facts.nextn_layers.is_none() {
        return refused("a model without blocks that predict further tokens cannot draft for itself".into());
    }
    let architecture = facts.architecture.unwrap_or_default();
    match architectures().any(|known| known == architecture) {
        true => Ok(()),
        false => refused(format!("a draft model of architecture `{architecture}` cannot be run")),
    }
}

fn unusable(path: &Path, problem: &str) -> Error {
    Error::Model(format!("{}: {problem}", path.display()))
}

/// The manifest as JSON, null where there is none.
fn manifest(path: &Path) -> Result<serde_json::Value> {
    let Ok(about) = path.metadata() else { return Ok(serde_json::Value::Null) };
    if about.len() > MAX_MANIFEST {
        return Err(unusable(path, &format!("{} bytes, a manifest has at most {MAX_MANIFEST}", about.len())));
    }
    let bytes = std::fs::read(path).map_err(|error| unusable(path, &error.to_string()))?;
    let manifest: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| unusable(path, &format!("not valid JSON: {error}")))?;
    match manifest.is_object() {
        true => Ok(manifest),
        false => Err(unusable(path, "not a JSON object")),
    }
}

/// The text model: the first of the manifest's list, else the first by name in `text/`.
fn text_model(folder: &Path, manifest: &serde_json::Value) -> Result<Option<PathBuf>> {
    if let Some(named) = manifest["files"]["text"][0]["path"].as_str() {
        let file = folder.join(named);
        let inside = Path::new(named).components().all(|part| matches!(part, Component::Normal(_)));
        return match inside && file.is_file() {
            true => Ok(Some(file)),
            false => Err(unusable(&folder.join(MANIFEST), &format!("`{named}` is no file of the bundle"))),
        };
    }
    let files = std::fs::read_dir(folder.join("text")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_model = |path: &PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    Ok(files.filter(is_model).min())
}
