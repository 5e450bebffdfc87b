//! Slots saved to files, and restored.

use std::path::Path;

use elizainference::Result;
use elizainference::session::Session;
use napi::Env;
use napi::bindgen_prelude::Object;
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
}

fn save(session: &Session, slot: i32, path: &str) -> Result<()> {
    session.save_slot(slot, Path::new(terminated(path, "path")?))
}

fn restore(session: &Session, slot: i32, path: &str) -> Result<u32> {
    Ok(session.restore_slot(slot, Path::new(terminated(path, "path")?))? as u32)
}
