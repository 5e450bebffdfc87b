//! Windows: the library is never unloaded while it has threads.
//!
//! On ELF the linker's `-z nodelete` says so (`build.rs`); here the module is pinned at the first open, before the
//! first thread starts.

use std::ffi::c_void;

use crate::{Error, Result};

const FROM_ADDRESS: u32 = 4;
const PIN: u32 = 1;

unsafe extern "system" {
    fn GetModuleHandleExW(flags: u32, name_or_address: *const c_void, module: *mut *mut c_void) -> i32;
}

/// Pins the module that this function is in, until the process ends. Doing it again changes nothing.
pub(super) fn stay_loaded() -> Result<()> {
    let mut module = std::ptr::null_mut();
    // SAFETY: with FROM_ADDRESS the name is any address in the module, and `module` is writable.
    let done = unsafe { GetModuleHandleExW(FROM_ADDRESS | PIN, stay_loaded as *const c_void, &raw mut module) };
    if done == 0 {
        let reason = std::io::Error::last_os_error();
        return Err(Error::Internal(format!("The library cannot be kept loaded: {reason}")));
    }
    Ok(())
}
