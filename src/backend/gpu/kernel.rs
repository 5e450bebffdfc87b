//! Shader texts and the pipelines made of them.
//!
//! WGSL has no preprocessor, so shaders are written with three kinds of lines of ours, which are comments to any WGSL
//! tool: `//#if NAME` (or `//#if !NAME`), `//#else` and `//#endif` choose lines by flags, and `//#include NAME` puts in
//! another text of the table. Numbers that Rust and WGSL share are given to [`compose`] as constants and stand in front
//! of the text as `const`s, so no number is written twice.
//!
//! A pipeline is made once per device and text.

use super::compile::Pipeline;
use super::device::Gpu;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a kernel sees a buffer, in the order of `@binding` numbers in group 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
    /// `var<uniform>`
    Uniform,
}

/// A pipeline with what it takes to dispatch it.
pub struct Kernel {
    /// For messages.
    pub name: &'static str,
    /// The pipeline; its entry point is `main`.
    pub pipeline: Pipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    /// Whether it gave a known answer on this device, see `probe.rs`.
    pub(super) tried: AtomicBool,
}

/// Every pipeline of a device, by its text and slots.
#[derive(Default)]
pub struct Cache(Mutex<HashMap<Key, Arc<Kernel>>>);

type Key = (String, Vec<Slot>);

/// The finished text of a shader: constants, then `source` with its own lines resolved.
pub fn compose(source: &str, flags: &[&str], constants: &[(&str, u32)]) -> Result<String> {
    let mut text = String::with_capacity(source.len() + 1024);
    for (name, value) in constants {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    resolve(source, flags, &mut text)?;
    Ok(text)
}

fn resolve(source: &str, flags: &[&str], text: &mut String) -> Result<()> {
    // One entry per open `if`: whether its present branch is taken.
    let mut taken: Vec<bool> = Vec::new();
    let broken = |line: &str| Error::Internal(format!("Shader line `{line}`"));
    for line in source.lines() {
        match line.trim().strip_prefix("//#") {
            None if taken.iter().all(|&t| t) => {
                text.push_str(line);
                text.push('\n');
            }
            None => {}
            Some(command) => match command.trim().split_once(' ') {
                Some(("if", condition)) => {
                    let flag = condition.trim();
                    taken.push(match flag.strip_prefix('!') {
                        Some(flag) => !flags.contains(&flag),
                        None => flags.contains(&flag),
                    });
                }
                Some(("include", name)) => {
                    if taken.iter().all(|&t| t) {
                        let (_, part) = super::shaders::TEXTS
                            .iter()
                            .find(|(known, _)| *known == name.trim())
                            .ok_or_else(|| broken(line))?;
                        resolve(part, flags, text)?;
                    }
                }
                None if command.trim() == "else" => match taken.last_mut() {
                    Some(last) => *last = !*last,
                    None => return Err(broken(line)),
                },
                None if command.trim() == "endif" => drop(taken.pop().ok_or_else(|| broken(line))?),
                _ => return Err(broken(line)),
            },
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(Error::Internal("Shader with an open //#if".into())) }
}

impl Gpu {
    /// The kernel of a finished text, made now or before. It is compiled in the background: before it is dispatched,
    /// [`Gpu::compiled`] says whether that went well.
    pub fn kernel(&self, name: &'static str, text: &str, slots: &[Slot]) -> Result<Arc<Kernel>> {
        let key = (text.to_string(), slots.to_vec());
        let mut kernels = self.kernels.0.lock();
        if let Some(kernel) = kernels.get(&key) {
            return Ok(kernel.clone());
        }
        #[cfg(test)]
        super::translation::check(name, text);
        let kernel = self.compile(name, text.to_string(), slots)?;
        self.made.pipelines.fetch_add(1, Ordering::Relaxed);
        kernels.insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Names and finished texts of all kernels made so far, for tests.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        self.kernels.0.lock().iter().map(|((text, _), kernel)| (kernel.name, text.clone())).collect()
    }

    /// The buffers of one dispatch of a kernel, in the order of its slots.
    pub fn bind(&self, kernel: &Kernel, buffers: &[wgpu::BufferBinding<'_>]) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, buffer)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(buffer.clone()),
            })
            .collect();
        self.made.bind_groups.fetch_add(1, Ordering::Relaxed);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &kernel.layout,
            entries: &entries,
        })
    }
}

impl Slot {
    pub(super) fn entry(self, binding: u32) -> wgpu::BindGroupLayoutEntry {
        let ty = match self {
            Slot::Read => wgpu::BufferBindingType::Storage { read_only: true },
            Slot::Write => wgpu::BufferBindingType::Storage { read_only: false },
            Slot::Uniform => wgpu::BufferBindingType::Uniform,
        };
        wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_chosen_by_flags() {
        let source = "a\n//#if X\nb\n//#if !Y\nc\n//#endif\n//#else\nd\n//#endif\ne";
        assert_eq!(compose(source, &["X"], &[("N", 3)]).unwrap(), "const N: u32 = 3u;\na\nb\nc\ne\n");
        assert_eq!(compose(source, &["X", "Y"], &[]).unwrap(), "a\nb\ne\n");
        assert_eq!(compose(source, &[], &[]).unwrap(), "a\nd\ne\n");
        for broken in ["//#if X", "//#else", "//#endif", "//#include nothing", "//#what"] {
            assert!(compose(broken, &[], &[]).is_err(), "{broken}");
        }
    }
}
