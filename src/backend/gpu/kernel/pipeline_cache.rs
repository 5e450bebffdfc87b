//! Compiled shaders kept on disk between processes.
//!
//! One file for each adapter, driver and set of shader texts, in `ELIZA_CACHE_DIR` (empty: none), else in the user's
//! cache folder. A file begins with a magic number, the key that is also its name, and the hash of its content; a file
//! that does not fit counts as absent. No failure here is an error: it is logged, and kernels are compiled.
//!
//! A driver trusts the data of its cache, and a hash is no signature. So no file is used that another user could have
//! written (`backend/own_files.rs`).

use crate::backend::gpu::shaders;
use crate::backend::own_files::{create_beside, refuse_others};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"elizapc1";
type Hash = [u8; 32];
const HEADER: usize = MAGIC.len() + 2 * size_of::<Hash>();

/// The pipelines of one device.
pub struct PipelineCache {
    /// The cache object that pipelines are made with.
    pub pipelines: wgpu::PipelineCache,
    file: PathBuf,
    key: Hash,
}

impl PipelineCache {
    /// The cache of a device that has [`wgpu::Features::PIPELINE_CACHE`], filled from disk; `None` where it is turned
    /// off, or where other users could write to the folder.
    pub fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<PipelineCache> {
        let folder = folder(&|name| std::env::var_os(name))?;
        if let Err(e) = make_folder(&folder) {
            log::warn!("Compiled shaders are not kept in {}: {e}", folder.display());
            return None;
        }
        let key = key(info);
        let name: String = key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let file = folder.join(format!("pipelines-{name}"));
        let data = read(&file, &key);
        let descriptor = wgpu::PipelineCacheDescriptor { label: Some("eliza"), data: data.as_deref(), fallback: true };
        // SAFETY: the data is what `get_data` gave for the same adapter, driver and texts. It is from a file that
        // nobody but this user can have written (checked on Unix, see above for Windows), and as this program wrote it:
        // its key and hash were compared just now.
        let pipelines = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(PipelineCache { pipelines, file, key })
    }

    /// Write the cache to disk.
    pub fn save(&self) {
        let Some(data) = self.pipelines.get_data() else { return };
        if let Err(e) = write(&self.file, &self.key, &data) {
            log::warn!("Compiled shaders are not kept in {}: {e}", self.file.display());
        }
    }
}

/// Where files are kept, by the environment.
fn folder(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(own) = env("ELIZA_CACHE_DIR") {
        return (!own.is_empty()).then(|| own.into());
    }
    let set = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else {
        set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
    };
    user.map(|user| user.join("eliza-inference"))
}

/// The key of a file: adapter, driver and shader texts.
fn key(info: &wgpu::AdapterInfo) -> Hash {
    let mut hash = Sha256::new();
    let numbers = format!("{} {} {:?}", info.vendor, info.device, info.backend);
    let texts = shaders::TEXTS.iter().map(|(_, text)| *text);
    let parts = [&info.name, &info.driver, &info.driver_info, &numbers].map(String::as_str);
    for part in parts.into_iter().chain([env!("CARGO_PKG_VERSION")]).chain(texts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Creates the folder where it is missing, for this user alone. An error where another user could write to it.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    builder.mode(0o700);
    builder.recursive(true).create(folder)?;
    refuse_others(&std::fs::metadata(folder)?)
}

/// The bytes of a file that nobody else could have written.
fn own_bytes(file: &Path) -> io::Result<Vec<u8>> {
    let mut opened = File::open(file)?;
    refuse_others(&opened.metadata()?)?;
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The content of a file in the folder of [`make_folder`].
fn read(file: &Path, key: &Hash) -> Option<Vec<u8>> {
    let mut bytes = match own_bytes(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        Err(e) => {
            log::warn!("Compiled shaders in {} cannot be read: {e}", file.display());
            return None;
        }
    };
    let sound = bytes.get(..HEADER).is_some_and(|header| *header == self::header(key, &bytes[HEADER..]));
    if !sound {
        log::warn!("{} holds no compiled shaders of this version and driver: ignored", file.display());
        return None;
    }
    bytes.drain(..HEADER);
    Some(bytes)
}

fn header(key: &Hash, data: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..40].copy_from_slice(key);
    header[40..].copy_from_slice(&Sha256::digest(data));
    header
}

/// Write a whole file; see [`create_beside`].
fn write(file: &Path, key: &Hash, data: &[u8]) -> io::Result<()> {
    let (mut made, temporary) = create_beside(file)?;
    let written = made.write_all(&header(key, data)).and_then(|()| made.write_all(data));
    drop(made);
    let renamed = written.and_then(|()| std::fs::rename(&temporary, file));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    renamed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_not_as_written_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, key) = (folder.path().join("sub").join("pipelines"), [7; 32]);
        assert_eq!(read(&file, &key), None);
        make_folder(file.parent().unwrap()).unwrap();
        write(&file, &key, b"compiled").unwrap();
        assert_eq!(read(&file, &key).unwrap(), b"compiled");
        assert_eq!(read(&file, &[8; 32]), None, "another driver's");
        let whole = std::fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            std::fs::write(&file, broken).unwrap();
            assert_eq!(read(&file, &key), None, "byte {at}");
            std::fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(read(&file, &key), None, "cut at {at}");
        }
        write(&file, &key, b"again").unwrap();
        assert_eq!(read(&file, &key).unwrap(), b"again");
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn l11_what_others_can_write_is_not_used() {
        use std::fs::{Permissions, metadata, set_permissions};
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
        let outer = tempfile::tempdir().unwrap();
        let (folder, key) = (outer.path().join("cache"), [7; 32]);
        let file = folder.join("pipelines");
        let chmod = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        make_folder(&folder).unwrap();
        write(&file, &key, b"compiled").unwrap();
        assert_eq!(metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&file, &key).unwrap(), b"compiled");
        for mode in [0o620, 0o602, 0o666] {
            chmod(&file, mode);
            assert_eq!(read(&file, &key), None, "{mode:o}");
        }
        chmod(&file, 0o644);
        assert!(read(&file, &key).is_some());
        for mode in [0o770, 0o777, 0o1777] {
            chmod(&folder, mode);
            assert_eq!(make_folder(&folder).unwrap_err().kind(), ErrorKind::PermissionDenied, "{mode:o}");
        }
        chmod(&folder, 0o755);
        make_folder(&folder).unwrap();
        // Only root can give a file away.
        if chown(&file, Some(1), None).is_ok() {
            assert_eq!(read(&file, &key), None, "another user's file");
            chown(&folder, Some(1), None).unwrap();
            assert!(make_folder(&folder).is_err(), "another user's folder");
        }
        // A link to such a folder is refused too.
        chmod(&folder, 0o777);
        let link = outer.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(make_folder(&link).is_err());
    }

    #[test]
    fn folders() {
        let with = |set: &[(&str, &str)]| {
            folder(&|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)))
        };
        assert_eq!(with(&[("ELIZA_CACHE_DIR", ""), ("HOME", "/h")]), None);
        assert_eq!(with(&[("ELIZA_CACHE_DIR", "/c"), ("HOME", "/h")]), Some("/c".into()));
        assert_eq!(with(&[]), None);
        if cfg!(unix) {
            assert_eq!(with(&[("HOME", "/h")]), Some("/h/.cache/eliza-inference".into()));
            assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/eliza-inference".into()));
        }
    }
}
