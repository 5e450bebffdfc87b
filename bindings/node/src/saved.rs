//! Slots saved to files, and restored.

use std::path::Path;

use napi::Env;
use napi::bindgen_prelude::Object;
use napi_derive::napi;

use crate::background;
use crate::edge::terminated;
use crate::handle::Handle;

#[napi]
impl Handle {
    /// A promise of nothing.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn save_slot<'env>(&self, env: &'env Env, slot: i32, path: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "save", move || session.save_slot(slot, Path::new(terminated(&path, "path")?)))
    }

    /// A promise of how many tokens the stream has.
    #[napi(ts_return_type = "Promise<number>")]
    pub fn restore_slot<'env>(&self, env: &'env Env, slot: i32, path: String) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "restore", move || {
            Ok(session.restore_slot(slot, Path::new(terminated(&path, "path")?))? as u32)
        })
    }
}
