//! Shader texts and the pipelines made of them.
//!
//! WGSL has no preprocessor, so shaders are written with three kinds of lines of ours, which are comments to any WGSL
//! tool: `//#if NAME` (or `//#if !NAME`), `//#else` and `//#endif` choose lines by flags, and `//#include NAME` puts in
//! another text of the table. Numbers that Rust and WGSL share are given to [`compose`] as constants and stand in front
//! of the text as `const`s, so no number is written twice.
//!
//! A pipeline is made once per device and text.

use super::device::Gpu;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

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

/// A pipeline, ready to be dispatched.
pub struct Kernel {
    /// For messages.
    pub name: &'static str,
    /// The pipeline; its entry point is `main`.
    pub pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
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
                        let (_, part) = super::shaders::PARTS
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
    /// The pipeline of a finished text, made now or before.
    pub fn kernel(&self, name: &'static str, text: &str, slots: &[Slot]) -> Result<Arc<Kernel>> {
        let key = (text.to_string(), slots.to_vec());
        if let Some(kernel) = self.kernels.0.lock().get(&key) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(self.make(name, text, slots)?);
        self.kernels.0.lock().insert(key, kernel.clone());
        Ok(kernel)
    }

    fn make(&self, name: &'static str, text: &str, slots: &[Slot]) -> Result<Kernel> {
        #[cfg(test)]
        super::translation::check(name, text);
        self.check()?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let source = wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(text.into()) };
        let module = if self.checked {
            self.device.create_shader_module(source)
        } else {
            // SAFETY: the text is ours. Kernels guard their reads and writes themselves and their loops end; the same
            // texts run with the checks on in the tests.
            unsafe { self.device.create_shader_module_trusted(source, wgpu::ShaderRuntimeChecks::unchecked()) }
        };
        let entries: Vec<_> = slots.iter().enumerate().map(|(i, slot)| slot.entry(i as u32)).collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(Error::Device(format!("Shader `{name}` on {}: {error}", self.info.name)));
        }
        self.check()?;
        Ok(Kernel { name, pipeline, layout })
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
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &kernel.layout,
            entries: &entries,
        })
    }
}

impl Slot {
    fn entry(self, binding: u32) -> wgpu::BindGroupLayoutEntry {
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
