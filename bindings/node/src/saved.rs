//! Slots saved to files, restored, pinned and warmed up.

use std::path::Path;

use elizainference::Result;
use elizainference::session::Session;
use napi::Env;
use napi::bindgen_prelude::{Int32Array, Object};
use napi_derive::napi;

use crate::background;
use crate::edge::{call, terminated};
use crate::handle::Handle;

#[napi]
impl Handle {
    /// A promise of nothing.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn save_slot<'env>(&self, env: &'env Env, slot: i32, path: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "save", move || save(&session, slot, &path))
    }

    /// As `saveSlot`, on the calling thread.
    #[napi]
    pub fn save_slot_sync(&self, slot: i32, path: String) -> napi::Result<()> {
        let session = self.idle_session()?;
        call(|| save(&session, slot, &path))
    }

    /// A promise of how many tokens the stream has.
    #[napi(ts_return_type = "Promise<number>")]
    pub fn restore_slot<'env>(&self, env: &'env Env, slot: i32, path: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "restore", move || restore(&session, slot, &path))
    }

    /// As `restoreSlot`, on the calling thread.
    #[napi]
    pub fn restore_slot_sync(&self, slot: i32, path: String) -> napi::Result<u32> {
        let session = self.idle_session()?;
        call(|| restore(&session, slot, &path))
    }

    /// A promise of nothing.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn persist<'env>(&self, env: &'env Env, slot: i32, key: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "save", move || session.persist(&key, slot))
    }

    /// A promise of how many tokens the stream has.
    #[napi(ts_return_type = "Promise<number>")]
    pub fn resume<'env>(&self, env: &'env Env, slot: i32, key: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "restore", move || Ok(session.resume(&key, slot)? as u32))
    }

    #[napi]
    pub fn forget(&self, key: String) -> napi::Result<bool> {
        let session = self.session()?;
        call(|| session.forget(&key))
    }

    #[napi]
    pub fn prewarm(&self, tokens: Int32Array, slot: i32) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.prewarm(&tokens, slot))
    }

    #[napi]
    pub fn open_slot(&self, slot: i32) -> napi::Result<Handle> {
        let session = self.session()?;
        call(|| session.open_slot(slot)).map(Handle::new)
    }

    #[napi]
    pub fn pin_slot(&self, slot: i32, pinned: bool) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.pin_slot(slot, pinned))
    }
}

fn save(session: &Session, slot: i32, path: &str) -> Result<()> {
    session.save_slot(slot, Path::new(terminated(path, "path")?))
}

fn restore(session: &Session, slot: i32, path: &str) -> Result<u32> {
    Ok(session.restore_slot(slot, Path::new(terminated(path, "path")?))? as u32)
}
