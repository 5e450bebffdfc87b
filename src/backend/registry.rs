//! The devices of this machine, and which backends an open uses.

#[cfg(feature = "gpu")]
use super::gpu;
use super::memory::Memory;
use super::{Backend, DeviceInfo, cpu};
use crate::gguf::shown;
use crate::{Error, Result};
use std::sync::Arc;

/// Every device of this machine with its memory, highest score first; a device with score 0 cannot be used, for the
/// reason it gives.
///
/// # Errors
/// [`Error::InvalidArgument`] where `ELIZA_MEMORY_LIMIT` is not a number of bytes.
pub fn devices() -> Result<Vec<(DeviceInfo, Memory)>> {
    let cpu = cpu::CpuBackend::new();
    let mut all = vec![(cpu.device(), cpu.memory()?)];
    #[cfg(feature = "gpu")]
    all.extend(gpu::devices());
    all.sort_by_key(|(device, _)| std::cmp::Reverse(device.score));
    Ok(all)
}

/// The backends that an open uses: the CPU first, then the GPUs where layers are placed on some.
///
/// `gpu_layers` other than 0 asks for a GPU; `device` (or else `ELIZA_BACKEND`) narrows the choice by name, or names
/// several GPUs, separated by semicolons. `gpus` is their number; with one name or none so many are taken, and 0 is as
/// many as there are names. Asking for a GPU where none works is an error with the reason, never a silent run on the
/// CPU.
///
/// # Errors
/// [`Error::Unsupported`] with the reason where no device of that name can be used, [`Error::Device`] where the device
/// cannot be opened, [`Error::InvalidArgument`] for other than `gpus` names, and where `ELIZA_GPU_RESTRICT` cannot be
/// read.
pub fn choose(gpu_layers: i32, device: Option<&str>, gpus: usize) -> Result<Vec<Arc<dyn Backend>>> {
    let named = device.map(str::to_string).or_else(|| std::env::var("ELIZA_BACKEND").ok()).filter(|s| !s.is_empty());
    let cpu: Arc<dyn Backend> = Arc::new(cpu::CpuBackend::new());
    if gpu_layers == 0 {
        let wanted = named.as_deref().unwrap_or_default().to_lowercase();
        let name = cpu.device().name;
        if !name.to_lowercase().contains(&wanted) {
            let wanted = shown(&wanted);
            let problem = format!("Device `{wanted}` for 0 GPU layers: without GPU layers only {name} is used");
            return Err(Error::Unsupported(problem));
        }
        return Ok(vec![cpu]);
    }
    let names = named.as_deref().unwrap_or_default().split(';').map(str::trim);
    let mut names: Vec<_> =
        names.map(|name| Some(name).filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("gpu"))).collect();
    match names[..] {
        [name] => names = vec![name; gpus.max(1)],
        _ if gpus != 0 && gpus != names.len() => {
            let (named, count) = (shown(named.as_deref().unwrap_or_default()), names.len());
            return Err(Error::InvalidArgument(format!("{gpus} shares for the {count} devices `{named}`")));
        }
        _ => {}
    }
    Ok([cpu].into_iter().chain(open_gpus(gpu_layers, &names)?).collect())
}

#[cfg(feature = "gpu")]
fn open_gpus(_: i32, wanted: &[Option<&str>]) -> Result<Vec<Arc<dyn Backend>>> {
    Ok(gpu::GpuBackend::open(wanted)?.into_iter().map(|gpu| Arc::new(gpu) as Arc<dyn Backend>).collect())
}

#[cfg(not(feature = "gpu"))]
fn open_gpus(layers: i32, _: &[Option<&str>]) -> Result<Vec<Arc<dyn Backend>>> {
    let what = if layers < 0 { "All layers".to_string() } else { format!("{layers} layers") };
    Err(Error::Unsupported(format!("{what} on a GPU: this build has no GPU backend (0 runs on the CPU)")))
}
