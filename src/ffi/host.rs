//! Finding the llama.cpp of the host in this process.
//!
//! A sampler for a llama.cpp chain is freed by that library's C++ `delete`, so its shell must come from the
//! `llama_sampler_init` of the same copy. It is searched in three places, in this order: the function that the host
//! passed, the process-wide symbols, every loaded object. The last finds a libllama that was opened with `RTLD_LOCAL`,
//! as Node, Bun and Python do. Objects are matched by the exported symbol, because the file's name varies.
//!
//! The search is repeated for every sampler: a host may close one libllama and open another.

use std::ffi::{CStr, c_void};

use parking_lot::Mutex;

use super::llama::{Init, SamplerInit, VocabTokens};

const INIT: &CStr = c"llama_sampler_init";
const VOCAB_TOKENS: &CStr = c"llama_vocab_n_tokens";

/// What the library calls in the host's llama.cpp.
#[derive(Clone, Copy)]
pub(super) struct Host {
    pub(super) init: Init,
    /// Missing in a libllama from before 2025, and where the host's own code provides `llama_sampler_init`.
    pub(super) vocab_tokens: Option<VocabTokens>,
}

static EXPLICIT: Mutex<SamplerInit> = Mutex::new(None);

/// Sets the function that [`find`] returns first; `None` leaves it to the search.
pub(super) fn set_init(init: SamplerInit) {
    *EXPLICIT.lock() = init;
}

/// The host's llama.cpp, if there is one in the process.
pub(super) fn find() -> Option<Host> {
    let explicit = *EXPLICIT.lock();
    if let Some(init) = explicit {
        let tokens = objects::of_address(init as *const c_void, VOCAB_TOKENS);
        return Some(Host { init, vocab_tokens: tokens.map(vocab_tokens) });
    }
    let [init, tokens] = objects::find([INIT, VOCAB_TOKENS])?;
    // SAFETY: a symbol of this name is llama.cpp's function of this signature, unchanged since it exists.
    let init = unsafe { std::mem::transmute::<*mut c_void, Init>(init?) };
    Some(Host { init, vocab_tokens: tokens.map(vocab_tokens) })
}

fn vocab_tokens(symbol: *mut c_void) -> VocabTokens {
    // SAFETY: a symbol of this name is llama.cpp's function of this signature, unchanged since it exists.
    unsafe { std::mem::transmute::<*mut c_void, VocabTokens>(symbol) }
}

/// Symbols of one object, in the order asked for; the first is never missing.
type Symbols = [Option<*mut c_void>; 2];

#[cfg(unix)]
mod objects {
    use std::ffi::{CStr, CString, c_void};

    use super::Symbols;

    /// The symbols of the first object that has the first of them.
    pub(super) fn find(symbols: [&CStr; 2]) -> Option<Symbols> {
        let global = symbols.map(|symbol| symbol_of(libc::RTLD_DEFAULT, symbol));
        if global[0].is_some() {
            return Some(global);
        }
        names().iter().find_map(|name| {
            let object = Object::open(name)?;
            let found = symbols.map(|symbol| symbol_of(object.0, symbol));
            found[0].is_some().then_some(found)
        })
    }

    /// The symbol of the object that `address` is in.
    pub(super) fn of_address(address: *const c_void, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: all zeroes are a valid value of this structure of plain pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked about, and `info` is writable.
        if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the loader's name of the object is terminated and lives as long as the object, whose code called us.
        let object = Object::open(unsafe { CStr::from_ptr(info.dli_fname) })?;
        symbol_of(object.0, symbol)
    }

    fn symbol_of(object: *mut c_void, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: the object is open, or the handle for all objects, and the name is terminated.
        let found = unsafe { libc::dlsym(object, symbol.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// A reference to an object that is loaded already.
    struct Object(*mut c_void);

    impl Object {
        fn open(name: &CStr) -> Option<Object> {
            // SAFETY: the name is terminated; with NOLOAD nothing is loaded and no code of the object runs.
            let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            (!object.is_null()).then(|| Object(object))
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            // SAFETY: from dlopen, closed once. Its symbols stay: whoever loaded the object still holds it.
            unsafe { libc::dlclose(self.0) };
        }
    }

    /// The names of the loaded objects, in the order they were loaded. Collected before any is opened, for the loader
    /// holds a lock while it lists them.
    #[cfg(not(target_vendor = "apple"))]
    fn names() -> Vec<CString> {
        unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> libc::c_int {
            // SAFETY: the loader passes a valid structure, and `names` is the vector given to it below.
            let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
            if !name.is_null() {
                // SAFETY: a name of the loader is terminated.
                let name = unsafe { CStr::from_ptr(name) };
                // The program itself has no name; its symbols are among those that all objects see.
                if !name.is_empty() {
                    names.push(name.to_owned());
                }
            }
            0
        }
        let mut names: Vec<CString> = Vec::new();
        // SAFETY: `note` takes what the loader passes, and the vector outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
        names
    }

    /// The names of the loaded objects.
    #[cfg(target_vendor = "apple")]
    fn names() -> Vec<CString> {
        unsafe extern "C" {
            fn _dyld_image_count() -> u32;
            fn _dyld_get_image_name(index: u32) -> *const libc::c_char;
        }
        // SAFETY: takes no argument.
        let count = unsafe { _dyld_image_count() };
        let name = |index| {
            // SAFETY: an index that is out of range by now gives null.
            let name = unsafe { _dyld_get_image_name(index) };
            // SAFETY: not null, and a name of the loader is terminated.
            (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
        };
        (0..count).filter_map(name).collect()
    }
}

#[cfg(windows)]
mod objects {
    use std::ffi::{CStr, c_char, c_void};

    use super::Symbols;

    const FROM_ADDRESS: u32 = 4;
    const UNCHANGED_REFCOUNT: u32 = 2;

    unsafe extern "system" {
        fn GetCurrentProcess() -> *mut c_void;
        fn K32EnumProcessModules(process: *mut c_void, modules: *mut *mut c_void, bytes: u32, needed: *mut u32) -> i32;
        fn GetModuleHandleExW(flags: u32, name_or_address: *const c_void, module: *mut *mut c_void) -> i32;
        fn GetProcAddress(module: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    /// The symbols of the first module that has the first of them. Windows has no process-wide symbols.
    pub(super) fn find(symbols: [&CStr; 2]) -> Option<Symbols> {
        modules().into_iter().find_map(|module| {
            let found = symbols.map(|symbol| symbol_of(module, symbol));
            found[0].is_some().then_some(found)
        })
    }

    /// The symbol of the module that `address` is in.
    pub(super) fn of_address(address: *const c_void, symbol: &CStr) -> Option<*mut c_void> {
        let mut module = std::ptr::null_mut();
        let flags = FROM_ADDRESS | UNCHANGED_REFCOUNT;
        // SAFETY: with FROM_ADDRESS the name is any address, and `module` is writable.
        let known = unsafe { GetModuleHandleExW(flags, address, &raw mut module) } != 0;
        if known { symbol_of(module, symbol) } else { None }
    }

    fn symbol_of(module: *mut c_void, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: the module is loaded, and the name is terminated.
        let found = unsafe { GetProcAddress(module, symbol.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn modules() -> Vec<*mut c_void> {
        let mut modules: Vec<*mut c_void> = vec![std::ptr::null_mut(); 256];
        loop {
            let bytes = size_of_val(modules.as_slice());
            let mut needed = 0;
            // SAFETY: the call writes at most `bytes` bytes of module handles, and `needed`.
            let done = unsafe {
                K32EnumProcessModules(GetCurrentProcess(), modules.as_mut_ptr(), bytes as u32, &raw mut needed)
            };
            let count = if done == 0 { 0 } else { needed as usize / size_of::<*mut c_void>() };
            if count <= modules.len() {
                modules.truncate(count);
                return modules;
            }
            modules.resize(count, std::ptr::null_mut());
        }
    }
}
